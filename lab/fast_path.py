"""Which way log-probabilities are made and completions sampled: the fastest body that agrees with the plain path here.

The plain path (padded rows through the model's own forward) is right for every architecture. A fast body is used only
if, on this very model, it gives the plain path's log-probabilities; otherwise a sentence says why not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .blocks import LlamaBody
from .bodies import Body, HuggingFaceBody
from .merged import MergedBody, can_merge
from .rollout import Rollout, pad_left

if TYPE_CHECKING:
    from .policy import Policy

# Largest difference of a log-probability. 16-bit and 4-bit bases round differently with every order of summation; a
# wrong mask or position is off by whole units.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
TOLERANCE_ROUNDED = 0.3


@dataclass(frozen=True)
class FastPath:
    """The body that makes log-probabilities and the one that samples (None: the plain path), and a sentence for a person."""

    body: Body | None
    sampler: Body | None
    reason: str


def choose(policy: Policy) -> FastPath:
    """Try the fast bodies on a small invented rollout beside the plain path."""
    rollout = _probe(policy)
    before = policy.model.config._attn_implementation
    try:
        body = HuggingFaceBody(policy.model, policy.adapters)
        why = _difference(policy, rollout, body)
    except Exception as error:  # any architecture may refuse in any way; the plain path is always left
        why = f"it refuses ({type(error).__name__}: {error})"
    if why:
        policy.model.set_attn_implementation(before)
        return FastPath(None, None, f"Plain path: this architecture does not run with shared prompts, {why}.")
    if not can_merge(policy.model):
        return FastPath(body, body, "Fast path: prompts are shared by their group. Checked against the plain path.")
    own, sampler = LlamaBody(policy.model), MergedBody(policy.model, policy.adapters)
    body, sampler = (body if _difference(policy, rollout, b) else b for b in (own, sampler))
    return FastPath(body, sampler, "Fast path: prompts are shared by their group, layers are our own"
                                   ", a copy with the adapter merged in samples. Checked against the plain path.")


@torch.no_grad()
def _difference(policy: Policy, rollout: Rollout, body: Body) -> str | None:
    """What is wrong with a body on this model; None if nothing is."""
    tolerance = TOLERANCE_ROUNDED if policy.load_in_4bit else TOLERANCE.get(policy.dtype, TOLERANCE_ROUNDED)
    gap = (policy.packed_logps(rollout, None, body)[0] - policy.plain_logps(rollout, None)[0]).abs().max().item()
    return None if gap <= tolerance else f"its log-probabilities differ by {gap:.2g} there"


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
