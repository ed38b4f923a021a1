"""Data sets of the Hugging Face Hub, or folders in its layout, by the `datasets` library (extra `hub`): the first rows as a table.

Rows are streamed, so a large data set costs no more than what is taken of it. No code of a data set is ever run: the
library has given that up (since version 4). Raises TaskError with a sentence where anything is missing.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from lab.tasks.errors import TaskError
from lab.tasks.tables import UPLOAD, Counted, Limits, Table, check_columns


def read_hub(name: str, config: str | None = None, split: str = "train", *, rows: int = 10_000, limits: Limits = UPLOAD) -> Table:
    """The first `rows` rows of a split of the data set `name`, a Hub id such as openai/gsm8k or a folder."""
    if importlib.util.find_spec("datasets") is None:
        raise TaskError('Data sets of the Hub need the package datasets: pip install "grpo-lab[hub]".')
    from datasets import load_dataset

    try:
        stream = load_dataset(name, config or None, split=split, streaming=True)
        return _table(stream, name, min(rows, limits.rows), limits)
    except TaskError:
        raise
    except Exception as error:  # the library and its HTTP clients raise a hundred kinds; each becomes a sentence here
        raise TaskError(_sentence(error, name, config, split)) from error


def _table(stream: Any, name: str, most: int, limits: Limits) -> Table:
    features = getattr(stream, "features", None) or {}
    left_out = [column for column, feature in features.items() if type(feature).__name__ in ("Image", "Audio", "Video", "Pdf")
                or "binary" in str(getattr(feature, "dtype", ""))]
    if left_out:
        stream = stream.remove_columns(left_out)
    counted, rows = Counted(name, limits), []
    for row in stream.take(most):
        rows.append(counted.take({column: _plain(value) for column, value in row.items()}, f"{name}, row {len(rows) + 1}"))
    if not rows:
        raise TaskError(f"{name} has no rows in this split. Choose another one.")
    columns = check_columns(dict.fromkeys(column for row in rows for column in row), name, limits)
    notes = [f"Left out, because they are no text: {', '.join(left_out)}."] if left_out else []
    if len(rows) == most:
        notes.append(f"Only the first {most:,} rows were taken.")
    return Table(columns, [{column: row.get(column) for column in columns} for row in rows], notes)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def _sentence(error: Exception, name: str, config: str | None, split: str) -> str:
    text, kind = " ".join(str(error).split()), type(error).__name__
    if isinstance(error, (ConnectionError, TimeoutError)) or "ConnectError" in kind or "Offline" in kind + text:
        return (f"{name} is not on this machine and the Hub cannot be reached: connect to the network once, or download the file and "
                f"upload it here.")
    if "gated" in text.lower() or "GatedRepo" in kind:
        return f"{name} is gated: accept its terms on huggingface.co/datasets/{name}, then run `hf auth login` on this machine."
    if kind in ("DatasetNotFoundError", "RepositoryNotFoundError", "FileNotFoundError", "EmptyDatasetError"):
        where = "in this folder" if Path(name).is_absolute() else "on the Hub, or it is private"
        return f"There is no data set {name} {where}: check the spelling."
    if "split" in text.lower():
        return f"{name} has no split {split!r}. {text[:160]}"
    if "config" in text.lower():
        given = f"has no configuration {config!r}" if config else "has several configurations: name one"
        return f"{name} {given}. {text[:200]}"
    return f"{name} cannot be read as rows of text ({kind}: {text[:160]})."
