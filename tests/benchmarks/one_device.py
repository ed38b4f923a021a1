"""One prepared measurement for a machine with a GPU: does a 1.5B model in 4 bits train within 8 GB, how fast, and beside TRL?

    python -m tests.benchmarks.one_device                              a model of Qwen2.5-1.5B's shape on CUDA, at most 8 GB
    python -m tests.benchmarks.one_device --shape tiny --device cpu    the same script, small, anywhere

The weights are random: only sizes and times mean something. Ours is measured in this process, then TRL in one of its own under
the same limit. Prints one JSON object; each part of it goes to stderr as soon as it is there, and a part that fails says so
and does not end the others. What does not fit into `--minutes` is said. Without bitsandbytes the base has 16 bits, without TRL
nothing stands beside ours. On a CPU nothing is limited, and "with graphs" is the same decoding in fixed buffers, whose step is
called instead of replayed.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib.metadata
import importlib.util
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers

from lab.assets import asset
from lab.bench import CHECKPOINTED, StepTime, Work, alone, load, ours, trainer_of
from lab.memory import held, limit, mark_peak, peak, peak_since_mark
from lab.planner import Plan
from lab.policy import Policy
from lab.records import GroupSampled, StepRecord
from lab.trainer import Trainer

SHAPES = {
    "qwen2.5-1.5b": dict(vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
                         num_key_value_heads=2, tie_word_embeddings=True),
    "tiny": dict(vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, tie_word_embeddings=True),
}
# What the plan says is there in each phase. While learning either work space or head is, whichever is larger.
PHASES = dict(loaded=("program", "weights"), sampling=("program", "weights", "adapter", "head_copy", "copy", "cache"),
              learning=("program", "weights", "adapter", "head_copy", "activations", "workspace", "head"))
OUR_SHARE = 0.6  # of the minutes; the rest is TRL's
LEAST_SECONDS = 5.0  # a part is not begun with less
WAYS = dict(without_graphs=False, with_graphs=True)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    wanted = parsed(arguments)
    began = time.perf_counter()

    def left(share: float = 1.0) -> float:
        """Seconds until this share of the minutes is up."""
        return began + 60 * wanted.minutes * share - time.perf_counter()

    limit(torch.device(wanted.device), wanted.memory_gb * 1e9)
    four_bit = importlib.util.find_spec("bitsandbytes") is not None
    with tempfile.TemporaryDirectory() as folder:
        random_model(Path(folder), SHAPES[wanted.shape])
        work = Work(model=folder, prompt_tokens=wanted.prompt_tokens, completion_tokens=wanted.completion_tokens, load_in_4bit=four_bit,
                    device=wanted.device)
        result = Parts(about(wanted, work))
        result.add("ours", lambda: our_parts(work, wanted.steps, lambda: left(OUR_SHARE)))
        give_back_memory(torch.device(wanted.device))
        result.add("trl", lambda: beside_trl(work, wanted.steps, wanted.memory_gb, left))
    result["ratio"] = ratio(result)
    result["seconds"] = time.perf_counter() - began
    print(json.dumps(result))
    return result


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-1.5b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--memory-gb", type=float, default=8.0)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--completion-tokens", type=int, default=256)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=7.5, help="for everything but starting Python")
    return parser.parse_args(arguments)


class Parts(dict):
    """The result, part by part."""

    def add(self, name: str, part: Callable[[], Any]) -> None:
        """Measure a part. A card, a driver or a package may refuse in any way: the other parts are worth having then."""
        try:
            self[name] = part()
        except Exception as error:
            traceback.print_exc()
            self[name] = {"failed": f"{type(error).__name__}: {error}"}
        print(f"{name}: {json.dumps(self[name])}", file=sys.stderr, flush=True)


def about(wanted: argparse.Namespace, work: Work) -> dict[str, Any]:
    names = ("torch", "transformers", "peft", "bitsandbytes", "trl")
    card = wanted.device == "cuda"
    return dict(
        device=torch.cuda.get_device_name() if card else "cpu", shape=wanted.shape, work=dataclasses.asdict(work) | {"model": wanted.shape},
        limit=f"{wanted.memory_gb:g} GB of the card" if card else "none on a CPU",
        base="4 bits" if work.load_in_4bit else "16 bits: bitsandbytes is not installed here, so 4 bits could not be measured.",
        versions={name: importlib.metadata.version(name) for name in names if importlib.util.find_spec(name)},
    )


def random_model(folder: Path, shape: dict[str, Any]) -> None:
    config = transformers.Qwen2Config(**shape, max_position_embeddings=4096, pad_token_id=0, bos_token_id=2, eos_token_id=1)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(asset("models/tiny")).save_pretrained(folder)


def our_parts(work: Work, steps: int, left: Callable[[], float]) -> Parts:
    """The first step, memory by part, and steps in both ways of decoding."""
    began, result = time.perf_counter(), Parts()
    program = unaccounted(work.device)
    policy = load(work)
    give_back_memory(policy.device)
    loaded = dict(program=program, weights=policy.model.get_memory_footprint(), loaded=held(policy.device))
    trainer = trainer_of(work, policy)
    stepping = ours(work, trainer)

    def first_step() -> dict[str, Any]:
        next(stepping)
        return dict(seconds_with_loading=time.perf_counter() - began, path=policy.fast.reason)

    result.add("first_step", first_step)
    result.add("memory", lambda: by_part(trainer, loaded))
    for way, graphs in WAYS.items():
        if graphs and work.device == "cuda" and not policy.fast.graphs:
            result[way] = {"said": f"Not measured: {policy.fast.reason}"}
        elif left() < LEAST_SECONDS:
            result[way] = {"said": "Not measured: the time for ours was up."}
        else:
            result.add(way, lambda graphs=graphs: steps_of(work, policy, stepping, steps, left, graphs))
    result["peak_gb"] = peak(policy.device) / 1e9
    return result


def by_part(trainer: Trainer, measured: dict[str, float]) -> dict[str, Any]:
    """Bytes in GB, planned and measured: of what can be weighed by itself, and at the peak of each phase of one step."""
    device, made = trainer.policy.device, trainer.plan_ahead().plan
    state = sum(x.nbytes for values in trainer.optimizer.state.values() for x in values.values())
    measured = measured | {"adapter": 2 * sum(p.nbytes for p in trainer.parameters) + state}  # weights, gradients, Adam's moments
    give_back_memory(device)
    mark_peak(device)
    for event in trainer.events():
        if isinstance(event, GroupSampled) and "sampling" not in measured:
            measured["sampling"] = peak_since_mark(device)
            give_back_memory(device)
            mark_peak(device)
        if isinstance(event, StepRecord):
            measured["learning"] = peak_since_mark(device)
            break
    planned = made.parts | phase_totals(made)
    return dict(
        parts={name: dict(planned=planned[name] / 1e9, measured=size / 1e9) for name, size in measured.items()},
        planned_parts={phase: {name: made.parts[name] / 1e9 for name in names} for phase, names in PHASES.items()},
        fits=made.fits, plan=made.sentence,
    )


def phase_totals(made: Plan) -> dict[str, float]:
    return dict(loaded=sum(made.parts[name] for name in PHASES["loaded"]), sampling=made.sampling, learning=made.training)


def steps_of(work: Work, policy: Policy, stepping: Iterator[StepTime], steps: int, left: Callable[[], float],
             graphs: bool) -> dict[str, Any]:
    policy.fast = replace(policy.fast, graphs=graphs)
    give_back_memory(policy.device)
    mark_peak(policy.device)
    next(stepping)  # warms up
    times = [next(stepping)]
    while len(times) < steps and left() > 0:
        times.append(next(stepping))
    return rates(work, times) | dict(peak_gb=peak_since_mark(policy.device) / 1e9, path=policy.fast.reason)


def beside_trl(work: Work, steps: int, memory_gb: float, left: Callable[[], float]) -> dict[str, Any]:
    """TRL's side under the same limit. To run out of memory is a result; then it may compute layers twice."""
    if importlib.util.find_spec("trl") is None:
        return {"said": "TRL is not installed here (pip install 'grpo-lab[bench]'), so nothing stands beside ours."}
    tried: dict[str, Any] = {}
    for side in ("trl", CHECKPOINTED):
        if left() < LEAST_SECONDS:
            return tried | {side: {"said": "Not measured: the time was up."}}
        done = alone(work, side, steps + 1, memory_gb=memory_gb, seconds=left())
        times = done.times[1:]  # the first warms up
        tried[side] = (rates(work, times) | dict(peak_gb=done.peak_gb) if times else {}) | ({"ended": done.ended} if done.ended else {})
        if times or not done.out_of_memory:
            break
    return tried


