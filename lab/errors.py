"""What a person reads when something cannot be done: errors with a sentence, and files read so that they get one. Standard library only."""

from __future__ import annotations

import difflib
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class CommandError(ValueError):
    """A command that cannot be carried out; the message goes to whoever sent it."""


class PromptTooLong(ValueError):
    """A prompt that leaves the model no room for an answer; the message is a sentence."""


class Unreadable(ValueError):
    """A path at which nothing can be read, or kept; the message is a sentence that names it."""


@contextmanager
def opening(path: str | os.PathLike, to: str = "read") -> Iterator[None]:
    """What the system has against `path` inside the block becomes an Unreadable."""
    if "\0" in str(path):
        raise Unreadable(f"{shown_path(path)} cannot be a path: it holds a zero byte.")
    try:
        yield
    except FileNotFoundError as error:
        raise Unreadable(f"There is no file {shown_path(path)}.") from error
    except OSError as error:
        raise Unreadable(f"{shown_path(path)} cannot be {to}: {error.strerror or error}.") from error


def read_text(path: str | os.PathLike) -> str:
    """A UTF-8 file, with or without a byte-order mark; every line ends with \\n alone. Raises Unreadable."""
    with opening(path):
        data = Path(path).read_bytes()
    try:
        return with_plain_ends(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise Unreadable(f"{shown_path(path)} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from error


def with_plain_ends(text: str) -> str:
    """\\r\\n and \\r as \\n. What `str.splitlines` would split at as well, such as U+2028, may stand in the middle of a prompt."""
    return io.StringIO(text, newline=None).read()


def shown_path(path: str | os.PathLike) -> str:
    """A path as a sentence can show it: without characters that do not print, and not longer than a line."""
    text = str(path)
    text = text if text.isprintable() and text else repr(text)
    return text if len(text) <= 200 else f"{text[:80]}…{text[-80:]}"


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
