"""A reward for programs: the model writes a function, a locked process runs it, its values are compared here.

What the tests expect never enters that process (`sandbox.code_host`). Leaves out running and comparing, and taking
asserts apart (`sandbox.split_tests`).
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lab.rewards.common import RewardFunction, answers_of, builtin, check_choice
from lab.rewards.contract import RewardError
from lab.rewards.extract import tagged

if TYPE_CHECKING:
    from lab.rewards.sandbox import CodeHost, Grade
    from lab.rewards.sandbox.split_tests import SplitTests

SOURCES = ("any", "fence", "answer")
FAST_ENOUGH = 0.005  # CPU seconds; below that a measurement says little, so everything counts as equally fast

_FENCE = re.compile(r"^[ \t]*```[ \t]*(?:python3?|py)?[ \t]*\n(.*?)(?:^[ \t]*```[ \t]*$)", re.DOTALL | re.MULTILINE | re.IGNORECASE)


@builtin
def code(column: str = "tests", function: str | None = None, source: str = "any", partial: bool = True, speed: float = 0.0,
         reference: str = "reference", allow_unlocked: bool = False) -> RewardFunction:
    """Share of the tests that the program in the completion passes; without a program 0, without usable tests None.

    The program is the last fence of three backticks, or what `<answer>` holds (`source`: "any", "fence" or "answer").
    The row's `column` has the tests: asserts (`assert add(1, 2) == 3`, one text or a list), or pairs of arguments and
    expected value, `[[1, 2], 3]`, for the function named by `function`, by the row's `entry_point`, or else the last one
    defined. `partial=False`: 1 only for all tests. `speed`: share of the reward for being as fast as the row's
    `reference` solution, in CPU seconds of the process, once all tests pass. Each program runs in a locked process of
    its own and never sees what is expected. Where the machine gives no lock, nothing runs unless the run's owner says
    `allow_unlocked=True`.

    >>> program = "```python\\ndef add(a, b):\\n    return a + b\\n```"
    >>> code()(completions=[program, "a + b"], tests=[["assert add(1, 2) == 3", "assert add(1, 1) == 3"]] * 2)
    [0.5, 0.0]

    Source: rewards by unit tests as in DeepSeek-R1 (arXiv 2501.12948, section 2.2.2).
    """
    check_choice("source", source, SOURCES)
    if not 0 <= speed < 1:
        raise ValueError(f"speed is {speed}: a share of the reward from 0 to below 1 is needed.")
    hosts: list[CodeHost] = []

    def code(completions: Sequence[Any], trainer_state: Any = None, log_extra: Any = None, log_metric: Any = None,
             **columns: Any) -> list[float | None]:
        programs = [extract_program(text, source) for text in answers_of(completions, columns)]
        given = columns.get(column) or [None] * len(programs)
        names = columns.get("entry_point") or [None] * len(programs)
        tests = [_tests(row, each, function or name, program)
                 for row, (each, name, program) in enumerate(zip(given, names, programs, strict=True))]
        ask = [row for row, each in enumerate(tests) if each is not None and programs[row] is not None]
        if not hosts:
            hosts.append(_host(allow_unlocked))
        seed = int(getattr(trainer_state, "global_step", 0) or 0)
        grades = dict(zip(ask, _graded(hosts[0], [programs[row] for row in ask], [tests[row] for row in ask], seed), strict=True))
        values = [_value(programs[row], tests[row], grades.get(row), partial) for row in range(len(programs))]
        if speed:
            ratios = _speeds(hosts[0], columns.get(reference), tests, grades, seed)
            values = [value if value is None or row not in grades else _with_speed(value, grades[row], ratios[row], speed)
                      for row, value in enumerate(values)]
        if log_extra:
            log_extra("tests", [_told(program, grades.get(row)) for row, program in enumerate(programs)])
        if log_metric and grades:
            log_metric("code/suspicious", sum(bool(grade.suspicious) for grade in grades.values()) / len(grades))
        return values

    code.waits_for = "the tests of the programs"
    return code


def extract_program(text: str, source: str = "any") -> str | None:
    """The program in a completion, or None: the last closed fence, of the tagged answer if there is one; else that answer."""
    answer = tagged(text) if source != "fence" else None
    if answer is None and source == "answer":
        return None
    fences = _FENCE.findall(text if answer is None else f"{answer}\n")
    if fences:
        return textwrap.dedent(fences[-1])
    return answer or None


def _tests(row: int, tests: Any, name: str | None, program: str | None) -> SplitTests | None:
    """The row's tests as checks; None where it has none. ValueError for tests that cannot be read."""
    from lab.rewards.sandbox.split_tests import SplitTests, split_tests

    if tests is None or len(tests) == 0:
        return None
    if isinstance(tests, str) or all(isinstance(test, str) for test in tests):
        try:
            return split_tests(tests if isinstance(tests, str) else list(tests), name)
        except ValueError as error:
            raise RewardError("", row, f"{error}.") from None
    if not all(isinstance(test, Sequence) and not isinstance(test, str) and len(test) == 2 for test in tests):
        raise RewardError("", row, "has tests that are neither asserts nor pairs of arguments and expected value.")
    name = name or _last_function(program or "")
    return SplitTests(tuple(_pair(row, arguments, expected, name) for arguments, expected in tests), ()) if name else SplitTests((), ())


