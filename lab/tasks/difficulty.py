"""How hard prompts are for a model, from K samples of each: pass rates, which of them can teach, and what a group size makes of it.

    K samples of a prompt, s of them right · p = s / K · G ≤ K completions in a group

A prompt has signal when 0 < p < 1: where all samples are right, or all wrong, a group has nothing to compare. Plain numbers,
no torch; sampling is `lab.training.difficulty`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

GROUP_SIZES = (2, 4, 8, 16, 32, 64)
RIGHT = 0.5  # a sample passes from here on, as in evaluations


@dataclass(frozen=True)
class Difficulty:
    """What a scan found about one prompt. `passed` is s, of `samples`; a sample that no reward applies to is not counted."""

    row: int  # place among the rows that were given
    prompt: str
    passed: int
    samples: int
    mean_reward: float | None = None  # of the weighted total
    cut_off: int = 0

    @property
    def pass_rate(self) -> float | None:
        """p = s / K; None where no sample could be judged."""
        return self.passed / self.samples if self.samples else None

    @property
    def has_signal(self) -> bool:
        """0 < p < 1: a group of this prompt's completions can differ."""
        return 0 < self.passed < self.samples


@dataclass
class Scan:
    """Difficulties in the order of the rows."""

    prompts: list[Difficulty]

    @property
    def share_with_signal(self) -> float:
        """Of the prompts that could be judged; 0 where there are none."""
        judged = [prompt for prompt in self.prompts if prompt.samples]
        return sum(prompt.has_signal for prompt in judged) / len(judged) if judged else 0.0

    def expected_live(self, num_generations: int) -> float:
        """The expected share of groups of this size, at most the samples', that are not tied, over the prompts that could be judged."""
        judged = [prompt for prompt in self.prompts if prompt.samples]
        return math.fsum(live_probability(p.passed, p.samples, num_generations) for p in judged) / len(judged) if judged else 0.0

    def kept(self, low: float = 0.0, high: float = 1.0) -> list[int]:
        """The rows with low ≤ p ≤ high."""
        return [prompt.row for prompt in self.prompts if prompt.pass_rate is not None and low <= prompt.pass_rate <= high]

    def easiest_first(self) -> list[int]:
        """Rows by falling pass rate, without those that could not be judged."""
        judged = [prompt for prompt in self.prompts if prompt.pass_rate is not None]
        return [prompt.row for prompt in sorted(judged, key=lambda prompt: (-prompt.pass_rate, prompt.row))]

    def summary(self) -> dict[str, Any]:
        """Counts, and the expected share of live groups for the group sizes that the samples can tell."""
        judged = [prompt for prompt in self.prompts if prompt.samples]
        sizes = [size for size in GROUP_SIZES if judged and size <= min(prompt.samples for prompt in judged)]
        return {"judged": len(judged), "of": len(self.prompts), "share_with_signal": self.share_with_signal,
                "all_right": sum(p.passed == p.samples for p in judged), "all_wrong": sum(p.passed == 0 for p in judged),
                "live": {str(size): self.expected_live(size) for size in sizes}}


def live_probability(passed: int, samples: int, num_generations: int) -> float:
    """The chance that a group is not tied, from s right ones among K samples.

    1 − [C(s, G) + C(K − s, G)] / C(K, G): the chance for G of the K samples, an estimate without bias (as pass@k is
    estimated, arXiv 2107.03374). ValueError for G > K: that few samples cannot tell it.

    >>> live_probability(1, 4, 2), live_probability(2, 4, 4)
    (0.5, 1.0)
    """
    if not 0 <= passed <= samples or not 1 <= num_generations <= samples:
        raise ValueError(f"{passed} of {samples} samples passed, and groups of {num_generations} are asked for: take at least as many "
                         f"samples as a group has completions.")
    tied = math.comb(passed, num_generations) + math.comb(samples - passed, num_generations)
    return 1 - tied / math.comb(samples, num_generations)


def as_json(difficulty: Difficulty) -> dict[str, Any]:
    """A difficulty as plain values, for the store and the page."""
    return vars(difficulty)


def scan_of(found: list[dict[str, Any]]) -> Scan:
    """A scan from what `as_json` gave."""
    return Scan([Difficulty(**entry) for entry in found])
