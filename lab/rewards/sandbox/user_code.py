"""The author's file, inside the worker: compile it, find its reward functions, call one, say what went wrong and where.

Nothing here protects anybody: by the time this runs the process is locked, and the lab looks again at every value that
comes out. Results and errors are plain dicts, ready to be sent.
"""

import inspect
import io
import linecache
import math
import os
import sys
import traceback
import types

import quiet_loop

THIS_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
HIDDEN_PACKAGES = ("torch", "tensorflow", "jax")  # they start threads when imported, which the lock refuses
REWARD_PARAMETERS = {"prompts", "completions", "completion_ids"}  # a function that takes one of them is a reward
LOCK_HINT = " (rewards run locked: they cannot open your files, write, connect, or start threads or programs)"
TEXT_LIMIT, TRACEBACK_LIMIT, CELL_LIMIT, EXTRA_LIMIT = 500, 8000, 2000, 1 << 18  # characters


class Fault(Exception):
    """The author's code broke the contract of reward functions (no exception of its own, so no traceback)."""

    def __init__(self, kind, text, row=None, line=None):
        super().__init__(text)
        self.kind, self.text, self.row, self.line = kind, text, row, line


class Interrupted(BaseException):
    """Raised inside the author's code when the lab says that its time is over."""


class Interrupt:
    """The lab's signal becomes an Interrupted where the author's code is, but only while that code runs."""

    def __init__(self):
        self.armed, self.row, self.watched = False, None, ()

    def __call__(self, signum, frame):
        """The signal's handler: Interrupted where the author's code is, with the row it was looking at."""
        if self.armed:
            self.armed = False
            self.row = common_row(self.watched)
            raise Interrupted("time is over")


class Rows(list):
    """A column that knows which row is being looked at, so a loop that hangs can be traced to a completion."""

    row = None

    def __iter__(self):
        try:
            for self.row, item in enumerate(super().__iter__()):
                yield item
        finally:
            self.row = None


class Messages(list):
    """A completion as a list of messages that refuses to be measured or searched like text (as `lab.rewards.contract`)."""

    def __len__(self):
        raise TypeError("The length of 'Messages' was asked: a completion is a list of messages here.")

    def __contains__(self, item):
        if isinstance(item, str):
            raise TypeError("'Messages' were searched for a string: a completion is a list of messages here.")
        return super().__contains__(item)

    def __bool__(self):
        return True

    def __str__(self):
        raise TypeError("'Messages' were turned into a string: a completion is a list of messages here.")


class TrainerState:
    """Numbers of the trainer by attribute, as TRL's `trainer_state`."""

    def __init__(self, values):
        self.__dict__.update(values)

    def __getattr__(self, name):
        raise AttributeError(f"trainer_state has no {name!r} here; it has {', '.join(sorted(self.__dict__)) or 'no values'}")


def load(source, filename):
    """Execute the author's file as a module of its own; its tracebacks show its lines."""
    linecache.cache[filename] = (len(source), None, io.StringIO(source, newline=None).readlines(), filename)
    try:
        code = compile(source, filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        text = getattr(error, "msg", None) or short_text(error) or "the file is nested too deeply"
        raise Fault("syntax", f"SyntaxError: {text}", line=getattr(error, "lineno", None)) from None
    module = types.ModuleType("user_" + filename.rpartition(".")[0].replace(".", "_"))
    module.__file__ = filename
    sys.modules[module.__name__] = module  # dataclasses and typing look their module up
    exec(code, module.__dict__)
    return module


def reward_functions(module, filename, wanted=None):
    """{name: callable} and their descriptions: every public callable that takes prompts, completions or completion_ids."""
    found = {}
    for name, value in list(vars(module).items()):
        if callable(value) and not inspect.isclass(value) and (name == wanted or not name.startswith("_")):
            parameters = keyword_parameters(value)
            if parameters is not None and (name == wanted or REWARD_PARAMETERS & set(parameters)):
                found[name] = value
    if wanted is not None:
        found = {wanted: found[wanted]} if wanted in found else _nothing_found(module, filename, wanted)
    elif not found:
        _nothing_found(module, filename, wanted)
    return found, [describe_function(name, function, filename) for name, function in found.items()]


def describe_function(name, function, filename):
    """Name, line, first line of documentation and parameters of a reward; Fault where it could not be called by name."""
    parameters = inspect.signature(function).parameters.values()
    code = getattr(inspect.unwrap(function), "__code__", None)
    line = code.co_firstlineno if code is not None and code.co_filename == filename else None
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise Fault("signature", f"{name} takes {parameter.name!r} by position only, but everything is passed by name: "
                        "remove the '/'", line=line)
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if not takes_any and not REWARD_PARAMETERS & set(named):
        raise Fault("signature", f"{name} does not take `completions`: write def {name}(completions, **kwargs)", line=line)
    annotation = named["completions"].annotation if "completions" in named else None
    return {
        "name": name, "line": line, "doc": ((inspect.getdoc(function) or "").strip().splitlines() or [""])[0][:200],
        "parameters": list(named), "required": [p.name for p in named.values() if p.default is p.empty], "takes_any": takes_any,
        "wants_text": str(annotation) in ("list[str]", "typing.List[str]", "List[str]"),
        "is_async": inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__),
    }


