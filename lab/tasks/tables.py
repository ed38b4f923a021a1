"""Files of rows → a plain table: JSONL, JSON, CSV (Parquet: `parquet`), read with limits and refused with one sentence.

A table is all there or not at all: every reader checks while it reads and gives up at the first thing that is wrong.
Nothing is guessed: the text is UTF-8 (with or without a byte-order mark, with any line ends), cells of a CSV stay text,
and what looks like a formula is text too. Nothing here can run code: no pickle, no archives. Whoever reads bytes of
strangers reads them in a process of their own (`read_apart`). Leaves out what the columns mean (`mapping`).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.errors import Unreadable, opening, with_plain_ends
from lab.tasks.errors import TaskError

FORMATS = {".jsonl": "JSONL", ".json": "JSON", ".csv": "CSV", ".tsv": "CSV", ".parquet": "Parquet"}
PICKLE = "a Python pickle, which can run code when it is read"
MAGIC = (*((bytes((0x80, version)), PICKLE) for version in (2, 3, 4, 5)), (b"PK\x03\x04", "a ZIP archive (an Excel workbook is one too)"),
         (b"\x1f\x8b", "a gzip archive"), (b"BZh", "a bzip2 archive"), (b"\xfd7zXZ", "an xz archive"), (b"7z\xbc\xaf", "a 7z archive"),
         (b"\x28\xb5\x2f\xfd", "a zstd archive"), (b"PAR1", "a Parquet file"), (b"SQLite format 3", "an SQLite file"), (b"%PDF", "a PDF"),
         (b"\xd0\xcf\x11\xe0", "an old Office file"), (b"\x7fELF", "a program"), (b"\x89PNG", "a picture"), (b"\x89HDF", "an HDF5 file"),
         (b"\xff\xfe", "text in UTF-16"), (b"\xfe\xff", "text in UTF-16"))


@dataclass(frozen=True)
class Limits:
    """How much of a file is accepted."""

    file_bytes: int
    rows: int
    columns: int = 200
    cell_characters: int = 200_000
    table_bytes: int = 4 << 30  # of all cells together, unpacked
    depth: int = 8  # lists and objects within each other


UPLOAD = Limits(file_bytes=20 << 20, rows=100_000, columns=100, cell_characters=50_000, table_bytes=64 << 20)
OWN = Limits(file_bytes=4 << 30, rows=20_000_000)  # a file that its owner names on their own machine


@dataclass
class Table:
    """Rows with the same columns in the same order; a cell that a row does not have is None."""

    columns: list[str]
    rows: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)  # what was left out, in sentences


def read_table(path: str | Path, limits: Limits = OWN, *, name: str | None = None) -> Table:
    """The table in a .jsonl, .json, .csv, .tsv or .parquet file. Raises TaskError."""
    path, name = Path(path), name or str(path)
    try:
        with opening(path):
            size = path.stat().st_size
            data = path.read_bytes() if size <= limits.file_bytes else b""
    except Unreadable as error:
        raise TaskError(str(error)) from error
    if size > limits.file_bytes:
        raise TaskError(f"{name} has {size / 1e6:,.1f} MB; at most {limits.file_bytes / 1e6:,.0f} MB are taken. Make it smaller.")
    return table_of(data, name, limits)


def table_of(data: bytes, name: str, limits: Limits) -> Table:
    """The table in the bytes of a file called `name`, whose ending says what it is. Raises TaskError."""
    kind = FORMATS.get(Path(name).suffix.lower())
    if kind is None:
        raise TaskError(f"{name} does not end in {', '.join(FORMATS)}: save the rows in one of these formats.")
    if len(data) > limits.file_bytes:
        raise TaskError(f"{name} has more than {limits.file_bytes / 1e6:,.0f} MB. Make it smaller.")
    if not data.strip():
        raise TaskError(f"{name} is empty: it needs a row for each prompt.")
    if kind == "Parquet":
        from lab.tasks.parquet import parquet_table

        return parquet_table(data, name, limits)
    rows = list((_csv_rows if kind == "CSV" else _json_rows)(_text(data, name), name, limits))
    return _table(rows, name, limits)


def check_cell(value: Any, where: str, limits: Limits, depth: int = 1) -> int:
    """The size of a cell in characters; TaskError for what is too large, too deep, not finite or not text that can be stored."""
    if isinstance(value, str):
        if len(value) > limits.cell_characters:
            raise TaskError(f"{where} has {len(value):,} characters; a cell may have {limits.cell_characters:,}.")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise TaskError(f"{where} holds half a character (a lone surrogate) at position {error.start}: write the character "
                            f"itself.") from error
        return len(value)
    if isinstance(value, float) and not -1e308 <= value <= 1e308:
        raise TaskError(f"{where} is {value}: leave the cell empty (null) where there is no number.")
    if not isinstance(value, (list, dict)):
        return 8
    if depth > limits.depth:
        raise TaskError(f"{where} nests lists and objects more than {limits.depth} deep: flatten it.")
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    size = sum((len(key) if isinstance(key, str) else 8) + check_cell(item, where, limits, depth + 1) for key, item in inner)
    if size > limits.cell_characters:
        raise TaskError(f"{where} has {size:,} characters; a cell may have {limits.cell_characters:,}.")
    return size


def check_columns(columns: Iterable[Any], name: str, limits: Limits) -> list[str]:
    """The columns as they are; TaskError for too many, unnamed or equal ones."""
    columns = list(columns)
    if len(columns) > limits.columns:
        raise TaskError(f"{name} has {len(columns):,} columns; at most {limits.columns} are taken.")
    for place, column in enumerate(columns, start=1):
        if not isinstance(column, str) or not column.strip() or len(column) > 200:
            raise TaskError(f"{name}: column {place} has no usable name ({str(column)[:40]!r}). Give every column a name of its own.")
        if column in columns[:place - 1]:
            raise TaskError(f"{name} has two columns named {column!r}. Give every column a name of its own.")
    return columns


class Counted:
    """Counts rows and sizes as they are read, and gives up in time."""

    def __init__(self, name: str, limits: Limits):
        self.name, self.limits, self.rows, self.size = name, limits, 0, 0

    def take(self, row: dict[str, Any], where: str) -> dict[str, Any]:
        """The row, once counted and measured; TaskError, which names `where`, as soon as a limit is passed."""
        self.rows += 1
        if self.rows > self.limits.rows:
            raise TaskError(f"{self.name} has more than {self.limits.rows:,} rows: take a part of it.")
        if len(row) > self.limits.columns:
            raise TaskError(f"{where} has {len(row):,} columns; at most {self.limits.columns} are taken.")
        self.size += sum(check_cell(value, f"{where}, column {column!r}", self.limits) for column, value in row.items())
        if self.size > self.limits.table_bytes:
            raise TaskError(f"{self.name} holds more than {self.limits.table_bytes / 1e6:,.0f} MB of text: take a part of it.")
        return row


def neutral_cell(value: Any) -> str:
    """A cell as text for a CSV that a spreadsheet may open: what would be a formula there gets an apostrophe before it."""
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    dangerous = isinstance(value, str) and text.lstrip(" ")[:1] in ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")
    return f"'{text}" if dangerous and not _is_number(text) else text


def csv_text(rows: list[dict[str, Any]]) -> str:
    """The rows as CSV, safe to open in a spreadsheet."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([neutral_cell(column) for column in columns])
    writer.writerows([neutral_cell(row.get(column)) for column in columns] for row in rows)
    return out.getvalue()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _table(rows: list[dict[str, Any]], name: str, limits: Limits) -> Table:
    if not rows:
        raise TaskError(f"{name} has no rows under its header: it needs a row for each prompt.")
    columns = check_columns(dict.fromkeys(column for row in rows for column in row), name, limits)
    return Table(columns, [{column: row.get(column) for column in columns} for row in rows])


