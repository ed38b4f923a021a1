"""The lab's side of programs that a model writes: run each in a locked process of its own, compare its values here.

Linux only (fork, and a lock that holds): where the probe finds no lock, a CodeHost refuses to start unless the owner
allows it for this run. Wrong, crashing and endless programs score 0 for the tests they miss; `None` is kept for when
the machine, not the program, failed.
"""

import os
import random
import re
import signal
import socket
import threading
import time
import weakref
from dataclasses import dataclass

from .code_server import CodeServer
from .host import installed_packages
from .plain_values import SomethingElse
from .probe import probe
from .process import LOOK_EVERY
from .results import RewardError
from .split_tests import SplitTests, split_tests

MAX_PROGRAM_CHARACTERS = 100_000
PRELOAD = ("ast", "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "fractions", "functools", "heapq",
           "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "textwrap", "typing")
SUSPICIOUS = re.compile(r"\b(sys\.exit|os\._exit|os\.kill|__eq__|sys\._getframe|gc\.|ctypes|inspect|__subclasses__|settrace|builtins)\b")


@dataclass(frozen=True)
class CodeLimits:
    """What one program that a model wrote may use, and how many run at a time."""

    cpu_seconds: int = 2  # of one program with all its tests; kept by the kernel
    wall_seconds: float = 10.0  # sleeping counts too
    memory_bytes: int = 512 << 20
    reply_bytes: int = 1 << 20
    parallel: int = 2


@dataclass(frozen=True)
class Grade:
    """How one program did. score: share of the tests passed; None if the machine failed or there is no usable test."""

    score: float | None
    passed: int = 0
    total: int = 0
    failures: tuple[str, ...] = ()  # one sentence per test that was missed, in the tests' order
    cpu_seconds: float = 0.0  # of the program and its tests, measured by the kernel
    suspicious: tuple[str, ...] = ()  # what in the source might try to cheat (it does not help, but it tells)


class CodeHost:
    """Runs programs. Usable from any thread; one batch at a time. `lock` as in RewardHost."""

    def __init__(self, limits=None, *, preload=PRELOAD, lock="auto", allow_unlocked=False):
        self.limits, self._preload, self._lock, self._allow_unlocked = limits or CodeLimits(), list(preload), lock, allow_unlocked
        self._turn, self._server = threading.Lock(), CodeServer()
        self._end = weakref.finalize(self, self._server.stop)

    def grade(self, programs, tests, *, entry_point=None, seed=0):
        """One Grade per program. tests: the same for all, or one per program (a list of lists or of SplitTests).

        Each program gets its tests in an order of its own, drawn with `seed`. ValueError if the tests are not Python.
        RewardError ("unavailable") if programs cannot be run here at all.
        """
        each = [entry if isinstance(entry, SplitTests) else split_tests(entry, entry_point) for entry in _per_program(tests, len(programs))]
        expected = self._expected_values({check for split in each for check in split.checks})
        jobs = []
        for position, (program, split) in enumerate(zip(programs, each, strict=True)):
            calls = [(number, (check.setup, check.call)) for number, check in enumerate(split.checks)]
            random.Random(f"{seed} {position}").shuffle(calls)
            jobs.append({"source": program[:MAX_PROGRAM_CHARACTERS], "calls": calls})
        children = self.run(jobs)
        return [_graded(program, split, child, expected, self.limits)
                for program, split, child in zip(programs, each, children, strict=True)]

    def run(self, jobs):
        """The finished child of each job ({"source": text, "calls": [(number, (setup, expression))]}), or None for those
        that the machine failed. What the lab expects is not part of a job."""
        with self._turn:
            try:
                return self._run_all(jobs)
            except OSError:
                self._server.stop()
                return [None] * len(jobs)
            except BaseException:  # interrupted half-way: no child of this batch may answer the next one
                self._server.stop()
                raise

    def prefork(self, count):
        """Have that many locked children ready, so that the next batch does not wait for them."""
        with self._turn:
            self._start()
            self._server.fork_until(count)

    @property
    def server_pid(self):
        """The process id of the running fork server, or None."""
        return self._server.pid

    def close(self):
        """End the fork server and every program; a later call starts it again."""
        with self._turn:
            self._server.stop()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def _expected_values(self, checks):
        """{check: expected value}; those not written out are computed in a process that never sees a program."""
        values, rest = {}, []
        for check in checks:
            is_literal, value = check.literal()
            values[check] = value
            if not is_literal:
                rest.append(check)
        jobs = [{"source": "", "calls": [(0, (check.expected_setup, check.expected))]} for check in rest]
        for check, child in zip(rest, self.run(jobs) if jobs else [], strict=True):
            known = child is not None and 0 in child.values and not isinstance(child.values[0], SomethingElse)
            values[check] = child.values[0] if known else _UNKNOWN
        return values

    def _start(self):
        if self._server.running:
            return
        if not hasattr(socket, "send_fds") or not hasattr(os, "fork"):
            raise RewardError("unavailable", "programs written by a model can only be run on Linux (on Windows: in WSL2).", function="code")
        limits = self.limits
        setup = {"import_paths": installed_packages(), "preload": self._preload, "strongest": self._lock,
                 "memory_bytes": limits.memory_bytes, "cpu_seconds": limits.cpu_seconds}
        try:
            self._server.start(setup, limits.reply_bytes)
            self._server.fork_until(1)
            kind = self._server.wait_for_lock()
        except OSError as error:
            self._server.stop()
            raise RewardError("unavailable", f"no process for programs could be started ({error}).", function="code") from None
        if not self._allow_unlocked and not (kind in ("full", "nofiles") and probe(self._lock).is_locked):
            self._server.stop()
            raise RewardError("unavailable", "programs written by a model are not run here: this machine gives no lock for them, "
                              "only protection against mistakes. The owner can allow it for one run.", function="code")

    def _run_all(self, jobs):
        self._start()
        server, waiting, running, finished = self._server, list(enumerate(jobs))[::-1], {}, [None] * len(jobs)
        while waiting or running:
            server.fork_until(min(len(waiting), 2 * self.limits.parallel))
            while waiting and len(running) < self.limits.parallel and (child := server.take_ready()):
                position, job = waiting.pop()
                running[position] = child
                server.send_job(child, job, time.monotonic())
            server.listen(LOOK_EVERY)
            for position, child in list(running.items()):
                if child.status is not None and child.drained:
                    finished[position] = running.pop(position)
                    server.forget(child)
                elif time.monotonic() - child.started > self.limits.wall_seconds:
                    server.end(child, f"not finished after {self.limits.wall_seconds:.0f} s")
        return finished


_UNKNOWN = SomethingElse("expected value that cannot be computed")


def _graded(program, split, child, expected, limits):
    """The grade of a finished child; every value it claims is compared here."""
    usable = [(number, check) for number, check in enumerate(split.checks) if expected[check] is not _UNKNOWN]
    suspicious = tuple(sorted(set(SUSPICIOUS.findall(program))))
    if child is None or not usable:
        reason = "the machine could not run the program" if child is None else "no test could be used"
        return Grade(None, failures=(reason,), suspicious=suspicious)
    failures = []
    for number, check in usable:
        wanted = f"{check.call} {check.comparison} {check.expected}"
        if number in child.values:
            value = child.values[number]
            if not check.holds(value, expected[check]):
                failures.append(f"{wanted}: got {_shown(value)}")
        else:
            failures.append(f"{wanted}: {child.errors.get(number) or child.broken or _end_of(child, limits)}")
    passed = len(usable) - len(failures)
    return Grade(passed / len(usable), passed, len(usable), tuple(failures), max(0.0, child.cpu_seconds - child.startup_cpu), suspicious)


def _end_of(child, limits):
    """Why a child said nothing about a test."""
    if child.fate:
        return child.fate
    if os.WIFSIGNALED(child.status):
        number = os.WTERMSIG(child.status)
        used_most = child.cpu_seconds > limits.cpu_seconds / 2  # the kernel counts the limit in ticks, the use exactly
        if number in (signal.SIGKILL, signal.SIGXCPU) and used_most:
            return f"more than {limits.cpu_seconds} s of computing"
        return f"crashed ({signal.Signals(number).name})"
    return f"ended before this test (exit code {os.waitstatus_to_exitcode(child.status)})"


def _shown(value):
    try:
        text = repr(value)
    except ValueError:  # an integer with too many digits
        return "a very large number"
    return text if len(text) <= 100 else text[:100] + "…"


def _per_program(tests, count):
    """One entry of tests per program, from one for all or one for each."""
    if isinstance(tests, (str, SplitTests)) or (tests and all(isinstance(test, str) for test in tests)):
        return [tests] * count
    if len(tests) != count:
        raise ValueError(f"{len(tests)} sets of tests for {count} programs")
    return list(tests)
