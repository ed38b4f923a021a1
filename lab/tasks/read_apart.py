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
import threading
from pathlib import Path

from lab.tasks.errors import TaskError
from lab.tasks.tables import FORMATS, UPLOAD, Limits, Table

SECONDS = 60.0  # by the clock, for a busy machine; the child's computing has a limit of its own
CPU_SECONDS = 20
MEMORY_BYTES = 2 << 30
SCRIPT = Path(__file__).with_name("reader_process.py")


def read_upload(path: str | Path, name: str, limits: Limits = UPLOAD, *, seconds: float = SECONDS) -> Table:
    """The table in an uploaded file; `name` is what the person called it. Raises TaskError. Blocks for as long as it takes."""
    name = Path(name.replace("\\", "/")).name[-80:] or "the file"
    if Path(name).suffix.lower() not in FORMATS:
        raise TaskError(f"{name} does not end in {', '.join(FORMATS)}: save the rows in one of these formats.")
    size = Path(path).stat().st_size
    if size > limits.file_bytes:
        raise TaskError(f"{name} has {size / 1e6:,.1f} MB; at most {limits.file_bytes / 1e6:,.0f} MB are taken. Take a part of it.")
    answer = _ask(Path(path), name, limits, seconds)
    if "error" in answer:
        raise TaskError(answer["error"])
    return Table(answer["columns"], answer["rows"], answer["notes"])


def _ask(path: Path, name: str, limits: Limits, seconds: float) -> dict:
    most = 4 * limits.table_bytes
    setup = json.dumps({"name": name, "limits": vars(limits), "cpu_seconds": CPU_SECONDS, "memory_bytes": MEMORY_BYTES})
    with path.open("rb") as file, subprocess.Popen([sys.executable, str(SCRIPT), setup], stdin=file, stdout=subprocess.PIPE,
                                                   stderr=subprocess.DEVNULL) as child:
        late = threading.Timer(seconds, child.kill)
        late.start()
        try:
            written = child.stdout.read(most)
        finally:
            child.kill()
            late.cancel()
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        raise TaskError(f"{name} could not be read: it needs more memory or time than a file of {limits.file_bytes / 1e6:,.0f} MB may "
                        f"take, or it is damaged. Save the rows as JSONL or CSV.") from None
