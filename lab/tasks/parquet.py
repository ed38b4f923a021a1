"""Parquet → a plain table. The footer is looked at before anything is unpacked, and unpacking stops at the limits.

pyarrow is C++ that reads what a file claims about itself, so an upload is read in a locked process (`read_apart`); the
checks here make the answer a sentence. Values that have no place in JSON become text (dates, decimals); columns of
bytes are left out and named. Nothing pickled is ever read: pyarrow's extension types are turned back to what they store.
"""

from __future__ import annotations

import datetime
import decimal
import io
from typing import Any

from lab.tasks.errors import TaskError
from lab.tasks.tables import MAGIC, Counted, Limits, Table, check_columns

ROWS_AT_A_TIME = 64  # how much is unpacked before the limits are looked at


def parquet_table(data: bytes, name: str, limits: Limits) -> Table:
    """The table in the bytes of a Parquet file. Raises TaskError."""
    _check_frame(data, name)
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(data), thrift_string_size_limit=16 << 20, thrift_container_size_limit=1 << 20)
        _check_footer(file.metadata, name, limits)
        schema = file.schema_arrow
        check_columns(schema.names, name, limits)
        kept = [field.name for field in schema if _can_be_read(field.type)]
        if not kept:
            raise TaskError(f"{name} has only columns of bytes: it needs a column of text with the prompts.")
        rows = list(_rows(file, kept, name, limits))
    except (pa.ArrowException, OSError, MemoryError, OverflowError) as error:
        raise TaskError(f"{name} is not a Parquet file that can be read ({_short(error)}). Write it again, or save it as JSONL.") from error
    if not rows:
        raise TaskError(f"{name} has no rows: it needs a row for each prompt.")
    left_out = [column for column in schema.names if column not in kept]
    notes = [f"Left out, because bytes are no text: {', '.join(left_out)}."] if left_out else []
    return Table(kept, rows, notes)


def _check_frame(data: bytes, name: str) -> None:
    if data[:4] == b"PAR1" and data[-4:] == b"PAR1" and len(data) >= 12:
        if int.from_bytes(data[-8:-4], "little") <= len(data) - 12:
            return
        raise TaskError(f"{name} claims a footer larger than itself: it is damaged. Write it again.")
    if data[:4] == b"PAR1":
        raise TaskError(f"{name} is a Parquet file that was cut off. Copy or write it again.")
    what = next((what for magic, what in MAGIC if data.startswith(magic)), "something else")
    raise TaskError(f"{name} is not a Parquet file but {what}. Save the rows as Parquet, CSV or JSONL.")


def _check_footer(footer: Any, name: str, limits: Limits) -> None:
    """What the file claims; a file that claims less than it holds meets the same limits while it is read."""
    if footer.num_rows > limits.rows:
        raise TaskError(f"{name} claims {footer.num_rows:,} rows; at most {limits.rows:,} are taken. Take a part of it.")
    if footer.num_columns > limits.columns:
        raise TaskError(f"{name} has {footer.num_columns:,} columns; at most {limits.columns} are taken.")
    groups = [footer.row_group(place) for place in range(min(footer.num_row_groups, 10_000))]
    unpacked = sum(max(0, group.total_byte_size) for group in groups)
    if unpacked > 2 * limits.table_bytes:
        raise TaskError(f"{name} would unpack to {unpacked / 1e6:,.0f} MB; at most {limits.table_bytes / 1e6:,.0f} MB are taken.")


def _rows(file: Any, columns: list[str], name: str, limits: Limits):
    counted = Counted(name, limits)
    for batch in file.iter_batches(batch_size=ROWS_AT_A_TIME, columns=columns, use_threads=False):
        if batch.nbytes > limits.table_bytes:
            raise TaskError(f"{name} holds more than {limits.table_bytes / 1e6:,.0f} MB of text: take a part of it.")
        cells = [[_plain(value) for value in column.to_pylist()] for column in batch.columns]
        for values in zip(*cells, strict=True):
            yield counted.take(dict(zip(columns, values, strict=True)), f"{name}, row {counted.rows + 1}")


def _can_be_read(kind: Any) -> bool:
    import pyarrow.types as types

    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _can_be_read(kind.value_type)
    if types.is_struct(kind):
        return all(_can_be_read(kind.field(place).type) for place in range(kind.num_fields))
    if types.is_dictionary(kind):
        return _can_be_read(kind.value_type)
    known = (types.is_string, types.is_large_string, types.is_string_view, types.is_integer, types.is_floating, types.is_boolean,
             types.is_null, types.is_temporal, types.is_decimal)
    return any(is_one(kind) for is_one in known)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (datetime.date, datetime.time, datetime.datetime)):
        return value.isoformat()
    return str(value) if isinstance(value, (decimal.Decimal, datetime.timedelta)) else value


def _short(error: Exception) -> str:
    return (str(error).strip().split("\n")[0] or type(error).__name__)[:120].rstrip(".")