def rates(work: Work, times: list[StepTime]) -> dict[str, Any]:
    written = len(times) * work.num_generations * work.prompts_per_step * work.completion_tokens
    step, sampling = [t.step for t in times], [t.sampling for t in times]
    return dict(step=step, sampling=sampling, steps_per_second=len(times) / sum(step), sampled_tokens_per_second=written / sum(sampling))


def ratio(result: dict[str, Any]) -> dict[str, Any]:
    """Ours over TRL's, each in its fastest way that was measured."""
    own, others = ({way: part for way, part in result[side].items() if isinstance(part, dict) and "step" in part}
                   for side in ("ours", "trl"))
    if not own or not others:
        return {"said": "Nothing to compare: one side was not measured."}
    (our_way, us), (their_way, them) = (max(ways.items(), key=lambda way: way[1]["steps_per_second"]) for ways in (own, others))
    return dict(ours=our_way, trl=their_way, **{rate: us[rate] / them[rate] for rate in ("steps_per_second", "sampled_tokens_per_second")})


def give_back_memory(device: torch.device) -> None:
    """Nothing that is no longer used may count as a peak of what comes next, or be missing for TRL."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def unaccounted(device: str) -> float:
    """Bytes beside all tensors: of the process, or on a card that nobody else uses the CUDA context."""
    if device == "cpu":
        return held(torch.device("cpu"))
    torch.zeros(1, device=device)  # a context is made at the first tensor
    unused, total = torch.cuda.mem_get_info()
    return total - unused - torch.cuda.memory_reserved()


if __name__ == "__main__":
    main()
