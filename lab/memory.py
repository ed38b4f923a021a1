"""Out of memory is not the end of a run: smaller micro-batches give the same gradient.

Says what counts as out of memory and what to try next. Leaves out the estimate before the start (`planner`) and the
trying itself (`trainer`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .rollout import Rollout

SIGNS = ("not enough memory", "can't allocate memory", "bad_alloc", "out of memory")  # of torch's plain RuntimeErrors


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that there was not enough memory on CPU or device."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(sign in str(error) for sign in SIGNS)


def smaller_budget(rollout: Rollout, micro_batch_tokens: int) -> int | None:
    """Half of what the largest micro-batch of this rollout can have held; None if that was a single completion already."""
    used = min(micro_batch_tokens, int(rollout.prompt_mask.sum() + rollout.lengths.sum()))
    return None if used <= rollout.longest else max(used // 2, rollout.longest)
