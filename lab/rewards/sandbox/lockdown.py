"""A process locks itself, for good: limits on what it may use, no privileges, no files, no network, no other process.

Order matters and is that of `lock`: privileges, Landlock (files); then limits, no debugger, seccomp (system calls).
Linux only, and the only place with POSIX-only calls; every step that the kernel refuses is left out and reported, so the
caller decides what may run behind what is left.

Kinds of lock: "full" (Landlock and seccomp), "nofiles" (seccomp alone, so no file can be opened and imports are limited
to what was loaded before), "limits" (rlimits at most: protects against mistakes, not against malice).

Imported only inside workers, which have this folder on their path while they start; hence the bare imports.
"""

import ctypes
import os
import signal
import sys
from functools import cache

import landlock
import seccomp

LINUX = sys.platform.startswith("linux")
READABLE = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo",
            "/dev/null", "/dev/zero", "/dev/urandom")
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 4, 24, 38, 47


def lock(*, readable, memory_bytes, cpu_seconds=None, threads=False, strongest="auto"):
    """Lock this process and return the kind of lock that holds: "full", "nofiles" or "limits".

    readable: folders that may be read besides the system's libraries. cpu_seconds: hard limit over the whole life.
    strongest: "auto" takes all the kernel gives; "abi1"… hold Landlock down to that version, "nofiles" does without
    Landlock, "off" without any lock (so that tests can show what weaker kernels leave).
    """
    files_are_shut = shut_files(readable, strongest)
    return shut_the_rest(files_are_shut, memory_bytes=memory_bytes, cpu_seconds=cpu_seconds, threads=threads, strongest=strongest)


def shut_files(readable, strongest):
    """The first half, which children inherit: no privileges, and True if from here on only `readable` and the system's
    libraries can be opened, for reading."""
    if not LINUX or strongest == "off":
        return False
    drop_privileges()
    if strongest == "nofiles":
        return False
    try:
        abi = landlock.landlock_abi()
        if strongest.startswith("abi"):
            abi = min(abi, int(strongest[3:]))
        landlock.allow_reading_only([*READABLE, *readable], abi=abi)
    except OSError:  # not built in, switched off, or refused by an outer sandbox: the filter then shuts files instead
        return False
    return True


def shut_the_rest(files_are_shut, *, memory_bytes, cpu_seconds, threads, strongest):
    """The second half: limits, no debugger, and the filter on system calls. Returns the kind of lock that holds."""
    if not LINUX:
        return "limits"
    limit_resources(memory_bytes, cpu_seconds)
    if strongest == "off":
        return "limits"
    _prctl(PR_SET_DUMPABLE, 0)
    try:
        seccomp.apply_filter(opens_files=files_are_shut, threads=threads)
    except OSError:
        return "limits"
    return "full" if files_are_shut else "nofiles"


def will_shut_all_files(strongest):
    """Whether `lock` will leave no file readable, so that everything needed must be loaded before it."""
    if not LINUX or strongest == "off":
        return False
    try:
        return strongest == "nofiles" or landlock.landlock_abi() < 1
    except OSError:
        return True


def die_with(parent_pid):
    """Let the kernel kill this process when the *thread* that started it ends; leave at once if that has happened.

    parent_pid: None inside an outer box, whose own process is the parent.
    """
    if LINUX:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent_pid not in (None, os.getppid()):
            os._exit(1)


def limit_resources(memory_bytes, cpu_seconds):
    """Kernel limits that cannot be raised again: memory, files (none written), stack, descriptors, CPU seconds."""
    import resource

    limits = {resource.RLIMIT_AS: memory_bytes, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0,
              resource.RLIMIT_NOFILE: 64, resource.RLIMIT_STACK: 8 << 20, resource.RLIMIT_MEMLOCK: 0,
              resource.RLIMIT_MSGQUEUE: 0}
    if cpu_seconds is not None:
        limits[resource.RLIMIT_CPU] = cpu_seconds
    for which, value in limits.items():
        _, hardest = resource.getrlimit(which)
        value = value if hardest == resource.RLIM_INFINITY else min(value, hardest)
        resource.setrlimit(which, (value, value))


def drop_privileges():
    """No capabilities now or later, no set-uid programs. The user id stays: Python may live in a home folder."""
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    _prctl(PR_CAP_AMBIENT, 4)  # PR_CAP_AMBIENT_CLEAR_ALL
    for capability in range(64):
        _prctl(PR_CAPBSET_DROP, capability)  # refused without CAP_SETPCAP: then there is nothing to drop
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    nothing = (ctypes.c_uint32 * 6)()
    _libc().capset(header, nothing)


@cache
def _libc():
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option, value):
    return _libc().prctl(option, *(ctypes.c_ulong(word) for word in (value, 0, 0, 0)))
