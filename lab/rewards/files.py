"""Reward functions from `.py` files: their code runs in a locked worker process, never in this one.

Leaves out the worker itself (`lab.rewards.sandbox`).
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from lab.rewards import sandbox
from lab.rewards.contract import RewardError, plain_messages, text_of, uses_form


class FileReward:
    """A function of a file, to be called like any other reward; each call goes to the worker.

    It gets plain strings if the file nowhere mentions "content", the key without which messages cannot be read;
    otherwise messages. If it then breaks on the very type of a completion, the other form is tried, once.
    """

    def __init__(self, source: str, filename: str, function: str | None = None):
        self._host = sandbox.RewardHost()
        try:
            loaded = self._host.load(source, function, filename)
        except sandbox.RewardError as error:
            raise RewardError(function or filename, error.row, error.message) from error
        if len(loaded.functions) > 1:
            names = ", ".join(found.name for found in loaded.functions)
            raise RewardError(filename, None, f"the file offers several functions ({names}): choose one as in {filename}:"
                                              f"{loaded.functions[0].name}.")
        self.__name__, self.__doc__ = loaded.functions[0].name, loaded.functions[0].doc
        self._wants_text = not _mentions_content(source)
        self._form_is_certain = False
        uses_form(self, plain_messages)

    def __call__(self, *, prompts: list, completions: list, completion_ids: list, trainer_state: Any, log_extra: Any,
                 log_metric: Any, **columns: Any) -> list[float | None]:
        try:
            result = self._ask(prompts, completions, completion_ids, columns, trainer_state)
        except sandbox.RewardError as error:
            if self._form_is_certain or not _is_about_type(error):
                raise RewardError(self.__name__, error.row, error.message) from error
            result = self._ask_in_the_other_form(error, prompts, completions, completion_ids, columns, trainer_state)
        self._form_is_certain = True
        for column, values in result.extra.items():
            log_extra(column, values)
        for metric, value in result.metrics.items():
            log_metric(metric, value)
        return result.scores

    def close(self) -> None:
        """Ends the worker; a later call starts a new one."""
        self._host.close()

    def _ask(self, prompts: list, completions: list, completion_ids: list, columns: dict, trainer_state: Any):
        if self._wants_text:
            prompts, completions = [text_of(prompt[-1:]) for prompt in prompts], [text_of(c) for c in completions]
        return self._host.call(self.__name__, prompts=prompts, completions=completions, completion_ids=completion_ids,
                               columns=columns, trainer_state=trainer_state)

    def _ask_in_the_other_form(self, first: sandbox.RewardError, *arguments: Any):
        self._wants_text = not self._wants_text
        try:
            return self._ask(*arguments)
        except sandbox.RewardError:
            self._wants_text = not self._wants_text
            raise RewardError(self.__name__, first.row, first.message) from first


def load(path: Path, function: str | None = None) -> FileReward:
    """The reward function of a file, its only one or the one named. Raises RewardError."""
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RewardError(str(path), None, f"the file cannot be read: {error}.") from error
    return FileReward(source, path.name, function)


def _mentions_content(source: str) -> bool:
    try:
        return any(isinstance(node, ast.Constant) and node.value == "content" for node in ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return True  # the worker has already compiled it, so this is a file too deep to look at


def _is_about_type(error: sandbox.RewardError) -> bool:
    return error.kind == "exception" and error.message.startswith(("TypeError", "AttributeError"))
