"""A reward file as a function: what `rewards=["my_reward.py"]` becomes. The file's code runs in a locked worker.

The function takes and gives what TRL's contract says, so trainer, bench and notebooks call it like any other.
"""

from __future__ import annotations

import re
from pathlib import Path

from lab.rewards.contract import Messages
from lab.rewards.resolve import Reward, RewardNotFound

from .host import RewardHost
from .results import RewardError, RewardFunction


def file_reward(path: Path, function: str | None = None) -> Reward:
    """The file's reward function, or the one named. RewardNotFound says why there is none."""
    host = RewardHost()
    try:
        loaded = host.load(path.read_text("utf-8"), function, path.name)
        found = _the_one_meant(loaded.functions, path)
    except (RewardError, OSError, UnicodeDecodeError) as error:
        host.close()
        why = getattr(error, "message", error)
        raise RewardNotFound(f"{path} cannot be used as a reward: {why}{_about_neighbours(error, path)}") from error
    except RewardNotFound:
        host.close()
        raise
    return Reward(found.name, SandboxedReward(host, found), doc=found.doc)


class SandboxedReward:
    """Calls a loaded function of a host with TRL's keywords. Lives as long as it is used; the worker ends with it."""

    def __init__(self, host: RewardHost, function: RewardFunction) -> None:
        self.host, self.function = host, function
        self.__name__ = function.name
        self.waits_for = f"the reward {function.name}"
        self.__annotations__ = {"completions": list[str]} if function.wants_text else {}

    def __call__(self, prompts, completions, completion_ids=None, trainer_state=None, log_extra=None, log_metric=None, group_ids=None,
                 ratings=None, **columns):
        """Scores, one per completion, or the steps of each. RewardError; TypeError if a completion of messages was taken for text."""
        beyond_trl = {"group_ids": group_ids, "ratings": ratings}
        columns |= {name: values for name, values in beyond_trl.items() if values and name in self.function.parameters}
        wary = any(isinstance(completion, Messages) for completion in completions)
        try:
            result = self.host.call(self.function.name, prompts=prompts, completions=completions, completion_ids=completion_ids,
                                    columns=columns, trainer_state=trainer_state, wary=wary)
        except RewardError as error:
            if wary and error.kind == "exception" and "'Messages'" in error.message:
                raise TypeError(error.message) from error
            raise
        for column, values in result.extra.items() if log_extra else ():
            log_extra(column, values)
        for name, value in result.metrics.items() if log_metric else ():
            log_metric(name, value)
        return result.scores if result.steps is None else result.steps


def _about_neighbours(error: Exception, path: Path) -> str:
    """What to do where the file imports one that lies beside it: versions, copies and exports of a reward are one file each."""
    missing = re.search(r"ModuleNotFoundError: No module named '(\w+)", getattr(error, "message", ""))
    if missing is None or not (path.with_name(f"{missing[1]}.py").is_file() or path.with_name(missing[1]).is_dir()):
        return ""
    return (f" {missing[1]} lies beside it, but a reward is one file: it runs locked, where no other file of yours can be read. Put what "
            f"it needs into {path.name}, or import {path.stem} in Python yourself and pass the function, which then runs unlocked.")


def _the_one_meant(functions: tuple[RewardFunction, ...], path: Path) -> RewardFunction:
    if len(functions) == 1:
        return functions[0]
    if named_as_file := [function for function in functions if function.name == path.stem]:
        return named_as_file[0]
    names = ", ".join(function.name for function in functions)
    raise RewardNotFound(f"{path} has several reward functions ({names}): say which, like {path}:{functions[0].name}.")