def keyword_parameters(function):
    """The names of a callable's parameters; None where Python cannot tell them."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None


def call(function, columns, trainer_state, interrupt, wary):
    """Scores of all rows, extra columns and metrics; `interrupt` is armed while the author's code runs.

    wary: completions that are lists of messages object to being used as text.
    """
    extra, metrics, wanted = {}, {}, keyword_parameters(function)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
    count = len(columns["completions"])

    def log_extra(column, values):
        extra[str(column)[:100]] = plain_column(column, values, count, EXTRA_LIMIT // max(1, count))

    def log_metric(name, value):
        metrics.setdefault(str(name)[:100], []).append(plain_number(value, f"log_metric({name!r}) got"))

    arguments = {name: Rows(values) for name, values in columns.items()}
    if wary:
        arguments["completions"] = Rows(Messages(c) if isinstance(c, list) else c for c in columns["completions"])
    interrupt.watched, interrupt.row = tuple(arguments.values()), None
    arguments |= {"trainer_state": TrainerState(trainer_state), "log_extra": log_extra, "log_metric": log_metric}
    if not takes_any:
        arguments = {name: value for name, value in arguments.items() if name in wanted}
    interrupt.armed = True
    try:
        output = function(**arguments)
        if inspect.isawaitable(output):
            output = quiet_loop.run(output)
        scores = plain_scores(output, columns["completions"])
    finally:
        interrupt.armed = False
    return {"scores": scores, "extra": extra, "metrics": {name: math.fsum(values) / len(values) for name, values in metrics.items()}}


def failing_row(function, columns, trainer_state, interrupt, wary, *, error, filename):
    """The first completion on which the function, called with it alone, fails in the same way at the same line.

    None if it fails on every one: then the row is not the cause.
    """
    where = type(error), author_line(error, filename)
    first, one_passed = None, False
    for row in range(len(columns["completions"])):
        alone = {name: values[row : row + 1] for name, values in columns.items()}
        try:
            call(function, alone, trainer_state, interrupt, wary)
            one_passed = True
        except Interrupted:
            return None
        except BaseException as again:
            if first is None and (type(again), author_line(again, filename)) == where:
                first = row
        if first is not None and one_passed:
            return first
    return None


def plain_scores(output, completions):
    """A float, a None or a list of steps for each completion from whatever was returned, or a Fault that says what it was and where."""
    count = len(completions)
    if not isinstance(output, (list, tuple)):
        if callable(getattr(output, "tolist", None)):
            output = output.tolist()  # numpy, pandas
        if not isinstance(output, (list, tuple)):
            raise Fault("value", f"returned {a_kind_of(output)}; return a list with one score per completion ({count} here)")
    if len(output) != count:
        raise Fault("value", f"returned {len(output)} scores for {count} completions; return exactly one per completion")
    if any(map(are_steps, output)):
        return [None if steps is None else plain_steps(steps, text_length(completions[row]), row) for row, steps in enumerate(output)]
    return [None if score is None else plain_number(score, "the score is", row) for row, score in enumerate(output)]


def are_steps(value):
    """Whether a value looks like the steps of one completion: a list of pairs."""
    return isinstance(value, (list, tuple)) and all(isinstance(step, (list, tuple)) and len(step) == 2 for step in value)


def plain_steps(steps, length, row):
    """[[end, value], …] by rising end; `length` is that of the completion's text."""
    if not are_steps(steps):
        raise Fault("value", f"expected a list of (end, value), as other completions got, but there is {a_kind_of(steps)}", row)
    for end, value in steps:
        if type(end) is not int or not 0 < end <= length:
            raise Fault("value", f"a step ends at {a_kind_of(end)}; a character position from 1 to {length} is needed", row)
        if value is None:
            raise Fault("value", "a step has no value; leave out steps that cannot be judged", row)
    plain = sorted([end, plain_number(value, "a step's value is", row)] for end, value in steps)
    for (end, _), (following, _) in zip(plain, plain[1:], strict=False):
        if end == following:
            raise Fault("value", f"two steps end at character {end}; give each its own end", row)
    return plain


def text_length(completion):
    """Characters of a completion that is a text or a list of messages (as `lab.rewards.contract.text_of`)."""
    if isinstance(completion, str):
        return len(completion)
    return len("\n".join(str(message.get("content") or "") for message in completion))


