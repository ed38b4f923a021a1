"""Which number format the base gets when a person leaves it open, and the sentence that says why.

On a CPU a few matrix products of the model's own width decide, in well under a second: processors with bfloat16 units do
them up to five times as fast as in float32, others slower. Leaves out 4 bits, which is chosen by device and package.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil
import torch

FLOAT32_BELOW = 50_000_000  # parameters up to which float32 costs nothing worth saving, and keeps KL free of rounding
WORTH_ROUNDING = 1.5  # bfloat16 must be this many times as fast
ROWS = 256
SECONDS = 0.2  # for each format


@dataclass(frozen=True)
class Precision:
    dtype: torch.dtype
    reason: str


def choose(device: torch.device, parameters: int, width: int) -> Precision:
    """The format for a base of `parameters` weights and hidden size `width` on this device."""
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported():
            return Precision(torch.bfloat16, "bfloat16: half of float32's memory, and this GPU computes with it.")
        return Precision(torch.float32, "float32: this GPU does not compute with bfloat16.")
    if parameters < FLOAT32_BELOW:
        return Precision(torch.float32, "float32: the model is small, so exact numbers cost nothing.")
    if 4 * parameters > psutil.virtual_memory().total / 2:
        return Precision(torch.bfloat16, "bfloat16: in float32 the weights would take more than half of this machine's memory.")
    if device.type != "cpu":
        return Precision(torch.float32, f"float32: bfloat16 is not tried out on {device.type}.")
    ratio = _product_seconds(torch.float32, width) / _product_seconds(torch.bfloat16, width)
    if ratio >= WORTH_ROUNDING:
        return Precision(torch.bfloat16, f"bfloat16: matrix products are {ratio:.1f} times as fast here as in float32.")
    return Precision(torch.float32, f"float32: bfloat16 is only {ratio:.1f} times as fast on this processor.")


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
