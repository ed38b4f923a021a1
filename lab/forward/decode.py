"""Rows in the middle of being written: the decoding loop behind `rollout.sample`, in two ways with the same results.

`SharedDecoding` reads each prompt once for its whole group; rows that have ended leave the forward at once, and prompts
that wait in the queue are let in as soon as there is room for their group. `PlainDecoding` uses the model's own cache and
works for every architecture.

    N rows, all G completions of all prompts · n rows in a forward · V vocabulary
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import DynamicCache

from lab.errors import PromptTooLong
from lab.forward.draw import draw
from lab.forward.packing import PackedRow
from lab.forward.shared_cache import SharedCache
from lab.rollout import Progress, Rollout, SamplingSettings, pad_left

if TYPE_CHECKING:
    from lab.policy import Policy

MAX_ROWS = 64  # rows that decode together; further prompts wait
COMPACT_BELOW = 0.6  # share of rows still writing below which the places of ended ones are given up


class Decoding(ABC):
    """What both ways share: which rows are open, what they have written, and the draw."""

    def __init__(self, policy: Policy, prompts: list[list[int]], adapter: str | None, settings: SamplingSettings,
                 generator: torch.Generator):
        self.policy, self.prompts, self.adapter, self.settings, self.generator = policy, prompts, adapter, settings, generator
        longest = max(map(len, prompts))
        self.limit = min(settings.max_completion_length, policy.max_positions - longest)
        if self.limit < 1:
            raise PromptTooLong(f"The longest prompt has {longest} tokens and {policy.name} reads at most {policy.max_positions}, "
                                f"so there is no room for an answer. Shorten the prompt.")
        count = len(prompts) * settings.num_generations
        self.progress = Progress([[] for _ in range(count)], [False] * count)
        self._finished = [False] * count
        self._logps: list[list[float]] = [[] for _ in range(count)]
        self._noise: list[list[float]] = []  # N for each position, so that a row's text does not depend on its neighbours
        self._eos = set(policy.eos_ids)

    @property
    def writing(self) -> bool:
        return not all(self.progress.ended)

    def advance(self) -> None:
        """One more token for the rows whose turn it is."""
        rows, logits = self._next_logits()
        tokens, logps = draw(logits, self.settings.draw, self._uniforms(rows))
        for row, token, logp in zip(rows, tokens.tolist(), logps.tolist(), strict=True):
            if not self.progress.ended[row]:
                self._write(row, token, logp)

    def rollout(self) -> Rollout:
        device = self.policy.device
        written = self.progress.tokens
        lengths = torch.tensor([len(tokens) for tokens in written], device=device)
        width = max(map(len, written))
        pad = self.policy.pad_id
        prompt_ids, prompt_mask = pad_left(self.prompts, pad, device)
        return Rollout(
            prompt_ids=prompt_ids, prompt_mask=prompt_mask,
            completion_ids=torch.tensor([tokens + [pad] * (width - len(tokens)) for tokens in written], device=device),
            completion_mask=(torch.arange(width, device=device) < lengths[:, None]).long(),
            finished=torch.tensor(self._finished, device=device),
            sampling_logps=torch.tensor([logps + [0.0] * (width - len(logps)) for logps in self._logps], device=device),
            group_ids=torch.arange(len(self.prompts), device=device).repeat_interleave(self.settings.num_generations),
            temperature=self.settings.temperature,
        )

    @abstractmethod
    def _next_logits(self) -> tuple[list[int], Tensor]:
        """Rows that get a token now and their logits (n, V)."""

    def _write(self, row: int, token: int, logp: float) -> None:
        self.progress.tokens[row].append(token)
        self._logps[row].append(logp)
        self._finished[row] = token in self._eos
        self.progress.ended[row] = self._finished[row] or len(self.progress.tokens[row]) == self.limit

    def _uniforms(self, rows: list[int]) -> Tensor:
        """(n,) the random numbers of these rows at their next positions."""
        positions = [len(self.progress.tokens[row]) for row in rows]
        while len(self._noise) <= max(positions):
            self._noise.append(torch.rand(len(self.progress.ended), generator=self.generator).tolist())
        return torch.tensor([self._noise[t][row] for row, t in zip(rows, positions, strict=True)], device=self.policy.device)

    def _last_tokens(self, rows: list[int]) -> Tensor:
        return torch.tensor([self.progress.tokens[row][-1] for row in rows], device=self.policy.device)

    def _positions(self, rows: list[int]) -> Tensor:
        """(n,) positions of the rows' last tokens."""
        group = self.settings.num_generations
        return torch.tensor([len(self.prompts[row // group]) + len(self.progress.tokens[row]) - 1 for row in rows],
                            device=self.policy.device)


class SharedDecoding(Decoding):
    """Prompts shared by their groups, refilled from a queue. Needs a body that has passed its check (`fast_path`)."""

    def __init__(self, *args):
        super().__init__(*args)
        self._body = self.policy.fast.sampler(self.policy.model, self.adapter)
        self._waiting = deque(range(len(self.prompts)))
        self._rows: list[int] = []  # in the forward
        self._places: dict[int, int] = {}  # row → its place in the grid, lane · G + seat
        self._cache = SharedCache(self.settings.num_generations, self.policy.device)

    def _next_logits(self) -> tuple[list[int], Tensor]:
        self._rows = [row for row in self._rows if not self.progress.ended[row]]
        group = self.settings.num_generations
        room = max(0, MAX_ROWS - len(self._rows)) // group
        if self._waiting and (room or not self._rows):
            return self._let_in([self._waiting.popleft() for _ in range(min(max(room, 1), len(self._waiting)))])
        if len(self._rows) < COMPACT_BELOW * self._cache.lanes * self._cache.seats:
            self._compact()
        return self._rows, self._step()

    def _step(self) -> Tensor:
        """(n, V) after the newest tokens of the rows in the forward."""
        self._cache.begin(torch.tensor([self._places[row] for row in self._rows], device=self.policy.device))
        hidden = self._body(self._last_tokens(self._rows), self._positions(self._rows), self._cache.attend, self.adapter)
        return self.policy.sampling_logits(hidden)

    def _let_in(self, groups: list[int]) -> tuple[list[int], Tensor]:
        """Read waiting prompts, all in one packed row; their last positions predict every first token of the group."""
        if not self._rows:
            self._cache = SharedCache(self.settings.num_generations, self.policy.device)
            self._places = {}
        prompts = [self.prompts[group] for group in groups]
        row = PackedRow(prompts, [], [], self.policy.device)
        keys_values: list[tuple[Tensor, Tensor]] = []

        def attend(layer, query, key, value, scale):
            keys_values.append((key, value))
            return row.attend(layer, query, key, value, scale)

        hidden = self._body(row.ids, row.positions, attend, self.adapter)
        lengths = [len(prompt) for prompt in prompts]
        seats = self.settings.num_generations
        first = self._cache.lanes * seats
        self._cache.admit(row, lengths, keys_values)
        rows = [group * seats + seat for group in groups for seat in range(seats)]
        self._places |= {row: first + i for i, row in enumerate(rows)}
        self._rows = self._rows + rows
        ends = torch.tensor(lengths, device=self.policy.device).cumsum(0) - 1
        return rows, self.policy.sampling_logits(hidden[ends]).repeat_interleave(seats, dim=0)

    def _compact(self) -> None:
        """Give up lanes without live rows, and seats too once no prompt waits (a new lane needs all of them), if there are any."""
        seats = self._cache.seats
        lanes: dict[int, list[int]] = {}  # lane → its live rows
        for row in self._rows:
            lanes.setdefault(self._places[row] // seats, []).append(row)
        width = seats if self._waiting else max(map(len, lanes.values()))
        if len(lanes) * width == self._cache.lanes * seats:
            return
        grid = [[self._places[row] for row in (rows + rows[:1] * width)[:width]] for rows in lanes.values()]
        self._cache.keep(torch.tensor(grid, device=self.policy.device))
        self._places = {row: i * width + seat for i, rows in enumerate(lanes.values()) for seat, row in enumerate(rows)}


class PlainDecoding(Decoding):
    """The model's own forward and cache, prompts padded on the left and repeated for their group."""

    def __init__(self, *args):
        super().__init__(*args)
        self._rows = list(range(len(self.progress.ended)))  # in the forward
        self._mask: Tensor | None = None
        self._cache: DynamicCache | None = None

    def _next_logits(self) -> tuple[list[int], Tensor]:
        with self.policy.adapters.active(self.adapter):
            logits = self._prefill() if self._cache is None else self._decode()
        return self._rows, logits

    def _prefill(self) -> Tensor:
        group = self.settings.num_generations
        ids, mask = self.policy.pad_prompts(self.prompts)
        self._cache = DynamicCache(config=self.policy.model.config)
        hidden = self.policy.hidden_states(ids, mask, (mask.cumsum(1) - 1).clamp(min=0), self._cache)
        # Not by `batch_repeat_interleave`, which layers with a recurrent state do not have.
        self._cache.reorder_cache(torch.arange(len(self._rows), device=self.policy.device) // group)
        self._mask = mask.repeat_interleave(group, dim=0)
        return self.policy.logits(hidden[:, -1]).repeat_interleave(group, dim=0)

    def _decode(self) -> Tensor:
        kept = [i for i, row in enumerate(self._rows) if not self.progress.ended[row]]
        if len(kept) < COMPACT_BELOW * len(self._rows):
            self._rows = [self._rows[i] for i in kept]
            index = torch.tensor(kept, device=self.policy.device)
            self._cache.reorder_cache(index)
            self._mask = self._mask[index]
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._mask), 1)], dim=1)
        hidden = self.policy.hidden_states(self._last_tokens(self._rows)[:, None], self._mask,
                                           self._positions(self._rows)[:, None], self._cache)
        return self.policy.logits(hidden[:, -1])
