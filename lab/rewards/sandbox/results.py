"""What the lab and its reward functions promise each other: limits, results, errors, and the check of a reply.

The signature is TRL's: keyword arguments `prompts`, `completions`, `completion_ids`, every column of the data,
`trainer_state`, `log_extra(column, values)`, `log_metric(name, value)`; one number or None per completion comes back, or
the steps of one (`lab.rewards.contract`).
Stricter than TRL where TRL is silent: NaN, infinity and text are errors that name their row, never "not applicable".
"""

import math
from dataclasses import dataclass, field

from lab.rewards import contract


@dataclass(frozen=True)
class Limits:
    """What a worker may use. Deadlines count the worker's own CPU time, so a busy machine does not cause timeouts; the
    wall limits catch sleeping and waiting, and are the CPU allowance plus `wall_seconds`."""

    start_seconds: float = 20.0  # by the clock, until the worker is locked and ready
    load_cpu_seconds: float = 10.0
    call_cpu_seconds: float = 2.0
    cpu_seconds_per_completion: float = 0.02
    wall_seconds: float = 10.0
    memory_bytes: int = 1 << 30  # address space; 2 GiB where sympy and its like are loaded
    reply_bytes: int = 4 << 20
    output_bytes: int = 16 << 10  # of what is printed; the rest is counted and thrown away
    threads: bool = False  # some compiled libraries start one when they are loaded

    def call_allowance(self, completions):
        """CPU seconds for a call on that many completions."""
        return self.call_cpu_seconds + self.cpu_seconds_per_completion * completions


class RewardError(contract.RewardError):
    """A reward function could not be loaded or did not give valid scores; `message` is one sentence for its author.

    kind: "syntax", "signature", "exception", "timeout", "memory", "crashed", "value" (what it returned), "protocol"
    (it wrote over the connection) or "unavailable" (no worker could be started: nothing the author did).
    line: of the author's file, or None. row: index of the completion, or None. function: its name, or the file's.
    traceback, printed: text, may be empty.
    """

    def __init__(self, kind, message, *, line=None, row=None, function="", traceback="", printed=""):
        super().__init__(function, row, message)
        self.kind, self.line, self.traceback, self.printed = kind, line, traceback, printed


@dataclass(frozen=True)
class RewardFunction:
    """One reward function as found in a file."""

    name: str
    line: int | None
    doc: str  # first line of its docstring, or ""
    parameters: tuple[str, ...]  # keyword arguments it names
    required: tuple[str, ...]  # those of them without a default
    takes_any: bool  # has **kwargs; without it TRL's own trainer refuses the function
    wants_text: bool  # says `completions: list[str]`
    is_async: bool

    def missing(self, available):
        """Columns that it needs and that are not in `available`."""
        return tuple(name for name in self.required if name not in available)


@dataclass(frozen=True)
class LoadedFile:
    """A reward file as the worker found it."""

    filename: str
    functions: tuple[RewardFunction, ...]
    printed: str = ""  # by the file's top level


@dataclass(frozen=True)
class CallResult:
    """What one call gave, looked at again value by value on the lab's side."""

    scores: list  # one finite float or None (not applicable) per completion; of steps their mean
    steps: list | None = None  # where the function judged steps: for each completion [(end, value), …] or None
    extra: dict = field(default_factory=dict)  # log_extra: column → one value per completion
    metrics: dict = field(default_factory=dict)  # log_metric: name → finite float
    printed: str = ""
    cpu_seconds: float = 0.0  # of the function, as the worker measured it
    wall_seconds: float = 0.0  # of the whole call, as the caller waited
    skipped_columns: tuple[str, ...] = ()  # not JSON, so not sent


def checked_reply(reply, completions):
    """(scores, steps, extra, metrics) of a worker's reply, every value looked at again: the worker may have been taken over."""
    scores, extra, metrics = reply.get("scores"), reply.get("extra"), reply.get("metrics")
    count = len(completions)
    if not isinstance(scores, list) or len(scores) != count:
        raise _not_the_contract("a list of scores, one per completion")
    steps = None
    if any(isinstance(score, list) for score in scores):
        if not all(score is None or _are_steps(score, completion) for score, completion in zip(scores, completions, strict=True)):
            raise _not_the_contract("steps that end one after the other within the text, each with a finite number")
        steps = [None if score is None else [(end, float(value)) for end, value in score] for score in scores]
        scores = [math.fsum(value for _, value in found) / len(found) if found else None for found in steps]
    elif not all(score is None or is_finite_number(score) for score in scores):
        raise _not_the_contract("finite numbers")
    if not isinstance(extra, dict) or not all(_is_column(values, count) for values in extra.values()):
        raise _not_the_contract("extra columns, one plain value per completion")
    if not isinstance(metrics, dict) or not all(is_finite_number(value) for value in metrics.values()):
        raise _not_the_contract("metrics that are finite numbers")
    return [None if s is None else float(s) for s in scores], steps, extra, {k: float(v) for k, v in metrics.items()}


def is_finite_number(value):
    """An int or float, not a bool, that a float can hold."""
    if type(value) is int:
        return abs(value) <= 1.7e308
    return type(value) is float and math.isfinite(value)


def _are_steps(found, completion):
    """Whether a value is [[end, value], …] with ends that rise, from 1 to the length of the completion's text."""
    if not isinstance(found, list) or not isinstance(completion, (str, list)):
        return False
    before, length = 0, len(contract.text_of(completion))
    for step in found:
        if not isinstance(step, list) or len(step) != 2 or type(step[0]) is not int or not is_finite_number(step[1]):
            return False
        if not before < step[0] <= length:
            return False
        before = step[0]
    return True


def _is_column(values, count):
    return isinstance(values, list) and len(values) == count and all(
        value is None or isinstance(value, (str, bool)) or is_finite_number(value) for value in values
    )


def _not_the_contract(expected):
    return RewardError("protocol", f"The worker's reply did not hold {expected}; the code in it may have changed the worker itself.")
