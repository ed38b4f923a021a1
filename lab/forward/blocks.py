"""A Llama-like model's layers written for training LoRA: same numbers, a third of the memory, less time.

The layers' own weights are read, never copied or changed; adapters are float32 and are used in the base's dtype. What makes
it small: the frozen weights need no gradient, norms and silu(gate) · up are made again in the backward pass, and no input
is kept in a second dtype. A base in 4 bits is unpacked layer by layer as it is used. Leaves out other families, which
run through their own modules (`bodies`).

    S tokens · D hidden · F inner width · H query heads · K key heads · d head size · r adapter rank
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lab.forward.bodies import Attend
from lab.forward.merged import frozen_weight, rotary, rotate


@dataclass(frozen=True)
class Linear:
    """A frozen linear layer and its adapter: y = x Wᵀ + b + scale · (x Aᵀ) Bᵀ."""

    base: nn.Module
    scale: float

    @property
    def weight(self) -> Tensor:
        return frozen_weight(self.base)

    @classmethod
    def of(cls, module: nn.Module, adapter: str | None) -> tuple[Linear, Tensor | None, Tensor | None]:
        """The layer, and A (r, in) and B (out, r), which are None without an adapter."""
        base = getattr(module, "base_layer", module)
        if adapter is None or adapter not in getattr(module, "lora_A", {}):
            return cls(base, 0.0), None, None
        a, b = module.lora_A[adapter].weight, module.lora_B[adapter].weight
        return cls(base, module.scaling[adapter]), a, b

    def forward(self, x: Tensor, a: Tensor | None, b: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """y and x Aᵀ (S, r), which the backward pass needs."""
        y = F.linear(x, self.weight, self.base.bias)
        if a is None:
            return y, None
        inner = x @ a.to(x.dtype).mT
        return y.addmm_(inner, b.to(x.dtype).mT, alpha=self.scale), inner

    def backward(self, grad: Tensor, x: Tensor, inner: Tensor | None, a: Tensor | None, b: Tensor | None,
                 onto: Tensor | None = None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Gradients of x (added to `onto` if given), A and B."""
        grad_x = grad @ self.weight if onto is None else onto.addmm_(grad, self.weight)
        if a is None:
            return grad_x, None, None
        grad_inner = (grad @ b.to(x.dtype)).mul_(self.scale)
        grad_x.addmm_(grad_inner, a.to(x.dtype))
        return grad_x, (grad_inner.mT @ x).to(a.dtype), (grad.mT @ inner).to(b.dtype).mul_(self.scale)


class LlamaBody:
    """A body (see `bodies`) for the families that `merged.is_known` knows.

    `twice` computes each layer again in the backward pass instead of keeping its inside: a tenth of the memory, a third
    more time (checkpointing, arXiv 1604.06174). It changes no result.
    """

    def __init__(self, model: nn.Module):
        self._trunk = getattr(model, model.base_model_prefix)
        self.twice = False

    def __call__(self, ids: Tensor, positions: Tensor, attend: Attend, adapter: str | None) -> Tensor:
        hidden = self._trunk.embed_tokens(ids)
        cos, sin = rotary(self._trunk, hidden, positions)
        for index, layer in enumerate(self._trunk.layers):
            arguments = (layer, index, hidden, cos, sin, attend, adapter)
            if self.twice and torch.is_grad_enabled():
                hidden = checkpoint(_layer, *arguments, use_reentrant=False, preserve_rng_state=False)
            else:
                hidden = _layer(*arguments)
        return self._trunk.norm(hidden)


