"""Runs in the locked worker: whether a pattern is found in a text."""

import re


def check(completions, pattern, whole, ignore_case, **kwargs):
    """1.0 where the row's pattern is found (`whole`: matches all of the text), else 0.0. A pattern can hang, hence in a worker."""
    return [float(_found(*row)) for row in zip(completions, pattern, whole, ignore_case, strict=True)]


def _found(text, pattern, whole, ignore_case):
    flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
    return (re.fullmatch(pattern, text.strip(), flags) if whole else re.search(pattern, text, flags)) is not None
