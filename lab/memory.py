"""Memory as it is on this machine: the plan for a run in it, the peak so far, and what to do when it was not enough.

Out of memory is not the end of a run: smaller micro-batches give the same gradient. Leaves out the arithmetic of the
estimate (`planner`) and the trying itself (`trainer`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch

from lab.planner import ModelShape, Plan, plan

if TYPE_CHECKING:
    from lab.config import RunConfig
    from lab.policy import Policy
    from lab.rollout import Rollout

SIGNS = ("not enough memory", "can't allocate memory", "bad_alloc", "out of memory")  # of torch's plain RuntimeErrors


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that there was not enough memory on CPU or device."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(sign in str(error) for sign in SIGNS)


def smaller_budget(rollout: Rollout, micro_batch_tokens: int) -> int | None:
    """Half of what the largest micro-batch of this rollout can have held; None if that was a single completion already."""
    used = min(micro_batch_tokens, int(rollout.prompt_mask.sum() + rollout.lengths.sum()))
    return None if used <= rollout.longest else max(used // 2, rollout.longest)


def plan_run(policy: Policy, config: RunConfig, prompt_tokens: int) -> Plan | None:
    """The plan for a run on this machine as it is now, with prompts of this many tokens; None for a model of unknown layout."""
    try:
        shape = ModelShape.of(policy.model.config.to_dict())
    except KeyError:
        return None
    return plan(config, shape, prompt_tokens=prompt_tokens, device=policy.device.type,
                dtype=str(policy.dtype).removeprefix("torch."), load_in_4bit=policy.load_in_4bit, memory=within_reach(policy.device))


def within_reach(device: torch.device) -> float:
    """Bytes that this process holds already or could still get."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    return psutil.virtual_memory().available + psutil.Process().memory_info().rss


def peak(device: torch.device) -> float:
    """Bytes this process has held at most so far, on the card if it computes there."""
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
