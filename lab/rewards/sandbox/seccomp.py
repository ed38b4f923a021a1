"""The list of system calls that locked code may make, as a seccomp filter for x86-64 and aarch64.

An allow-list: whatever is not named here fails with EPERM, so Python shows an ordinary PermissionError. What is named is
what plain computing needs: memory, clocks, its own signals, reading files that are open or may be opened for reading.
No new process, no socket, nothing that changes a file, nothing that looks into another process.
Left out: everything about files' *paths* (that is Landlock's part) and about the amounts used (rlimits).

Numbers: Linux's `asm/unistd_64.h` and `asm-generic/unistd.h`; filter format: `linux/filter.h`, `linux/seccomp.h`.
"""

import ctypes
import errno
import os
import platform
import struct

# name: (x86-64, aarch64); None where the architecture has no such call. Ordered: the filter tests from the top.
ALLOWED = {
    "read": (0, 63), "write": (1, 64), "futex": (202, 98), "mmap": (9, 222), "munmap": (11, 215), "brk": (12, 214),
    "mprotect": (10, 226), "madvise": (28, 233), "mremap": (25, 216), "close": (3, 57), "lseek": (8, 62),
    "fstat": (5, 80), "newfstatat": (262, 79), "stat": (4, None), "lstat": (6, None), "statx": (332, 291),
    "getdents64": (217, 61), "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439),
    "readlink": (89, None), "readlinkat": (267, 78), "getcwd": (79, 17),
    "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "pwrite64": (18, 68), "preadv": (295, 69),
    "pwritev": (296, 70), "fadvise64": (221, 223), "msync": (26, 227), "mincore": (27, 232),
    "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "close_range": (436, 436),
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153), "getrusage": (98, 165),
    "getitimer": (36, 102), "setitimer": (38, 103), "alarm": (37, None), "pause": (34, None),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "sigaltstack": (131, 132), "restart_syscall": (219, 128),
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148), "getresgid": (120, 150),
    "getgroups": (115, 158), "getpgrp": (111, None), "getpgid": (121, 155), "getsid": (124, 156),
    "uname": (63, 160), "sysinfo": (99, 179), "getrlimit": (97, 163), "getcpu": (309, 168),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "membarrier": (324, 283),
    "set_robust_list": (273, 99), "get_robust_list": (274, 100), "set_tid_address": (218, 96), "rseq": (334, 293),
    "getrandom": (318, 278), "exit": (60, 93), "exit_group": (231, 94),
}
OPEN, OPENAT = (2, None), (257, 56)
FCNTL, IOCTL, PRLIMIT, TGKILL = (72, 25), (16, 29), (302, 261), (234, 131)
CLONE, CLONE3 = (56, 220), (435, 435)
SECCOMP_CALL = (317, 277)
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH_*

CHANGES_FILES = os.O_WRONLY | os.O_RDWR | getattr(os, "O_CREAT", 0) | getattr(os, "O_TRUNC", 0) | getattr(os, "O_APPEND", 0)
FCNTL_COMMANDS = (0, 1, 2, 3, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC
IOCTL_COMMANDS = (0x5401, 0x5413, 0x541B, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONCLEX, FIOCLEX
CLONE_THREAD = 0x10000

ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
CALL_NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
X32_CALLS = 0x40000000


def apply_filter(*, opens_files, threads):
    """Install the filter on every thread of this process, for good. Needs no_new_privs. OSError where the kernel says no.

    opens_files=False also refuses to open any file at all, for kernels without Landlock; threads=True lets the process
    start threads (never processes).
    """
    column, _ = _this_architecture()
    program = build_filter(opens_files=opens_files, threads=threads)
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    set_mode_filter, on_all_threads = 1, 1
    if libc.syscall(SECCOMP_CALL[column], set_mode_filter, on_all_threads, header) != 0:
        raise OSError(ctypes.get_errno(), "the kernel refused the seccomp filter: " + os.strerror(ctypes.get_errno()))


def build_filter(*, opens_files, threads, machine=None, pid=None):
    """The filter as bytes: 8 per instruction. `machine` and `pid` are this process's own unless a test says otherwise."""
    column, audit_arch = _this_architecture(machine)
    pid = os.getpid() if pid is None else pid
    refuse = ERRNO | errno.EPERM
    program = [(LOAD, 0, 0, ARCHITECTURE), (JUMP_EQUAL, 1, 0, audit_arch), (RETURN, 0, 0, KILL_PROCESS),
               (LOAD, 0, 0, CALL_NUMBER)]
    if column == 0:  # the same numbers again, with 32-bit pointers
        program += [(JUMP_AT_LEAST, 0, 1, X32_CALLS), (RETURN, 0, 0, KILL_PROCESS)]

    def when(call, instructions):
        if call[column] is not None:
            program.extend([(JUMP_EQUAL, 0, len(instructions), call[column]), *instructions])

    for call in ALLOWED.values():
        when(call, [(RETURN, 0, 0, ALLOW)])
    if opens_files:
        when(OPENAT, _unless_any_bit(2, CHANGES_FILES, refuse))
        when(OPEN, _unless_any_bit(1, CHANGES_FILES, refuse))
    when(FCNTL, _one_of(1, FCNTL_COMMANDS, refuse))
    when(IOCTL, _one_of(1, IOCTL_COMMANDS, refuse))
    when(PRLIMIT, [*_require(0, 0, refuse), *_require(2, 0, refuse), (RETURN, 0, 0, ALLOW)])  # read one's own limits
    when(TGKILL, [*_require(0, pid, refuse), (RETURN, 0, 0, ALLOW)])  # abort() and raise() signal oneself
    when(CLONE3, [(RETURN, 0, 0, ERRNO | errno.ENOSYS)])  # its flags lie in memory; libc then falls back to clone
    if threads:
        when(CLONE, [(LOAD, 0, 0, ARGUMENTS), (JUMP_ANY_BIT, 0, 1, CLONE_THREAD), (RETURN, 0, 0, ALLOW),
                     (RETURN, 0, 0, refuse)])
    program.append((RETURN, 0, 0, refuse))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _this_architecture(machine=None):
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no system call table for {machine}: only {' and '.join(ARCHITECTURES)} can be locked")
    return ARCHITECTURES[machine]


def _unless_any_bit(argument, mask, refuse):
    return [(LOAD, 0, 0, ARGUMENTS + 8 * argument), (JUMP_ANY_BIT, 0, 1, mask), (RETURN, 0, 0, refuse), (RETURN, 0, 0, ALLOW)]


def _one_of(argument, values, refuse):
    load = [(LOAD, 0, 0, ARGUMENTS + 8 * argument)]
    tests = [step for value in values for step in ((JUMP_EQUAL, 0, 1, value), (RETURN, 0, 0, ALLOW))]
    return [*load, *tests, (RETURN, 0, 0, refuse)]


def _require(argument, value, refuse):
    """Go on only if the 64-bit argument equals `value` (both halves; both architectures are little-endian)."""
    halves = ((0, value & 0xFFFFFFFF), (4, value >> 32))
    return [step for offset, half in halves
            for step in ((LOAD, 0, 0, ARGUMENTS + 8 * argument + offset), (JUMP_EQUAL, 1, 0, half), (RETURN, 0, 0, refuse))]
