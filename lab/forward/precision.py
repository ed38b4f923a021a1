"""Which number format the base gets when a person leaves it open, and the sentence that says why.

On a CPU a few matrix products of the model's own width decide, in well under a second: processors with bfloat16 units do
them up to five times as fast as in float32, others slower. Leaves out the rule (`planner.number_format`) and 4 bits, which
are chosen by device and package.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from lab.planner import number_format
from lab.ram import ram

ROWS = 256
SECONDS = 0.2  # for each format


@dataclass(frozen=True)
class Precision:
    dtype: torch.dtype
    reason: str


def choose(device: torch.device, parameters: int, width: int) -> Precision:
    """The format for a base of `parameters` weights and hidden size `width` on this device."""
    if device.type == "cuda" and not torch.cuda.is_bf16_supported():
        return Precision(torch.float32, "float32: this GPU does not compute with bfloat16.")

    def faster() -> float:
        return _product_seconds(torch.float32, width) / _product_seconds(torch.bfloat16, width)

    name, reason = number_format(device.type, parameters, ram().total, faster)
    return Precision(getattr(torch, name), reason)


def _product_seconds(dtype: torch.dtype, width: int) -> float:
    """CPU seconds of one product (ROWS, width) · (width, 4 · width), the best of as many as fit into SECONDS."""
    a, b = torch.ones(ROWS, width, dtype=dtype), torch.ones(4 * width, width, dtype=dtype)
    a @ b.mT  # the first call sets things up
    best, until = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        begin = time.process_time()
        a @ b.mT
        best = min(best, time.process_time() - begin)
    return best