def _text(data: bytes, name: str) -> str:
    for magic, what in MAGIC:
        if data.startswith(magic):
            raise TaskError(f"{name} is {what}, not a {FORMATS[Path(name).suffix.lower()]} file. Save it as UTF-8 text.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TaskError(f"{name} is not UTF-8 text (line {line}, byte {data[error.start]:#04x}): save it as UTF-8.") from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise TaskError(f"{name} holds zero bytes in line {line}: it is not text. Save it as UTF-8.")
    return text


def _json_rows(text: str, name: str, limits: Limits) -> Iterator[dict[str, Any]]:
    counted = Counted(name, limits)
    start = text.lstrip()
    if Path(name).suffix.lower() == ".json" and start.startswith("["):
        rows = _parsed(start, f"{name}", "The file is a list of objects, or one object per line")
        for number, row in enumerate(rows, start=1):
            yield _object(row, f"{name}, row {number}", counted)
        return
    expected = 'Each line is one object, such as {"prompt": "What is 2 + 3?", "answer": "5"}'
    for number, line in enumerate(with_plain_ends(text).split("\n"), start=1):
        if line.strip():
            where = f"{name}, line {number}"
            yield _object(_parsed(line, where, expected), where, counted)


def _object(row: Any, where: str, counted: Counted) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise TaskError(f"{where}: a {type(row).__name__}; expected an object with a prompt.")
    return counted.take(row, where)


def _parsed(text: str, where: str, expected: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [key for key, _ in pairs]
            twice = next(key for key in names if names.count(key) > 1)
            raise TaskError(f"{where}: the name {twice!r} occurs twice in one object. Give every column a name of its own.")
        return found

    def not_finite(constant: str) -> Any:
        raise TaskError(f"{where}: {constant} is not JSON: write null where there is no number.")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=not_finite)
    except RecursionError as error:
        raise TaskError(f"{where}: not valid JSON (too deeply nested). {expected}.") from error
    except json.JSONDecodeError as error:
        raise TaskError(f"{where}: not valid JSON ({error.msg}). {expected}.") from error
    except TaskError:
        raise
    except ValueError as error:  # Python's limit on the digits of a whole number
        raise TaskError(f"{where}: a number with too many digits. Write it as text.") from error


def _csv_rows(text: str, name: str, limits: Limits) -> Iterator[dict[str, Any]]:
    head = text.split("\n", 1)[0]
    delimiter = "\t" if name.lower().endswith(".tsv") else max((",", ";", "\t"), key=head.count)
    counted, before = Counted(name, limits), csv.field_size_limit(max(limits.cell_characters, 1000))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    columns: list[str] | None = None
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if columns is None:
                columns = check_columns([cell.strip() for cell in cells], name, limits)
                continue
            if len(cells) != len(columns):
                raise TaskError(f"{name}, line {reader.line_num}: {len(cells)} cells for {len(columns)} columns "
                                f"({', '.join(columns[:6])}). Put cells that hold {delimiter!r} in double quotes.")
            yield counted.take(dict(zip(columns, cells, strict=True)), f"{name}, line {reader.line_num}")
    except csv.Error as error:
        if "field larger" in str(error):
            raise TaskError(f"{name}, line {reader.line_num}: a cell has more than {limits.cell_characters:,} characters.") from error
        raise TaskError(f"{name}, line {reader.line_num}: not valid CSV ({error}).") from error
    finally:
        csv.field_size_limit(before)
