"""What a person reads when something cannot be done. Standard library only."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CommandError(ValueError):
    """A command that cannot be carried out; the message goes to whoever sent it."""


class PromptTooLong(ValueError):
    """A prompt that leaves the model no room for an answer; the message is a sentence."""


def did_you_mean(written: str, known: Iterable[str]) -> str:
    """A question, with a space before it, that names the nearest of the known names; empty where none is near.

    >>> did_you_mean("learning_rat", ["beta", "learning_rate"]), did_you_mean("lightness", ["beta", "learning_rate"])
    (' Did you mean learning_rate?', '')
    """
    near = difflib.get_close_matches(str(written).lower(), list(known), n=1, cutoff=0.7)
    return f" Did you mean {near[0]}?" if near else ""


def sentence_of(error: BaseException) -> str:
    """What a person should read of an exception."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return ("The memory was not enough. Use a smaller model, fewer completions per step, fewer max tokens, or fewer tokens per "
                "micro-batch.")
    if isinstance(error, KeyError) and error.args:
        return str(error.args[0])  # str() of a KeyError puts its message in quotes
    return str(error).strip() or type(error).__name__
