"""Runs in the locked worker: whether a pattern is found in a text."""

import re


def check(completions, pattern, whole, ignore_case, **kwargs):
    return [float(_found(*row)) for row in zip(completions, pattern, whole, ignore_case, strict=True)]


def _found(text, pattern, whole, ignore_case):
    flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
    return (re.fullmatch(pattern, text.strip(), flags) if whole else re.search(pattern, text, flags)) is not None