def _layer(layer: nn.Module, index: int, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend, adapter: str | None) -> Tensor:
    attention, mlp = layer.self_attn, layer.mlp
    q, k, v = _normed_linears(layer.input_layernorm, [attention.q_proj, attention.k_proj, attention.v_proj], hidden, adapter)
    q, k, v = (x.unflatten(-1, (-1, attention.head_dim)) for x in (q, k, v))
    if hasattr(attention, "q_norm"):
        q, k = attention.q_norm(q), attention.k_norm(k)
    attended = attend(index, rotate(q, cos, sin), rotate(k, cos, sin), v, attention.scaling)
    hidden = hidden + _LoraLinear.apply(attended.flatten(1), *Linear.of(attention.o_proj, adapter))
    gate, up = _normed_linears(layer.post_attention_layernorm, [mlp.gate_proj, mlp.up_proj], hidden, adapter)
    return hidden + _SwigluDown.apply(gate, up, *Linear.of(mlp.down_proj, adapter))


def _normed_linears(norm: nn.Module, modules: list[nn.Module], x: Tensor, adapter: str | None) -> tuple[Tensor, ...]:
    linears, a, b = zip(*(Linear.of(module, adapter) for module in modules), strict=True)
    return _NormedLinears.apply(x, norm.weight, norm.variance_epsilon, linears, *a, *b)


class _NormedLinears(torch.autograd.Function):
    """RMS norm (arXiv 1910.07467) and the linear layers that read it. Keeps x alone; the normed x is made again."""

    @staticmethod
    def forward(ctx, x, weight, epsilon, linears, *ab):
        ctx.linears = linears
        a, b = ab[: len(linears)], ab[len(linears) :]
        inverse = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + epsilon)
        normed = _normed(x, inverse) * weight
        outputs, inner = zip(*(linear.forward(normed, *ab_i) for linear, *ab_i in zip(linears, a, b, strict=True)), strict=True)
        ctx.save_for_backward(x, weight, inverse, *ab, *inner)
        return outputs

    @staticmethod
    def backward(ctx, *grads):
        x, weight, inverse, *rest = ctx.saved_tensors
        n = len(ctx.linears)
        a, b, inner = rest[:n], rest[n : 2 * n], rest[2 * n :]
        unit = _normed(x, inverse)
        normed = unit * weight
        grad_normed, grad_a, grad_b = None, [], []
        for linear, grad, inner_i, a_i, b_i in zip(ctx.linears, grads, inner, a, b, strict=True):
            grad_normed, *both = linear.backward(grad, normed, inner_i, a_i, b_i, onto=grad_normed)
            grad_a.append(both[0])
            grad_b.append(both[1])
        if not ctx.needs_input_grad[0]:  # the first layer's input: embeddings are frozen
            return None, None, None, None, *grad_a, *grad_b
        g = grad_normed.mul_(weight).float()
        along = torch.linalg.vecdot(g, unit.float()).div_(x.shape[-1]).unsqueeze(-1)
        grad_x = g.sub_(unit.float().mul_(along)).mul_(inverse).to(x.dtype)
        return grad_x, None, None, None, *grad_a, *grad_b


class _LoraLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, linear, a, b):
        ctx.linear = linear
        y, inner = linear.forward(x, a, b)
        ctx.save_for_backward(x, inner, a, b)
        return y

    @staticmethod
    def backward(ctx, grad):
        grad_x, grad_a, grad_b = ctx.linear.backward(grad, *ctx.saved_tensors)
        return grad_x, None, grad_a, grad_b


class _SwigluDown(torch.autograd.Function):
    """down(silu(gate) · up) (arXiv 2002.05202). Keeps gate and up; their product is made again."""

    @staticmethod
    def forward(ctx, gate, up, linear, a, b):
        ctx.linear = linear
        y, inner = linear.forward(F.silu(gate).mul_(up), a, b)
        ctx.save_for_backward(gate, up, inner, a, b)
        return y

    @staticmethod
    def backward(ctx, grad):
        gate, up, inner, a, b = ctx.saved_tensors
        active = F.silu(gate)
        grad_product, grad_a, grad_b = ctx.linear.backward(grad, active * up, inner, a, b)
        grad_gate = torch.ops.aten.silu_backward(grad_product * up, gate)
        return grad_gate, grad_product.mul_(active), None, grad_a, grad_b


def _normed(x: Tensor, inverse: Tensor) -> Tensor:
    return (x * inverse).to(x.dtype)  # float32 inside, as the model's own norm
