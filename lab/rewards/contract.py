"""What a reward function gets and what it may give back: TRL's contract, spelled out once.

A function is called once per batch with keywords: `prompts`, `completions`, `completion_ids`, every other column of the
task's rows, `trainer_state`, `log_extra(column, values)` and `log_metric(name, value)`. It returns one number or None
per completion, directly or as a coroutine. (TRL 1.16, `GRPOTrainer._calculate_rewards`.) TRL demands `**kwargs`; here a
function without it gets what it names.

Two keywords that TRL does not have are passed only to a function that names them, so that one written for TRL never
meets them: `group_ids`, one number per completion, equal within a group (two groups may have the same prompt, so
neither position nor text can tell), and `ratings`, what a person gave each completion (`by_hand`).

Where the chat template itself begins the answer, as thinking models' do with `<think>`, that beginning is no part of the
completion; it is passed as the column `prefill`.

Beyond TRL, a function may judge single steps (process supervision, DeepSeekMath §4.1.3): for a completion it then
returns a list of `(end, value)`, where a step's text ends before character `end` of the completion. Each token gets the
steps that end at or after it; the mean of the values is the completion's reward from this function.

Prompts and completions arrive as lists of messages, `[{"role": "assistant", "content": text}]`, as TRL gives them for
chat prompts. A function that says `completions: list[str]` gets plain strings, and so does one whose first call breaks
because it took a completion for a string (`completion.split()`, `re.search(..., completion)`, `len(completion)`):
see `call`. `text_of` turns either form into text.

Leaves out: where functions come from (`resolve`), totals and groups (`scoring`), the sandbox.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import typing
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import CodeType
from typing import Any


class RewardError(Exception):
    """A reward function that broke the contract. `function`: its name; `row`: the completion's number in the batch, or
    None; `place`: the same row in words, filled by `score`; `message`: what happened and what was expected."""

    def __init__(self, function: str, row: int | None, message: str):
        super().__init__(function, row, message)
        self.function, self.row, self.message, self.place = function, row, message, ""

    def __str__(self) -> str:
        row = "" if self.row is None else f", row {self.row}" + (f" ({self.place})" if self.place else "")
        return f"Reward {self.function}{row}: {self.message}" if self.function else self.message


@dataclass(frozen=True)
class TrainerState:
    """The part of TRL's `trainer_state` that reward functions read."""

    global_step: int = 0  # steps finished before this batch
    max_steps: int = 0
    epoch: float = 0.0


@dataclass
class Batch:
    """The completions of one scoring call, group after group, one entry per completion in every list."""

    prompts: list[list[dict[str, str]]]
    texts: list[str]
    completion_ids: list[list[int]]
    columns: dict[str, list[Any]] = field(default_factory=dict)  # the rows' other columns
    trainer_state: TrainerState = TrainerState()
    group_ids: list[int] = field(default_factory=list)  # equal within a group
    ratings: list[dict[str, float] | None] = field(default_factory=list)  # by hand: criterion → 0…1

    def __len__(self) -> int:
        return len(self.texts)


@dataclass
class Outcome:
    """What one function said about a batch."""

    values: list[float | None]
    steps: list[list[tuple[int, float]] | None]  # of each completion; None where the function judged it as a whole
    extra: dict[str, list[Any]] = field(default_factory=dict)  # log_extra: one value per completion
    metrics: dict[str, float] = field(default_factory=dict)  # log_metric: averaged over its calls


def text_of(completion: str | Sequence[dict[str, Any]]) -> str:
    """The text of a completion in either form: itself, or its messages' contents joined by newlines."""
    if isinstance(completion, str):
        return completion
    return "\n".join(str(message.get("content") or "") for message in completion)


def call(name: str, function: Callable, batch: Batch) -> Outcome:
    """Calls `function` on `batch` and checks what comes back. Raises RewardError.

    Which form the function wants is found out at its first call and remembered: strings if its annotation says so,
    messages if its code names their key "content". Otherwise messages, first as `Messages` that object to being used as
    text, then, if they did object, as strings, and if those fail as well, as plain lists.
    """
    if (form := _known_form(function)) is not None:
        return _call_in_form(name, function, batch, form)
    try:
        outcome, form = _call_in_form(name, function, batch, _wary_messages), _plain_messages
    except RewardError as error:
        if not _took_messages_for_text(error):
            raise
        outcome, form = _call_as_text_or_list(name, function, batch)
    _remember_form(function, form)
    return outcome


def checked_values(name: str, returned: Any, count: int) -> list[float | None]:
    """`returned` as plain floats and None, one per completion; RewardError says what is wrong and in which row."""
    if hasattr(returned, "tolist"):  # numpy arrays and tensors
        returned = returned.tolist()
    if not isinstance(returned, (list, tuple)):
        raise RewardError(name, None, f"returned {_kind(returned)}; expected a list with one number or None for each of "
                                      f"the {count} completions.")
    if len(returned) != count:
        raise RewardError(name, None, f"returned {len(returned)} values for {count} completions; expected one each.")
    return [_checked_value(name, row, value) for row, value in enumerate(returned)]


class Messages(list):
    """A message list that refuses to be measured or searched as if it were text, where a list would silently mislead."""

    def __contains__(self, item: Any) -> bool:
        if isinstance(item, str):
            raise TypeError("'Messages' were searched for a string: a completion is a list of messages here.")
        return super().__contains__(item)

    def __len__(self) -> int:
        raise TypeError("The length of 'Messages' was asked: a completion is a list of messages here.")

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        raise TypeError("'Messages' were turned into a string: a completion is a list of messages here.")


def _plain_messages(texts: list[str]) -> list[Any]:
    return [[{"role": "assistant", "content": text}] for text in texts]


def _wary_messages(texts: list[str]) -> list[Any]:
    return [Messages(messages) for messages in _plain_messages(texts)]


def _strings(texts: list[str]) -> list[Any]:
    return list(texts)


def _call_in_form(name: str, function: Callable, batch: Batch, form: Callable) -> Outcome:
    extra: dict[str, list[Any]] = {}
    logged: dict[str, list[float]] = {}
    # copies: a function that changes what it was given must not change it for the next function, nor in the task's rows
    prompts = [text_of(prompt[-1:]) for prompt in batch.prompts] if form is _strings else _own(batch.prompts)

    def log_extra(column: str, values: list[Any]) -> None:
        if len(values) != len(batch):
            raise ValueError(f"log_extra({column!r}) got {len(values)} values for {len(batch)} completions.")
        extra[column] = list(values)

    def log_metric(metric: str, value: float) -> None:
        logged.setdefault(metric, []).append(float(value))

    given = dict(prompts=prompts, completions=form(batch.texts), completion_ids=_own(batch.completion_ids),
                 **_own(batch.columns), trainer_state=batch.trainer_state, log_extra=log_extra, log_metric=log_metric)
    arguments = _arguments(name, function, given, {"group_ids": _own(batch.group_ids), "ratings": _own(batch.ratings)})
    try:
        returned = _awaited(function(**arguments))
    except RewardError:
        raise
    except (Exception, SystemExit) as error:  # sys.exit() in a function ends the function, not the training
        raise RewardError(name, None, f"raised {type(error).__name__}: {error}{_line_of(error)}") from error
    metrics = {metric: math.fsum(values) / len(values) for metric, values in logged.items()}
    steps = _checked_steps(name, returned, batch.texts)
    if steps is not None:
        return Outcome([_mean_value(found) for found in steps], steps, extra, metrics)
    return Outcome(checked_values(name, returned, len(batch)), [None] * len(batch), extra, metrics)


def _call_as_text_or_list(name: str, function: Callable, batch: Batch) -> tuple[Outcome, Callable]:
    try:
        return _call_in_form(name, function, batch, _strings), _strings
    except RewardError as as_text:
        try:
            return _call_in_form(name, function, batch, _plain_messages), _plain_messages
        except RewardError:
            raise as_text from as_text.__cause__


def _took_messages_for_text(error: RewardError) -> bool:
    cause = error.__cause__
    return isinstance(cause, (TypeError, AttributeError)) and "Messages" in str(cause)


def _known_form(function: Callable) -> Callable | None:
    """How this function wants its completions, if an earlier call, its annotation or its code told."""
    remembered = getattr(function, "_completion_form", None)
    if remembered is not None:
        return remembered
    plain = inspect.unwrap(function)
    try:
        annotation = typing.get_type_hints(plain).get("completions")
    except (TypeError, NameError, AttributeError):
        annotation = None
    if annotation == list[str]:
        return _strings
    return _plain_messages if _mentions_content(getattr(plain, "__code__", None)) else None


def _mentions_content(code: CodeType | None) -> bool:
    """Whether a function names the key without which messages cannot be read."""
    constants = code.co_consts if code else ()
    return "content" in constants or any(_mentions_content(inner) for inner in constants if isinstance(inner, CodeType))


def _remember_form(function: Callable, form: Callable) -> None:
    try:
        function._completion_form = form
    except AttributeError:
        pass  # bound methods and slotted objects cannot remember; they are asked again


def _awaited(returned: Any) -> Any:
    """The value of a coroutine, also when this thread already runs an event loop, as notebooks do."""
    if not inspect.isawaitable(returned):
        return returned

    async def wait() -> Any:
        return await returned

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, wait()).result()


def _arguments(name: str, function: Callable, given: dict[str, Any], if_named: dict[str, Any]) -> dict[str, Any]:
    """What of `given` the function takes: all of it with `**kwargs`, otherwise what it names. Of `if_named` only that."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return given
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    given = given | {key: value for key, value in if_named.items() if key in named}
    missing = [key for key, p in named.items() if p.default is p.empty and key not in given]
    if missing:
        raise RewardError(name, None, f"it needs {', '.join(missing)}, which this task's rows do not have; there is "
                                      f"{', '.join(given)}.")
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return given
    return {key: value for key, value in given.items() if key in named}


def _own(value: Any) -> Any:
    """Lists and dicts copied through and through; what they hold stays the same object."""
    if isinstance(value, dict):
        return {key: _own(each) for key, each in value.items()}
    return [_own(each) for each in value] if isinstance(value, list) else value


def _line_of(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" (line {trace.tb_lineno} of {trace.tb_frame.f_code.co_filename})"


def _checked_value(name: str, row: int, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, str) or not hasattr(type(value), "__float__"):
        raise RewardError(name, row, f"returned {_kind(value)}; expected a number or None.")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise RewardError(name, row, f"returned {_kind(value)}; expected a finite number or None.") from error
    if not math.isfinite(number):
        raise RewardError(name, row, f"returned {number}; expected a finite number or None.")
    return number


def _checked_steps(name: str, returned: Any, texts: list[str]) -> list[list[tuple[int, float]] | None] | None:
    """Step rewards in order of their ends, None for a completion they do not apply to; None if the function gave none at all."""
    if not isinstance(returned, (list, tuple)) or not any(map(_are_steps, returned)):
        return None
    if len(returned) != len(texts):
        raise RewardError(name, None, f"returned {len(returned)} values for {len(texts)} completions; expected one each.")
    return [None if found is None else _checked_row_of_steps(name, row, found, len(texts[row])) for row, found in enumerate(returned)]


def _checked_row_of_steps(name: str, row: int, found: Any, length: int) -> list[tuple[int, float]]:
    if not _are_steps(found):
        raise RewardError(name, row, f"returned {_kind(found)}; it gave steps for another completion, so here too a list of "
                                     f"(end, value) or None is expected.")
    for end, _ in found:
        if not isinstance(end, int) or isinstance(end, bool) or not 0 < end <= length:
            raise RewardError(name, row, f"has a step that ends at {end!r}; expected a character position from 1 to {length}, the "
                                         f"length of the completion.")
    steps = [(end, _checked_value(name, row, value)) for end, value in found]
    if any(value is None for _, value in steps):
        raise RewardError(name, row, "has a step without a value; leave out steps that cannot be judged.")
    steps.sort()
    for (end, _), (following, _) in zip(steps, steps[1:], strict=False):
        if end == following:
            raise RewardError(name, row, f"has two steps that end at character {end}; expected each at a position of its own.")
    return steps


def _are_steps(found: Any) -> bool:
    return isinstance(found, (list, tuple)) and all(isinstance(step, (list, tuple)) and len(step) == 2 for step in found)


def _mean_value(steps: list[tuple[int, float]] | None) -> float | None:
    return math.fsum(value for _, value in steps) / len(steps) if steps else None


def _kind(value: Any) -> str:
    shown = repr(value)
    return f"the {type(value).__name__} {shown if len(shown) <= 40 else shown[:37] + '...'}" if value is not None else "None"
