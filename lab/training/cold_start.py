"""A few supervised steps on worked examples before reinforcement learning, as DeepSeek-R1 begins (arXiv 2501.12948, §2.3).

The adapter learns to write the given completions, stop token included; prompts are read, not learned. What comes out is
where reinforcement learning starts and what its KL is measured against. R1-Zero is the same run without. Leaves out
where examples come from (`tasks.worked`) and when this happens (`between_steps`).

    B examples in a step · T tokens of the longest completion
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lab.policy import Policy
from lab.rollout import Rollout
from lab.tasks.worked import completion_text
from lab.training.sampling import prefill_of


def supervised_backward(policy: Policy, adapter: str, rollout: Rollout, *, max_tokens: int) -> float:
    """Gradients of the mean negative log-probability per completion token, in nats, over the whole batch; returns it.

    Micro-batches of at most `max_tokens` tokens add up to the batch, however they are cut.
    """
    count, loss = rollout.completion_mask.sum(), 0.0
    for rows in policy.micro_batches(rollout, max_tokens):
        logps, _ = policy.logps(rollout.rows(rows), adapter)  # 0 at padding
        part = -logps.sum() / count
        part.backward()
        loss += float(part.detach())
    return loss


def as_rollout(policy: Policy, examples: Sequence[dict[str, Any]], system_prompt: str | None) -> Rollout:
    """Rows with prompt and completion as if the policy had just written them: (B, T), each with its stop token."""
    stop = _stop_token(policy)
    prompts = [policy.prompt_ids(row["prompt"], system_prompt) for row in examples]
    # what the chat template has opened already, such as <think>, is not written a second time
    texts = [completion_text(row).removeprefix(prefill_of(policy, ids).strip()) for row, ids in zip(examples, prompts, strict=True)]
    completions = [policy.tokenizer(text, add_special_tokens=False)["input_ids"] + stop for text in texts]
    prompt_ids, prompt_mask = policy.pad_prompts(prompts)
    count, width, device = len(examples), max(map(len, completions)), policy.device
    ids = [c + [policy.pad_id] * (width - len(c)) for c in completions]
    mask = [[1] * len(c) + [0] * (width - len(c)) for c in completions]
    return Rollout(
        prompt_ids=prompt_ids, prompt_mask=prompt_mask, completion_ids=torch.tensor(ids, device=device),
        completion_mask=torch.tensor(mask, device=device), finished=torch.ones(count, dtype=torch.bool, device=device),
        sampling_logps=torch.zeros(count, width, device=device), group_ids=torch.arange(count, device=device), temperature=1.0,
    )


def _stop_token(policy: Policy) -> list[int]:
    """The tokenizer's own where it ends completions, else the first that does; none where the model has none."""
    own = policy.tokenizer.eos_token_id
    return [own] if own in policy.eos_ids else policy.eos_ids[:1]
