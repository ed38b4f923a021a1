"""The fork server and its children as the lab sees them: descriptors, messages, and who is in which state.

No grades and no deadlines here (`code_host`). OSError from any method means that the server has to be started anew.
"""

import json
import os
import select
import socket
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL

from .plain_values import untagged
from .process import spawn_python
from .protocol import CHUNK, FrameReader, ProtocolError, encode_frame, write_all

SERVER_SCRIPT = Path(__file__).with_name("forkserver.py")
MESSAGE_BYTES = 1 << 16
MAX_FAILED_STARTS = 3
START_SECONDS = 20


@dataclass
class Child:
    """A forked process and what it has said so far. Nothing in it is trusted."""

    number: int
    job: int  # descriptors of the lab's ends of its two pipes
    reply: int
    frames: FrameReader
    received: int = 0  # bytes
    pid: int | None = None
    lock: str | None = None
    startup_cpu: float = 0.0  # seconds until it was locked; said before it had seen the program
    started: float | None = None  # by the clock, when its job was sent
    values: dict = field(default_factory=dict)  # test number → value
    errors: dict = field(default_factory=dict)  # test number → what was raised
    broken: str | None = None  # what the program itself raised
    status: int | None = None  # wait status, once it has ended
    cpu_seconds: float = 0.0
    fate: str | None = None  # why the lab ended it
    drained: bool = False  # its reply pipe has ended


class CodeServer:
    """The lab's end of the fork server: its process, its socket, and its children by number."""

    def __init__(self):
        self._process = self._pid = self._socket = None
        self._children = {}  # number → Child
        self._forked = self._failed_starts = 0

    @property
    def running(self):
        """Whether the server's process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self):
        """The server's process id; None where it does not run."""
        return self._pid if self.running else None

    def start(self, setup, reply_bytes):
        """setup: what the server needs to know, but for its parent. OSError if it cannot be started."""
        self.stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process, self._pid, parent = spawn_python(
                SERVER_SCRIPT, setup["import_paths"] if setup["strongest"] == "auto" else None, stdin=theirs.fileno(), stdout=DEVNULL,
                stderr=DEVNULL, cwd="/")
        finally:
            theirs.close()
        self._socket, self._reply_bytes, self._failed_starts = ours, reply_bytes, 0
        ours.send(json.dumps({**setup, "parent": parent}).encode())

    def stop(self):
        """End the server; the kernel ends its children with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._socket.close()
        for child in list(self._children.values()):
            self.forget(child)
        self._process = self._socket = None

    def fork_until(self, count):
        """Ask for children until that many wait for a job or are about to."""
        for _ in range(count - sum(child.started is None for child in self._children.values())):
            job_read, job_write = os.pipe()
            reply_read, reply_write = os.pipe()
            self._forked += 1
            child = self._children[self._forked] = Child(self._forked, job_write, reply_read, FrameReader(self._reply_bytes))
            try:
                socket.send_fds(self._socket, [json.dumps({"fork": child.number}).encode()], [job_read, reply_write])
            finally:
                os.close(job_read)
                os.close(reply_write)

    def wait_for_lock(self):
        """The kind of lock of the first child."""
        while not (ready := self._ready()):
            if not self.listen(START_SECONDS):
                raise OSError("the fork server does not answer")
        return ready[0].lock

    def take_ready(self):
        """A locked child without a job, or None."""
        return next(iter(self._ready()), None)

    def send_job(self, child, job, now):
        """Give a waiting child its program and tests. One that has ended already is told by its exit message."""
        child.started = now
        try:
            write_all(child.job, encode_frame(job))
        except BrokenPipeError:
            pass  # it has ended; its exit message says how

    def end(self, child, fate):
        """Kill a child, once; its exit message follows."""
        if child.fate is None:
            child.fate = fate
            self._socket.send(json.dumps({"kill": child.pid}).encode())

    def forget(self, child):
        """Close the pipes of a child whose result is known, or no longer wanted."""
        self._children.pop(child.number, None)
        os.close(child.job)
        os.close(child.reply)

    def listen(self, timeout):
        """Take in what the server and the children say; False if that is nothing."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        by_reply = {child.reply: child for child in self._children.values() if not child.drained}
        for reply in by_reply:
            poll.register(reply, select.POLLIN)
        events = poll.poll(timeout * 1000)
        for fd, _ in events:
            if fd in by_reply:
                self._take_in(by_reply[fd])
            else:
                self._hear_server()
        return bool(events)

    def _ready(self):
        return [child for child in self._children.values() if child.lock and child.started is None and child.status is None]

    def _hear_server(self):
        data = self._socket.recv(MESSAGE_BYTES)
        if not data:
            raise OSError("the fork server has ended")
        message = json.loads(data)
        if "forked" in message:
            self._children[message["forked"]].pid = message["pid"]
            return
        for child in list(self._children.values()):
            if child.pid == message["exit"] and child.status is None:
                child.status, child.cpu_seconds = message["status"], message["cpu_seconds"]
                if child.started is None:
                    self._failed_start(child)

    def _failed_start(self, child):
        self.forget(child)
        self._failed_starts += 1
        if self._failed_starts >= MAX_FAILED_STARTS:
            raise OSError("children of the fork server end before they are locked")

    def _take_in(self, child):
        data = os.read(child.reply, CHUNK)
        if not data:
            child.drained = True
            return
        child.received += len(data)
        try:
            if child.received > self._reply_bytes:
                raise ValueError("too many")
            child.frames.feed(data)
            while (message := child.frames.take()) is not None:
                _note(child, message)
        except (ProtocolError, ValueError) as error:  # from here on nothing it says can be read
            child.drained = True
            self.end(child, f"its results cannot be read ({error})")


def _note(child, message):
    if child.lock is None:
        child.lock, child.startup_cpu = str(message.get("lock")), float(message.get("cpu_seconds", 0.0))
    elif "broken" in message:
        child.broken = str(message["broken"])[:300]
    elif type(number := message.get("call")) is int:
        if "error" in message:
            child.errors.setdefault(number, str(message["error"])[:300])
        elif number not in child.errors:
            child.values.setdefault(number, untagged(message.get("value")))
