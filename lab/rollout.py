"""Prompts → sampled completions with the sampler's log-probabilities: the lab's own decoding loop.

A prompt is read once and its keys and values are shared out to its G rows; all prompts of a step decode together; rows
that have ended leave the batch. Randomness comes from the caller's generator and from nowhere else.

    K prompts · G completions of each · N = K · G rows · P prompt tokens, left-padded · T completion tokens, right-padded

Leaves out the draw itself (`draw`) and text, rewards and records (`sampling`).
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lab.forward.draw import DrawSettings

if TYPE_CHECKING:
    from lab.config import RunConfig
    from lab.policy import Policy

SECONDS_BETWEEN_PARTIALS = 0.15


@dataclass(frozen=True)
class SamplingSettings:
    """How completions are drawn."""

    num_generations: int
    max_completion_length: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    greedy: bool = False

    @classmethod
    def of(cls, config: RunConfig, **changes) -> SamplingSettings:
        names = ("num_generations", "max_completion_length", "temperature", "top_p", "top_k", "min_p")
        return cls(**{name: getattr(config, name) for name in names} | changes)

    @property
    def draw(self) -> DrawSettings:
        return DrawSettings(temperature=self.temperature, greedy=self.greedy, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p)


@dataclass
class Rollout:
    """Sampled completions as tensors on the policy's device. Row i answers prompt `group_ids[i]`."""

    prompt_ids: Tensor  # (K, P) left-padded
    prompt_mask: Tensor  # (K, P)
    completion_ids: Tensor  # (N, T)
    completion_mask: Tensor  # (N, T) 1 up to and including the stop token
    finished: Tensor  # (N,) bool: ended by a stop token, not cut off
    sampling_logps: Tensor  # (N, T) float32 of the full distribution softmax(logits / temperature)
    group_ids: Tensor  # (N,) row of prompt_ids
    temperature: float

    def __len__(self) -> int:
        return len(self.completion_ids)

    @property
    def lengths(self) -> Tensor:
        """(N,) tokens of each completion, stop token included."""
        return self.completion_mask.sum(1)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its completion."""
        return int((self.prompt_mask.sum(1)[self.group_ids] + self.lengths).max())

    def rows(self, index: Tensor) -> Rollout:
        """The chosen rows, cut to their longest prompt and completion."""
        groups, group_ids = self.group_ids[index].unique(return_inverse=True)
        width = int(self.lengths[index].max())
        prompt_width = int(self.prompt_mask[groups].sum(1).max())
        return Rollout(
            prompt_ids=self.prompt_ids[groups, -prompt_width:], prompt_mask=self.prompt_mask[groups, -prompt_width:],
            completion_ids=self.completion_ids[index, :width], completion_mask=self.completion_mask[index, :width],
            finished=self.finished[index], sampling_logps=self.sampling_logps[index, :width],
            group_ids=group_ids, temperature=self.temperature,
        )

    def sequences(self) -> tuple[Tensor, Tensor, Tensor]:
        """Prompt and completion side by side: ids, mask and positions, each (N, P + T)."""
        ids = torch.cat([self.prompt_ids[self.group_ids], self.completion_ids], dim=1)
        mask = torch.cat([self.prompt_mask[self.group_ids], self.completion_mask], dim=1)
        return ids, mask, (mask.cumsum(1) - 1).clamp(min=0)

    def micro_batches(self, max_tokens: int) -> Iterator[Tensor]:
        """Row indices in batches of similar length, each at most `max_tokens` once padded (one row at least)."""
        lengths = (self.prompt_mask.sum(1)[self.group_ids] + self.lengths).tolist()
        order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
        while order:
            count = max(1, min(len(order), max_tokens // lengths[order[0]]))
            yield torch.tensor(sorted(order[:count]), device=self.completion_ids.device)
            order = order[count:]


@dataclass
class Progress:
    """What has been written so far. `tokens[i]` grows; `ended[i]` says that row i is complete."""

    tokens: list[list[int]]
    ended: list[bool]


def sample(
    policy: Policy, prompts: list[list[int]], adapter: str | None, settings: SamplingSettings, generator: torch.Generator
) -> Generator[Progress, None, Rollout]:
    """Decode G completions of each prompt; yields a Progress several times a second, returns the Rollout.

    `generator` is a CPU generator on every device, so a seed means the same everywhere. Between two yields no adapter
    is active, so others may use the policy meanwhile. Raises ValueError for a prompt that leaves no room to answer.
    """
    batch = policy.decoding(prompts, adapter, settings, generator)
    # The first token is shown at once; after that only time decides.
    deadline = 0.0
    while batch.writing:
        with torch.no_grad():
            while batch.writing:
                batch.advance()
                if time.monotonic() >= deadline:
                    break
        yield batch.progress
        deadline = time.monotonic() + SECONDS_BETWEEN_PARTIALS
    return batch.rollout()


def pad_left(sequences: list[list[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and mask (K, P)."""
    width = max(map(len, sequences))
    ids = [[pad_id] * (width - len(s)) + s for s in sequences]
    mask = [[0] * (width - len(s)) + [1] * len(s) for s in sequences]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)
