"""Main memory as this process may use it: the machine's, or less where a container or a service has a limit.

Linux kills a process that grows beyond the limit of its control group, without an error that a run could answer with smaller
pieces, and `psutil` counts the whole machine. Both versions of control groups are read (kernel.org, admin-guide/cgroup-v2 and
cgroup-v1/memory). Leaves out a graphics card's memory (`memory`).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import psutil

GROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")
# Of each version: where its groups lie, and the files of the limit and of what is used.
VERSIONS = (("", "memory.max", "memory.current"), ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"))


class Ram(NamedTuple):
    """Bytes."""

    total: float
    available: float


def ram() -> Ram:
    """What this process and its group may have in all, and what it could still get."""
    machine = psutil.virtual_memory()
    total, available = float(machine.total), float(machine.available)
    for folder, limit_file, used_file in _groups():
        try:
            limit = int((folder / limit_file).read_text())  # "max", which is no number, where there is none
            used = int((folder / used_file).read_text()) - _cached_files(folder)
        except (OSError, ValueError):
            continue
        total, available = min(total, limit), min(available, max(0, limit - used))
    return Ram(total, available)


def _groups() -> list[tuple[Path, str, str]]:
    """The group of this process and all above it, of both versions; in a container the topmost is the container's."""
    try:
        lines = [line.split(":", 2) for line in OWN_GROUP.read_text().splitlines()]
    except OSError:
        return []
    own = {"" if not kinds else "memory": path for _, kinds, path in lines if not kinds or "memory" in kinds.split(",")}
    found = []
    for kind, limit_file, used_file in VERSIONS:
        group = Path(own.get(kind, "/").lstrip("/"))
        found += [(GROUPS / kind / part, limit_file, used_file) for part in (group, *group.parents)]
    return found


def _cached_files(folder: Path) -> int:
    """Bytes of files that lie in memory and make room when it is needed."""
    numbers = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines())
    return int(numbers.get("total_inactive_file", numbers.get("inactive_file", 0)))  # the older version tells its subgroups' apart
