"""The other side of a reward host: a process that locks itself and then runs one person's reward functions.

Started as `python -I -S -B worker.py`; talks on standard input (requests) and on a copy of standard output (replies).
What the author prints goes to file descriptors 1 and 2, both of them the lab's output pipe. Four descriptors in all.
No timers in here: libraries use the alarm themselves. The lab keeps the time and sends signals.
"""

import faulthandler
import importlib
import importlib.machinery
import io
import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import lockdown  # noqa: E402
import protocol  # noqa: E402
import user_code  # noqa: E402

del sys.path[0]  # this folder is for the worker, not for the author

REQUESTS = 0
MAX_REQUEST_BYTES = 1 << 30  # from the lab, which is trusted; memory is limited anyway

# What can be imported when the lock shuts all files: loaded before. The rest of the library fails with a PermissionError.
COMMON_MODULES = """abc ast asyncio base64 binascii bisect calendar cmath collections colorsys contextlib copy csv ctypes
    dataclasses datetime decimal difflib enum fnmatch fractions functools gc gzip hashlib heapq html html.parser
    importlib inspect io itertools json keyword locale logging math numbers operator pprint random re reprlib secrets
    shlex signal socket statistics string struct subprocess sys textwrap threading time token tokenize traceback types
    typing unicodedata urllib.parse uuid warnings weakref xml.etree.ElementTree zlib""".split()


def main():
    """Lock the process, then answer requests until the lab closes the pipe."""
    replies = claim_descriptors()
    setup = protocol.read_frame(REQUESTS, MAX_REQUEST_BYTES)
    if setup is None:
        return
    lockdown.die_with(setup["parent"])
    interrupt = listen_to_signals()
    session = Session(setup["output_bytes"], interrupt)
    try:
        lock = prepare_and_lock(setup)
        session.is_locked = lock != "limits"
    except BaseException as error:
        protocol.write_frame(replies, {"id": setup["id"], "error": {"kind": "unavailable", "text": f"{type(error).__name__}: {error}"}})
        return
    protocol.write_frame(replies, {"id": setup["id"], "lock": lock})
    while (request := protocol.read_frame(REQUESTS, MAX_REQUEST_BYTES)) is not None:
        protocol.write_frame(replies, {"id": request["id"], **session.answer(request)})


def claim_descriptors():
    """Keep the reply pipe to ourselves, and let everything printed go where standard error goes."""
    replies = os.dup(1)
    os.dup2(2, 1)
    sys.stdin = io.StringIO()
    return replies


def listen_to_signals():
    """Time is over: SIGUSR2 raises in the author's code; if that does nothing, SIGUSR1 prints where it hangs, even in C."""
    interrupt = user_code.Interrupt()
    faulthandler.enable(file=2, all_threads=False)
    if hasattr(signal, "SIGUSR2"):
        signal.signal(signal.SIGUSR2, interrupt)
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return interrupt


def prepare_and_lock(setup):
    """Import what the lock would shut out, then lock for good; returns the kind of lock."""
    own_library = [os.path.join(sys.base_exec_prefix, "lib"), *sys.path]
    sys.path += setup["import_paths"]
    sys.meta_path = [HidingFinder if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
    for name in setup["preload"]:
        importlib.import_module(name)
    if lockdown.will_shut_all_files(setup["strongest"]):
        for name in COMMON_MODULES:
            importlib.import_module(name)
    if hasattr(time, "tzset"):
        time.tzset()  # reads /etc/localtime while that can be read
    return lockdown.lock(readable=[*own_library, *setup["import_paths"]], memory_bytes=setup["memory_bytes"],
                         threads=setup["threads"], strongest=setup["strongest"])


class HidingFinder(importlib.machinery.PathFinder):
    """As if these packages were not installed: libraries that only look whether they are there go on without."""

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        """As Python's own, but blind to the hidden packages."""
        if fullname.partition(".")[0] in user_code.HIDDEN_PACKAGES:
            return None
        return super().find_spec(fullname, path, target)


class Session:
    """The files loaded so far and their reward functions by name."""

    def __init__(self, output_bytes, interrupt):
        self.functions, self.interrupt, self.is_locked = {}, interrupt, False
        self.printed = Printed(output_bytes)

    def answer(self, request):
        """The reply to a request, with what it used and printed; never an exception."""
        self.printed.begin()
        started = time.process_time()
        try:
            reply = self._attempt(request)
        except user_code.Interrupted as late:  # the signal came just as the author's code had ended
            reply = {"error": user_code.describe_error(late, "", self.interrupt)}
        return {**reply, "cpu_seconds": time.process_time() - started, "printed_bytes": self.printed.sent}

    def _attempt(self, request):
        filename = request.get("filename") or self.functions.get(request.get("function"), (None, ""))[1]
        try:
            return self._load(request) if request["do"] == "load" else self._call(request)
        except BaseException as error:
            self.interrupt.armed = False
            report = user_code.describe_error(error, filename, self.interrupt)
            if self.is_locked and user_code.refused_by_the_lock(error):
                report["text"] += user_code.LOCK_HINT
            if report["kind"] == "exception" and request["do"] == "call":
                report["row"] = self._failing_row(request, error)
            return {"error": report}

    def _load(self, request):
        self.interrupt.armed = True
        module = user_code.load(request["source"], request["filename"])
        self.interrupt.armed = False
        functions, descriptions = user_code.reward_functions(module, request["filename"], request["function"])
        self.functions.update({name: (function, request["filename"]) for name, function in functions.items()})
        return {"functions": descriptions}

    def _call(self, request):
        return user_code.call(*self._arguments(request))

    def _arguments(self, request):
        function, _ = self.functions[request["function"]]
        return function, request["columns"], request["trainer_state"], self.interrupt, request["wary"]

    def _failing_row(self, request, error):
        self.printed.mute()
        try:
            return user_code.failing_row(*self._arguments(request), error=error, filename=self.functions[request["function"]][1])
        except BaseException:
            return None  # only a hint; the error itself is reported in any case
        finally:
            self.interrupt.armed = False


class Printed:
    """What the author prints, up to so many bytes for each request; the rest is thrown away."""

    def __init__(self, limit):
        self.limit, self.left, self.sent = limit, 0, 0

    def begin(self):
        """A new stream for each request, so that one closed by the author does no harm to the next."""
        self.left, self.sent = self.limit, 0
        sys.stdout = sys.stderr = io.TextIOWrapper(PrintedStream(self), "utf-8", "backslashreplace", write_through=True)

    def mute(self):
        """Throw away what is printed from here on."""
        self.left = 0

    def write(self, data):
        """Pass on as much as is still allowed; says that all was written, so that print never fails."""
        part = bytes(data)[: self.left]
        while part:
            written = os.write(1, part)
            self.sent, self.left, part = self.sent + written, self.left - written, part[written:]
        return len(data)


class PrintedStream(io.RawIOBase):
    """`Printed` as a raw stream, so that Python's text streams can be put on top."""

    def __init__(self, printed):
        self.printed = printed

    def writable(self):
        """As io asks it: yes."""
        return True

    def fileno(self):
        """Descriptor 1, for code that asks where its output goes."""
        return 1

    def write(self, data):
        """The number of bytes taken: all of them."""
        return self.printed.write(data)


if __name__ == "__main__":
    main()
