"""A model's body, from token ids to hidden states, with attention left to the caller.

A body is called with tokens (S,), their positions (S,), an `attend` function and an adapter's name, and gives hidden states (S, D).
`attend(layer, query, key, value, scale)` decides who sees whom: a `PackedRow` when log-probs are made, a decoder when
sampling. `HuggingFaceBody` does it with the model's own unmodified modules; `blocks` has a faster one for some families.
`fast_path` uses a body only after it has given the same log-probabilities as the plain padded path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lab.models.registry import ModelError

if TYPE_CHECKING:
    from lab.forward.adapters import Adapters

Attend = Callable[[int, Tensor, Tensor, Tensor, float], Tensor]
Body = Callable[[Tensor, Tensor, Attend, str | None], Tensor]
ATTENTION = "grpo_lab"
# What layers pass to their attention that changes nothing here: no dropout in eval mode, causal, windows are looked at by `fast_path`.
HARMLESS = {"dropout", "is_causal", "sliding_window", "position_ids", "cache_position", "use_cache", "output_attentions",
            "output_hidden_states", "return_dict"}


def _attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *,
               attend: Attend | None = None, scaling: float | None = None, **others) -> tuple[Tensor, None]:
    """What transformers calls for each layer: (1, heads, S, D) each. Without `attend` it is plain SDPA.

    Raises ModelError for a model whose attention is more than softmax over the past, as with GPT-OSS' sinks and Gemma 2's cap.
    """
    unknown = [name for name, value in others.items() if value is not None and name not in HARMLESS]
    if unknown or others.get("is_causal") is False:
        raise ModelError(f"its attention has {', '.join(unknown) or 'no order'}")
    if attend is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(module.layer_idx, query, key, value, scale)[None], None


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class HuggingFaceBody:
    """Any decoder of transformers whose attention goes through its attention interface."""

    def __init__(self, model: nn.Module, adapters: Adapters):
        model.set_attn_implementation(ATTENTION)
        self._adapters = adapters
        self._body = getattr(model, model.base_model_prefix)

    def __call__(self, ids: Tensor, positions: Tensor, attend: Attend, adapter: str | None) -> Tensor:
        # A mask of four dimensions counts as already made, so none of size S × S is built; `attend` never reads it.
        no_mask = torch.empty(1, 1, 1, 1, dtype=torch.bool, device=ids.device)
        with self._adapters.active(adapter):
            out = self._body(input_ids=ids[None], position_ids=positions[None], attention_mask=no_mask, use_cache=False, attend=attend)
        return out.last_hidden_state[0]
