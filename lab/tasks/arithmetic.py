"""Arithmetic problems with one right answer each: what the tiny model learns, and what RL then asks it.

A problem is a prompt, its answer and the worked steps that lead there. Pretraining reads all three, RL
only ever sees the rows {"prompt", "answer", "task"}. Both draw from the same templates, and both keep to
the training side of one fixed split, so a held-out prompt is new to the model in every respect.
Leaves out: rewards, chat templates, and anything that needs torch.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

EXPRESSION_PROMPTS = ("What is {}?", "{} = ?", "Compute {}.", "Calculate {}")
HELD_OUT_SHARE = 10  # one expression in ten


@dataclass(frozen=True)
class Problem:
    """One question: `expression` is its mathematical core, `steps` the working a careful pupil writes."""

    task: str
    expression: str
    prompt: str
    answer: str
    steps: str

    def row(self) -> dict[str, str]:
        """The problem as a dataset row, without its working."""
        return {"prompt": self.prompt, "answer": self.answer, "task": self.task}


def rows(tasks: str | Sequence[str], count: int, *, seed: int, held_out: bool = False) -> list[dict[str, str]]:
    """`count` seeded rows {"prompt", "answer", "task"}, the tasks taking turns.

    `held_out` picks the side of the split; no prompt is on both sides. Raises ValueError for an unknown task.
    """
    names = (tasks,) if isinstance(tasks, str) else tuple(tasks)
    rng = random.Random(seed)
    return [draw(names[i % len(names)], rng, held_out=held_out).row() for i in range(count)]


def draw(task: str, rng: random.Random, *, held_out: bool = False) -> Problem:
    """One random problem of `task` from the asked side of the split."""
    if task not in GENERATORS:
        raise ValueError(f"There is no arithmetic task {task!r}. Known tasks: {', '.join(GENERATORS)}.")
    return next(p for p in _endless(task, rng) if is_held_out(p.expression) == held_out)


def is_held_out(expression: str) -> bool:
    """Whether an expression belongs to the held-out tenth. Depends on its text alone, on every machine."""
    return hashlib.sha256(expression.encode()).digest()[0] % HELD_OUT_SHARE == 0


def _endless(task: str, rng: random.Random) -> Iterator[Problem]:
    while True:
        expression, prompt, answer, steps = GENERATORS[task](rng)
        yield Problem(task, expression, prompt, answer, steps)


def _ask(rng: random.Random, expression: str) -> str:
    return rng.choice(EXPRESSION_PROMPTS).format(expression)


def _add2(rng: random.Random) -> tuple[str, str, str, str]:
    a, b = rng.randint(1, 99), rng.randint(1, 99)
    expression = f"{a} + {b}"
    return expression, _ask(rng, expression), str(a + b), _column_addition(a, b)


def _sub2(rng: random.Random) -> tuple[str, str, str, str]:
    b, a = sorted((rng.randint(1, 99), rng.randint(1, 99)))
    expression = f"{a} - {b}"
    return expression, _ask(rng, expression), str(a - b), _column_subtraction(a, b)


def _add3(rng: random.Random) -> tuple[str, str, str, str]:
    numbers = [rng.randint(1, 30) for _ in range(3)]
    return _running_total(rng, numbers)


def _chain(rng: random.Random) -> tuple[str, str, str, str]:
    return _running_total(rng, _signed_digits(rng, 4))


def _chain_any(rng: random.Random) -> tuple[str, str, str, str]:
    return _running_total(rng, _signed_digits(rng, rng.randint(3, 6)))


def _parity(rng: random.Random) -> tuple[str, str, str, str]:
    n = rng.randint(1, 99)
    return str(n), f"Is {n} even or odd?", "odd" if n % 2 else "even", f"ends in {n % 10}"


def _cmp(rng: random.Random) -> tuple[str, str, str, str]:
    a, b = rng.randint(1, 99), rng.randint(1, 99)
    expression = f"{a} > {b}"
    return expression, f"Is {expression}?", "yes" if a > b else "no", f"{a} {_relation(a, b)} {b}"


def _relation(a: int, b: int) -> str:
    return ">" if a > b else "<" if a < b else "="


def _column_addition(a: int, b: int) -> str:
    """Digit sums from the right, each with its carry: 69 + 13 -> `9+3=12, 6+1+1=8`."""
    ones = a % 10 + b % 10
    steps = [f"{a % 10}+{b % 10}={ones}"]
    tens = [str(n // 10) for n in (a, b) if n >= 10] + (["1"] if ones >= 10 else [])
    if a >= 10 or b >= 10:
        total = sum(map(int, tens))
        steps.append(f"{'+'.join(tens)}={total}" if len(tens) > 1 else tens[0])
    return ", ".join(steps)


def _column_subtraction(a: int, b: int) -> str:
    """Digit differences from the right, the borrow already taken: 72 - 18 -> `12-8=4, 6-1=5`."""
    borrow = a % 10 < b % 10
    top = a % 10 + (10 if borrow else 0)
    steps = [f"{top}-{b % 10}={top - b % 10}"]
    tens = a // 10 - borrow
    if b >= 10:
        steps.append(f"{tens}-{b // 10}={tens - b // 10}")
    elif a >= 10:
        steps.append(str(tens))
    return ", ".join(steps)


def _signed_digits(rng: random.Random, count: int) -> list[int]:
    """One-digit operands; about a third are subtracted, never below a running total of zero."""
    numbers = [rng.randint(1, 9)]
    while len(numbers) < count:
        digit = rng.randint(1, 9)
        subtract = rng.random() < 0.35 and sum(numbers) >= digit
        numbers.append(-digit if subtract else digit)
    return numbers


def _running_total(rng: random.Random, numbers: list[int]) -> tuple[str, str, str, str]:
    """A sum worked from the left: 7 + 5 - 3 -> `7+5=12, 12-3=9`."""
    total, steps = numbers[0], []
    for number in numbers[1:]:
        steps.append(f"{total}{number:+d}={total + number}")
        total += number
    expression = str(numbers[0]) + "".join(f" {'-' if n < 0 else '+'} {abs(n)}" for n in numbers[1:])
    return expression, _ask(rng, expression), str(total), ", ".join(steps)


GENERATORS: dict[str, Callable[[random.Random], tuple[str, str, str, str]]] = {
    "add2": _add2,
    "sub2": _sub2,
    "add3": _add3,
    "chain": _chain,
    "chain_any": _chain_any,
    "parity": _parity,
    "cmp": _cmp,
}
TASKS = tuple(GENERATORS)
