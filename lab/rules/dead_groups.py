"""How likely a group is to teach nothing. Plain numbers, no torch: the page uses it as it is.

With a reward of 0 or 1 and success probability p, G completions all fail or all succeed with p^G + (1 − p)^G.
"""

from __future__ import annotations

DEAD_TOLERANCE = 1e-6  # of a group's std, in reward units: float32 sums of equal weighted rewards differ by less than this


def tied_probability(p: float, num_generations: int) -> float:
    """p^G + (1 − p)^G, the probability that a group of `num_generations` is tied.

    >>> [round(tied_probability(0.2, g), 2) for g in (2, 4, 8, 16)]
    [0.68, 0.41, 0.17, 0.03]
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p is {p}; a probability lies between 0 and 1.")
    if num_generations < 1:
        raise ValueError(f"num_generations is {num_generations}; a group has at least one completion.")
    return p**num_generations + (1 - p) ** num_generations


def smallest_group(p: float, *, at_most: float, largest: int = 64) -> int | None:
    """The smallest G whose groups are tied with probability `at_most`; None if even `largest` is not enough.

    >>> smallest_group(0.2, at_most=0.2), smallest_group(0.001, at_most=0.2)
    (8, None)
    """
    sizes = range(2, largest + 1)
    return next((size for size in sizes if tied_probability(p, size) <= at_most), None)
