"""Both heads give log-softmax, entropy and gradient as written down plainly in float64."""

from __future__ import annotations

import math

import pytest
import torch

from lab.forward import head


def plain(hidden, tokens, weight, temperature):
    log_probs = torch.log_softmax(hidden @ weight.T / temperature, -1)
    return log_probs[torch.arange(len(tokens)), tokens], -(log_probs.exp() * log_probs).sum(-1)


@pytest.fixture
def case():
    gen = torch.Generator().manual_seed(0)
    hidden = torch.randn(23, 12, generator=gen, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(101, 12, generator=gen, dtype=torch.float64)
    return hidden, torch.randint(0, 101, (23,), generator=gen), weight


def test_uniform_logits_by_hand():
    # Four words, all logits 0: log-probability −ln 4, entropy ln 4, and the gradient is W[token] − mean W = 1 − 0.25, −0.25…
    hidden, weight = torch.zeros(1, 4, requires_grad=True), torch.eye(4)
    logps, entropy = head.frozen_head_logps(hidden, torch.tensor([2]), weight, 1.0)
    assert (logps.item(), entropy.item()) == pytest.approx((-math.log(4), math.log(4)))
    logps.sum().backward()
    assert hidden.grad.tolist() == [pytest.approx([-0.25, -0.25, 0.75, -0.25])]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [1, 5 * 101, 2**23])
def test_frozen_head_equals_plain_softmax_in_any_chunks(case, temperature, chunk, monkeypatch):
    monkeypatch.setattr(head, "CHUNK_CACHED", chunk)
    hidden, tokens, weight = case
    above = torch.linspace(-1, 1, len(tokens)).double()
    ours, entropy = head.frozen_head_logps(hidden, tokens, weight, temperature)
    theirs, theirs_entropy = plain(hidden, tokens, weight, temperature)
    assert torch.allclose(ours.double(), theirs, atol=1e-6) and torch.allclose(entropy.double(), theirs_entropy, atol=1e-6)
    a, = torch.autograd.grad((ours * above).sum(), hidden)
    b, = torch.autograd.grad((theirs * above).sum(), hidden)
    assert torch.allclose(a, b, atol=1e-6)


def test_generic_head_agrees_with_the_frozen_one(case, monkeypatch):
    hidden, tokens, weight = case
    monkeypatch.setattr(head, "CHUNK_LOGITS", 5 * 101)
    ours = head.frozen_head_logps(hidden, tokens, weight, 0.9)
    generic = head.token_logps(hidden, tokens, lambda h: h @ weight.T, 0.9, 101)
    for a, b in zip(ours, generic, strict=True):
        assert torch.allclose(a, b.float(), atol=1e-5)


@pytest.mark.parametrize("kind", ["frozen", "generic"])
def test_nothing_of_the_size_of_the_logits_is_kept_for_the_backward(case, kind, monkeypatch):
    """Chunks alone save nothing: without recomputing, autograd would keep every chunk's (m, V)."""
    monkeypatch.setattr(head, "CHUNK_LOGITS", 5 * 101)
    hidden, tokens, weight = case
    kept = []

    def keep(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        if kind == "frozen":
            head.frozen_head_logps(hidden, tokens, weight, 0.9)
        else:
            head.token_logps(hidden, tokens, lambda h: h @ weight.T, 0.9, 101)
    assert sum(tensor.numel() for tensor in kept) <= hidden.numel() + tokens.numel()  # (M, D) and the tokens, not (M, V)


def test_no_gradient_no_slope_kept(case):
    hidden, tokens, weight = case
    with torch.no_grad():
        logps, _ = head.frozen_head_logps(hidden.detach(), tokens, weight, 1.0)
    assert not logps.requires_grad
