"""A second wall around the worker where bubblewrap is installed and works: namespaces of its own for files and network.

It hides what the inner lock cannot: that a file exists, and how large it is. Never required, and never a replacement:
bubblewrap fails in default containers and on some desktops, and it leaves all of the kernel's calls open. Tried, not
guessed. The process ids stay the machine's, so that signals and CPU times work as without it.
"""

import os
import shutil
import subprocess
import sys
from functools import lru_cache

SYSTEM_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo")
WALLS = ("--unshare-user-try", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--cap-drop", "ALL",
         "--die-with-parent", "--new-session", "--dev", "/dev", "--dir", "/tmp", "--chdir", "/tmp")


def box_around(command, readable):
    """The command inside a box in which only Python, the system's libraries and `readable` exist; None if that does not
    work here. The program is named by its real path: links that lead to it do not exist in the box."""
    program = os.path.realpath(command[0])
    folders = (*SYSTEM_FOLDERS, os.path.dirname(program), os.path.join(sys.base_exec_prefix, "lib"), *readable)
    there = [folder for folder in dict.fromkeys(folders) if os.path.exists(folder)]
    box = (*WALLS, *(part for folder in there for part in ("--ro-bind", folder, folder)))
    bwrap = shutil.which("bwrap") if sys.platform.startswith("linux") else None
    if bwrap is None or not _works(bwrap, box, program):
        return None
    return [bwrap, *box, program, *command[1:]]


@lru_cache(maxsize=8)
def _works(bwrap, box, program):
    try:
        return subprocess.run([bwrap, *box, program, "-I", "-S", "-c", "pass"], capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
