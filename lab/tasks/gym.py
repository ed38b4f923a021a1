"""reasoning-gym's tasks that were found right: `gym/chain_sum` and so on. Needs the extra `gym`.

Every task here was tried for this list with reasoning-gym 0.1.25: its own answer gets full marks, nonsense and nothing get
none, and its scorer neither evaluates the answer as code nor parses it as algebra. (The package has tasks that do: a
model's answer could then run code, so those are not here; nor are those that give full marks to an answer with more
behind it.) The package draws the problems; what a model wrote is scored by `gym_score`, in the locked worker and nowhere
else.
Leaves out the package itself until rows are asked for: it takes seconds to import.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import warnings
from typing import Any

from lab.tasks.errors import TaskError

PREFIX = "gym/"
VETTED = {
    "aiw": "Alice in Wonderland: how many sisters, brothers, colleagues.",
    "base_conversion": "Numbers from one base to another.",
    "basic_arithmetic": "Expressions with + − × ÷ and brackets.",
    "caesar_cipher": "A message to decipher, every letter moved.",
    "calendar_arithmetic": "Days of the week, leap years, business days.",
    "chain_sum": "Sums and differences of several numbers.",
    "count_bits": "Ones in the binary form of a number.",
    "count_primes": "Primes between two numbers.",
    "course_schedule": "Whether all courses can be finished.",
    "decimal_chain_sum": "Sums of decimal numbers.",
    "family_relationships": "Who is whose aunt, in a story.",
    "gcd": "Greatest common divisors.",
    "isomorphic_strings": "Whether two strings have the same pattern.",
    "largest_island": "The largest connected area of a grid.",
    "lcm": "Least common multiples.",
    "leg_counting": "How many legs a list of animals has.",
    "letter_counting": "How often a letter occurs in a text.",
    "mini_sudoku": "4 × 4 sudoku.",
    "number_sequence": "The next number of a sequence.",
    "products": "Multiplication.",
    "ransom_note": "Whether a note can be cut from a magazine.",
    "simple_equations": "Linear equations with one unknown.",
    "simple_geometry": "Angles of a polygon.",
    "syllogism": "Whether a conclusion follows.",
    "time_intervals": "The time between two clock times or dates.",
    "word_sorting": "Words in alphabetical order.",
}
HELD_OUT_SHARE = 10  # one question in ten
REWARD = "gym_score"


def is_installed() -> bool:
    """Whether reasoning-gym is there (the extra `gym`), without importing it."""
    return importlib.util.find_spec("reasoning_gym") is not None


def check_name(task: str) -> str:
    """`gym/chain_sum` → `chain_sum`. TaskError for a task that is not on the list, or without the package."""
    name = task.removeprefix(PREFIX)
    if name not in VETTED:
        raise TaskError(f"There is no task {task!r} among the {len(VETTED)} of reasoning-gym that were found safe and right: "
                        f"{', '.join(PREFIX + known for known in VETTED)}.")
    if not is_installed():
        raise TaskError(f"{task} needs reasoning-gym, which is not installed: pip install \"grpo-lab[gym]\".")
    return name


def row(name: str, seed: int, position: int, *, held_out: bool = False) -> dict[str, Any]:
    """The row at a position of the endless stream of this seed, on the asked side of the split. Raises TaskError."""
    for attempt in range(1000):
        entry = _problem(name, f"{seed}:{position}:{attempt}")
        if _is_held_out(entry["question"]) == held_out:
            return {"prompt": entry["question"], "answer": entry["answer"], "task": PREFIX + name, "metadata": entry["metadata"]}
    raise TaskError(f"{PREFIX}{name} has too few different questions for a split. Choose another task.")


def held_out_rows(name: str, count: int) -> list[dict[str, Any]]:
    """At most `count` different held-out rows, the same for every seed."""
    found = {}
    for position in range(4 * count):
        drawn = row(name, -1, position, held_out=True)
        found.setdefault(drawn["prompt"], drawn)
        if len(found) == count:
            break
    return list(found.values())


def _problem(name: str, key: str) -> dict[str, Any]:
    """One problem, decided by the key alone, as plain JSON values (so that it is the same before and after a file)."""
    place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") >> 2
    return json.loads(json.dumps(_generator(name)[place]))


def _is_held_out(question: str) -> bool:
    return hashlib.sha256(question.encode()).digest()[0] % HELD_OUT_SHARE == 0


@functools.cache
def _generator(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from reasoning_gym import create_dataset

        return create_dataset(name, seed=0, size=1)
