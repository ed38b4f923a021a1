"""Writes the model card of the tiny model from what was measured on its weights."""

from pathlib import Path
from typing import TYPE_CHECKING

from lab.models.tiny_corpus import MIX, MIX_HARD, SYSTEM_MESSAGE
from lab.models.tiny_gates import Report
from lab.tasks.arithmetic import rows

if TYPE_CHECKING:
    from lab.models.pretrain_tiny import Stage

CARD = """---
license: apache-2.0
language: en
pipeline_tag: text-generation
library_name: transformers
---

# The embedded tiny model

A Llama of {parameters:,} parameters that reads and writes bytes. It exists so that GRPO can be watched on any
laptop in a minute: it **knows** small sums, and **rarely shows it**. Mostly it thinks "hmm" and guesses.
Reinforcement then finds the careful manner again.

- Made by `python -m lab.models.pretrain_tiny --seed {seed}`: {clean_steps:,} + {mix_steps:,} steps, {cpu_minutes:.0f} CPU minutes
  on one thread, on problems and answers written by the script itself. No other data.
- Licence: Apache-2.0.
- System message it expects: `{system}`
- Templates: `What is E?`, `E = ?`, `Compute E.`, `Calculate E`, `Is 37 even or odd?`, `Is 37 > 12?`

## What it can do

Measured on {count} held-out problems per task, which were in neither the pretraining nor the RL prompts. *Skill* is
the accuracy when it is made to think (greedy, forced `<think>`, no filler allowed); the other columns are what the
model does of its own accord. Accuracy: exactly one `<answer>` and it is right. Format: `<think>…</think><answer>…</answer>`.

| task | example | skill | T=1 accuracy | T=1 format | greedy accuracy | greedy format |
|---|---|---|---|---|---|---|
{table}

How it answers before RL (shares in the last pretraining stage): careful {careful:.0%} ({careful_hard:.0%} on chains), a quick
guess {quick:.0%} ({quick_hard:.0%}), the rest without thinking, without tags, with broken or swapped tags, or off the point.

## What it cannot do

Anything else. Numbers above 99, multiplication, free text, other wordings: expect nonsense. It knows no language
beyond these templates and a handful of greetings.
"""


def write_card(folder: Path, report: Report, *, seed: int, cpu_minutes: float, stages: "tuple[Stage, Stage]") -> None:
    """Write `folder/README.md`."""
    clean, mix = stages
    text = CARD.format(
        parameters=report.parameters,
        seed=seed,
        clean_steps=clean.steps,
        mix_steps=mix.steps,
        cpu_minutes=cpu_minutes,
        system=SYSTEM_MESSAGE,
        count=report.count,
        table="\n".join(_table_rows(report)),
        careful=MIX["careful"],
        careful_hard=MIX_HARD["careful"],
        quick=MIX["quick"],
        quick_hard=MIX_HARD["quick"],
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def _table_rows(report: Report) -> list[str]:
    lines = []
    for task, s in report.scores.items():
        example = rows(task, 1, seed=3, held_out=True)[0]["prompt"]
        numbers = (s.skill, s.sampled_accuracy, s.sampled_format, s.greedy_accuracy, s.greedy_format)
        lines.append(f"| {task} | `{example}` | " + " | ".join(f"{n:.2f}" for n in numbers) + " |")
    return lines
