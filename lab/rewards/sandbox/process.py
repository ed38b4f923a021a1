"""One worker process, seen from the lab: start it, ask it something before a deadline, end it, leave nothing behind.

Every process is started by one thread that lives as long as the lab: the kernel kills a worker when the *thread* that
started it ends, and a web handler's thread may end at any time. Deadlines are the worker's CPU time or the clock,
whichever runs out first, looked at every 50 ms; a fast answer never waits for that.
"""

import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from . import protocol
from .outer_box import box_around

LOOK_EVERY = 0.05  # seconds
INTERRUPT_GRACE = (0.25, 2.0)  # CPU seconds, or wall seconds, to answer the polite signal
DUMP_GRACE = (0.1, 1.0)  # and to print where it hangs
TAIL_BYTES = 8 << 10
ENVIRONMENT = {
    "LANG": "C.UTF-8",
    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM", "RAYON")},
    **{name: os.environ[name] for name in ("SYSTEMROOT", "SYSTEMDRIVE") if name in os.environ},  # Windows needs them
}
_spawner = None
_spawner_lock = threading.Lock()


@dataclass(frozen=True)
class Deadline:
    """How much a request may use: CPU seconds of the worker, and seconds by the clock, which sleeping uses up too."""

    cpu_seconds: float
    wall_seconds: float


class Hung(Exception):
    """The worker did not answer in time and was killed. `dump` is what faulthandler printed, or ""."""

    def __init__(self, dump):
        super().__init__("the worker did not answer in time")
        self.dump = dump


class Died(Exception):
    """The worker ended by itself, or was ended because of `reason` ("memory")."""

    def __init__(self, returncode, output, reason=None):
        super().__init__(f"the worker ended with {returncode}")
        self.returncode, self.output, self.reason = returncode, output, reason


class Worker:
    """A started process that speaks frames. `ask` may be used by one thread at a time."""

    def __init__(self, script, *, reply_bytes, output_bytes, memory_bytes, readable=None):
        """readable: folders to show inside an outer box, or None for no box."""
        self._folder = tempfile.TemporaryDirectory(prefix="grpo-lab-worker-", ignore_cleanup_errors=True)
        self._process, self.pid, self.parent_pid = spawn_python(
            script, readable, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self._folder.name, bufsize=0)
        self._usage = Usage(self.pid)
        self._memory_bytes = memory_bytes
        source = _Chunks if hasattr(select, "poll") else _ChunksByThread
        self._chunks = source(self._process.stdout.fileno())
        self._replies = protocol.FrameReader(reply_bytes)
        self.output = Output(self._process.stderr.fileno(), output_bytes)
        if sys.platform != "win32":
            os.set_blocking(self._process.stdin.fileno(), False)
        self._last_identity = None
        self.spent = Deadline(0.0, 0.0)  # CPU and wall seconds of the last `ask`

    @property
    def alive(self):
        """Whether the process is still there."""
        return not self._has_ended()

    def ask(self, identity, frame, deadline):
        """The reply to the request in `frame`, whose "id" is `identity`. Hung, Died or ProtocolError: the process is gone."""
        self.output.begin()
        stage = _Stage(self._usage, deadline)
        try:
            self._send(frame, stage)
            reply = self._receive(stage) or self._after_interrupt()
            if reply is not None and reply.get("id") == self._last_identity:  # a second answer to the last request
                reply = self._receive(stage)
            if reply is None:
                raise Hung(self._dump())
            if reply.get("id") != identity:
                raise protocol.ProtocolError("the reply answers another request")
            self._last_identity = identity
            self.output.wait_for(reply.get("printed_bytes", 0))
            self.spent = stage.spent()
            return reply
        except (Hung, Died, protocol.ProtocolError):
            self.spent = stage.spent()
            self.kill()
            raise

    def kill(self):
        """End the process and all it started, wait until it is gone, close the pipes, remove its empty folder."""
        if sys.platform == "win32":
            self._process.kill()
        elif self._process.returncode is None:  # not reaped yet, so the group's number is still its own
            for group in {self.pid, self._process.pid}:  # two, if there is a box
                try:
                    os.killpg(group, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):  # macOS says the latter when it has just ended
                    self._process.kill()
        self._process.wait()
        self._chunks.finish()
        self.output.finish()
        self._usage.close()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            pipe.close()
        self._folder.cleanup()

    def _send(self, frame, stage):
        rest, pipe = memoryview(frame), self._process.stdin.fileno()
        while rest:
            try:
                rest = rest[os.write(pipe, rest) :]
            except BlockingIOError:  # the worker does not read: it still has the time of the deadline
                if stage.is_over():
                    raise Hung("") from None
                select.select([], [pipe], [], LOOK_EVERY)
            except OSError:  # closed on the other side
                raise self._died() from None

    def _receive(self, stage):
        """The next reply, or None when the stage is over."""
        waited = False
        while (reply := self._replies.take()) is None:
            if waited and stage.is_over():
                return None
            chunk, waited = self._chunks.get(LOOK_EVERY), True
            if chunk == b"":
                raise self._died()
            if chunk:
                self._replies.feed(chunk)
            elif self._usage.memory_bytes() > self._memory_bytes:  # where the kernel keeps no such limit
                raise Died(None, self.output.text(), reason="memory")
        return reply

    def _after_interrupt(self):
        if hasattr(signal, "SIGUSR2"):
            self._signal(signal.SIGUSR2)
            return self._receive(_Stage(self._usage, Deadline(*INTERRUPT_GRACE)))
        return None

    def _dump(self):
        """Where the worker hangs, as faulthandler prints it."""
        if not hasattr(signal, "SIGUSR1"):
            return ""
        self.output.mark()
        self._signal(signal.SIGUSR1)
        stage = _Stage(self._usage, Deadline(*DUMP_GRACE))
        while not stage.is_over() and "most recent call first" not in self.output.since_mark():
            time.sleep(0.01)
        time.sleep(0.02)  # the rest of its lines
        return self.output.since_mark()

    def _signal(self, number):
        try:
            os.kill(self.pid, number) if self.parent_pid is None else self._process.send_signal(number)
        except ProcessLookupError:
            pass

    def _died(self):
        patience = time.monotonic() + 1
        while not self._has_ended() and time.monotonic() < patience:
            time.sleep(0.005)
        closed = not self._has_ended()  # it closed its end of the pipe and lives on
        self.kill()
        status = self._process.returncode
        if self.parent_pid is None and status > 128:  # how the box reports that a signal ended its program
            status = 128 - status
        return Died(None if closed else status, self.output.tail_text())

    def _has_ended(self):
        """Without reaping it where the system can: its group must still be killed under its number."""
        if self._process.returncode is not None:
            return True
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return self._process.poll() is not None