def _pair(row: int, arguments: Any, expected: Any, name: str) -> Any:
    from lab.rewards.sandbox.split_tests import Check

    if not name.isidentifier():
        raise RewardError("", row, f"names the function {name!r}, which is no name in Python.")
    arguments = arguments if isinstance(arguments, (list, tuple)) else [arguments]
    call = f"{name}({', '.join(map(repr, arguments))})"
    try:
        ast.literal_eval(repr(expected))
        ast.literal_eval(repr(list(arguments)))
    except (ValueError, SyntaxError):
        raise RewardError("", row, f"has the test {call} = {expected!r}: only plain values can be compared.") from None
    return Check("", call, "==", repr(expected))


def _last_function(program: str) -> str | None:
    try:
        body = ast.parse(program).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return next((node.name for node in reversed(body) if isinstance(node, ast.FunctionDef)), None)


def _host(allow_unlocked: bool) -> CodeHost:
    from lab.rewards.sandbox import CodeHost

    return CodeHost(allow_unlocked=allow_unlocked)


def _graded(host: CodeHost, programs: list[str], tests: list[SplitTests], seed: int) -> list[Grade]:
    try:
        return host.grade(programs, tests, seed=seed) if programs else []
    except RewardError as error:
        if getattr(error, "kind", "") == "unavailable":
            error.message += " Write code(allow_unlocked=True) to allow it for this run."
        raise


def _value(program: str | None, tests: SplitTests | None, grade: Grade | None, partial: bool) -> float | None:
    """None without tests or where the machine failed; 0 without a program, or without a function that pairs could call."""
    if tests is None:
        return None
    if program is None or not tests.checks and not tests.unused:
        return 0.0
    return grade.score if partial or grade.score is None else float(grade.score == 1)


def _speeds(host: CodeHost, references: Sequence[str] | None, tests: list[SplitTests | None], grades: dict[int, Grade],
            seed: int) -> dict[int, float]:
    """For each graded row how fast it was beside its reference: 1 as fast or faster, 0.5 half as fast. RewardError where there is
    none, or where it does not pass its own tests."""
    rows = [row for row, grade in grades.items() if grade.score == 1]
    wanted: dict[tuple[str, SplitTests], int] = {}
    for row in rows:
        if not references or not references[row]:
            raise RewardError("", row, "has no reference solution to be compared with in speed.")
        wanted.setdefault((references[row], tests[row]), row)
    measured = dict(zip(wanted, _graded(host, [program for program, _ in wanted], [each for _, each in wanted], seed), strict=True))
    for key, grade in measured.items():
        if grade.score is not None and grade.score < 1:
            raise RewardError("", wanted[key], f"has a reference solution that fails its own tests: {grade.failures[0]}.")
    return {row: _ratio(measured[references[row], tests[row]], grades[row]) for row in rows} | {
        row: 0.0 for row in grades if row not in rows}


def _ratio(reference: Grade, grade: Grade) -> float:
    return min(1.0, max(reference.cpu_seconds, FAST_ENOUGH) / max(grade.cpu_seconds, FAST_ENOUGH))


def _with_speed(value: float, grade: Grade, ratio: float, speed: float) -> float:
    return (1 - speed) * value + speed * (ratio if grade.score == 1 else 0.0)


def _told(program: str | None, grade: Grade | None) -> str | None:
    """What became of the tests, in a sentence for the table."""
    if program is None:
        return "no program found"
    if grade is None:
        return None
    if grade.score is None:
        return grade.failures[0]
    return f"{grade.passed} of {grade.total} passed" + (f"; {grade.failures[0]}" if grade.failures else "")
