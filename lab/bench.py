"""`grpo-lab bench`: ours beside TRL, the same work, steps in turn in one process; peak memory from processes of their own.

On a CPU the clock is CPU seconds, which a busy machine hardly disturbs; on CUDA it is wall time after a synchronisation. Every
completion is forced to its full length and both sides get the same prompts, group size, β, LoRA and dtype. TRL runs in its
fastest setting: weights in the dtype itself, no gradient checkpointing. All our metrics are on. Beside our decoding loop stand
its matrix products alone: how much of its time is not theirs. TRL's side is in `bench_trl`.
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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lab.config import RunConfig
from lab.forward.decode import MAX_ROWS, Decoding
from lab.forward.graph import captured
from lab.memory import is_out_of_memory, limit, peak
from lab.models.registry import fetch, resolve
from lab.policy import Policy
from lab.rollout import SamplingSettings
from lab.trainer import Trainer

REPORT = "measured: "  # begins a line in which a process says what it measured
PRODUCTS = {"aten::mm", "aten::addmm", "aten::addmm_", "mkldnn::_linear_pointwise", "bitsandbytes::gemm_4bit",
            "bitsandbytes::gemv_4bit"}  # what a product with a weight comes down to; attention's are batched and none of these


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


@dataclass(frozen=True)
class DecodeTime:
    """Seconds of a decoding loop after its prompts were read, and of its matrix products alone."""

    loop: float
    products: float


@dataclass(frozen=True)
class Alone:
    """What one side did in a process of its own. `peak_gb` is resident memory, on CUDA what is reserved on the card."""

    times: list[StepTime]
    peak_gb: float
    out_of_memory: bool
    ended: str | None  # why it did fewer steps than it was asked for


Side = Callable[["Work"], Iterator[StepTime]]


def load(work: Work) -> Policy:
    return Policy.load(work.model, dtype=work.dtype, load_in_4bit=work.load_in_4bit, device=work.device, num_threads=work.threads)


def trainer_of(work: Work, policy: Policy | None = None) -> Trainer:
    """Our trainer for this work, all metrics on, with `policy` if one is loaded already."""
    policy = policy or load(work)
    policy.eos_ids = []  # every completion runs to its full length
    config = RunConfig(
        model=work.model, task=[{"prompt": prompt} for prompt in prompts(work, policy.tokenizer)], system_prompt=None, rewards=(spread,),
        num_generations=work.num_generations, prompts_per_step=work.prompts_per_step, beta=work.beta, max_steps=10**6,
        max_completion_length=work.completion_tokens, dtype=work.dtype, load_in_4bit=work.load_in_4bit, device=work.device,
    )
    return Trainer(config, policy=policy)


def ours(work: Work, trainer: Trainer | None = None) -> Iterator[StepTime]:
    """Endless steps of our trainer, with `trainer` if there is one already."""
    trainer = trainer or trainer_of(work)
    policy, clock = trainer.policy, clock_of(work)
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


def theirs(work: Work, *, gradient_checkpointing: bool = False) -> Iterator[StepTime]:
    """Endless steps of TRL's trainer."""
    from lab.bench_trl import steps

    return steps(work, gradient_checkpointing)


SIDES: dict[str, Side] = {"ours": ours, "trl": theirs}
CHECKPOINTED = "trl with gradient checkpointing"
ALONE: dict[str, Side] = SIDES | {CHECKPOINTED: partial(theirs, gradient_checkpointing=True)}  # what a process may be asked for


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
    """Both sides in this process, one step of each in turn after a warm-up; medians, ratios and every single time.

    After each step of ours its decoding stands beside its products (`decoding_beside_products`).
    """
    trainer = trainer_of(work)
    sides = {"ours": ours(work, trainer), "trl": theirs(work)}
    for name, side in sides.items():
        say(f"warming up {name}")
        next(side)
    times: dict[str, list[StepTime]] = {name: [] for name in sides}
    decoded: list[DecodeTime] = []
    for number in range(steps):
        for name, side in sides.items():
            times[name].append(next(side))
            say(f"step {number + 1} of {steps}, {name}: {times[name][-1].step:.2f} s")
        decoded.append(decoding_beside_products(work, trainer))
    medians = {name: StepTime(*(statistics.median(getattr(t, part) for t in ts) for part in ("step", "sampling")))
               for name, ts in times.items()}
    return dict(
        work=dataclasses.asdict(work), times={name: [dataclasses.asdict(t) for t in ts] for name, ts in times.items()},
        median={name: dataclasses.asdict(t) for name, t in medians.items()},
        ratio=dict(step=medians["trl"].step / medians["ours"].step, sampling=medians["trl"].sampling / medians["ours"].sampling,
                   rest=(medians["trl"].step - medians["trl"].sampling) / (medians["ours"].step - medians["ours"].sampling)),
        decoding=[dataclasses.asdict(t) for t in decoded],
        products_share=statistics.median(t.products / t.loop for t in decoded),
    )