class _Chunks:
    """What arrives in a pipe, piece by piece: `get` gives bytes, b"" at its end, or None after the timeout."""

    def __init__(self, fd):
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def get(self, timeout):
        return os.read(self._fd, protocol.CHUNK) if self._poll.poll(timeout * 1000) else None

    def finish(self):
        pass


class _ChunksByThread:
    """The same where pipes cannot be polled (Windows)."""

    def __init__(self, fd):
        self._queue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, args=(fd,), name="reward-replies", daemon=True)
        self._thread.start()

    def get(self, timeout):
        try:
            return self._queue.get(timeout=timeout)
        except queue.Empty:
            return None

    def finish(self):
        self._thread.join(timeout=1)

    def _read(self, fd):
        chunk = None
        while chunk != b"":
            try:
                chunk = os.read(fd, protocol.CHUNK)
            except OSError:
                chunk = b""
            self._queue.put(chunk)


class Output:
    """What comes out of the worker's descriptors 1 and 2: the first bytes of each request and the last ones, never more."""

    def __init__(self, fd, limit):
        self._fd, self._limit = fd, limit
        self._changed = threading.Condition()
        self._head, self._tail, self._count, self._marked = bytearray(), bytearray(), 0, None
        self._thread = threading.Thread(target=self._drain, name="reward-output", daemon=True)
        self._thread.start()

    def begin(self):
        """Forget what earlier requests printed."""
        with self._changed:
            self._head, self._tail, self._count, self._marked = bytearray(), bytearray(), 0, None

    def wait_for(self, count):
        """Until that many bytes have arrived: they were sent before the reply, by another pipe."""
        if count and type(count) is int:
            with self._changed:
                self._changed.wait_for(lambda: self._count >= count, timeout=1)

    def text(self):
        """The first kilobytes printed since `begin`, and how many bytes came after them."""
        with self._changed:
            text, dropped = self._head.decode("utf-8", "replace"), self._count - len(self._head)
        return text if dropped <= 0 else f"{text}\n… ({dropped:,} more bytes were printed)"

    def text_before_mark(self):
        """Without what faulthandler printed on our own request."""
        with self._changed:
            return self._head[: self._marked].decode("utf-8", "replace")

    def tail_text(self):
        """The last kilobytes printed: what a crash leaves is at the end."""
        with self._changed:
            return self._tail.decode("utf-8", "replace")

    def mark(self):
        """From here on a dump of faulthandler's is expected."""
        with self._changed:
            self._marked = self._count

    def since_mark(self):
        """What was printed since `mark`, as far as it is kept."""
        with self._changed:
            fresh = 0 if self._marked is None else self._count - self._marked
            return self._tail[-fresh:].decode("utf-8", "replace") if fresh else ""

    def finish(self):
        """Wait until everything that the ended process printed has been read."""
        self._thread.join(timeout=1)

    def _drain(self):
        while True:
            try:
                data = os.read(self._fd, protocol.CHUNK)
            except OSError:
                return
            if not data:
                return
            with self._changed:
                self._count += len(data)
                self._head += data[: self._limit - len(self._head)]
                self._tail = (self._tail + data)[-TAIL_BYTES:]
                self._changed.notify_all()


