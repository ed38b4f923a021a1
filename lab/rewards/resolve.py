"""From what a person writes in `rewards=` to functions that can be called.

    "accuracy"                            a built-in
    "accuracy(source='boxed')"            a built-in with parameters, all by keyword, plain literals only
    my_function                           a Python callable with TRL's signature
    "my_reward.py", "my_reward.py:score"  a file; its code runs in a sandboxed worker, never in this process

Leaves out calling them (`contract`, `scoring`) and the sandbox itself.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.config import reward_name
from lab.errors import Unreadable, did_you_mean, opening
from lab.rewards.common import BUILTINS
from lab.rewards.contract import RewardError


class RewardNotFound(RewardError):
    """A reward that cannot be made from what was written: the message says why and what would work."""

    def __init__(self, message: str):
        super().__init__("", None, message)


@dataclass
class Reward:
    """A reward function ready to be called with TRL's keywords; `name` is unique within a run."""

    name: str
    function: Callable
    parameters: dict[str, Any] = field(default_factory=dict)
    doc: str = ""  # first line of its documentation


def resolve(rewards: str | Path | Callable | Sequence[str | Path | Callable]) -> list[Reward]:
    """One Reward for each entry, in order; a second function of the same name gets `_2` behind it."""
    if isinstance(rewards, (str, Path)) or callable(rewards):
        rewards = (rewards,)
    resolved = [_resolve_one(reward) for reward in rewards]
    _make_names_unique(resolved)
    return resolved


def _resolve_one(reward: str | Path | Callable) -> Reward:
    if isinstance(reward, Reward):
        return Reward(reward.name, reward.function, reward.parameters, reward.doc)
    if isinstance(reward, Path) or (isinstance(reward, str) and _is_file(reward)):
        return _from_file(str(reward))
    if isinstance(reward, str):
        return _from_name(reward)
    if callable(reward):
        return Reward(reward_name(reward), reward, doc=_first_line(reward))
    raise RewardNotFound(f"A reward is a name, a Python function or a path to a .py file, not {type(reward).__name__}.")


def _from_name(text: str) -> Reward:
    name, parameters = parse_call(text)
    if name not in BUILTINS:
        raise RewardNotFound(f"There is no built-in reward {name!r}.{did_you_mean(name, BUILTINS)} Built-in: "
                             f"{', '.join(BUILTINS)}. A reward of your own is passed as a Python function, or as a path to a .py file.")
    factory = BUILTINS[name]
    known = inspect.signature(factory).parameters
    unknown = [key for key in parameters if key not in known]
    if unknown:
        raise RewardNotFound(f"Reward {name} has no parameter {unknown[0]!r}.{did_you_mean(unknown[0], known)} Its parameters: "
                             f"{', '.join(known) or 'none'}.")
    defaults = {key: p.default for key, p in known.items() if p.default is not inspect.Parameter.empty}
    try:
        function = factory(**parameters)
    except (TypeError, ValueError) as error:
        raise RewardNotFound(f"Reward {name}: {error}") from error
    return Reward(name, function, {**defaults, **parameters}, _first_line(factory))


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """`"accuracy(source='boxed')"` → `("accuracy", {"source": "boxed"})`. Values are literals; nothing is evaluated."""
    problem = RewardNotFound(f"Cannot read the reward {text!r}: write a name, or a name with keyword parameters such as "
                             f"accuracy(source='boxed').")
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise problem from error
    if isinstance(node, ast.Name):
        return node.id, {}
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args):
        raise problem
    try:
        return node.func.id, {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords if _named(keyword)}
    except ValueError as error:
        raise problem from error


def short_name(reward: str) -> str:
    """`accuracy(source='boxed')` scores as `accuracy`; a file is known by its name, a frozen reward as `closeness@2`."""
    if _is_file(reward):
        return Path(_file_and_function(reward)[0]).stem
    try:
        return parse_call(reward)[0]
    except RewardNotFound:  # a function of the person's own: known by what was written
        return reward


def _named(keyword: ast.keyword) -> bool:
    if keyword.arg is None:
        raise ValueError("** is not a named parameter")
    return True


def _is_file(text: str) -> bool:
    return text.endswith(".py") or ".py:" in text


def _file_and_function(text: str) -> tuple[str, str]:
    path, _, function = text.rpartition(":") if ".py:" in text else (text, "", "")
    return path, function


def _from_file(text: str) -> Reward:
    path, function = _file_and_function(text)
    try:
        with opening(path):
            is_there = Path(path).is_file()
    except Unreadable as error:
        raise RewardNotFound(str(error)) from error
    if not is_there:
        raise RewardNotFound(f"There is no reward file {path}.")
    from lab.rewards.sandbox import file_reward

    return file_reward(Path(path), function or None)


def _make_names_unique(rewards: list[Reward]) -> None:
    seen: dict[str, int] = {}
    for reward in rewards:
        seen[reward.name] = seen.get(reward.name, 0) + 1
        if seen[reward.name] > 1:
            reward.name = f"{reward.name}_{seen[reward.name]}"


def _first_line(function: Callable) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0]
