"""The right answer to a typed arithmetic question, so that accuracy can be scored on prompts outside a task.

Knows the forms the built-in arithmetic tasks use: sums and differences of whole numbers, even or odd, and larger or
not. Anything else has no known answer here: accuracy is then "not applicable", never 0.
"""

from __future__ import annotations

import re

from lab.tasks.arithmetic import EXPRESSION_PROMPTS

_SUM = r"\d{1,9}(?:\s*[-+\u2212]\s*\d{1,9})+"
_QUESTIONS = [re.compile(re.escape(form).replace(r"\{\}", f"({_SUM})").rstrip(r"\.?") + r"\s*[.?]?",
                         re.IGNORECASE) for form in EXPRESSION_PROMPTS]
_BARE = re.compile(f"({_SUM})(?:\\s*=\\s*\\??)?")
_PARITY = re.compile(r"is (\d{1,9}) (?:even or odd|odd or even)\s*\??", re.IGNORECASE)
_LARGER = re.compile(r"is (\d{1,9})\s*([<>])\s*(\d{1,9})\s*\??", re.IGNORECASE)


def answer_to(prompt: str) -> str | None:
    """The answer as the tasks write it ("82", "odd", "yes"), or None where the prompt is no arithmetic question.

    >>> answer_to("What is 69 + 13?"), answer_to("Is 37 > 12?"), answer_to("Name a fruit.")
    ('82', 'yes', None)
    """
    text = " ".join(prompt.split())
    for question in (*_QUESTIONS, _BARE):
        found = question.fullmatch(text)
        if found:
            return str(_value(found[1]))
    if found := _PARITY.fullmatch(text):
        return "odd" if int(found[1]) % 2 else "even"
    if found := _LARGER.fullmatch(text):
        a, b = int(found[1]), int(found[3])
        return "yes" if (a > b if found[2] == ">" else a < b) else "no"
    return None


def _value(expression: str) -> int:
    terms = re.findall(r"[-+]?\d+", expression.replace("\u2212", "-").replace(" ", ""))
    return sum(int(term) for term in terms)
