"""A folder of safetensors → one frozen base model and its tokenizer, ready for adapters.

Leaves out how a name becomes a folder (`registry`) and everything about adapters (`lab.forward.adapters`). The base is never
trained and never modified; embeddings and head keep the dtype they are loaded in.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open

from lab.forward import precision

from .registry import ModelError


@dataclass(frozen=True)
class Base:
    """A loaded base model and what was decided about it."""

    model: transformers.PreTrainedModel
    tokenizer: transformers.PreTrainedTokenizerBase
    device: torch.device
    dtype: torch.dtype
    load_in_4bit: bool
    precision: str  # why this dtype, in a sentence


def load_base(folder: Path, *, dtype: str = "auto", load_in_4bit: bool | None = None, device: str = "auto") -> Base:
    """Load a causal language model for training adapters on it.

    `dtype` auto takes what `lab.forward.precision` finds best here. `load_in_4bit` None is on
    for CUDA where bitsandbytes is installed, else off; 4 bits are NF4 with double quantisation (QLoRA, arXiv
    2305.14314). Raises ModelError with one sentence for a person.
    """
    place = pick_device(device)
    four_bit = pick_4bit(load_in_4bit, place)
    try:
        with _without_progress_bar():
            tokenizer = _tokenizer(folder)
            chosen = _precision(folder, dtype, place)
            model = (_load_4bit if four_bit else _load_plain)(folder, chosen.dtype, place)
    except (OSError, RuntimeError, MemoryError, ValueError, ImportError, SafetensorError) as error:
        raise ModelError(explain(error, folder)) from error
    model.requires_grad_(False)
    model.eval()
    return Base(model, tokenizer, place, model.get_input_embeddings().weight.dtype, four_bit, chosen.reason)


def _tokenizer(folder: Path) -> transformers.PreTrainedTokenizerBase:
    """Where its files are missing, transformers makes an empty one of the model's kind, which reads every text as nothing."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if not tokenizer("1 + 1 = 2", add_special_tokens=False).input_ids:
        raise ValueError("it has no tokenizer. Put tokenizer.json and tokenizer_config.json beside its weights.")
    return tokenizer


def pick_device(device: str) -> torch.device:
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if available[name]))
    if not available.get(device, False):
        raise ModelError(f"This machine has no {device} device that torch can use. Set device to cpu, or to auto.")
    return torch.device(device)


def pick_4bit(load_in_4bit: bool | None, device: torch.device) -> bool:
    wanted = device.type == "cuda" if load_in_4bit is None else load_in_4bit
    if not wanted:
        return False
    problem = _no_4bit_because(device)
    if problem and load_in_4bit:
        raise ModelError(f"A 4-bit base is not possible here: {problem}. Set load_in_4bit to off.")
    return problem is None


def _no_4bit_because(device: torch.device) -> str | None:
    if device.type not in ("cpu", "cuda"):
        return f"bitsandbytes does not support {device.type}"
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        return "the package bitsandbytes is not installed"
    return None


@contextlib.contextmanager
def _without_progress_bar() -> Iterator[None]:
    """Loading takes a moment, and the caller reports progress in its own way."""
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers.utils.logging.enable_progress_bar()


def _load_plain(folder: Path, dtype: torch.dtype, device: torch.device) -> transformers.PreTrainedModel:
    return _from_pretrained(folder, dtype=dtype).to(device=device)


def _load_4bit(folder: Path, compute: torch.dtype, device: torch.device) -> transformers.PreTrainedModel:
    settings = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=compute
    )
    model = _from_pretrained(folder, dtype=compute, quantization_config=settings, device_map={"": str(device)})
    keep_4bit_weights_differentiable(model)
    return model


def _from_pretrained(folder: Path, **settings: Any) -> transformers.PreTrainedModel:
    """With SDPA, which is exact and nearly everywhere; with the model's own attention where it cannot do with SDPA.

    Code from a model repository is never run.
    """
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    attention = "eager" if _needs_own_attention(config) else "sdpa"
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention, trust_remote_code=False,
                                                             use_safetensors=True, **settings)


def _needs_own_attention(config: transformers.PretrainedConfig) -> bool:
    """Gemma 2 caps attention scores, which SDPA would silently leave out; other families have no SDPA at all."""
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return bool(getattr(config.get_text_config(), "attn_logit_softcapping", None)) or not getattr(kind, "_supports_sdpa", True)


def keep_4bit_weights_differentiable(model: torch.nn.Module) -> None:
    """Stop bitsandbytes from repacking 4-bit weights on CPUs with AVX512-BF16.

    The first forward without gradients would repack them in place for a kernel that has no backward, and every LoRA
    gradient after the first sampling would be silently wrong (bitsandbytes 0.50).
    """
    import bitsandbytes

    for module in model.modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            module.support_avx512bf16_for_cpu = False


def _precision(folder: Path, dtype: str, device: torch.device) -> precision.Precision:
    if dtype != "auto":
        return precision.Precision(getattr(torch, dtype), f"{dtype}, as asked for.")
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False).get_text_config()
    return precision.choose(device, _parameters(folder), config.hidden_size)


def _parameters(folder: Path) -> int:
    """How many weights the files hold, from their headers alone."""
    count = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            count += sum(math.prod(tensors.get_slice(key).get_shape()) for key in tensors.keys())  # noqa: SIM118
    return count


def explain(error: BaseException, folder: Path) -> str:
    """One sentence for a failed load."""
    text = str(error).strip() or type(error).__name__
    if isinstance(error, MemoryError) or "out of memory" in text.lower() or "not enough memory" in text.lower():
        return (f"There is not enough memory for the model in {folder}: choose a smaller model or a 4-bit base, or close other "
                f"programs.")
    return f"The model in {folder} could not be loaded: {text.splitlines()[0]}"
