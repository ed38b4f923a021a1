"""Bytes of strangers are read in a process of their own: `read_upload(path)` gives the table or one sentence.

The size is looked at first. Then a child process reads the file from its standard input and writes the table as JSON; it
opens no file, and on Linux it locks itself as reward workers do before it looks at the first byte (limits on memory and
computing, no files to write, no network, no other process). A child that hangs is ended, one that crashes is a sentence,
and the page's own process never parses anything but JSON of a limited size. What is left: where the platform has no lock
(macOS, Windows), a flaw in pyarrow's Parquet reader would run with the rights of the lab; deadlines hold there too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

from lab.tasks.errors import TaskError
from lab.tasks.tables import FORMATS, UPLOAD, Limits, Table

SECONDS = 60.0  # by the clock, for a busy machine; the child's computing has a limit of its own
CPU_SECONDS = 20
MEMORY_BYTES = 2 << 30
MOST_ANSWERED = 4 * UPLOAD.table_bytes  # JSON writes some characters as six
SCRIPT = Path(__file__).with_name("reader_process.py")


def read_upload(path: str | Path, name: str, limits: Limits = UPLOAD, *, seconds: float = SECONDS) -> Table:
    """The table in an uploaded file; `name` is what the person called it. Raises TaskError. Blocks for as long as it takes."""
    name = Path(name.replace("\\", "/")).name[-80:] or "the file"
    if Path(name).suffix.lower() not in FORMATS:
        raise TaskError(f"{name} does not end in {', '.join(FORMATS)}: save the rows in one of these formats.")
    size = Path(path).stat().st_size
    if size > limits.file_bytes:
        raise TaskError(f"{name} has {size / 1e6:,.1f} MB; at most {limits.file_bytes / 1e6:,.0f} MB are taken. Take a part of it.")
    with Path(path).open("rb") as file:
        setup = {"do": "file", "name": name, "limits": vars(limits), "cpu_seconds": CPU_SECONDS, "memory_bytes": MEMORY_BYTES}
        answer = _ask(setup, seconds, file)
    if answer is None:
        raise TaskError(f"{name} could not be read: it needs more memory or time than a file of {limits.file_bytes / 1e6:,.0f} MB may "
                        f"take, or it is damaged. Save the rows as JSONL or CSV.")
    return _table(answer)


def fetched_apart(hub_id: str, config: str | None, split: str, rows: int, *, seconds: float = 300.0) -> Table:
    """`hub.read_hub` in a process of its own: the library is large, and its network may hang. Not locked: it needs the network.

    It runs in an empty folder: an id that is also the path of a folder near the lab, such as runs/data, is still an id.
    """
    with tempfile.TemporaryDirectory(prefix="lab-hub-", ignore_cleanup_errors=True) as nowhere:
        answer = _ask({"do": "hub", "id": hub_id, "config": config, "split": split, "rows": rows}, seconds, folder=nowhere)
    if answer is None:
        raise TaskError(f"{hub_id} did not arrive within {seconds:.0f} s: ask for fewer rows, or download the file and upload it here.")
    return _table(answer)


def drawn_apart(task: str, count: int, *, seconds: float = 120.0) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows and held-out rows of a task of reasoning-gym, without loading that package here."""
    answer = _ask({"do": "draw", "task": task, "rows": count}, seconds)
    if answer is None:
        raise TaskError(f"{task} gave no rows within {seconds:.0f} s: ask for fewer.")
    return _table(answer).rows, answer["held_out"]


def _table(answer: dict[str, Any]) -> Table:
    if "error" in answer:
        raise TaskError(answer["error"])
    return Table(answer["columns"], answer["rows"], answer["notes"])


def _ask(setup: dict[str, Any], seconds: float, file: IO[bytes] | None = None, folder: str | None = None) -> dict[str, Any] | None:
    """What the child answers; None if it hung, crashed or wrote anything but an answer."""
    with subprocess.Popen([sys.executable, str(SCRIPT), json.dumps(setup)], stdin=file or subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, cwd=folder) as child:
        late = threading.Timer(seconds, child.kill)
        late.start()
        try:
            written = child.stdout.read(MOST_ANSWERED)
        finally:
            child.kill()
            late.cancel()
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        return None
