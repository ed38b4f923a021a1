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
from transformers import DynamicCache

from .draw import DrawSettings, draw

if TYPE_CHECKING:
    from .config import RunConfig
    from .policy import Policy

SECONDS_BETWEEN_PARTIALS = 0.15
COMPACT_BELOW = 0.8  # share of rows still writing below which the ended ones are taken out of the batch


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
    batch = _Decoding(policy, prompts, settings, generator)
    # The first token is shown at once; after that only time decides.
    deadline = 0.0
    while batch.writing:
        with torch.no_grad(), policy.adapters.active(adapter):
            while batch.writing:
                batch.advance()
                if time.monotonic() >= deadline:
                    break
        yield batch.progress
        deadline = time.monotonic() + SECONDS_BETWEEN_PARTIALS
    return batch.rollout()


class _Decoding:
    """One batch in the middle of being decoded. `rows` holds the indices of the rows still in the batch."""

    def __init__(self, policy: Policy, prompts: list[list[int]], settings: SamplingSettings, generator: torch.Generator):
        self.policy, self.settings, self.generator = policy, settings, generator
        self.prompt_ids, self.prompt_mask = policy.pad_prompts(prompts)
        self.limit = min(settings.max_completion_length, policy.max_positions - max(map(len, prompts)))
        if self.limit < 1:
            raise ValueError(f"The longest prompt has {max(map(len, prompts))} tokens and {policy.name} reads at most "
                             f"{policy.max_positions}, so there is no room for an answer. Shorten the prompt.")
        count, device = len(prompts) * settings.num_generations, policy.device
        self.group_ids = torch.arange(len(prompts), device=device).repeat_interleave(settings.num_generations)
        self.eos = torch.tensor(policy.eos_ids, device=device)
        self.rows = torch.arange(count, device=device)
        self.open = torch.ones(count, dtype=torch.bool, device=device)  # of the rows still in the batch
        self.mask = self.prompt_mask[self.group_ids]
        self.positions = self.prompt_mask.sum(1)[self.group_ids]
        self.next_tokens = torch.empty(0)
        self.cache: DynamicCache | None = None
        self.steps: list[tuple[Tensor, Tensor, Tensor]] = []  # rows, tokens, logps of every step
        self.progress = Progress([[] for _ in range(count)], [False] * count)

    @property
    def writing(self) -> bool:
        return len(self.steps) < self.limit and not all(self.progress.ended)

    def advance(self) -> None:
        """One more token for every row that has not ended."""
        logits = self._prefill() if self.cache is None else self._decode()
        # One number for every row, ended or not: what a row draws does not depend on when others end.
        uniforms = torch.rand(len(self.progress.ended), generator=self.generator).to(self.policy.device)
        tokens, logps = draw(logits, self.settings.draw, uniforms[self.rows])
        self._keep(tokens, logps)

    def _prefill(self) -> Tensor:
        self.cache = DynamicCache(config=self.policy.model.config)
        positions = (self.prompt_mask.cumsum(1) - 1).clamp(min=0)
        hidden = self.policy.hidden_states(self.prompt_ids, self.prompt_mask, positions, self.cache)
        self.cache.batch_repeat_interleave(self.settings.num_generations)
        return self.policy.logits(hidden[:, -1])[self.group_ids]

    def _decode(self) -> Tensor:
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], dim=1)
        hidden = self.policy.hidden_states(self.next_tokens[:, None], self.mask, self.positions[:, None], self.cache)
        self.positions = self.positions + 1
        return self.policy.logits(hidden[:, -1])

    def _keep(self, tokens: Tensor, logps: Tensor) -> None:
        open_rows = self.rows[self.open]
        self.steps.append((open_rows, tokens[self.open], logps[self.open]))
        ends = torch.isin(tokens, self.eos)
        for row, token, end in zip(open_rows.tolist(), tokens[self.open].tolist(), ends[self.open].tolist(), strict=True):
            self.progress.tokens[row].append(token)
            self.progress.ended[row] = end
        self.open = self.open & ~ends
        self.next_tokens = tokens
        alive = int(self.open.sum())
        if 0 < alive < COMPACT_BELOW * len(self.open):
            self._compact()

    def _compact(self) -> None:
        kept = self.open.nonzero().squeeze(1)
        self.cache.batch_select_indices(kept)
        self.rows, self.mask, self.positions = self.rows[kept], self.mask[kept], self.positions[kept]
        self.next_tokens, self.open = self.next_tokens[kept], self.open[kept]

    def rollout(self) -> Rollout:
        lengths = torch.tensor([len(tokens) for tokens in self.progress.tokens], device=self.policy.device)
        shape = (len(lengths), len(self.steps))
        ids = torch.full(shape, self.policy.pad_id, device=self.policy.device)
        logps = torch.zeros(shape, device=self.policy.device)
        for t, (rows, tokens, values) in enumerate(self.steps):
            ids[rows, t] = tokens
            logps[rows, t] = values
        return Rollout(
            prompt_ids=self.prompt_ids, prompt_mask=self.prompt_mask, completion_ids=ids,
            completion_mask=(torch.arange(shape[1], device=lengths.device) < lengths[:, None]).long(),
            finished=torch.tensor(self.progress.ended, device=self.policy.device), sampling_logps=logps,
            group_ids=self.group_ids, temperature=self.settings.temperature,
        )


def pad_left(sequences: list[list[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and mask (K, P)."""
    width = max(map(len, sequences))
    ids = [[pad_id] * (width - len(s)) + s for s in sequences]
    mask = [[0] * (width - len(s)) + [1] * len(s) for s in sequences]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)