def plain_number(value, subject, row=None):
    """A finite float from a number of any kind; Fault, with `subject` and `row`, for text, nan and what is too large."""
    if isinstance(value, (str, bytes, bytearray, complex)) or not hasattr(type(value), "__float__"):
        if not hasattr(type(value), "__index__"):
            raise Fault("value", f"expected a number, but {subject} {a_kind_of(value)}", row)
    try:
        number = float(value)
    except OverflowError:
        raise Fault("value", f"{subject} too large for a floating-point number", row) from None
    except (TypeError, ValueError):
        raise Fault("value", f"expected a number, but {subject} {a_kind_of(value)}", row) from None
    if not math.isfinite(number):
        raise Fault("value", f"{subject} {number}; scores must be finite (None means: not applicable)", row)
    return number


def plain_column(name, values, count, cell_limit):
    """One cell per completion from what `log_extra` was given; Fault for another length."""
    if not isinstance(values, (list, tuple)):
        values = values.tolist() if callable(getattr(values, "tolist", None)) else None
    if not isinstance(values, (list, tuple)) or len(values) != count:
        raise Fault("value", f"log_extra({name!r}) needs a list with one value per completion ({count} here)")
    return [plain_cell(value, min(CELL_LIMIT, max(8, cell_limit))) for value in values]


def plain_cell(value, limit):
    """A value as JSON can hold it: itself, or its text cut at `limit` characters."""
    if value is None or type(value) is bool:
        return value
    if type(value) is int and abs(value) < 1 << 53 or type(value) is float and math.isfinite(value):
        return value
    text = value if isinstance(value, str) else safe_text(value)
    return str(text) if len(text) <= limit else text[:limit] + "…"


def a_kind_of(value):
    """A value in a few words, for a sentence that refuses it."""
    if isinstance(value, (str, bytes, int, float, complex)) and not isinstance(value, bool):
        return f"{type(value).__name__} {short_text(repr(value), 60)}"
    if isinstance(value, (list, tuple, dict, set)):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def describe_error(error, filename, interrupt):
    """kind, text, line, row and traceback of whatever came out of the author's code."""
    if isinstance(error, MemoryError):
        traceback.clear_frames(error.__traceback__)  # the memory is held by their variables
    line = author_line(error, filename)
    if isinstance(error, Fault):
        return {"kind": error.kind, "text": error.text, "line": error.line or line, "row": error.row, "traceback": ""}
    kind = "timeout" if isinstance(error, Interrupted) else "memory" if isinstance(error, MemoryError) else "exception"
    text = f"{type(error).__name__}: {short_text(error)}".rstrip(": ")
    if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] in HIDDEN_PACKAGES:
        text = f"{error.name} isn't available in rewards: they run in a locked process, on text and numbers"
    return {"kind": kind, "text": text, "line": line,
            "row": interrupt.row if kind == "timeout" else None, "traceback": author_traceback(error, filename)}


def refused_by_the_lock(error):
    """Whether the lock is the likely reason: a PermissionError, or what Python says where a thread or file is refused."""
    text = safe_text(error) if isinstance(error, (RuntimeError, FileNotFoundError)) else ""
    return isinstance(error, PermissionError) or "can't start new thread" in text or "temporary directory" in text


def author_line(error, filename):
    """The line of the innermost frame in the author's file; None if the error is not from there."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == filename]
    return lines[-1] if lines else None


def author_traceback(error, filename):
    """As Python prints it, without the worker's own frames, which tell an author nothing."""
    try:
        report = traceback.TracebackException(type(error), error, error.__traceback__)
        report.stack = traceback.StackSummary.from_list([f for f in report.stack if not f.filename.startswith(THIS_FOLDER)])
        text = "".join(report.format())
    except Exception as second:  # a hostile __cause__, __notes__, …
        text = f"{type(error).__name__} (its traceback cannot be printed: {type(second).__name__})"
    return text if len(text) <= TRACEBACK_LIMIT else text[: TRACEBACK_LIMIT // 2] + "\n…\n" + text[-TRACEBACK_LIMIT // 2 :]


def short_text(value, limit=TEXT_LIMIT):
    """A value's text, cut at `limit` characters."""
    text = safe_text(value)
    return text if len(text) <= limit else text[:limit] + "…"


def safe_text(value):
    """A value's text, whatever its `__str__` does."""
    try:
        return str.__str__(str(value))
    except Exception:
        return "<unprintable>"


def common_row(columns):
    """The row that every column being looped over is at, or None."""
    rows = {column.row for column in columns} - {None}
    return rows.pop() if len(rows) == 1 else None


def _nothing_found(module, filename, wanted):
    own = [f"{name}({', '.join(keyword_parameters(value) or ())})" for name, value in vars(module).items()
           if isinstance(value, types.FunctionType) and value.__module__ == module.__name__]
    if wanted is not None:
        raise Fault("signature", f"there is no function {wanted!r} in {filename}" + (f"; it defines {', '.join(own)}" if own else ""))
    hint = f"; {own[0]} does not take `completions`" if own else ""
    raise Fault("signature", f"no reward function found{hint}: define one like def my_reward(completions, **kwargs)")
