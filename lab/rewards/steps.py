"""A reward for the working: every equation written down is checked.

Leaves out rewards for each step at its own tokens (process supervision); this is one number per completion.
"""

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
def steps(chained: bool = False, column: str | None = None) -> RewardFunction:
    """Share of the equations in the completion that are right, such as `7+5=12`; without any equation 0.

    The same equation counts once, and one without an operation (`12=12`) does not count. `chained`: from the second on,
    an equation must also go on from the result before it. `column`: the last result must equal the row's answer in
    that column, or the share is halved.

    >>> steps()(completions=["7+5=12, 12-3=8", "9"])
    [0.5, 0.0]

    Source: after the process rewards of DeepSeekMath (arXiv 2402.03300, section 4.1.3), with a rule as the judge.
    """

    def value(text: str, answer: Any) -> float:
        found = equations(text)
        if not found:
            return 0.0
        right = [_result(left) == result for left, result in found]
        if chained:
            right = [ok and (row == 0 or _starts_with(found[row][0], found[row - 1][1])) for row, ok in enumerate(right)]
        share = sum(right) / len(right)
        return share / 2 if answer is not None and str(found[-1][1]) != str(answer).strip() else share

    def steps(completions: Sequence[Any], **columns: Any) -> list[float]:
        texts = texts_of(completions)
        answers = columns.get(column) or [None] * len(texts)
        return [value(text, answer) for text, answer in zip(texts, answers, strict=True)]

    return steps


def equations(text: str) -> list[tuple[str, Fraction]]:
    """The different equations of a text, left side and result, in order; those without an operation are left out."""
    found: dict[tuple[str, Fraction], None] = {}
    for match in _EQUATION.finditer(text):
        left = "".join(match[1].translate(_PLAIN).split())
        if len(left) <= LONGEST_SIDE and re.search(r"[0-9)][-+*/]", left):
            found.setdefault((left, Fraction(match[2].translate(_PLAIN))))
    return list(found)


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
