"""The child of `read_apart`: reads a file from standard input, locked, and writes the table as JSON. A script, never imported."""

import json
import os
import sys
from pathlib import Path


def main():
    setup = json.loads(sys.argv[1])
    home = Path(__file__).resolve().parents[2]
    locks = home / "lab" / "rewards" / "sandbox"
    sys.path[0] = str(home)  # this folder itself has modules that must not stand in for others
    from lab.tasks.errors import TaskError
    from lab.tasks.tables import Limits, table_of

    if setup["name"].lower().endswith(".parquet"):
        import pyarrow.parquet  # noqa: F401, before the lock: it starts threads and loads libraries
    limits = Limits(**setup["limits"])
    data = sys.stdin.buffer.read(limits.file_bytes + 1)
    sys.path.insert(0, str(locks))
    import lockdown

    libraries = [os.path.join(sys.base_exec_prefix, "lib"), *filter(None, sys.path)]
    lockdown.lock(readable=libraries, memory_bytes=setup["memory_bytes"], cpu_seconds=setup["cpu_seconds"], threads=True)
    try:
        answer = vars(table_of(data, setup["name"], limits))
    except TaskError as error:
        answer = {"error": str(error)}
    sys.stdout.buffer.write(json.dumps(answer).encode())
    sys.stdout.flush()


if __name__ == "__main__":
    main()
