"""A packed row gives each completion what it would have seen alone, and the same gradients."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings, strategies

from lab.forward import packing
from lab.forward.packing import PackedRow

H, K, D = 6, 2, 8


def row_of(prompt_lengths, completion_lengths, group_ids):
    """Token ids count up, so every token can be told apart."""
    counter = iter(range(10_000))
    prompts = [[next(counter) for _ in range(n)] for n in prompt_lengths]
    completions = [[next(counter) for _ in range(n)] for n in completion_lengths]
    return PackedRow(prompts, completions, group_ids, torch.device("cpu")), prompts, completions


def alone(query, key, value, scale):
    """Plain causal attention of one sequence, (L, heads, D)."""
    k, v = (x.repeat_interleave(H // K, dim=1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, k) * scale
    scores = scores.masked_fill(torch.ones(len(query), len(query), dtype=torch.bool).triu(1), -math.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def check_against_alone(row, prompts, completions, group_ids):
    gen = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(len(row), heads, D, generator=gen, dtype=torch.float64, requires_grad=True) for heads in (H, K, K))
    where = {token: i for i, token in enumerate(row.ids.tolist())}
    weight = torch.randn(len(row), H, D, generator=gen, dtype=torch.float64)

    out = row.attend(0, q, k, v, 0.3)
    expected = torch.zeros_like(out)
    for tokens in [*prompts, *(prompts[g] + c[:-1] for g, c in zip(group_ids, completions, strict=True))]:
        index = torch.tensor([where[t] for t in tokens])
        expected = expected.index_put((index,), alone(q[index], k[index], v[index], 0.3))
    assert torch.allclose(out, expected, atol=1e-12)
    ours = torch.autograd.grad((out * weight).sum(), (q, k, v))
    theirs = torch.autograd.grad((expected * weight).sum(), (q, k, v))
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-11)


def test_layout_of_two_groups_by_hand():
    # prompt 0 = [0, 1], prompt 1 = [2]; completions [3, 4, 5] and [6] answer 0, [7, 8] answers 1.
    row, _, _ = row_of([2, 1], [3, 1, 2], [0, 0, 1])
    assert row.ids.tolist() == [0, 1, 3, 4, 2, 7]  # last tokens predict nothing and are left out
    assert row.positions.tolist() == [0, 1, 2, 3, 0, 1]
    assert row.targets.tolist() == [3, 4, 5, 6, 7, 8]
    assert row.predicting.tolist() == [1, 2, 3, 1, 4, 5]


@settings(max_examples=30, deadline=None)
@given(data=strategies.data())
def test_any_mixture_of_lengths_attends_as_if_alone(data):
    prompt_lengths = data.draw(strategies.lists(strategies.integers(1, 7), min_size=1, max_size=3))
    completion_lengths = data.draw(strategies.lists(strategies.integers(1, 6), min_size=1, max_size=8))
    group_ids = [data.draw(strategies.integers(0, len(prompt_lengths) - 1)) for _ in completion_lengths]
    check_against_alone(*row_of(prompt_lengths, completion_lengths, group_ids), group_ids)


def test_a_long_prompt_goes_in_pieces_with_the_same_result(monkeypatch):
    monkeypatch.setattr(packing, "PROMPT_CHUNK", 4)
    row, prompts, completions = row_of([11], [3, 5], [0, 0])
    assert [b.stop - b.start for b in row.blocks] == [4, 4, 3, 6]
    check_against_alone(row, prompts, completions, [0, 0])


def test_an_empty_completion_is_refused():
    with pytest.raises(ValueError, match="at least one token"):
        row_of([2], [0], [0])
