"""`grpo-lab bench`: ours beside TRL, the same work, steps in turn in one process; peak memory from processes of their own.

On a CPU the clock is CPU seconds, which a busy machine hardly disturbs; on CUDA it is wall time after a synchronisation. Every
completion is forced to its full length and both sides get the same prompts, group size, β, LoRA and dtype. TRL runs in its
fastest setting: weights in the dtype itself, no gradient checkpointing. All our metrics are on. TRL's side is in `bench_trl`.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lab.config import RunConfig
from lab.forward.decode import Decoding
from lab.memory import peak
from lab.models.registry import fetch, resolve
from lab.policy import Policy
from lab.trainer import Trainer

REPORT = "peak memory: "  # begins the line in which a process says what it measured


@dataclass(frozen=True)
class Work:
    """One step of the comparison."""

    model: str = "smollm2-135m"
    prompt_tokens: int = 60
    completion_tokens: int = 64
    num_generations: int = 8
    prompts_per_step: int = 1
    beta: float = 0.04
    dtype: str = "bfloat16"
    load_in_4bit: bool = False
    threads: int = 1
    device: str = "cpu"


QUICK = Work(model="tiny", prompt_tokens=60, completion_tokens=16, prompts_per_step=4, dtype="float32")


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step, and of the sampling within it."""

    step: float
    sampling: float


Side = Callable[["Work"], Iterator[StepTime]]


def load(work: Work) -> Policy:
    return Policy.load(work.model, dtype=work.dtype, load_in_4bit=work.load_in_4bit, device=work.device, num_threads=work.threads)


def ours(work: Work, policy: Policy | None = None) -> Iterator[StepTime]:
    """Endless steps of our trainer, all metrics on, with `policy` if one is loaded already."""
    policy = policy or load(work)
    policy.eos_ids = []  # every completion runs to its full length
    config = RunConfig(
        model=work.model, task=[{"prompt": prompt} for prompt in prompts(work, policy.tokenizer)], system_prompt=None, rewards=(spread,),
        num_generations=work.num_generations, prompts_per_step=work.prompts_per_step, beta=work.beta, max_steps=10**6,
        max_completion_length=work.completion_tokens, dtype=work.dtype, load_in_4bit=work.load_in_4bit, device=work.device,
    )
    trainer = Trainer(config, policy=policy)
    clock = clock_of(work)
    real, seconds = policy.decoding, [0.0]

    def decoding(*args):
        begin = clock()  # a merged copy is made here
        batch = real(*args)
        seconds[0] += clock() - begin
        return _Timed(batch, clock, seconds)

    policy.decoding = decoding
    while True:
        seconds[0], begin = 0.0, clock()
        next(trainer)
        yield StepTime(clock() - begin, seconds[0])


class _Timed:
    """A decoding loop whose time is counted. It lives no longer than the loop itself would."""

    def __init__(self, batch: Decoding, clock: Callable[[], float], seconds: list[float]):
        self._batch, self._clock, self._seconds = batch, clock, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def advance(self) -> None:
        begin = self._clock()
        self._batch.advance()
        self._seconds[0] += self._clock() - begin


def theirs(work: Work) -> Iterator[StepTime]:
    """Endless steps of TRL's trainer."""
    from lab.bench_trl import steps

    return steps(work)


SIDES: dict[str, Side] = {"ours": ours, "trl": theirs}


def measure(work: Work, steps: int, *, memory: bool = True, say: Callable[[str], None] = print) -> dict[str, Any]:
    """`compare`, and the peak memory of each side beside it. Raises ModuleNotFoundError without TRL."""
    if importlib.util.find_spec("trl") is None:
        raise ModuleNotFoundError("The comparison needs TRL: pip install 'grpo-lab[bench]'.")
    result = compare(work, steps, say=say)
    if memory:
        say("measuring memory")
        result["peak_gb"] = {side: peak_memory(work, side) for side in SIDES}
    result["versions"] = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "peft", "trl")}
    return result


