"""Which way log-probabilities are made and completions sampled: the fastest body that agrees with the plain path here.

The plain path (padded rows through the model's own forward) is right for every architecture. A fast body is used only
if, on this very model, it gives the plain path's log-probabilities; otherwise a sentence says why not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from lab.forward.blocks import LlamaBody
from lab.forward.bodies import Body, HuggingFaceBody
from lab.forward.merged import MergedBody, copy_bytes, is_known
from lab.memory import free
from lab.planner import COPY_ROOM
from lab.rollout import Rollout, pad_left

if TYPE_CHECKING:
    from lab.policy import Policy

# Largest difference of a log-probability. 16-bit and 4-bit bases round differently with every order of summation; a
# wrong mask or position is off by whole units.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
TOLERANCE_ROUNDED = 0.3
GRAPHS = " and CUDA graphs"  # ends the name of a way that samples with them (`static_decode`)


@dataclass(frozen=True)
class FastPath:
    """The body that makes log-probabilities (None: the plain path), whether a merged copy may sample, a sentence why,
    and whether sampling replays CUDA graphs.

    It holds for sequences of up to `longest` tokens: beyond it a model with a sliding window no longer sees all of them.
    """

    body: Body | None
    merges: bool
    reason: str
    longest: float = math.inf
    graphs: bool = False

    @property
    def way(self) -> str:
        """A name for the choice, kept with a run so that it goes on in the same way."""
        if self.body is None:
            return "plain"
        if not isinstance(self.body, LlamaBody):
            return "shared"
        return ("own with a merged copy" if self.merges else "own") + (GRAPHS if self.graphs else "")

    def takes(self, tokens: int) -> bool:
        """Whether sequences of this many tokens, prompt included, may go the fast way."""
        return self.body is not None and tokens <= self.longest

    def sampler(self, model: nn.Module, adapter: str | None) -> Body:
        """The body for sampling one batch with an adapter as it is now."""
        return MergedBody(model, adapter) if self.merges else self.body


def choose(policy: Policy, way: str | None = None) -> FastPath:
    """Try the fast bodies on a small invented rollout beside the plain path.

    `way` is what a run that goes on had before: its body is not bettered, and free memory is not asked again.
    """
    way = way and way.removesuffix(GRAPHS)
    if way == "plain":
        return FastPath(None, False, "Plain path, as when this run began.")
    rollout = _probe(policy)
    before = policy.model.config._attn_implementation
    try:
        body = HuggingFaceBody(policy.model, policy.adapters)
        why = _difference(policy, rollout, body)
    except Exception as error:  # any architecture may refuse in any way; the plain path is always left
        why = f"it refuses ({type(error).__name__}: {error})"
    if why:
        policy.model.set_attn_implementation(before)
        return FastPath(None, False, f"Plain path: this architecture does not run with shared prompts, {why}.")
    window = getattr(policy.model.config.get_text_config(), "sliding_window", None) or math.inf
    if way != "shared" and is_known(policy.model) and not _difference(policy, rollout, own := LlamaBody(policy.model)):
        # Decided once, not by what is free from batch to batch: a run must not change its way of sampling.
        room = way == "own with a merged copy" if way else COPY_ROOM * copy_bytes(policy.model) < free(policy.device)
        merges = room and not _difference(policy, rollout, MergedBody(policy.model, None))
        return FastPath(own, merges, "Fast path: prompts are shared by their group and layers are our own. "
                                     "Checked against the plain path.")
    return FastPath(body, False, "Fast path: prompts are shared by their group. Checked against the plain path.", window)


@torch.no_grad()
def _difference(policy: Policy, rollout: Rollout, body: Body) -> str | None:
    """What is wrong with a body on this model; None if nothing is."""
    gap = (policy.packed_logps(rollout, None, body)[0] - policy.plain_logps(rollout, None)[0]).abs().max().item()
    return None if gap <= tolerance(policy) else f"its log-probabilities differ by {gap:.2g} there"


def tolerance(policy: Policy) -> float:
    """By how much a log-probability of the same token may differ between two ways that are both right."""
    return TOLERANCE_ROUNDED if policy.load_in_4bit else TOLERANCE.get(policy.dtype, TOLERANCE_ROUNDED)


def _probe(policy: Policy) -> Rollout:
    """Two prompts of different length with three and two completions of different lengths, all of random tokens."""
    generator = torch.Generator().manual_seed(0)

    def words(count: int) -> list[int]:
        return torch.randint(0, policy.vocab_size, (count,), generator=generator).tolist()

    prompt_ids, prompt_mask = pad_left([words(9), words(5)], policy.pad_id, policy.device)
    lengths = torch.tensor([6, 1, 4, 7, 3], device=policy.device)
    ids = torch.tensor([words(7) for _ in lengths], device=policy.device)
    return Rollout(
        prompt_ids=prompt_ids, prompt_mask=prompt_mask, completion_ids=ids,
        completion_mask=(torch.arange(7, device=policy.device) < lengths[:, None]).long(),
        finished=torch.ones(5, dtype=torch.bool, device=policy.device), sampling_logps=torch.zeros(5, 7, device=policy.device),
        group_ids=torch.tensor([0, 0, 0, 1, 1], device=policy.device), temperature=1.0,
    )
