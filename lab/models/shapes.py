"""Sizes of models that presets name, so that a run can be planned before its model is on this machine. From their config.json."""

from __future__ import annotations

from lab.planner import ModelShape


def _qwen2(layers: int, hidden: int, inner: int, keys: int, vocabulary: int = 151_936, tied: bool = True) -> ModelShape:
    return ModelShape("qwen2", layers, hidden, inner, hidden, keys, vocabulary, tied)


SHAPES = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": ModelShape("llama", 30, 576, 1536, 576, 192, 49_152, True),
    "Qwen/Qwen2.5-0.5B-Instruct": _qwen2(24, 896, 4864, 128),
    "Qwen/Qwen2.5-1.5B-Instruct": _qwen2(28, 1536, 8960, 256),
    "Qwen/Qwen2.5-3B-Instruct": _qwen2(36, 2048, 11_008, 256),
    "Qwen/Qwen2.5-7B-Instruct": _qwen2(28, 3584, 18_944, 512, vocabulary=152_064, tied=False),
}
