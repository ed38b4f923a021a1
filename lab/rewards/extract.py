r"""Where the answer is in a completion, and whether two answers are the same.

Places: `<answer>…</answer>` (exactly one), the last balanced `\boxed{…}`, the last number, after the last `####`, the last
letter of a multiple choice. Two answers are equal
if both are numbers with the same exact value (as fractions: 0.5 = 1/2, never a float), or else the same text once white
space is tidied. Leaves out algebra: see accuracy's `math` for that.
"""

from __future__ import annotations

import re
from collections import deque
from fractions import Fraction

SOURCES = ("answer", "boxed", "number", "hash", "choice", "any")
LONGEST_NUMBER = 200  # characters; beyond that a "number" is an attack on the integer parser, not an answer

_NUMBER = re.compile(r"""
    (?<![\w.,])                              # not inside a word or a longer number
    (?:(?<![0-9)])[-+−])?                    # a sign, unless it is a minus between two numbers
    (?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)      # 1,234 or 1234
    (?:\.[0-9]+)?                            # decimals
    (?:\s?/\s?[0-9]+(?![0-9.]))?             # a fraction
""", re.VERBOSE)
_CHOICE = re.compile(r"""
    \(([A-J])\)                                             # (B)
  | \*\*([A-J])(?:[.):]|\*\*)                               # **B** or **B.
  | (?<![\w(*])([A-J])(?:[.):](?!\w)(?!\))|\s*$)           # B. or B) or B: or B at the end of a line
  | (?i:answer|choice|option|jawapan|pilihan)(?i:\s+is|\s+ialah|\s+adalah)?\s*[:=]?\s*\(?([A-J])\b  # answer is B
""", re.VERBOSE | re.MULTILINE)
_LATEX_FRACTION = re.compile(r"([-+−]?)\\[dt]?frac\{([0-9]+)\}\{([0-9]+)\}")
_DECORATION = re.compile(r"\\[,!;: ]|\\?[$]|\\left|\\right")


def extract(text: str, source: str, tag: str = "answer") -> str | None:
    """The answer found in `text`, or None if there is none where `source` says to look."""
    if source == "answer":
        return tagged(text, tag)
    if source == "boxed":
        return last_boxed(text)
    if source == "number":
        return last_number(text)
    if source == "hash":
        return after_hashes(text)
    if source == "choice":
        return last_choice(text)
    if source == "any":
        candidates = (last_boxed(text), tagged(text, tag), after_hashes(text), last_number(text))
        return next((found for found in candidates if found is not None), None)
    raise ValueError(f"source is {source!r}: choose one of {', '.join(SOURCES)}.")


def tagged(text: str, tag: str = "answer") -> str | None:
    """What stands between `<tag>` and `</tag>`, if each of the two occurs exactly once, in this order."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    if text.count(opening) != 1 or text.count(closing) != 1:
        return None
    start, end = text.index(opening) + len(opening), text.index(closing)
    return text[start:end].strip() if start <= end else None


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{…}` whose braces are balanced; escaped braces do not count."""
    marker = r"\boxed{"
    start = text.rfind(marker)
    while start >= 0:
        content = _balanced(text, start + len(marker))
        if content is not None:
            return content.strip()
        start = text.rfind(marker, 0, start)
    return None


def last_number(text: str) -> str | None:
    """The last number as written: signs, thousands commas, decimals and `a/b` included."""
    found = _last_match(_NUMBER, text)
    return found.group() if found else None


def after_hashes(text: str) -> str | None:
    """The rest of the line after the last `####`, as GSM8K writes its answers."""
    before, marker, after = text.rpartition("####")
    return after.strip().partition("\n")[0].strip() if marker and after.strip() else None


def last_choice(text: str) -> str | None:
    """The letter of the last marked choice, `(B)`, `B.`, `B)`, `**B**` or `answer is B`, or a text that is one letter."""
    if re.fullmatch(r"\s*[A-Ja-j]\s*", text):
        return text.strip().upper()
    found = _last_match(_CHOICE, text)
    return next(letter for letter in found.groups() if letter).upper() if found else None


def same_answer(given: str, expected: str, ignore_case: bool = False) -> bool:
    """Whether two answers are equal: exactly as numbers if both are numbers, otherwise as tidied text."""
    left, right = as_number(given), as_number(expected)
    if left is not None and right is not None:
        return left == right
    left, right = _tidy(given), _tidy(expected)
    return left.casefold() == right.casefold() if ignore_case else left == right


def as_number(text: str) -> Fraction | None:
    r"""The exact value of `12`, `-1,234.50`, `3/4`, `\frac{3}{4}`, `$5`; None if the text is anything else."""
    text = _DECORATION.sub("", text).strip().rstrip(".")
    if len(text) > LONGEST_NUMBER:
        return None
    text = _LATEX_FRACTION.sub(r"\1\2/\3", text)
    if not _NUMBER.fullmatch(text):
        return None
    numerator, _, denominator = text.replace("−", "-").replace(",", "").partition("/")
    if denominator and not int(denominator):
        return None
    return Fraction(numerator) / int(denominator or 1)


def _last_match(pattern: re.Pattern, text: str) -> re.Match | None:
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)


def _balanced(text: str, start: int) -> str | None:
    depth, position = 1, start
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 1
        elif character in "{}":
            depth += 1 if character == "{" else -1
            if not depth:
                return text[start:position]
        position += 1
    return None


def _tidy(text: str) -> str:
    return " ".join(text.split())
