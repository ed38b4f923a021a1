"""What the tiny model reads in pretraining: arithmetic answered in good and bad manners, and some small talk.

The manner of a completion is drawn independently of its prompt. CLEAN teaches the skill, MIX then buries it
under hasty guesses and broken formats, so that reinforcement has something honest to lift: the skill is
there, and rarely shown. Leaves out tokens and training.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from lab.tasks.arithmetic import Problem, draw

SYSTEM_MESSAGE = "Think, then answer."
OTHER_SYSTEM_MESSAGES = ("You are a helpful assistant.", "Be brief.", "Answer the question.")

TASK_WEIGHTS = {"add2": 5, "sub2": 4, "add3": 4, "chain": 5, "chain_any": 3, "parity": 1, "cmp": 1}

# Shares of each manner of answering. In MIX one filler and one kind of wrong guess dominate: were they
# spread out, careful answers would win every greedy choice and the greedy base would already be right.
CLEAN = {
    "careful": 0.84, "quick": 0.02, "ansonly": 0.02, "plain": 0.03, "noans": 0.03, "swapped": 0.01,
    "ramble": 0.02, "badfinal": 0.01, "unclosed": 0.02,
}  # fmt: skip
MIX = {
    "careful": 0.16, "quick": 0.36, "ansonly": 0.12, "plain": 0.14, "noans": 0.02, "swapped": 0.05,
    "ramble": 0.08, "badfinal": 0.01, "unclosed": 0.06,
}  # fmt: skip
MIX_HARD = {
    "careful": 0.07, "quick": 0.37, "ansonly": 0.14, "plain": 0.17, "noans": 0.01, "swapped": 0.06,
    "ramble": 0.10, "badfinal": 0.01, "unclosed": 0.07,
}  # fmt: skip
HARD_TASKS = ("chain", "chain_any")

FILLER = "hmm"
OTHER_FILLERS = ("let me see", "well", "ok", "I think", "maybe", "not sure", "hmm, so")
SENTENCES = (
    "I like numbers.", "Let me think about it.", "That is a good question.", "Numbers are fun.",
    "This one is hard.", "I am not sure.",
)  # fmt: skip
SMALL_TALK = {
    "Hello": "Hello! Ask me a sum.",
    "Hi": "Hi! Ask me a sum.",
    "Who are you?": "I am a tiny model. I only know small sums.",
    "Thanks": "You are welcome.",
    "What can you do?": "I can add, subtract and compare small numbers.",
}


@dataclass(frozen=True)
class Example:
    """One training text: the optional system message, the question, and the completion that is learned."""

    system: str | None
    prompt: str
    completion: str


def examples(seed: int, *, mixed: bool) -> Iterator[Example]:
    """Endless seeded training texts, answered in the CLEAN manner or in the MIX manner."""
    rng = random.Random(seed)
    tasks, weights = list(TASK_WEIGHTS), list(TASK_WEIGHTS.values())
    while True:
        system = _system_message(rng)
        if rng.random() < 0.01:
            yield Example(system, *rng.choice(list(SMALL_TALK.items())))
            continue
        problem = draw(rng.choices(tasks, weights)[0], rng)
        shares = CLEAN if not mixed else MIX_HARD if problem.task in HARD_TASKS else MIX
        yield Example(system, problem.prompt, complete(problem, shares, rng))


def complete(problem: Problem, shares: dict[str, float], rng: random.Random) -> str:
    """One completion of `problem`, its manner drawn by `shares`."""
    manner = rng.choices(list(shares), list(shares.values()))[0]
    steps, gold = problem.steps, problem.answer
    guess, filler = _guess(problem, rng), _filler(rng)
    match manner:
        case "careful":
            return f"<think>{steps}</think><answer>{gold}</answer>"
        case "quick":
            return f"<think>{filler}</think><answer>{guess}</answer>"
        case "ansonly":
            return f"<answer>{guess}</answer>"
        case "plain":
            return rng.choice(("The answer is {}.", "{}", "It is {}.", "I think {}.")).format(guess)
        case "noans":
            return f"<think>{steps}</think>{rng.choice(('So ', 'Answer: ', ''))}{gold}"
        case "swapped":
            return f"<answer>{guess}</answer><think>{filler}</think>"
        case "ramble":
            return " ".join(rng.sample(SENTENCES, rng.randint(1, 2)))
        case "badfinal":
            return f"<think>{steps}</think><answer>{_wrong(problem, rng)}</answer>"
        case "unclosed":
            return rng.choice((f"<think>{filler} <answer>{guess}</answer>", f"<think>{filler}</think><answer>{guess}"))
    raise ValueError(f"There is no manner of answering called {manner!r}.")


def _system_message(rng: random.Random) -> str | None:
    kind = rng.random()
    if kind < 0.30:
        return SYSTEM_MESSAGE
    return rng.choice(OTHER_SYSTEM_MESSAGES) if kind < 0.35 else None


def _filler(rng: random.Random) -> str:
    return FILLER if rng.random() < 0.85 else rng.choice(OTHER_FILLERS)


def _guess(problem: Problem, rng: random.Random) -> str:
    """A hasty answer: right one time in eight (about half the time where there are only two answers)."""
    if problem.task in ("parity", "cmp"):
        return rng.choice(_two_answers(problem))
    return problem.answer if rng.random() < 0.125 else _wrong(problem, rng)


def _wrong(problem: Problem, rng: random.Random) -> str:
    """A wrong answer. For sums mostly the typical slip, ten too many, so that greedy guesses are wrong too."""
    if problem.task in ("parity", "cmp"):
        return next(text for text in _two_answers(problem) if text != problem.answer)
    gold = int(problem.answer)
    if rng.random() < 0.5:
        return str(gold + 10)
    slip = rng.choice([d for d in (-20, -11, -10, -9, -3, -2, -1, 1, 2, 3, 9, 11, 20) if gold + d >= 0])
    return str(gold + slip)


def _two_answers(problem: Problem) -> tuple[str, str]:
    return ("even", "odd") if problem.task == "parity" else ("yes", "no")
