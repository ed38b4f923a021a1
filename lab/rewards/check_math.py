"""Runs in the locked worker: whether two short pieces of mathematics mean the same, by math-verify."""

import logging

LONGEST = 200  # characters; what is longer is an attack, not an answer
MOST_DIGITS = 40


def check(completions, expected, **kwargs):
    """1.0 where math-verify takes the given expression for the expected one, else 0.0. It can hang, hence in a worker."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    return [float(_same(given, right)) for given, right in zip(completions, expected, strict=True)]


def _same(given, right):
    from math_verify import parse, verify

    if len(given) > LONGEST or len(right) > LONGEST or sum(c.isdigit() for c in given) > MOST_DIGITS:
        return False
    # the worker has a deadline of its own; math-verify's would need the alarm signal
    gold, answer = (parse(_as_latex(text), parsing_timeout=None) for text in (right, given))
    return bool(gold and answer) and verify(gold, answer, timeout_seconds=None)


def _as_latex(text):
    return text if "$" in text or "\\boxed" in text else f"${text}$"


# The first comparison loads and builds the parsers, up to a second of computing: while the file is loaded, where there is time
# for it, and not on the account of the first answer, which on a slow machine would look as if it hung.
_same("\\frac{1}{2}", "x = 0.5")
