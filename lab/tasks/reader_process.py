"""The child of `read_apart`: reads one thing and writes it as JSON on standard output. A script, never imported.

A file of strangers comes on standard input and is read behind the lock. The Hub and reasoning-gym are only kept out of the
page's process: they need what a lock would take away.
"""

import json
import os
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]


def main():
    """Do what the first argument says and write a table, or {error: sentence}, as JSON to standard output."""
    setup = json.loads(sys.argv[1])
    sys.path[0] = str(HOME)  # this folder itself has modules that must not stand in for others
    output, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    from lab.tasks.errors import TaskError

    try:
        answer = {"file": read_file, "hub": read_hub, "draw": draw}[setup["do"]](setup)
    except TaskError as error:
        answer = {"error": str(error)}
    output.write(json.dumps(answer))
    output.flush()


def read_file(setup):
    """The table in the bytes on standard input, read behind the lock where this machine has one."""
    from lab.tasks.tables import Limits, table_of

    if setup["name"].lower().endswith(".parquet"):
        import pyarrow.parquet  # noqa: F401, before the lock: it starts threads and loads libraries
    limits = Limits(**setup["limits"])
    data = sys.stdin.buffer.read(limits.file_bytes + 1)
    sys.path.insert(0, str(HOME / "lab" / "rewards" / "sandbox"))
    import lockdown

    libraries = [os.path.join(sys.base_exec_prefix, "lib"), *filter(None, sys.path)]
    lockdown.lock(readable=libraries, memory_bytes=setup["memory_bytes"], cpu_seconds=setup["cpu_seconds"], threads=True)
    return vars(table_of(data, setup["name"], limits))


def read_hub(setup):
    """Rows of a Hub data set; not locked, as it needs the network."""
    from lab.tasks.hub import read_hub

    return vars(read_hub(setup["id"], setup["config"], setup["split"], rows=setup["rows"]))


def draw(setup):
    """Rows and held-out rows of a built-in task or one of reasoning-gym's."""
    from lab.tasks import load_task

    task = load_task(setup["task"])
    return {"columns": [], "rows": task.rows(0, setup["rows"]), "notes": [], "held_out": task.held_out(max(1, setup["rows"] // 8))}


if __name__ == "__main__":
    main()
