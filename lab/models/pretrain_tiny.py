"""Make the embedded tiny model from nothing: `python -m lab.models.pretrain_tiny`.

One seeded run on one CPU thread. Stage CLEAN teaches the arithmetic, stage MIX buries it under hasty and
badly formatted answers (`tiny_corpus`); then the gates of `tiny_gates` are measured, and only weights that
pass all of them are written, with a model card of the numbers. `--workdir` keeps the CLEAN stage on disk, so
that the short MIX stage can be done again alone.

The matrices are trained with Muon (Jordan et al. 2024, as in torch.optim.Muon), everything else with AdamW:
at equal tokens this learns sums about twice as fast as AdamW alone.
"""

import argparse
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_model, save_model
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from lab.models.tiny_card import write_card
from lab.models.tiny_corpus import Example, examples
from lab.models.tiny_gates import Report, failed_gates, measure, measure_skill
from lab.models.tiny_parts import build_model, build_tokenizer, save_folder

DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / "assets" / "models" / "tiny"
IGNORED = -100


@dataclass(frozen=True)
class Stage:
    """One stretch of training: the learning rates warm up, then fall along a cosine to `floor` of themselves."""

    name: str
    steps: int
    mixed: bool
    matrix_lr: float
    other_lr: float
    warmup: int = 60
    floor: float = 0.05

    def lr_scale(self, step: int) -> float:
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done))


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    tokenizer, model = build_tokenizer(), build_model()
    clean = Stage("CLEAN", options.clean_steps, mixed=False, matrix_lr=3e-3, other_lr=2e-3)
    mix = Stage("MIX", options.mix_steps, mixed=True, matrix_lr=1e-3, other_lr=1e-3)

    cpu_seconds = _clean_stage(model, tokenizer, clean, options)
    cpu_seconds += train(model, tokenizer, mix, seed=options.seed + 1, batch_size=options.batch_size)
    if options.workdir:
        save_model(model, options.workdir / "mix.safetensors")

    shipped = model.to(torch.bfloat16).to(torch.float32)  # measure exactly what will be stored
    report = measure(shipped, tokenizer, seed=options.seed)
    print("\n".join(report.lines()), flush=True)
    write_if_fit(options.out, shipped, report)
    write_card(options.out, report, seed=options.seed, cpu_minutes=cpu_seconds / 60, stages=(clean, mix))
    print(f"Wrote {options.out}", flush=True)


def write_if_fit(folder: Path, model: LlamaForCausalLM, report: Report) -> None:
    """Save the model, or leave the program with every missed gate named and nothing written."""
    failures = failed_gates(report)
    if failures:
        raise SystemExit("These weights are not written, they fail their gates:\n  " + "\n  ".join(failures))
    save_folder(model, folder)


def train(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, stage: Stage, *, seed: int, batch_size: int) -> float:
    """Train `model` in place through one stage and return the CPU seconds it took."""
    started = time.process_time()
    model.set_attn_implementation("eager")  # for sequences this short, much faster on a CPU than SDPA's backward
    model.train()
    optimizers = _optimizers(model, stage)
    batches = _batches(tokenizer, seed=seed, mixed=stage.mixed, batch_size=batch_size)
    recent, tokens = 0.0, 0
    for step, (input_ids, labels) in zip(range(stage.steps), batches, strict=False):
        _set_learning_rates(optimizers, stage.lr_scale(step))
        loss = completion_loss(model, input_ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        recent += loss.item()
        tokens += input_ids.numel()
        if (step + 1) % 50 == 0:
            spent = time.process_time() - started
            print(f"{stage.name} {step + 1} loss {recent / 50:.4f} tokens {tokens} cpu {spent:.0f}s", flush=True)
            recent = 0.0
        if (step + 1) % 500 == 0:
            print(f"{stage.name} {step + 1} skill {measure_skill(model, tokenizer, count=32)}", flush=True)
            model.train()
    return time.process_time() - started


def completion_loss(model: LlamaForCausalLM, input_ids: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in nats over the completion tokens. `input_ids`, `labels`: [batch, length] int64.

    Padding is on the right, so the causal mask alone keeps it out of sight.
    """
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids[:, :-1], use_cache=False).last_hidden_state
        targets = labels[:, 1:]
        learned = targets != IGNORED
        logits = model.lm_head(hidden[learned])
    return F.cross_entropy(logits.float(), targets[learned])


def _clean_stage(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, stage: Stage, options: argparse.Namespace) -> float:
    """The long stage, or its result from an earlier run with the same options in `--workdir`."""
    if not options.workdir:
        return train(model, tokenizer, stage, seed=options.seed, batch_size=options.batch_size)
    options.workdir.mkdir(parents=True, exist_ok=True)
    kept = options.workdir / f"clean-{options.seed}-{options.batch_size}-{options.clean_steps}.safetensors"
    clock = kept.with_suffix(".cpu_seconds")
    if not kept.exists():
        spent = train(model, tokenizer, stage, seed=options.seed, batch_size=options.batch_size)
        save_model(model, kept)
        clock.write_text(str(spent))
    load_model(model, kept)
    return float(clock.read_text())


def _optimizers(model: LlamaForCausalLM, stage: Stage) -> list[torch.optim.Optimizer]:
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers = [
        torch.optim.Muon(matrices, lr=stage.matrix_lr, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=stage.other_lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["full_lr"] = group["lr"]
    return optimizers


def _set_learning_rates(optimizers: list[torch.optim.Optimizer], scale: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["full_lr"] * scale


def _batches(tokenizer: PreTrainedTokenizerFast, *, seed: int, mixed: bool, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (input_ids, labels), both [batch, length]: neighbours in length share a batch, batches are shuffled."""
    corpus, rng = examples(seed, mixed=mixed), random.Random(seed)
    while True:
        pool = [_encode(tokenizer, next(corpus)) for _ in range(64 * batch_size)]
        pool.sort(key=lambda ids: len(ids[0]) + len(ids[1]))
        batches = [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
        rng.shuffle(batches)
        for batch in batches:
            yield _pad(batch)


def _encode(tokenizer: PreTrainedTokenizerFast, example: Example) -> tuple[list[int], list[int]]:
    system = [{"role": "system", "content": example.system}] if example.system else []
    messages = [*system, {"role": "user", "content": example.prompt}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    completion = example.completion + tokenizer.eos_token
    return tokenizer(prompt)["input_ids"], tokenizer(completion)["input_ids"]


def _pad(batch: list[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor]:
    length = max(len(prompt) + len(completion) for prompt, completion in batch)
    input_ids = torch.zeros(len(batch), length, dtype=torch.long)
    labels = torch.full((len(batch), length), IGNORED)
    for row, (prompt, completion) in enumerate(batch):
        end = len(prompt) + len(completion)
        input_ids[row, :end] = torch.tensor(prompt + completion)
        labels[row, len(prompt) : end] = torch.tensor(completion)
    return input_ids, labels


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Pretrain the embedded tiny model (about half an hour on one core).")
    parser.add_argument("--out", type=Path, default=DEFAULT_FOLDER, help="folder that receives the model")
    parser.add_argument("--workdir", type=Path, help="keep the result of the CLEAN stage here and reuse it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clean-steps", type=int, default=3600)
    parser.add_argument("--mix-steps", type=int, default=1200)
    parser.add_argument("--batch-size", type=int, default=32)
    return parser.parse_args()


if __name__ == "__main__":
    main()
