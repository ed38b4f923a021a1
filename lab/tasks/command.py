"""`grpo-lab data`: prompts as a model will see them, and how hard they are for it, without the page.

    grpo-lab data show my_prompts.jsonl --model smollm2-135m
    grpo-lab data scan my_prompts.jsonl --model smollm2-135m --out teachable.jsonl

Leaves out mapping columns and held-out shares, which are the page's and Python's, and training (`grpo-lab train --task FILE`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from lab.config import RunConfig
from lab.errors import Unreadable, opening
from lab.models.chat import NoTemplate, rendered
from lab.models.registry import resolve
from lab.tasks.difficulty import Difficulty, Scan
from lab.tasks.errors import TaskError
from lab.tasks.sources import Task, load_task, prompt_text

WIDTH = 80  # characters of a prompt in the table
TASK_HELP = "A task's name, or a JSONL, JSON, CSV or Parquet file with a column prompt."


@dataclasses.dataclass
class ShowArguments:
    """Show the first prompts of a task or a file as the model will see them."""

    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(help=TASK_HELP)]
    model: Annotated[str, tyro.conf.arg(help="Whose chat template to fill in.")] = "tiny"
    system_prompt: Annotated[str | None, tyro.conf.arg(help="Empty: the model's own default; None: no system message.")] = ""
    rows: Annotated[int, tyro.conf.arg(help="How many.")] = 3
    seed: Annotated[int, tyro.conf.arg(help="A run with this seed meets these rows first, in this order.")] = 42


@dataclasses.dataclass
class ScanArguments:
    """Answer each prompt a few times and print how often the model is right; write those that can teach to a file."""

    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(help=TASK_HELP)]
    out: Annotated[Path | None, tyro.conf.arg(help="A new JSONL for the rows that are kept, with their pass_rate; `train --task` takes "
                                                   "it.")] = None
    low: Annotated[float, tyro.conf.arg(help="Keep prompts with at least this pass rate.")] = 0.001
    high: Annotated[float, tyro.conf.arg(help="Keep prompts with at most this pass rate.")] = 0.999
    prompts: Annotated[int, tyro.conf.arg(help="At most so many prompts.")] = 64
    samples: Annotated[int, tyro.conf.arg(help="Completions of each prompt.")] = 8
    rewards: Annotated[tuple[str, ...], tyro.conf.arg(help="The first says what is right: 0.5 or more. None named: those that suit the "
                                                           "task.")] = ()
    model: Annotated[str, tyro.conf.arg(help="Name, Hub id or folder.")] = "tiny"
    system_prompt: Annotated[str | None, tyro.conf.arg(help="Empty: the model's own default; None: no system message.")] = ""
    temperature: Annotated[float, tyro.conf.arg(help="Of the completions.")] = RunConfig.temperature
    max_completion_length: Annotated[int, tyro.conf.arg(help="After so many tokens one is cut off.")] = RunConfig.max_completion_length
    seed: Annotated[int, tyro.conf.arg(help="Decides which prompts come first, and the completions.")] = RunConfig.seed


def data(argv: list[str]) -> int:
    """The command; its errors are TaskError, ModelError, ConfigError and RewardError."""
    kinds = {"show": ShowArguments, "scan": ScanArguments}
    arguments = tyro.extras.subcommand_cli_from_dict(kinds, prog="grpo-lab data", description="Prompts as a model will see them, and how "
                                                     "hard they are for it.", args=argv)
    return _show(arguments) if isinstance(arguments, ShowArguments) else _scan(arguments)


def _show(arguments: ShowArguments) -> int:
    task, source = load_task(arguments.task, arguments.seed), resolve(arguments.model)
    print(f"{task.title}: {task.note} Rewards that suit it: {', '.join(task.rewards)}.")
    for number, row in enumerate(_first_rows(task, arguments.rows), start=1):
        columns = ", ".join(f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in row.items() if name != "prompt")
        print(f"\nRow {number}{': ' if columns else ''}{columns}")
        try:
            print(rendered(source, row["prompt"], arguments.system_prompt))
        except NoTemplate as why:
            print(f"{prompt_text(row['prompt'])}\n({why})")
    return 0


def _scan(arguments: ScanArguments) -> int:
    if arguments.out is not None:
        _check_new(arguments.out)
    task = load_task(arguments.task, arguments.seed)
    config = RunConfig(model=arguments.model, rewards=arguments.rewards or task.rewards, system_prompt=arguments.system_prompt,
                       temperature=arguments.temperature, max_completion_length=arguments.max_completion_length, seed=arguments.seed)
    rows = _first_rows(task, arguments.prompts)
    found = _scanned(config, rows, arguments.samples)
    print(_table(found), "", *_summary(found), sep="\n")
    if arguments.out is not None:
        kept = found.kept(arguments.low, arguments.high)
        _write(arguments.out, [{**rows[place], "pass_rate": found.prompts[place].pass_rate} for place in kept])
        print(f"{len(kept)} prompts with a pass rate from {arguments.low:g} to {arguments.high:g} are in {arguments.out}: "
              f"`grpo-lab train --task {arguments.out}`.")
    return 0


def _first_rows(task: Task, count: int) -> list[dict[str, Any]]:
    """The rows that a run meets first, none of them twice."""
    return task.rows(0, count if task.size is None else min(count, task.size))


def _scanned(config: RunConfig, rows: Sequence[dict[str, Any]], samples: int) -> Scan:
    from tqdm import tqdm

    from lab.policy import Policy
    from lab.training.difficulty import scan_rows

    scanning = scan_rows(Policy.load(config.model), config, rows, samples)
    with tqdm(total=len(rows), unit="prompt") as bar:
        while True:
            try:
                event = next(scanning)
            except StopIteration as stop:
                return stop.value
            bar.update(len(event) if isinstance(event, list) else 0)


def _table(found: Scan) -> str:
    """The hardest last; a prompt that no reward applies to has no rate."""
    ordered = [found.prompts[place] for place in found.easiest_first()] + [p for p in found.prompts if p.pass_rate is None]
    return "\n".join(["right  cut off  prompt", *map(_line, ordered)])


def _line(prompt: Difficulty) -> str:
    text = " ".join(prompt.prompt.split())
    right = f"{prompt.passed}/{prompt.samples}" if prompt.samples else "–"
    return f"{right:>5}  {prompt.cut_off:>7}  {text if len(text) <= WIDTH else text[:WIDTH - 1] + '…'}"


def _summary(found: Scan) -> list[str]:
    seen = found.summary()
    lines = [f"{seen['judged']} of {seen['of']} prompts could be judged: {seen['share_with_signal']:.0%} have signal, "
             f"{seen['all_right']} were always right, {seen['all_wrong']} never."]
    shares = ", ".join(f"{share:.0%} at G = {size}" for size, share in seen["live"].items())
    return [*lines, f"Groups that would have signal: {shares}."] if shares else lines


def _check_new(path: Path) -> None:
    """Said before minutes of sampling, not after them."""
    if path.exists():
        raise TaskError(f"{path} is there already: name another file.")
    if not path.parent.is_dir():
        raise TaskError(f"There is no folder {path.parent} to write {path.name} to.")


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    try:
        with opening(path, to="written"):
            path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8", newline="\n")
    except Unreadable as error:
        raise TaskError(str(error)) from error
