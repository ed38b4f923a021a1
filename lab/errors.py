"""What a person reads when something cannot be done. Standard library only."""

from __future__ import annotations


class CommandError(ValueError):
    """A command that cannot be carried out; the message goes to whoever sent it."""


class PromptTooLong(ValueError):
    """A prompt that leaves the model no room for an answer; the message is a sentence."""


def sentence_of(error: BaseException) -> str:
    """What a person should read of an exception."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return ("The memory was not enough. Use a smaller model, fewer completions per step, fewer max tokens, or fewer tokens per "
                "micro-batch.")
    if isinstance(error, KeyError) and error.args:
        return str(error.args[0])  # str() of a KeyError puts its message in quotes
    return str(error).strip() or type(error).__name__
