"""One prepared measurement for a machine with a GPU: does a 1.5B model in 4 bits train within 8 GB, and how fast?

    python -m tests.benchmarks.one_device                              a model of Qwen2.5-1.5B's shape on CUDA, at most 8 GB
    python -m tests.benchmarks.one_device --shape tiny --device cpu    the same script, small, anywhere

The weights are random: only sizes and times mean something. Prints one JSON object: the plan and what was measured, with and
without CUDA graphs. On a CPU "with" is the same decoding in fixed buffers, whose step is called instead of replayed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers

from lab.assets import asset
from lab.bench import StepTime, Work, clock_of, load, ours
from lab.config import RunConfig
from lab.memory import mark_peak, peak, peak_since_mark
from lab.planner import ModelShape, plan
from lab.policy import Policy

SHAPES = {
    "qwen2.5-1.5b": dict(vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
                         num_key_value_heads=2, tie_word_embeddings=True),
    "tiny": dict(vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, tie_word_embeddings=True),
}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-1.5b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--memory-gb", type=float, default=8.0)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--completion-tokens", type=int, default=256)
    parser.add_argument("--steps", type=int, default=3)
    wanted = parser.parse_args(arguments)
    cap(wanted.device, wanted.memory_gb)
    with tempfile.TemporaryDirectory() as folder:
        random_model(Path(folder), SHAPES[wanted.shape])
        work = Work(model=folder, prompt_tokens=wanted.prompt_tokens, completion_tokens=wanted.completion_tokens, load_in_4bit=True,
                    device=wanted.device)
        result = measured(work, wanted.steps) | planned(work, Path(folder), wanted.memory_gb)
    print(json.dumps(result))
    return result


def cap(device: str, memory_gb: float) -> None:
    """Let this process have no more than so much of the card."""
    if device == "cuda":
        torch.cuda.set_per_process_memory_fraction(memory_gb * 1e9 / torch.cuda.get_device_properties(0).total_memory)


def random_model(folder: Path, shape: dict[str, Any]) -> None:
    config = transformers.Qwen2Config(**shape, max_position_embeddings=4096, pad_token_id=0, bos_token_id=2, eos_token_id=1)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(asset("models/tiny")).save_pretrained(folder)


def measured(work: Work, steps: int) -> dict[str, Any]:
    began = time.perf_counter()
    policy = load(work)
    stepping = ours(work, policy)
    next(stepping)
    result: dict[str, Any] = dict(device=torch.cuda.get_device_name() if work.device == "cuda" else "cpu",
                                  first_step_with_loading=time.perf_counter() - began, path=policy.fast.reason)
    if policy.fast.graphs or work.device == "cpu":  # on CUDA `path` says why not
        result["with_graphs"] = measured_way(work, policy, stepping, steps, graphs=True)
        result["path_afterwards"] = policy.fast.reason
    result["without_graphs"] = measured_way(work, policy, stepping, steps, graphs=False)
    return result | dict(peak_gb=peak(policy.device) / 1e9)


def measured_way(work: Work, policy: Policy, stepping: Iterator[StepTime], steps: int, *, graphs: bool) -> dict[str, Any]:
    policy.fast = replace(policy.fast, graphs=graphs)
    if work.device == "cuda":
        torch.cuda.empty_cache()
    mark_peak(policy.device)
    next(stepping)  # warms up
    clock = clock_of(work)
    begin = clock()
    times = [next(stepping) for _ in range(steps)]
    seconds = clock() - begin
    written = steps * work.num_generations * work.prompts_per_step * work.completion_tokens
    return dict(
        step=[t.step for t in times], sampling=[t.sampling for t in times], steps_per_second=steps / seconds,
        sampled_tokens_per_second=written / sum(t.sampling for t in times), peak_gb=peak_since_mark(policy.device) / 1e9,
    )


def planned(work: Work, folder: Path, memory_gb: float) -> dict[str, Any]:
    config = RunConfig(num_generations=work.num_generations, prompts_per_step=work.prompts_per_step,
                       max_completion_length=work.completion_tokens)
    made = plan(config, ModelShape.of(json.loads((folder / "config.json").read_text())), prompt_tokens=work.prompt_tokens,
                device=work.device, dtype=work.dtype, load_in_4bit=True, memory=memory_gb * 1e9)
    return dict(planned_gb=made.peak / 1e9, planned_parts_gb={name: size / 1e9 for name, size in made.parts.items()}, plan=made.sentence)


if __name__ == "__main__":
    main()