@torch.no_grad()
def decoding_beside_products(work: Work, trainer: Trainer) -> DecodeTime:
    """Decode prompts, and after each token make nothing but the matrix products that it took, with the same kernels.

    The clock starts when the prompts have been read; there are as many of a step's as decode together.
    """
    clock, again = clock_of(work), products_again(work, trainer)
    batch = begun(work, trainer)
    loop = products = 0.0
    while batch.writing:
        begin = clock()
        batch.advance()
        between = clock()
        again()
        loop, products = loop + between - begin, products + clock() - between
    return DecodeTime(loop, products)


def products_again(work: Work, trainer: Trainer) -> Callable[[], Any]:
    """A function that makes the products of one new token for all rows. A CUDA graph where decoding is one."""
    policy = trainer.policy
    before = policy.fast
    policy.fast = replace(before, graphs=False)  # a replayed graph would not show its products
    try:
        batch = begun(work, trainer)
        with MatrixProducts() as products:
            batch.advance()
    finally:
        policy.fast = before
    return captured(products.again, policy.device) if before.graphs else products.again


class MatrixProducts(TorchDispatchMode):
    """Keeps the products with weights that are made under it, to make them again."""

    def __init__(self):
        super().__init__()
        self.calls: list[Callable[[], Any]] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation._schema.name in PRODUCTS:
            self.calls.append(partial(operation, *args, **(kwargs or {})))
        return operation(*args, **(kwargs or {}))

    def again(self) -> None:
        for call in self.calls:
            call()


def begun(work: Work, trainer: Trainer) -> Decoding:
    """A batch whose next token will be its second."""
    policy, count = trainer.policy, min(work.prompts_per_step, max(1, MAX_ROWS // work.num_generations))
    ids = [policy.prompt_ids(prompt, None) for prompt in prompts(work, policy.tokenizer, count)]
    settings = SamplingSettings(work.num_generations, work.completion_tokens)
    # The loop itself: the policy's own name for it may be the one that `ours` times.
    batch = Policy.decoding(policy, ids, trainer.adapter, settings, torch.Generator().manual_seed(0))
    batch.advance()
    return batch


def peak_memory(work: Work, side: str, steps: int = 2) -> float:
    """Peak memory in GB of a process that does nothing but some steps of one side."""
    done = alone(work, side, steps)
    if done.ended:
        raise RuntimeError(f"The process that measures {side}'s memory failed: {done.ended}")
    return done.peak_gb


def alone(work: Work, side: str, steps: int, *, memory_gb: float | None = None, seconds: float | None = None) -> Alone:
    """Steps of one side (a key of `ALONE`), the first of which warms up, in a process of its own.

    On CUDA it gets at most `memory_gb` of the card. After `seconds` it is ended. What it did until then is kept.
    """
    command = [sys.executable, "-m", "lab.bench", side, json.dumps(dataclasses.asdict(work)), str(steps), json.dumps(memory_gb)]
    try:
        process = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
        out, last_words = process.stdout, process.stderr.decode(errors="replace").splitlines()[-1:]
        ended = f"it ended with {process.returncode}: {' '.join(last_words)}" if process.returncode else None
    except subprocess.TimeoutExpired as late:
        out, ended = late.stdout or b"", f"the {seconds:.0f} seconds there were for it were up"
    said = [json.loads(line.removeprefix(REPORT)) for line in out.decode(errors="replace").splitlines() if line.startswith(REPORT)]
    short = [report["out_of_memory"] for report in said if "out_of_memory" in report]
    done = [report for report in said if "peak_gb" in report]
    return Alone([StepTime(report["step"], report["sampling"]) for report in done], done[-1]["peak_gb"] if done else 0.0,
                 bool(short), f"out of memory: {short[0]}" if short else ended)


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
    lines.append(f"Of our decoding loop's time its matrix products alone take {result['products_share']:.0%}.")
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


def _report(side: str, work: str, steps: str, memory_gb: str) -> None:
    """What `alone` runs in a process of its own: a line for each step with the peak so far, and one if memory ran out."""
    doing = Work(**json.loads(work))
    device, most = torch.device(doing.device), json.loads(memory_gb)
    if most is not None:
        limit(device, most * 1e9)
    stepping = ALONE[side](doing)
    try:
        for _ in range(int(steps)):
            done = next(stepping)
            _say(**dataclasses.asdict(done), peak_gb=peak(device) / 1e9)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _say(out_of_memory=str(error).partition("\n")[0] or type(error).__name__)
    finally:
        stepping.close()


def _say(**report: Any) -> None:
    print(REPORT + json.dumps(report), flush=True)


if __name__ == "__main__":
    _report(*sys.argv[1:])