class Usage:
    """CPU seconds and resident bytes of a process: from /proc, else from psutil, else nothing (the clock still counts)."""

    def __init__(self, pid):
        self._stat = self._process = None
        try:
            self._stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY)  # stays open: it is read twice in every call
            self._ticks = os.sysconf("SC_CLK_TCK")
        except OSError:
            self._process = _psutil_process(pid)

    def cpu_seconds(self):
        """CPU seconds that the process has used, user and system; 0.0 once it has ended."""
        if self._stat is None:
            return self._ask_psutil(lambda process: sum(process.cpu_times()[:2]))
        try:
            fields = os.pread(self._stat, 1024, 0).rpartition(b")")[2].split()
        except OSError:  # it has ended
            return 0.0
        return (int(fields[11]) + int(fields[12])) / self._ticks  # utime, stime

    def close(self):
        """Give back the handle on the process's statistics."""
        if self._stat is not None:
            os.close(self._stat)
            self._stat = self._process = None

    def memory_bytes(self):
        """Resident memory of the process, in bytes."""
        return self._ask_psutil(lambda process: process.memory_info().rss)

    def _ask_psutil(self, question):
        if self._process is None:
            return 0
        import psutil

        try:
            return question(self._process)
        except psutil.Error:
            return 0


def _psutil_process(pid):
    try:
        import psutil

        return psutil.Process(pid)
    except Exception:  # not installed, or the process has ended
        return None


def spawn_python(script, readable, **options):
    """Start the script with this Python, without environment, user folder, installed packages or written bytecode, in an
    outer box if `readable` is given and a box works. Returns (Popen, the script's process id, its parent's or None)."""
    command = [sys.executable, "-I", "-S", "-B", "-X", "utf8", os.fspath(script)]
    options |= {"env": ENVIRONMENT, "start_new_session": True}
    boxed = None if readable is None else box_around(command, (*readable, os.path.dirname(script)))
    if boxed is None:
        process = spawn(command, **options)
        return process, process.pid, os.getpid()
    told, tell = os.pipe()
    try:
        process = spawn([boxed[0], "--info-fd", str(tell), *boxed[1:]], pass_fds=[tell], **options)
    finally:
        os.close(tell)
    with open(told, "rb") as about:
        return process, json.loads(about.read())["child-pid"], None


def spawn(command, **options):
    """subprocess.Popen, called on the one thread that outlives every caller."""
    global _spawner
    with _spawner_lock:
        if _spawner is None:
            _spawner = ThreadPoolExecutor(1, thread_name_prefix="reward-spawner")
        spawner = _spawner
    return spawner.submit(subprocess.Popen, command, **options).result()


class _Stage:
    """A stretch of time that is over by CPU or by the clock."""

    def __init__(self, usage, deadline):
        self._usage, self._deadline = usage, deadline
        self._cpu, self._wall = usage.cpu_seconds(), time.monotonic()

    def spent(self):
        return Deadline(max(0.0, self._usage.cpu_seconds() - self._cpu), time.monotonic() - self._wall)

    def is_over(self):
        spent = self.spent()
        return spent.cpu_seconds >= self._deadline.cpu_seconds or spent.wall_seconds >= self._deadline.wall_seconds
