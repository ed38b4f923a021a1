"""The model as the algorithm sees it: log-probabilities of sampled tokens under a named adapter.

One frozen base, its tokenizer and any number of LoRA adapters; several runs share it. Every forward names its adapter,
the model stays in eval mode (no dropout anywhere), and the base is never written to. Adapter None is the bare base.

    K prompts · N completions (rows) · P prompt tokens, left-padded · T completion tokens, right-padded · D hidden · V vocabulary

Leaves out sampling (`rollout`), the loss (`grpo`), loading (`models.loading`) and the adapters themselves (`adapters`).
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from lab.forward import fast_path, packing, static_decode
from lab.forward.adapters import Adapters
from lab.forward.blocks import LlamaBody
from lab.forward.bodies import Body
from lab.forward.decode import Decoding, PlainDecoding, SharedDecoding
from lab.forward.head import frozen_head_logps, has_logit_rule, logit_rule, token_logps
from lab.forward.merged import FewRowsLinear
from lab.forward.packing import pack
from lab.forward.static_decode import StaticDecoding
from lab.models.loading import Base, load_base
from lab.models.registry import ModelError, ModelSource, Progress, fetch, resolve
from lab.rollout import Rollout, SamplingSettings, pad_left

__all__ = ["ModelError", "Policy"]

MACHINE_THREADS = torch.get_num_threads()
SMALL_MODEL = 20_000_000  # parameters


class Policy:
    """A base model with named adapters. Make one with `Policy.load`."""

    def __init__(self, base: Base, source: ModelSource, num_threads: int = 0, way: str | None = None):
        self.name = source.name
        self.system_prompt = source.system_prompt  # what a run that names none sends; None leaves it to the chat template
        self.model = base.model
        self.tokenizer = base.tokenizer
        self.device = base.device
        self.dtype = base.dtype
        self.load_in_4bit = base.load_in_4bit
        self.precision = base.precision
        self.params = base.model.num_parameters()  # of the base: adapters come and go
        self.use_threads(num_threads)
        self.adapters = Adapters(base.model, source.hub_id or source.name)
        self.eos_ids = _eos_ids(base)
        self.pad_id = _pad_id(base)
        config = base.model.config.get_text_config()
        self.vocab_size: int = base.model.get_output_embeddings().weight.shape[0]
        self.hidden_size: int = config.hidden_size
        self.max_positions = _longest(config)
        self.trunk = _trunk(base.model)  # all but the head
        self._cache_argument = _cache_argument(self.trunk)
        self._adjust = logit_rule(config)
        self._head_weight = _plain_head(base.model)
        self._sampling_head: FewRowsLinear | None = None
        self.fast = fast_path.choose(self, way)
        self.fast = static_decode.choose(self, way)

    @classmethod
    def load(cls, model: str, *, dtype: str = "auto", load_in_4bit: bool | None = None, device: str = "auto",
             num_threads: int = 0, way: str | None = None, progress: Progress | None = None) -> Policy:
        """Load a model by registry name, Hub id or folder, fetching it first if needed. Raises ModelError.

        `num_threads` as in `use_threads`, `way` as in `fast_path.choose`. `progress` is told the share done and what is
        happening.
        """
        source = resolve(model)
        base = load_base(fetch(source, progress), dtype=dtype, load_in_4bit=load_in_4bit, device=device)
        return cls(base, source, num_threads, way)

    def use_threads(self, num_threads: int) -> None:
        """Set torch's CPU threads for this model; 0 takes one for a small model and all of them for others.

        Several threads hardly help matrices this small, and they wait for each other: on a busy machine a step of the
        tiny model with two threads was measured to take ten times as long as with one.
        """
        count = num_threads or (1 if self.params < SMALL_MODEL else MACHINE_THREADS)
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)

    @property
    def resolved(self) -> dict[str, Any]:
        """What decides the last bits of every number: kept with a run, so that it goes on in the same way."""
        return dict(device=str(self.device), dtype=str(self.dtype).removeprefix("torch."), load_in_4bit=self.load_in_4bit,
                    threads=torch.get_num_threads(), way=self.fast.way, torch=torch.__version__)

    @property
    def info(self) -> dict[str, Any]:
        """What a person or an event log wants to know about the loaded model."""
        return dict(model=self.name, params=self.params, **self.resolved, bytes=self.model.get_memory_footprint(),
                    adapters=self.adapters.names(), path=self.fast.reason, precision=self.precision)

    def add_adapter(self, name: str, *, r: int, alpha: int, seed: int, path: str | None = None) -> None:
        """A fresh adapter (rank `r`, A drawn from `seed`, B zero), or the one in folder `path` to go on training."""
        if path is None:
            self.adapters.add(name, r=r, alpha=alpha, seed=seed)
        else:
            self.adapters.add_from(name, path)

    def remove_adapter(self, name: str) -> None:
        self.adapters.remove(name)

    def logps(self, rollout: Rollout, adapter: str | None, *, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        """Per-token log-probabilities and entropies (N, T) of a rollout's completions, float32, 0 at padding.

        Both belong to the distribution softmax(logits / rollout.temperature). Log-probabilities are differentiable in
        the adapter when gradients are on, entropies with `entropy_gradient`. One forward: use `micro_batches` to bound memory.
        """
        self.adapters.require(adapter)
        if not self.fast.takes(rollout.longest):
            return self.plain_logps(rollout, adapter)
        return self.packed_logps(rollout, adapter, self.fast.body, entropy_gradient)

    def packed_logps(self, rollout: Rollout, adapter: str | None, body: Body,
                     entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        """`logps` with each prompt read once and no padding."""
        row = pack(rollout)
        hidden = body(row.ids, row.positions, row.attend, adapter)[row.predicting]  # (M, D)
        return self._spread(rollout, *self._token_logps(hidden, row.targets, rollout.temperature, entropy_gradient))

    def plain_logps(self, rollout: Rollout, adapter: str | None) -> tuple[Tensor, Tensor]:
        """`logps` by the model's own forward over padded rows: right for every architecture, and what the rest is checked by."""
        predicting = self._plain_states(rollout, adapter)
        with self.adapters.active(adapter):
            targets = rollout.completion_ids[rollout.completion_mask.bool()]
            logps, entropy = token_logps(predicting, targets, self.logits, rollout.temperature, self.vocab_size)
        return self._spread(rollout, logps, entropy)

    def states(self, rollout: Rollout, adapter: str | None) -> Tensor:
        """Hidden states (M, D) from which each completion token is predicted, row after row: what a value head reads.

        Differentiable in the adapter when gradients are on. One forward, as `logps`.
        """
        if not self.fast.takes(rollout.longest):
            return self._plain_states(rollout, adapter)
        row = pack(rollout)
        return self.fast.body(row.ids, row.positions, row.attend, adapter)[row.predicting]

    def _plain_states(self, rollout: Rollout, adapter: str | None) -> Tensor:
        ids, mask, positions = rollout.sequences()
        with self.adapters.active(adapter):
            hidden = self.trunk(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).last_hidden_state
        prompt_length = rollout.prompt_ids.shape[1]
        return hidden[:, prompt_length - 1 : -1][rollout.completion_mask.bool()]  # the position before each completion token

    def compute_layers_twice(self, on: bool) -> None:
        """Compute layers again in the backward pass instead of keeping their inside. Changes memory, never a number."""
        if isinstance(self.fast.body, LlamaBody):
            self.fast.body.twice = on
        again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False, context_fn=self.adapters.once_more)
        for layer in self.model.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                # The flag of the layer itself alone: what is in it stays in eval mode, without dropout.
                layer.gradient_checkpointing, layer.training, layer._gradient_checkpointing_func = on, on, again

    def micro_batches(self, rollout: Rollout, max_tokens: int) -> Iterator[Tensor]:
        """Row indices in batches of at most `max_tokens` tokens in one forward (one row at least)."""
        return (packing if self.fast.takes(rollout.longest) else Rollout).micro_batches(rollout, max_tokens)

    @torch.no_grad()
    def frozen_logps(self, rollout: Rollout, adapter: str | None, *, max_tokens: int) -> tuple[Tensor, Tensor]:
        """`logps` without gradients, in micro-batches of at most `max_tokens` tokens."""
        logps = torch.zeros(rollout.completion_mask.shape, device=self.device)
        entropy = torch.zeros_like(logps)
        for rows in self.micro_batches(rollout, max_tokens):
            part_logps, part_entropy = self.logps(rollout.rows(rows), adapter)
            logps[rows, : part_logps.shape[1]] = part_logps
            entropy[rows, : part_entropy.shape[1]] = part_entropy
        return logps, entropy

    def decoding(self, prompts: list[list[int]], adapter: str | None, settings: SamplingSettings,
                 generator: torch.Generator) -> Decoding:
        """The decoding loop of one batch of prompts, in the fastest way that was found right for this model."""
        self.adapters.require(adapter)
        longest = max(map(len, prompts)) + settings.max_completion_length
        shared = StaticDecoding if self.fast.graphs else SharedDecoding
        way = shared if self.fast.takes(longest) else PlainDecoding
        return way(self, prompts, adapter, settings, generator)

    def hidden_states(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
        """One forward (N, t) → (N, t, D) that reads and grows `cache`. Call it inside `adapters.active`."""
        return self.trunk(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True,
                          **{self._cache_argument: cache}).last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, D) → (…, V)."""
        head = self.model.get_output_embeddings()
        return self._adjust(head(hidden.to(head.weight.dtype)))

    def sampling_logits(self, hidden: Tensor) -> Tensor:
        """`logits` for a few rows at a time, where reading the weight is what costs."""
        if self._head_weight is None:
            return self.logits(hidden)
        if self._sampling_head is None:
            self._sampling_head = FewRowsLinear(self._head_weight)
        return self._sampling_head(hidden.to(self._head_weight.dtype))

    def _token_logps(self, hidden: Tensor, tokens: Tensor, temperature: float, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        """(M, D) and the tokens (M,) they predict → log-probabilities and entropies (M,)."""
        if self._head_weight is None or entropy_gradient:
            return token_logps(hidden, tokens, self.logits, temperature, self.vocab_size)
        return frozen_head_logps(hidden.to(self._head_weight.dtype), tokens, self._head_weight, temperature)

    def _spread(self, rollout: Rollout, *values: Tensor) -> tuple[Tensor, ...]:
        """One number per completion token (M,) → (N, T), 0 at padding."""
        counted = rollout.completion_mask.bool()
        return tuple(torch.zeros(counted.shape, dtype=v.dtype, device=v.device).masked_scatter(counted, v) for v in values)

    def prompt_ids(self, prompt: str | list[dict], system_prompt: str | None) -> list[int]:
        """The rendered chat as token ids. `system_prompt` "" is the model's own default, None no system message.

        Raises ModelError for a tokenizer that is not this model's.
        """
        if system_prompt == "":
            system_prompt = self.system_prompt
        if self.tokenizer.chat_template is None:
            ids = self.tokenizer(prompt if isinstance(prompt, str) else prompt[-1]["content"])["input_ids"]
        else:
            text = self.tokenizer.apply_chat_template(_messages(prompt, system_prompt), tokenize=False, add_generation_prompt=True)
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        known = self.model.get_input_embeddings().weight.shape[0]
        if max(ids, default=0) >= known:
            raise ModelError(f"The tokenizer of {self.name} makes token {max(ids)} ({self.tokenizer.decode([max(ids)])!r}) of this "
                             f"prompt, but the model has only {known} tokens: they do not belong together.")
        return ids

    def pad_prompts(self, prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Prompts of different lengths → left-padded ids and mask, each (K, P)."""
        return pad_left(prompts, self.pad_id, self.device)

    def decode(self, ids: list[int]) -> str:
        """Text without special tokens; tags such as <think> stay."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)


def _trunk(model: torch.nn.Module) -> torch.nn.Module:
    trunk = getattr(model, model.base_model_prefix, None)
    if trunk is None:
        raise ModelError(f"A {type(model).__name__} is put together in a way that is not known here: it has no {model.base_model_prefix}.")
    return trunk


def _longest(config) -> int:
    """Positions that a model reads in one way. Long RoPE turns all keys differently once a text outgrows its first length
    (arXiv 2402.13753), also those that are kept from before, so that a text would not be trained on as it was sampled."""
    positions = getattr(config, "max_position_embeddings", None) or 2**31
    rope = getattr(config, "rope_parameters", None) or {}
    by_layer = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    return min([positions, *(r.get("original_max_position_embeddings", positions) for r in by_layer if r.get("rope_type") == "longrope")])


def _cache_argument(body: torch.nn.Module) -> str:
    """transformers renames `past_key_values` to `cache`, one architecture after the other."""
    return "cache" if "cache" in inspect.signature(body.forward).parameters else "past_key_values"


def _plain_head(model: torch.nn.Module) -> Tensor | None:
    """The head's weight (V, D) if logits are hidden · weightᵀ and nothing else, as they mostly are."""
    head = model.get_output_embeddings()
    plain = type(head) is torch.nn.Linear and head.bias is None and not has_logit_rule(model.config.get_text_config())
    return head.weight if plain else None


def _eos_ids(base: Base) -> list[int]:
    """Every token that ends a completion: the generation config's and the tokenizer's."""
    configured = base.model.generation_config.eos_token_id
    configured = [] if configured is None else configured if isinstance(configured, list) else [configured]
    own = base.tokenizer.eos_token_id
    ids = sorted({*configured, *([] if own is None else [own])})
    if not ids:
        warnings.warn("This model names no end-of-sequence token: every completion will be cut off.", stacklevel=3)
    return ids


def _pad_id(base: Base) -> int:
    """Any id that has an embedding does: masks come from lengths, never from `id != pad`."""
    known = base.model.get_input_embeddings().weight.shape[0]
    ids = (base.tokenizer.pad_token_id, base.tokenizer.eos_token_id)
    return next((i for i in ids if i is not None and 0 <= i < known), 0)


def _messages(prompt: str | list[dict], system_prompt: str | None) -> list[dict]:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if system_prompt and messages[0]["role"] != "system":
        return [{"role": "system", "content": system_prompt}, *messages]
    return messages
