"""Decoding in buffers of a few fixed sizes, so that on CUDA one token for all rows is a single replay of a CUDA graph.

`StaticDecoding` is `SharedDecoding` whose cache lies in a `Bucket`: lanes and slots are rounded up to powers of two, who is
seen is decided by a mask, and a step reads and writes tensors that stay where they are. On CUDA the step is captured once
per bucket and replayed, which saves launching some thousand kernels for every token; elsewhere the same step is just called,
which is how it is tested. Buckets and graphs live no longer than their batch: a graph holds the addresses of a merged copy
or of an adapter's weights, and both may be others in the next batch.

    L lanes (prompts) · G seats (completions) · K key heads · d head size · P prompt slots · T slots of written tokens
    · n live rows · V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from lab.forward.blocks import LlamaBody
from lab.forward.decode import SharedDecoding
from lab.forward.fast_path import GRAPHS, FastPath, differ
from lab.forward.graph import Graph
from lab.forward.shared_cache import SharedCache
from lab.rollout import SamplingSettings

if TYPE_CHECKING:
    from lab.policy import Policy

SHORTEST = 128  # slots of the smallest bucket; prompts and completions that outgrow a bucket get one of twice the length
CHECKED_PROMPTS, CHECKED_GROUP = (9, 5), 3  # lengths of the invented prompts, and completions of each


def choose(policy: Policy, way: str | None = None) -> FastPath:
    """The policy's fast path, with CUDA graphs if it is on CUDA, has layers of our own, and they pass the check there.

    `way` is what a run that goes on had before: one without graphs goes on without.
    """
    fast = policy.fast
    if policy.device.type != "cuda" or not isinstance(fast.body, LlamaBody) or (way and not way.endswith(GRAPHS)):
        return fast
    policy.fast = replace(fast, graphs=True)
    try:
        gap = difference(policy)
    except Exception as error:  # a card, a driver or a package may refuse in any way; the ordinary loop is always left
        return _without(fast, f"they refuse ({type(error).__name__}: {error})")
    if not policy.fast.graphs:
        return policy.fast  # the capture failed, and says so
    if gap:
        return _without(fast, f"their log-probabilities differ by {gap:.2g} from the ordinary loop's")
    return replace(fast, graphs=True, reason=f"{fast.reason} Sampling replays CUDA graphs, checked against the ordinary loop.")


@torch.no_grad()
def difference(policy: Policy) -> float | None:
    """How far the log-probabilities of a small invented batch are from the ordinary loop's, both fed with its greedy tokens;
    None if by no more than rounding.

    Row r ends after r + 1 tokens, so that rows are dropped on the way.
    """
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, policy.vocab_size, (length,), generator=generator).tolist() for length in CHECKED_PROMPTS]
    settings = SamplingSettings(CHECKED_GROUP, max_completion_length=len(prompts) * CHECKED_GROUP)
    ordinary, static = (way(policy, prompts, None, settings, generator) for way in (SharedDecoding, StaticDecoding))
    both: list[Tensor] = []  # each (2, n)
    while ordinary.writing:
        rows, logits = ordinary._next_logits()
        tokens = logits.argmax(-1, keepdim=True)
        both.append(torch.stack([x.float().log_softmax(-1).gather(-1, tokens).squeeze(-1)
                                 for x in (logits, static._next_logits()[1])]))
        for row, token in zip(rows, tokens.flatten().tolist(), strict=True):
            for decoding in (ordinary, static):
                decoding._write(row, token, 0.0)
                decoding.progress.ended[row] = len(decoding.progress.tokens[row]) > row
    return differ(*torch.cat(both, dim=1), policy)


class StaticDecoding(SharedDecoding):
    """`SharedDecoding` with its cache in a bucket and its step as a graph."""

    def __init__(self, *args):
        super().__init__(*args)
        self._bucket: Bucket | None = None
        self._graph: Graph | None = None
        self._settled = False  # whether the cache lies in the bucket

    def _let_in(self, groups: list[int]) -> tuple[list[int], Tensor]:
        self._settled = False
        return super()._let_in(groups)

    def _compact(self) -> None:
        before = self._places
        super()._compact()
        self._settled = self._settled and self._places is before

    def _step(self) -> Tensor:
        if not self._settled or self._cache.used == self._bucket.size.slots:
            self._settle()
        places = torch.tensor([self._places[row] for row in self._rows], device=self.policy.device)
        self._bucket.begin(self._cache.used, places, self._last_tokens(self._rows), self._positions(self._rows))
        self._cache.used += 1
        logits = self._graph()[places]
        if self._graph.failure and self.policy.fast.graphs:  # later batches take the ordinary loop
            self.policy.fast = _without(self.policy.fast, self._graph.failure)
        return logits

    def _settle(self) -> None:
        """Move the cache into the bucket of its size. What the bucket held is given up."""
        size = Size.of(self._cache)
        if self._bucket is None or size != self._bucket.size:
            self._bucket = Bucket(size, self._cache)
            # A partial, not a method of ours: in a cycle of references the buffers would outlive the batch.
            step = partial(_logits, self.policy, self._body, self.adapter, self._bucket)
            self._graph = Graph(step, self.policy.device)
        self._bucket.take(self._cache)
        self._settled = True


def _logits(policy: Policy, body: Callable[..., Tensor], adapter: str | None, bucket: Bucket) -> Tensor:
    """(L·G, V) of every place of the bucket, those of rows that have ended or never were among them."""
    return policy.sampling_logits(body(bucket.tokens, bucket.positions, bucket.attend, adapter))


class Size(NamedTuple):
    """What a bucket has room for."""

    lanes: int
    seats: int
    prompt: int
    slots: int

    @classmethod
    def of(cls, cache: SharedCache) -> Size:
        """The smallest bucket with room for a cache and one more token. Seats are as many as the cache has: few numbers, too."""
        return cls(_power_of_two(cache.lanes), cache.seats, max(SHORTEST, _power_of_two(max(cache.prompt_lengths))),
                   max(SHORTEST, _power_of_two(cache.used + 1)))


class Bucket(SharedCache):
    """Keys and values of a fixed number of lanes and slots, and the inputs of a step, all in tensors that stay where they are.

    Every place writes and attends in every step. Places without a live row write into their own slots only, which nobody
    else reads; unused slots hold finite numbers and are masked.
    """

    def __init__(self, size: Size, like: SharedCache):
        super().__init__(size.seats, like.device)
        self.size = size
        self.born = [0] * size.lanes
        self.used = size.slots  # all of them are attended to, as far as the mask lets them
        self._heads = like._heads
        lanes, rows = size.lanes * like._heads, size.lanes * like._heads * size.seats
        self._prompt = [[x.new_zeros(lanes, size.prompt, x.shape[-1]) for x in pair] for pair in like._prompt]
        self._own = [[x.new_zeros(rows, size.slots, x.shape[-1]) for x in pair] for pair in like._own]
        self._mask = like._prompt[0][0].new_zeros(size.lanes, 1, size.prompt + size.slots)
        self.tokens = torch.zeros(size.lanes * size.seats, dtype=torch.long, device=like.device)
        self.positions = torch.zeros_like(self.tokens)
        self._slot = torch.zeros(1, dtype=torch.long, device=like.device)

    def take(self, cache: SharedCache) -> None:
        """Hold what a cache holds; its tensors become views of the buffers."""
        width = max(cache.prompt_lengths)
        for layer, (prompt, own) in enumerate(zip(self._prompt, self._own, strict=True)):
            cache._prompt[layer] = [_put(old, width, new) for old, new in zip(cache._prompt[layer], prompt, strict=True)]
            cache._own[layer] = [_put(old, cache.used, new) for old, new in zip(cache._own[layer], own, strict=True)]
        self._mask.fill_(float("-inf"))
        for lane, (length, born) in enumerate(zip(cache.prompt_lengths, cache.born, strict=True)):
            self._mask[lane, :, :length] = 0.0
            self._mask[lane, :, self.size.prompt + born : self.size.prompt + cache.used] = 0.0

    def begin(self, slot: int, places: Tensor, tokens: Tensor, positions: Tensor) -> None:
        """Set the inputs of a step that writes into `slot`: the newest tokens (n,) of the rows at `places` (n,)."""
        self._slot.fill_(slot)
        self._mask[:, :, self.size.prompt + slot] = 0.0  # for unused lanes, too: a row that sees nothing would be NaN
        self.tokens.index_copy_(0, places, tokens)
        self.positions.index_copy_(0, places, positions)

    def _write(self, own: Tensor, new: Tensor) -> Tensor:
        rows = new.view(self.lanes, self.seats, self._heads, -1).transpose(1, 2).reshape(len(own), 1, -1)
        return own.index_copy_(1, self._slot, rows.to(own.dtype))


def _without(fast: FastPath, why: str) -> FastPath:
    return replace(fast, graphs=False, reason=f"{fast.reason} Without CUDA graphs: {why}.")


def _put(old: Tensor, width: int, buffer: Tensor) -> Tensor:
    """Copy the first `width` slots of (rows, slots, d) into a buffer; returns its rows."""
    rows = buffer[: len(old)]
    rows[:, :width].copy_(old[:, :width])
    return rows


def _power_of_two(count: int) -> int:
    """The smallest power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()
