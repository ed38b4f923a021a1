"""Landlock: let this process read a list of folders and files, and nothing else; no TCP, no signals to others.

ctypes over the three system calls. Left out: `stat` and `readlink`, which Landlock does not cover (the existence, size
and times of a file stay visible, never its contents), and UDP and unix sockets, which the seccomp filter refuses.

Source: Linux's `Documentation/userspace-api/landlock.rst`; numbers from `linux/landlock.h`.
"""

import ctypes
import os
import stat
import struct
from functools import cache

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same on every architecture
PATH_BENEATH = 1
READ_FILE, READ_DIR = 1 << 2, 1 << 3
TCP_BIND_AND_CONNECT = 0b11
ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


def landlock_abi():
    """The kernel's Landlock version. OSError (ENOSYS, EOPNOTSUPP) where it has none or has it switched off."""
    return _call(CREATE_RULESET, None, 0, 1)


def allow_reading_only(paths, *, abi):
    """Shut the file system but for reading beneath `paths` (those that do not exist are skipped). Needs no_new_privs."""
    attributes = _handled(abi)
    ruleset = _call(CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for path in paths:
            _allow(ruleset, path)
        _call(RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _handled(abi):
    """Everything this version can refuse, as struct landlock_ruleset_attr of the length that version knows."""
    file_rights = {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)
    fields = [(1 << file_rights) - 1]
    if abi >= 4:
        fields.append(TCP_BIND_AND_CONNECT)
    if abi >= 6:
        fields.append(ABSTRACT_SOCKETS_AND_SIGNALS)
    return struct.pack(f"={len(fields)}Q", *fields)


def _allow(ruleset, path):
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rights = READ_FILE | READ_DIR if stat.S_ISDIR(os.fstat(fd).st_mode) else READ_FILE
        _call(ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
    finally:
        os.close(fd)


def _call(number, *arguments):
    result = _libc().syscall(ctypes.c_long(number), *(a if isinstance(a, (bytes, type(None))) else ctypes.c_long(a) for a in arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), "landlock: " + os.strerror(ctypes.get_errno()))
    return result


@cache
def _libc():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc
