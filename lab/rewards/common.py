"""What the built-in rewards share: their register, columns, lengths, groups, checks of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lab.rewards.contract import text_of

RewardFunction = Callable[..., list[float | None]]
BUILTINS: dict[str, Callable[..., RewardFunction]] = {}
UNITS = ("tokens", "words", "characters")
_NOT_ROW_COLUMNS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "group_ids", "ratings")


def builtin(factory: Callable[..., RewardFunction]) -> Callable[..., RewardFunction]:
    """Registers a factory of reward functions under its own name."""
    BUILTINS[factory.__name__] = factory
    return factory


def texts_of(completions: Sequence[Any]) -> list[str]:
    """The text of each completion, whichever form they arrived in."""
    return [text_of(completion) for completion in completions]


def answers_of(completions: Sequence[Any], columns: dict[str, Any]) -> list[str]:
    """The texts of completions, each with what the chat template wrote of it before the model did (the column `prefill`)."""
    texts = texts_of(completions)
    return [(begun or "") + text for begun, text in zip(columns.get("prefill") or [None] * len(texts), texts, strict=True)]


def column_of(columns: dict[str, Any], name: str) -> Sequence[Any]:
    """The rows' column `name`; ValueError with the columns there are."""
    if name not in columns:
        known = [key for key in columns if key not in _NOT_ROW_COLUMNS]
        raise ValueError(f"the task's rows have no column {name!r} (they have {', '.join(known) or 'only prompts'}): "
                         f"choose another task or name the column with column='…'.")
    return columns[name]


def lengths_of(completions: Sequence[Any], completion_ids: Sequence[Any], unit: str) -> list[int]:
    """Lengths in tokens (the stop token included), words or characters."""
    if unit == "tokens":
        return [len(ids) for ids in completion_ids]
    texts = texts_of(completions)
    return [len(text.split()) for text in texts] if unit == "words" else [len(text) for text in texts]


def groups_of(group_ids: Sequence[int]) -> Iterator[list[int]]:
    """The rows of each group, in the order in which the groups first appear."""
    rows: dict[int, list[int]] = {}
    for row, group in enumerate(group_ids):
        rows.setdefault(group, []).append(row)
    yield from rows.values()


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """ValueError for a parameter that is none of its choices; it becomes a RewardNotFound that names the reward."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: choose one of {', '.join(choices)}.")


def check_positive(name: str, value: float) -> None:
    """ValueError for a parameter that is no number above 0."""
    if isinstance(value, str) or not value > 0:
        raise ValueError(f"{name} is {value!r}: a number above 0 is needed.")
