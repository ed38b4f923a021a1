"""A second copy of a Llama-like model's linear weights with one adapter merged in, for sampling only.

The base is read and never written; a copy is made for each batch from the untouched base and the float32 adapter (a tenth
of a second for 135 million weights) and lives as long as its sampling. On a CPU its matrices lie the way the matrix product
wants them, which makes decoding a few rows up to twice as fast. A copy in bfloat16 rounds small adapters away, so the trainer
logs the gap between the sampler's and its own log-probabilities at every step. Of a base in 4 bits the copy is in 16: nothing
is ever merged back into 4 bits, which would lose the adapter.

    S tokens · D hidden · H query heads · K key heads · d head size
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.forward.bodies import Attend
from lab.forward.shared_cache import attention_type

FAMILIES = ("llama", "qwen2", "qwen3")  # x + attention(norm(x)), then x + down(silu(gate) · up) of norm(x)
ROWS = 8  # the batch size that packed weights are laid out for; other sizes work too


def copy_bytes(model: nn.Module) -> int:
    """What a merged copy takes: the layers' linear weights in the format that the model computes in."""
    layers = getattr(model, model.base_model_prefix).layers
    count = sum(m.in_features * m.out_features for m in layers.modules() if isinstance(m, nn.Linear) and "lora" not in type(m).__module__)
    return count * model.get_input_embeddings().weight.element_size()


def is_known(model: nn.Module) -> bool:
    """Whether the model is of a known family, with linear layers that are plain or in 4 bits."""
    config = model.config
    if config.model_type not in FAMILIES or config.hidden_act != "silu" or getattr(config, "use_sliding_window", False):
        return False
    return not any(type(module).__name__ == "Linear8bitLt" for module in model.modules())


def frozen_weight(module: nn.Module) -> Tensor:
    """A linear layer's own weight, adapter or not. 4 bits are unpacked, which takes a tenth of the time of using them once."""
    base = getattr(module, "base_layer", module)
    if type(base).__name__ != "Linear4bit":
        return base.weight
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(base.weight.data, base.weight.quant_state)


class MergedBody:
    """A body (see `bodies`) without gradients, for one adapter as it is now. Drop it when the batch has been sampled."""

    def __init__(self, model: nn.Module, adapter: str | None):
        self._trunk = getattr(model, model.base_model_prefix)
        self._adapter = adapter
        with torch.no_grad():
            self._layers = [_Layer(layer, adapter) for layer in self._trunk.layers]

    @torch.no_grad()
    def __call__(self, ids: Tensor, positions: Tensor, attend: Attend, adapter: str | None) -> Tensor:
        if adapter != self._adapter:
            raise ValueError(f"This copy was made for the adapter {self._adapter}, not for {adapter}.")
        hidden = self._trunk.embed_tokens(ids)
        cos, sin = (attention_type(x) for x in rotary(self._trunk, hidden, positions))
        for index, layer in enumerate(self._layers):
            hidden = layer(index, hidden, cos, sin, attend)
        return self._trunk.norm(hidden)


class _Layer:
    """One decoder layer with q, k, v and gate, up side by side."""

    def __init__(self, layer: nn.Module, adapter: str | None):
        attention, mlp = layer.self_attn, layer.mlp
        self.input_norm, self.post_norm = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self.norms = (attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else None
        self.size, self.scale = attention.head_dim, attention.scaling
        self.keys = attention.k_proj.out_features // self.size
        self.queries = attention.q_proj.out_features // self.size
        self.qkv = _Merged([attention.q_proj, attention.k_proj, attention.v_proj], adapter)
        self.out = _Merged([attention.o_proj], adapter)
        self.gate_up = _Merged([mlp.gate_proj, mlp.up_proj], adapter)
        self.down = _Merged([mlp.down_proj], adapter)

    def __call__(self, index: int, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        heads = self.qkv(self.input_norm(hidden)).unflatten(-1, (-1, self.size))  # (S, H + 2 K, d)
        if self.norms is not None:
            heads = self._normed(heads)
        heads = attention_type(heads)
        turned = rotate(heads[:, : self.queries + self.keys], cos, sin)
        attended = attend(index, turned[:, : self.queries], turned[:, self.queries :], heads[:, -self.keys :], self.scale)
        hidden = self.out(attended.flatten(1).to(hidden.dtype), onto=hidden)
        gate, up = self.gate_up(self.post_norm(hidden)).chunk(2, dim=-1)
        return self.down(F.silu(gate).mul_(up), onto=hidden)

    def _normed(self, heads: Tensor) -> Tensor:
        q, k, v = heads.split([self.queries, self.keys, self.keys], dim=1)
        return torch.cat([self.norms[0](q), self.norms[1](k), v], dim=1)


class _Norm:
    """RMS norm in one call: layer norm of (x, −x), whose mean is 0 and whose variance is the mean square of x."""

    def __init__(self, norm: nn.Module):
        self._weight = torch.cat([norm.weight, norm.weight]).detach()
        self._epsilon = norm.variance_epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(torch.cat([x, -x], dim=-1), self._weight.shape, self._weight, None, self._epsilon)[..., : x.shape[-1]]


def rotary(trunk: nn.Module, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """What `rotate` multiplies with at these positions (S,), by the model's own rule: (S, 1, d) each."""
    cos, sin = (x[0, :, None, :] for x in trunk.rotary_emb(hidden, positions[None]))
    half = sin.shape[-1] // 2
    return cos, torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (arXiv 2104.09864) in the half-and-half order of Hugging Face; `sin` already has its signs."""
    return x.roll(x.shape[-1] // 2, -1).mul_(sin).addcmul_(x, cos)


class FewRowsLinear:
    """x ↦ x Wᵀ + b without gradients, for a few rows: the weight in oneDNN's own blocked order where torch has that."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        self._packs = _cpu_packs(weight)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS) if self._packs else weight.detach()
        self._bias = bias

    def __call__(self, x: Tensor, onto: Tensor | None = None) -> Tensor:
        """The product, added to `onto` if given."""
        if not self._packs:
            y = F.linear(x, self._weight, self._bias)
            return y if onto is None else y.add_(onto)
        if onto is None:
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return torch.ops.mkldnn._linear_pointwise.binary(x, onto, self._weight, self._bias, "add")


class _Merged(FewRowsLinear):
    """Linear layers of the same input as one, each with its adapter's scale · B A added to the weight."""

    def __init__(self, modules: list[nn.Module], adapter: str | None):
        biases = [module.bias for module in modules]
        super().__init__(_merged_weights(modules, adapter), None if biases[0] is None else torch.cat(biases))


def _merged_weights(modules: list[nn.Module], adapter: str | None) -> Tensor:
    """(sum of outputs, D). Summed in float32 in a copy of its own, and rounded once."""
    weights = [frozen_weight(module) for module in modules]
    merged = torch.cat(weights).float()
    for module, part in zip(modules, merged.split([len(w) for w in weights]), strict=True):
        if adapter is not None and adapter in getattr(module, "lora_A", {}):
            a, b = module.lora_A[adapter].weight, module.lora_B[adapter].weight
            part.addmm_(b, a, alpha=module.scaling[adapter])
    return merged.to(weights[0].dtype)


def _cpu_packs(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