def compare(work: Work, steps: int, *, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Both sides in this process, one step of each in turn after a warm-up; medians, ratios and every single time."""
    sides = {name: side(work) for name, side in SIDES.items()}
    for name, side in sides.items():
        say(f"warming up {name}")
        next(side)
    times: dict[str, list[StepTime]] = {name: [] for name in sides}
    for number in range(steps):
        for name, side in sides.items():
            times[name].append(next(side))
            say(f"step {number + 1} of {steps}, {name}: {times[name][-1].step:.2f} s")
    medians = {name: StepTime(*(statistics.median(getattr(t, part) for t in ts) for part in ("step", "sampling")))
               for name, ts in times.items()}
    return dict(
        work=dataclasses.asdict(work), times={name: [dataclasses.asdict(t) for t in ts] for name, ts in times.items()},
        median={name: dataclasses.asdict(t) for name, t in medians.items()},
        ratio=dict(step=medians["trl"].step / medians["ours"].step, sampling=medians["trl"].sampling / medians["ours"].sampling,
                   rest=(medians["trl"].step - medians["trl"].sampling) / (medians["ours"].step - medians["ours"].sampling)),
    )


def peak_memory(work: Work, side: str, steps: int = 2) -> float:
    """Peak resident memory in GB (on CUDA: allocated on the card) of a process that does nothing but some steps of one side."""
    command = [sys.executable, "-m", "lab.bench", side, json.dumps(dataclasses.asdict(work)), str(steps)]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    if out.returncode:
        raise RuntimeError(f"The process that measures {side}'s memory failed: {out.stderr.strip().splitlines()[-1:]}")
    report = next(line for line in out.stdout.splitlines() if line.startswith(REPORT))
    return json.loads(report.removeprefix(REPORT))


def table(result: dict[str, Any]) -> str:
    """The result as a table for a terminal."""
    work, median, ratio = result["work"], result["median"], result["ratio"]
    unit = "CPU s" if work["device"] == "cpu" else "s"
    lines = [f"{work['model']}, {work['dtype']}{', 4-bit' if work['load_in_4bit'] else ''}, prompt {work['prompt_tokens']}, "
             f"G {work['num_generations']}, {work['completion_tokens']} tokens each, {work['prompts_per_step']} prompt(s) a step, "
             f"beta {work['beta']}, {work['threads']} thread(s)",
             f"{'':14}{'TRL':>10}{'ours':>10}{'ratio':>10}"]
    for part in ("step", "sampling"):
        lines.append(f"{part + ', ' + unit:14}{median['trl'][part]:>10.2f}{median['ours'][part]:>10.2f}{ratio[part]:>9.2f}x")
    if "peak_gb" in result:
        peak = result["peak_gb"]
        lines.append(f"{'peak, GB':14}{peak['trl']:>10.2f}{peak['ours']:>10.2f}{peak['ours'] / peak['trl']:>9.2f}x")
    return "\n".join(lines)


def prompts(work: Work, tokenizer: Any, count: int = 64) -> list[str]:
    """Prompts of random words that have `prompt_tokens` tokens, or the least number above, once the chat is rendered."""
    generator = torch.Generator().manual_seed(0)
    words = ["red", "tree", "seven", "house", "music", "river", "green", "stone", "bread", "cloud"]
    made = []
    for _ in range(count):
        text = ""
        while len(tokenizer(rendered(text, tokenizer), add_special_tokens=False)["input_ids"]) < work.prompt_tokens:
            text += (" " if text else "") + words[int(torch.randint(len(words), (1,), generator=generator))]
        made.append(text)
    return made


def rendered(prompt: str, tokenizer: Any) -> str:
    """What the model reads for a prompt: its chat template, or the bare text where it has none."""
    if tokenizer.chat_template is None:
        return prompt
    return tokenizer.apply_chat_template([{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True)


def spread(completion_ids: list[list[int]], **_) -> list[float]:
    """A reward that differs within every group, so that no side may skip a completion."""
    return [sum(ids) % 97 / 97 for ids in completion_ids]


def clock_of(work: Work) -> Callable[[], float]:
    if work.device != "cuda":
        return time.process_time

    def synchronised() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return synchronised


def folder_of(work: Work) -> Path:
    return fetch(resolve(work.model))


def _report(side: str, work: str, steps: str) -> None:
    """What `peak_memory` runs in a process of its own."""
    stepping = SIDES[side](Work(**json.loads(work)))
    for _ in range(int(steps)):
        next(stepping)
    print(f"{REPORT}{peak(torch.device(Work(**json.loads(work)).device)) / 1e9}", flush=True)
    stepping.close()


if __name__ == "__main__":
    _report(*sys.argv[1:])
