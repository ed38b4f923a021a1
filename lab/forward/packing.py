"""Prompts and their completions in one row without padding: each prompt is read once and its group shares it.

G completions of one prompt cost P + ΣC tokens instead of G·(P + C). Each completion attends to its prompt and to itself,
which is exactly what it would see alone, so nothing changes but the cost (Hydragen's decomposition, arXiv 2402.05099, with a
gradient). Works through a model's unmodified Hugging Face modules: position ids and an attention function do it all.

    H query heads · K key heads · D head size · n rows of a block · C tokens of its longest row · P tokens of its prefix
    · S tokens of the packed row · M predicted tokens

Leaves out which model runs the row (`bodies`) and decoding (`decode`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from lab.rollout import Rollout

PROMPT_CHUNK = 512  # queries of a prompt that attend at once: bounds the memory of their scores


@dataclass(frozen=True)
class Block:
    """Rows that share a prefix: the tokens [start, stop) see [prefix, start of the first row) and their own row's past."""

    start: int
    stop: int
    prefix: slice
    lengths: tuple[int, ...]  # of its rows, which lie one after the other

    @property
    def width(self) -> int:
        return max(self.lengths)

    @property
    def ragged(self) -> bool:
        return len(set(self.lengths)) > 1


class PackedRow:
    """One row of tokens for one forward, and who may see whom in it."""

    def __init__(self, prompts: list[list[int]], completions: list[list[int]], group_ids: list[int], device: torch.device):
        """Row i of `completions` answers `prompts[group_ids[i]]`. Raises ValueError for an empty prompt or completion."""
        if not all(prompts) or not all(completions):
            raise ValueError("Every prompt and every completion needs at least one token.")
        ids, positions, self.blocks = [], [], []
        predicting: list[range] = [range(0)] * len(completions)
        for group, prompt in enumerate(prompts):
            begin = len(ids)
            ids += prompt
            positions += range(len(prompt))
            self.blocks += _prompt_blocks(begin, len(prompt))
            rows = [i for i, g in enumerate(group_ids) if g == group]
            first = len(ids)
            for i in rows:
                # Completion token 0 is predicted by the end of the prompt, token t by token t − 1; the last predicts nothing.
                predicting[i] = (begin + len(prompt) - 1, *range(len(ids), len(ids) + len(completions[i]) - 1))
                ids += completions[i][:-1]
                positions += range(len(prompt), len(prompt) + len(completions[i]) - 1)
            lengths = tuple(len(completions[i]) - 1 for i in rows if len(completions[i]) > 1)
            if lengths:
                self.blocks.append(Block(first, len(ids), slice(begin, first), lengths))
        self.ids = torch.tensor(ids, device=device)  # (S,)
        self.positions = torch.tensor(positions, device=device)  # (S,)
        self.predicting = torch.tensor([p for row in predicting for p in row], device=device)  # (M,) rows in the order given
        self.targets = torch.tensor([t for completion in completions for t in completion], device=device)  # (M,)
        self._plans = [_Plan(block, device) for block in self.blocks]

    def __len__(self) -> int:
        return len(self.ids)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """(S, H, D), (S, K, D), (S, K, D) → (S, H, D). Differentiable in all three."""
        return _SharedPrefixAttention.apply(query, key, value, scale, self._plans)


def pack(rollout: Rollout) -> PackedRow:
    """All rows of a rollout in one packed row."""
    prompts = [ids[-length:] for ids, length in zip(rollout.prompt_ids.tolist(), rollout.prompt_mask.sum(1).tolist(), strict=True)]
    completions = [ids[:length] for ids, length in zip(rollout.completion_ids.tolist(), rollout.lengths.tolist(), strict=True)]
    return PackedRow(prompts, completions, rollout.group_ids.tolist(), rollout.completion_ids.device)


def micro_batches(rollout: Rollout, max_tokens: int) -> Iterator[Tensor]:
    """Row indices in batches of at most `max_tokens` packed tokens (one row at least). Groups stay together where they fit."""
    prompt_lengths, lengths = rollout.prompt_mask.sum(1).tolist(), rollout.lengths.tolist()
    batch: list[int] = []
    groups: set[int] = set()
    tokens = 0
    for row, group in enumerate(rollout.group_ids.tolist()):
        more = lengths[row] + (0 if group in groups else prompt_lengths[group])
        if batch and tokens + more > max_tokens:
            yield torch.tensor(batch, device=rollout.completion_ids.device)
            batch, groups, tokens = [], set(), 0
            more = lengths[row] + prompt_lengths[group]
        batch.append(row)
        groups.add(group)
        tokens += more
    yield torch.tensor(batch, device=rollout.completion_ids.device)


def _prompt_blocks(begin: int, length: int) -> list[Block]:
    """A prompt is its own row; a long one goes in pieces, each with the ones before it as its prefix."""
    cuts = [*range(begin, begin + length, PROMPT_CHUNK), begin + length]
    return [Block(a, b, slice(begin, a), (b - a,)) for a, b in zip(cuts, cuts[1:], strict=False)]


