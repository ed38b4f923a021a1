"""Memory as it is on this machine: what is within reach, the peak so far, and what to do when it was not enough.

Out of memory is not the end of a run: smaller micro-batches give the same gradient. Leaves out the plan (`planner`,
`training.planning`) and the trying itself (`trainer`).
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch

from lab.planner import CUDA_CONTEXT
from lab.ram import ram

if TYPE_CHECKING:
    from lab.rollout import Rollout

SIGNS = ("not enough memory", "can't allocate memory", "bad_alloc", "out of memory")  # of torch's plain RuntimeErrors


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that there was not enough memory on CPU or device."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(sign in str(error) for sign in SIGNS)


def smaller_budget(rollout: Rollout, micro_batch_tokens: int) -> int | None:
    """Half of what the largest micro-batch of this rollout can have held; None if that was a single completion already."""
    used = min(micro_batch_tokens, int(rollout.prompt_mask.sum() + rollout.lengths.sum()))
    return None if used <= rollout.longest else max(used // 2, rollout.longest)


def within_reach(device: torch.device) -> float:
    """Bytes that this process holds already or could still get."""
    return held(device) + free(device)


def held(device: torch.device) -> float:
    """Bytes this process holds now, a CUDA context among them."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device) + CUDA_CONTEXT
    return psutil.Process().memory_info().rss


def free(device: torch.device) -> float:
    """Bytes this process could still get: what is free, on CUDA up to the `limit` of this process."""
    if device.type != "cuda":
        return ram().available
    unused, total = torch.cuda.mem_get_info(device)
    return min(unused, torch.cuda.get_per_process_memory_fraction(device.index) * total - torch.cuda.memory_reserved(device))


def limit(device: torch.device, most: float) -> None:
    """Let this process have no more than `most` bytes of the card, its CUDA context among them. Elsewhere nothing is limited."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(max(0.0, most - CUDA_CONTEXT) / total, 1.0), device.index)


def peak(device: torch.device) -> float:
    """Bytes this process has held at most so far, on the card if it computes there."""
    return max(_peaks_before, _peak_since_mark(device))


def mark_peak(device: torch.device) -> None:
    """`peak_since_mark` counts from here on. Where the system cannot forget a peak it still counts from the process's start."""
    global _peaks_before
    _peaks_before = peak(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif CLEAR_PEAK.exists():
        with contextlib.suppress(OSError):  # some containers forbid it
            CLEAR_PEAK.write_text("5")


def peak_since_mark(device: torch.device) -> float:
    """Bytes this process has held at most since `mark_peak`, a CUDA context among them."""
    return _peak_since_mark(device) + (CUDA_CONTEXT if device.type == "cuda" else 0.0)


CLEAR_PEAK = Path("/proc/self/clear_refs")  # Linux: "5" sets the process's peak back to what it holds now (proc(5))
_peaks_before = 0.0


def _peak_since_mark(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.max_memory_reserved(device))
    status = Path("/proc/self/status")
    if status.exists():  # Linux: `getrusage` would count what the parent process had before this one began
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024.0
    if sys.platform == "win32":
        return float(psutil.Process().memory_info().peak_wset)
    import resource

    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # macOS counts bytes
