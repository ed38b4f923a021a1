"""A reward for the working: every equation written down is checked, as one number or each at its own tokens."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from lab.rewards.common import RewardFunction, builtin, texts_of

LONGEST_SIDE = 80  # characters of one side of an equation
_SIDE = r"[-+]?[0-9(][0-9+\-*/×÷·−().\s]*"
_EQUATION = re.compile(rf"(?<![\w.])({_SIDE}?)=\s*([-+−]?[0-9]+(?:\.[0-9]+)?(?:/[0-9]+)?)(?![\w.]*[0-9(])")
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


@builtin
def steps(chained: bool = False, column: str | None = None, each: bool = False) -> RewardFunction:
    """Share of the equations in the completion that are right, such as `7+5=12`; without any equation 0.

    The same equation counts once, and one without an operation (`12=12`) does not count. `chained`: from the second on,
    an equation must also go on from the result before it. `column`: the last result must equal the row's answer in
    that column, or the share is halved. `each`: every equation is a step of its own, rewarded where it ends (process
    supervision); without any equation it does not apply, and `column` has no say.

    >>> steps()(completions=["7+5=12, 12-3=8", "9"])
    [0.5, 0.0]

    Source: after the process rewards of DeepSeekMath (arXiv 2402.03300, section 4.1.3), with a rule as the judge.
    """

    def judged(text: str) -> list[bool]:
        found = equations(text)
        right = [_result(left) == result for left, result in found]
        if chained:
            right = [ok and (row == 0 or _starts_with(found[row][0], found[row - 1][1])) for row, ok in enumerate(right)]
        return right

    def share(text: str, answer: Any) -> float:
        right = judged(text)
        if not right:
            return 0.0
        wrong_end = answer is not None and str(equations(text)[-1][1]) != str(answer).strip()
        return sum(right) / len(right) / (2 if wrong_end else 1)

    def one_by_one(text: str) -> list[tuple[int, float]] | None:
        return [(end, float(ok)) for end, ok in zip(equation_ends(text), judged(text), strict=True)] or None

    def steps(completions: Sequence[Any], **columns: Any) -> list[Any]:
        texts = texts_of(completions)
        if each:
            return [one_by_one(text) for text in texts]
        answers = columns.get(column) or [None] * len(texts)
        return [share(text, answer) for text, answer in zip(texts, answers, strict=True)]

    return steps


def equations(text: str) -> list[tuple[str, Fraction]]:
    """The different equations of a text, left side and result, in order; those without an operation are left out."""
    return list(_found(text))


def equation_ends(text: str) -> list[int]:
    """The character position at which each of `equations` ends, the first time it is written."""
    return list(_found(text).values())


def _found(text: str) -> dict[tuple[str, Fraction], int]:
    found: dict[tuple[str, Fraction], int] = {}
    for match in _EQUATION.finditer(text):
        left = "".join(match[1].translate(_PLAIN).split())
        if len(left) <= LONGEST_SIDE and re.search(r"[0-9)][-+*/]", left):
            found.setdefault((left, Fraction(match[2].translate(_PLAIN))), match.end())
    return found


_PLAIN = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-"})


def _result(expression: str) -> Fraction | None:
    """The exact value of an expression of numbers, + − × ÷ and brackets; None if it is anything else."""
    try:
        return _evaluate(ast.parse(re.sub(r"(?<![0-9.])0+(?=[0-9])", "", expression), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _evaluate(node: ast.AST) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(str(node.value))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _evaluate(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    raise ValueError("not arithmetic")


def _starts_with(expression: str, number: Fraction) -> bool:
    first = re.match(r"-?[0-9]+(?:\.[0-9]+)?", expression)
    return first is not None and Fraction(first[0]) == number
