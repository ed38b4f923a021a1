"""What this machine does, measured in a fraction of a second, once in a process: what a plan's seconds are made of.

Leaves out what follows from it (`planner`) and the choice of a number format (`precision`).
"""

from __future__ import annotations

import time
from functools import lru_cache

import torch

from lab.forward.merged import FewRowsLinear
from lab.planner import Speed

ROWS, WIDTH, INNER = 256, 768, 2048  # of the product that is timed: a small model's
READ = 48_000_000  # bytes of the weights that are read: more than a cache holds
SECONDS = 0.05  # for each measurement
CALLS = 200


@lru_cache
def measured(device: str, dtype: str, threads: int) -> Speed:
    """The speed of `device` (a torch device's type) in `dtype` with torch's `threads`, which are set back afterwards."""
    before = torch.get_num_threads()
    if before != threads:
        torch.set_num_threads(threads)
    try:
        return _measure(torch.device(device), getattr(torch, dtype))
    finally:
        if before != threads:
            torch.set_num_threads(before)


@torch.no_grad()
def _measure(device: torch.device, dtype: torch.dtype) -> Speed:
    a, b = torch.ones(ROWS, WIDTH, dtype=dtype, device=device), torch.ones(INNER, WIDTH, dtype=dtype, device=device)
    weights = torch.ones(READ // WIDTH // dtype.itemsize, WIDTH, dtype=dtype, device=device)
    few, linear = torch.ones(8, WIDTH, dtype=dtype, device=device), FewRowsLinear(weights)
    small = torch.ones(8, 64, device=device)

    def calls() -> None:
        for _ in range(CALLS):
            small.mul(1.0)

    product, reading, call = (_best(work, device) for work in (lambda: a @ b.mT, lambda: linear(few), calls))
    return Speed(2 * ROWS * WIDTH * INNER / product, weights.numel() * weights.element_size() / reading, call / CALLS)


def _best(work, device: torch.device) -> float:
    """Seconds of the fastest of as many goes as fit; the first, which sets things up, does not count."""
    work()
    best, until = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < until or best == float("inf"):
        _synchronise(device)
        begin = time.perf_counter()
        work()
        _synchronise(device)
        best = min(best, time.perf_counter() - begin)
    return best


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
    elif device.type == "mps":
        torch.mps.synchronize()
