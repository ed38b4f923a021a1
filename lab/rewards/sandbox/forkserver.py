"""The other side of a code host: a small process that forks one locked child for each program.

It shuts files for itself and all its children. It never sees a program or a test: it is sent two pipe ends for each
child, forks, and the child finishes its lock *before* it reads its job from one of them. So there is nothing of another
program in a child's memory to be found.

Started as `python -I -S -B forkserver.py` with a SEQPACKET socket as standard input. Messages are small JSON objects:
  to the server    {"setup": …} once · {"fork": n} with two descriptors (job to read, reply to write) · {"kill": pid}
  from the server  {"forked": n, "pid": pid} · {"exit": pid, "status": wait status, "cpu_seconds": seconds}
"""

import importlib
import json
import os
import select
import signal
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import lockdown  # noqa: E402
import one_program  # noqa: E402

del sys.path[0]

MESSAGE_BYTES = 1 << 16


def main():
    """Import what programs may need, shut all files but Python's own, then fork a child for each pair of pipes that arrives."""
    lab = socket.socket(fileno=0)
    setup = json.loads(lab.recv(MESSAGE_BYTES))
    lockdown.die_with(setup["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path += setup["import_paths"]
    for name in setup["preload"]:
        importlib.import_module(name)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    bell = ring_when_children_end()
    files_are_shut = lockdown.shut_files([os.path.join(sys.base_exec_prefix, "lib"), *sys.path], setup["strongest"])
    children = set()
    poll = select.poll()
    poll.register(lab, select.POLLIN)
    poll.register(bell, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if bell in ready:
            os.read(bell, 4096)
            report_ended(lab, children)
        if lab.fileno() in ready:
            data, fds, _, _ = socket.recv_fds(lab, MESSAGE_BYTES, 2)
            if not data:
                return
            message = json.loads(data)
            if "fork" in message:
                pid = fork_child(fds, nowhere, setup, files_are_shut)
                children.add(pid)
                lab.send(json.dumps({"forked": message["fork"], "pid": pid}).encode())
            elif message.get("kill") in children:  # not reaped yet, so the number is still the child's
                os.kill(message["kill"], signal.SIGKILL)


def ring_when_children_end():
    """A descriptor that becomes readable when a child has ended."""
    bell, hammer = os.pipe()
    os.set_blocking(hammer, False)
    signal.set_wakeup_fd(hammer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda signum, frame: None)
    return bell


def report_ended(lab, children):
    """Tell the lab of every child that has ended: exit status and CPU seconds."""
    while children:
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            return
        children.discard(pid)
        lab.send(json.dumps({"exit": pid, "status": status, "cpu_seconds": usage.ru_utime + usage.ru_stime}).encode())


def fork_child(fds, nowhere, setup, files_are_shut):
    """A child that runs one program and never returns here; the server gets its process id."""
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            become_child(fds, nowhere, server)
            one_program.run(setup, files_are_shut)
        finally:
            os._exit(0)
    for fd in fds:
        os.close(fd)
    return pid


def become_child(fds, nowhere, server):
    """Job on 0, nothing on 1 and 2, reply on 3, and nothing else open."""
    lockdown.die_with(server)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    job, reply = (os.dup(fd) for fd in fds)  # out of the way of the numbers below
    os.dup2(job, 0)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.dup2(reply, 3)
    os.closerange(4, 256)


if __name__ == "__main__":
    main()