class _Plan:
    """How a block's tokens become rows of equal width, and back. Padding exists only inside attention."""

    def __init__(self, block: Block, device: torch.device):
        self.tokens = slice(block.start, block.stop)
        self.prefix = block.prefix
        self.shape = (len(block.lengths), block.width)
        self.alone = self.shape[0] == 1 and self.prefix.start == self.prefix.stop  # one row that sees its own past and nothing else
        self.padded = self.packed = self.real = None
        if block.ragged:
            inside = torch.arange(block.width, device=device)[None] < torch.tensor(block.lengths, device=device)[:, None]
            self.packed = inside.flatten().nonzero().squeeze(1)  # where each token sits among the padded ones
            self.padded = (inside.flatten().cumsum(0) - 1).clamp(min=0)  # padding reads some token and is made 0
            self.real = inside.flatten()[:, None, None]
        hidden = torch.ones(block.width, block.width, dtype=torch.bool, device=device).triu(1)
        self.later = torch.zeros(block.width, block.width, device=device).masked_fill(hidden, float("-inf"))

    def rows(self, x: Tensor, key_heads: int) -> Tensor:
        """(S, h, D) → (K, n, h/K, C, D), contiguous."""
        x = x[self.tokens]
        if self.padded is not None:
            x = x[self.padded] * self.real
        n, width = self.shape
        return x.view(n, width, key_heads, -1, x.shape[-1]).permute(2, 0, 3, 1, 4).contiguous()

    def put(self, rows: Tensor, into: Tensor) -> None:
        """Add (K, n, h/K, C, D) to this block's tokens of `into` (S, h, D)."""
        x = rows.permute(1, 3, 0, 2, 4).flatten(2, 3).flatten(0, 1)
        into[self.tokens] += x if self.packed is None else x[self.packed]


class _SharedPrefixAttention(torch.autograd.Function):
    """Softmax attention block by block. Scores are made again in the backward pass, so only q, k and v are kept."""

    @staticmethod
    def forward(ctx, query, key, value, scale, plans):
        ctx.save_for_backward(query, key, value)
        ctx.scale, ctx.plans = scale, plans
        out = torch.zeros_like(query, memory_format=torch.contiguous_format)
        for plan in plans:
            if plan.alone:
                out[plan.tokens] = _causal(*(x[plan.tokens] for x in (query, key, value)), scale)
                continue
            q, prefix_k, prefix_v, own_k, own_v = _operands(plan, query, key, value, scale)
            on_prefix, on_own = _probabilities(plan, q, prefix_k, own_k)
            plan.put(_mix(on_prefix, prefix_v, on_own, own_v).view_as(q), out)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        query, key, value = ctx.saved_tensors
        grads = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)]
        for plan in ctx.plans:
            _block_backward(plan, query, key, value, ctx.scale, grad_out, *grads)
        return (*grads, None, None)


def _causal(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """One row's attention to its own past, (C, H, D): torch's kernel skips what comes later, half of a prompt's scores."""
    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)[0].transpose(0, 1)


def _block_backward(plan, query, key, value, scale, grad_out, grad_query, grad_key, grad_value) -> None:
    q, prefix_k, prefix_v, own_k, own_v = _operands(plan, query, key, value, scale)
    heads, n, share, width, size = q.shape
    on_prefix, on_own = _probabilities(plan, q, prefix_k, own_k)
    grad = plan.rows(grad_out, heads)
    together, apart = grad.view(heads, -1, size), grad.view(heads * n, share * width, size)

    grad_prefix, grad_own = together @ prefix_v.mT, apart @ own_v.mT  # of the probabilities
    # d score = p · (d p − Σ p · d p), the sum over prefix and own row together
    mean = (grad_prefix * on_prefix).sum(-1).view(heads * n, -1, 1) + (grad_own * on_own).sum(-1, keepdim=True)
    grad_prefix = (grad_prefix - mean.view(heads, -1, 1)).mul_(on_prefix)
    grad_own = (grad_own - mean).mul_(on_own)

    plan.put(_mix(grad_prefix, prefix_k, grad_own, own_k).mul_(scale).view_as(q), grad_query)
    flat, by_row = q.view(heads, -1, size), q.view(heads * n, -1, size)
    plan.put((grad_own.mT @ by_row).view(heads, n, 1, width, size), grad_key)
    plan.put((on_own.mT @ apart).view(heads, n, 1, width, size), grad_value)
    grad_key[plan.prefix] += (grad_prefix.mT @ flat).transpose(0, 1)
    grad_value[plan.prefix] += (on_prefix.mT @ together).transpose(0, 1)


def _operands(plan: _Plan, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, ...]:
    """q (K, n, H/K, C, D) already scaled; prefix keys and values (K, P, D); own ones (K·n, C, D)."""
    heads = key.shape[1]
    prefix_k, prefix_v = (x[plan.prefix].transpose(0, 1).contiguous() for x in (key, value))
    own_k, own_v = (plan.rows(x, heads).flatten(0, 2) for x in (key, value))
    return plan.rows(query, heads) * scale, prefix_k, prefix_v, own_k, own_v


def _probabilities(plan: _Plan, q: Tensor, prefix_k: Tensor, own_k: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over prefix and own row together: on the prefix (K, n·H/K·C, P), on the own row (K·n, H/K·C, C)."""
    heads, n, share, width, size = q.shape
    on_prefix = (q.view(heads, -1, size) @ prefix_k.mT).view(heads * n, share * width, -1)
    on_own = (q.view(heads * n, share * width, size) @ own_k.mT).view(heads * n, share, width, width) + plan.later.to(q.dtype)
    both = torch.cat([on_prefix, on_own.view(heads * n, share * width, width)], dim=-1).softmax(-1)
    on_prefix, on_own = both.split([on_prefix.shape[-1], width], dim=-1)
    return on_prefix.reshape(heads, n * share * width, -1), on_own.contiguous()


def _mix(on_prefix: Tensor, prefix: Tensor, on_own: Tensor, own: Tensor) -> Tensor:
    """Weights times what they weigh, prefix and own row added up: (K·n, H/K·C, D)."""
    return torch.baddbmm((on_prefix @ prefix).view(*on_own.shape[:2], -1), on_own, own)
