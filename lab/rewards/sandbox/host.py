"""The lab's side of people's reward functions: load a file, call a function, get checked scores or one clear error.

A host owns at most one worker at a time. A worker that hung, crashed or broke the protocol is killed, and the next
request starts a fresh one and loads the same files again (about a tenth of a second). Never share a host between people:
a file may change the Python that the other files of the same worker run in.
"""

import os
import re
import secrets
import signal
import sys
import threading
import time
import weakref
from pathlib import Path

from .process import Deadline, Died, Hung, Worker
from .protocol import ProtocolError, encode_frame
from .results import CallResult, Limits, LoadedFile, RewardError, RewardFunction, checked_reply, is_finite_number

WORKER_SCRIPT = Path(__file__).with_name("worker.py")
MAX_SOURCE_BYTES = 1 << 20
NOT_FROM_COLUMNS = ("prompt", "prompts", "completion", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
NOT_JSON = (TypeError, ValueError, RecursionError)


class RewardHost:
    """Runs the reward functions of one person, or one trusted set of our own, in a locked process.

    import_paths: folders that may be imported from besides the standard library and the installed packages.
    preload: modules to import before the lock (those that start a thread when loaded, or are wanted warm).
    lock: "auto"; other values exist for tests (`lockdown.lock`). Usable from any thread; calls go one at a time.
    """

    def __init__(self, limits=None, *, import_paths=(), preload=(), lock="auto"):
        self.limits = limits or Limits()
        self._setup = {"import_paths": [*installed_packages(), *map(os.fspath, import_paths)], "preload": list(preload),
                       "strongest": lock, "threads": self.limits.threads, "memory_bytes": self.limits.memory_bytes,
                       "output_bytes": self.limits.output_bytes}
        self._files = {}  # filename → (source, wanted function)
        self._functions = {}  # name → (RewardFunction, filename)
        self._lock_kind = None
        self._turn = threading.Lock()
        self._worker = _Slot()
        self._end = weakref.finalize(self, self._worker.empty)

    def load(self, source, function=None, filename="my_reward.py"):
        """Run the file's top level and return what it offers; RewardError if it does not run or offers nothing.

        function: the one to use; None takes every public callable with `completions`, `prompts` or `completion_ids`.
        Loading under a filename used before replaces that file, in a fresh worker: nothing of the old one stays. If the
        new one cannot be loaded, the old one stays in force.
        """
        filename = re.sub(r"[^\w.\- ]", "_", os.path.basename(filename)) or "my_reward.py"
        if len(source.encode("utf-8", "replace")) > MAX_SOURCE_BYTES:
            raise RewardError("syntax", f"{filename} is larger than 1 MB; a reward function does not need that.", function=filename)
        with self._turn:
            if filename in self._files:
                self._worker.empty()
            try:
                loaded = self._load_into(self._ready_worker(without=filename), filename, source, function)
            except RewardError:
                self._worker.empty()  # the file may have half happened; the next request finds everything as it was before
                raise
            self._files[filename] = (source, function)
            self._functions = {name: entry for name, entry in self._functions.items() if entry[1] != filename}
            self._functions.update({f.name: (f, filename) for f in loaded.functions})
            return loaded

    @property
    def functions(self):
        """{name: RewardFunction} of everything loaded; a name loaded twice means the later one."""
        return {name: function for name, (function, _) in self._functions.items()}

    def call(self, function, *, prompts, completions, completion_ids=None, columns=None, trainer_state=None, wary=False):
        """Scores for all completions in one call, as the trainer would call it. RewardError if there are none to be had.

        columns: {name: one JSON value per completion}; a column that is not JSON is left out and named in the result.
        trainer_state: a dict of numbers, or an object whose numeric attributes are taken.
        wary: completions that are message lists raise a TypeError about 'Messages' when they are used as text.
        """
        if function not in self._functions:
            there = ", ".join(self._functions) or "none"
            raise RewardError("signature", f"no such reward function is loaded; there is {there}.", function=function)
        description, filename = self._functions[function]
        given = all_columns(prompts, completions, completion_ids, columns or {})
        request = {"do": "call", "id": secrets.token_hex(8), "function": function, "columns": given,
                   "trainer_state": plain_state(trainer_state), "wary": wary}
        frame, skipped = encoded(request)
        _require_columns(description, given, skipped)
        allowance = self.limits.call_allowance(len(completions))
        with self._turn:
            started = time.monotonic()
            reply, printed = self._ask(self._ready_worker(), request["id"], frame, filename, function, allowance)
            try:
                scores, steps, extra, metrics = checked_reply(reply, completions)
            except RewardError as error:
                self._worker.empty()
                raise _complete(error, function, printed) from None
            return CallResult(scores, steps, extra, metrics, printed, cpu_seconds=_number(reply.get("cpu_seconds")),
                              wall_seconds=time.monotonic() - started, skipped_columns=skipped)

    @property
    def lock_kind(self):
        """"full", "nofiles" or "limits": the lock of the worker (`lockdown`); starts one if need be."""
        with self._turn:
            self._ready_worker()
            return self._lock_kind

    @property
    def worker_pid(self):
        """The process id of the running worker, or None."""
        worker = self._worker.content
        return worker.pid if worker is not None and worker.alive else None

    def close(self):
        """End the worker. The host can be used again; a new worker then starts with the same files."""
        with self._turn:
            self._worker.empty()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def _ready_worker(self, without=None):
        """The running worker, or a fresh one with all files loaded but the one that is about to be replaced."""
        worker = self._worker.content
        if worker is not None and worker.alive:
            return worker
        self._worker.empty()
        worker = self._start()
        self._worker.content = worker
        try:
            for filename, (source, function) in self._files.items():
                if filename != without:
                    self._load_into(worker, filename, source, function)
        except RewardError:
            self._worker.empty()
            raise
        return worker

    def _start(self):
        limits = self.limits
        worker = Worker(WORKER_SCRIPT, reply_bytes=limits.reply_bytes, output_bytes=limits.output_bytes, memory_bytes=limits.memory_bytes,
                        readable=self._setup["import_paths"] if self._setup["strongest"] == "auto" else None)
        request = {"id": secrets.token_hex(8), "parent": worker.parent_pid, **self._setup}
        try:
            reply = worker.ask(request["id"], encode_frame(request), Deadline(limits.start_seconds, limits.start_seconds))
        except (Hung, Died, ProtocolError) as error:
            detail = error.output.strip()[-300:] if isinstance(error, Died) else str(error)
            raise RewardError("unavailable", f"no reward process could be started ({detail}).", function="worker") from None
        if "error" in reply:
            worker.kill()
            raise RewardError("unavailable", f"no reward process could be started ({reply['error'].get('text')}).", function="worker")
        self._lock_kind = reply.get("lock")
        return worker

    def _load_into(self, worker, filename, source, function):
        request = {"do": "load", "id": secrets.token_hex(8), "source": source, "filename": filename, "function": function}
        reply, printed = self._ask(worker, request["id"], encode_frame(request), filename, filename, self.limits.load_cpu_seconds)
        try:
            functions = tuple(_described(entry) for entry in reply["functions"])
        except (KeyError, TypeError, ValueError):
            self._worker.empty()
            raise RewardError("protocol", f"{filename} changed the worker itself while it was loaded.", function=filename,
                              printed=printed) from None
        return LoadedFile(filename, functions, printed)

    def _ask(self, worker, identity, frame, filename, function, cpu_seconds):
        """(reply, printed text), or the RewardError that says what happened instead."""
        deadline = Deadline(cpu_seconds, self.limits.wall_seconds + cpu_seconds)
        try:
            reply = worker.ask(identity, frame, deadline)
        except Hung as hung:
            line = line_in_dump(hung.dump, filename)
            raise _timeout(worker.spent, deadline, filename, line, function, None, hung.dump, worker.output.text_before_mark()) from None
        except Died as died:
            raise _crash(died, filename, function) from None
        except ProtocolError as error:
            raise RewardError("protocol", f"{filename} wrote over the connection to the lab ({error}).", function=function,
                              printed=worker.output.text()) from None
        printed = worker.output.text()
        if isinstance(reply.get("error"), dict):
            error = _reported(reply["error"], worker.spent, deadline, filename, function, printed)
            if error.kind in ("memory", "protocol"):
                self._worker.empty()  # what it still holds would only cause the next one
            raise error
        return reply, printed


class _Slot:
    """Holds the worker, apart from the host, so that it is ended even if the host is only forgotten."""

    content = None

    def empty(self):
        worker, self.content = self.content, None
        if worker is not None:
            worker.kill()


def installed_packages():
    """The folders of installed packages that this Python uses, for the worker's path; without the code in `.pth` files."""
    return [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages") and os.path.isdir(path)]


def all_columns(prompts, completions, completion_ids, columns):
    """{name: list}, as a reward function gets them. ValueError if a length differs from that of completions."""
    given = {"prompts": prompts, "completions": completions}
    if completion_ids is not None:
        given["completion_ids"] = completion_ids
    given.update({name: values for name, values in columns.items() if name not in NOT_FROM_COLUMNS})
    for name, values in given.items():
        if len(values) != len(completions):
            raise ValueError(f"column {name!r} has {len(values)} values for {len(completions)} completions")
    return given


def encoded(request):
    """The request as a frame, without the columns that are not JSON, and their names. ValueError if completions are not."""
    try:
        return encode_frame(request), ()
    except NOT_JSON:
        columns = {name: values for name, values in request["columns"].items() if _is_json(values)}
        if "completions" not in columns:
            raise ValueError("completions must be texts or lists of messages") from None
        return encode_frame({**request, "columns": columns}), tuple(name for name in request["columns"] if name not in columns)


def plain_state(state):
    """The finite numbers (and flags) of a trainer's state, by name."""
    if state is None:
        return {}
    values = state if isinstance(state, dict) else vars(state)
    return {name: value for name, value in values.items() if isinstance(value, bool) or is_finite_number(value)}


def line_in_dump(dump, filename):
    """The line of the innermost frame of the author's file in what faulthandler printed, or None."""
    found = re.search(rf'File "{re.escape(filename)}", line (\d+) in ', dump)
    return int(found[1]) if found else None


def _is_json(values):
    try:
        encode_frame(values)
    except NOT_JSON:
        return False
    return True


def _require_columns(function, given, skipped):
    sent = [name for name in given if name not in skipped]
    if missing := function.missing({*sent, "trainer_state", "log_extra", "log_metric"}):
        needs = " and ".join(repr(name) for name in missing)
        why = "that cannot be sent as JSON" if set(missing) <= set(skipped) else "that was not stored"
        raise RewardError("signature", f"needs {needs}, a column {why}; there is {', '.join(sent)}.",
                          line=function.line, function=function.name)


def _timeout(spent, deadline, filename, line, function, row, traceback, printed):
    return RewardError(
        "timeout", f"stopped{_place(line, filename)}: {spent.cpu_seconds:.1f} s of computing in {spent.wall_seconds:.1f} s; "
        f"the limits are {deadline.cpu_seconds:.1f} s and {deadline.wall_seconds:.1f} s.",
        line=line, row=row, function=function, traceback=traceback, printed=printed)


def _crash(died, filename, function):
    line = line_in_dump(died.output, filename)
    if died.reason == "memory":
        return RewardError("memory", "used more memory than it may.", function=function, printed=died.output)
    if died.returncode is None:
        how = "closed its connection to the lab"
    elif died.returncode < 0:
        name = signal.Signals(-died.returncode).name if -died.returncode in iter(signal.Signals) else str(-died.returncode)
        how = f"was ended by {name}" + (" (out of memory or too deep a recursion)" if name == "SIGSEGV" else "")
    else:
        how = f"ended itself with exit code {died.returncode}"
    return RewardError("crashed", f"its process {how}{_place(line, filename)}.", line=line, function=function,
                       traceback=died.output, printed=died.output)


def _reported(error, spent, deadline, filename, function, printed):
    """The worker's own report as a RewardError; nothing in it is trusted to have the right type."""
    line, row = (value if type(value) is int else None for value in (error.get("line"), error.get("row")))
    kind, text, traceback = (str(error.get(key) or "") for key in ("kind", "text", "traceback"))
    if kind == "timeout":
        return _timeout(spent, deadline, filename, line, function, row, traceback, printed)
    if kind not in ("syntax", "signature", "exception", "memory", "value"):
        kind, text = "protocol", "the worker sent a report that nobody can read"
    return RewardError(kind, f"{text[:1000]}{_place(line, filename)}.", line=line, row=row, function=function,
                       traceback=traceback, printed=printed)


def _place(line, filename):
    return f" at line {line} of {filename}" if line is not None else ""


def _described(entry):
    return RewardFunction(str(entry["name"]), entry["line"], str(entry["doc"]), tuple(map(str, entry["parameters"])),
                          tuple(map(str, entry["required"])), bool(entry["takes_any"]), bool(entry["wants_text"]), bool(entry["is_async"]))


def _complete(error, function, printed):
    error.function, error.printed = function, printed
    return error


def _number(value):
    return float(value) if is_finite_number(value) else 0.0
