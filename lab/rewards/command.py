"""`grpo-lab rewards`: what there is to reward with, and a reward tried on completions without the page.

    grpo-lab rewards list
    grpo-lab rewards test my_reward.py accuracy --weights 0.7 0.3 --on my-run
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from lab.assets import asset
from lab.errors import opening
from lab.rewards import BUILTINS
from lab.rewards.bench import BenchResult, bench
from lab.rewards.completions import newest_groups, read_completions
from lab.rewards.report import every_rule, report
from lab.storage import default_runs_dir
from lab.storage.rewards import RewardShelf, ShelfError
from lab.store import FILE_NAME, Store

RECORDED = "recorded"


@dataclasses.dataclass
class ListArguments:
    """List the built-in rewards and the frozen ones."""

    runs: Annotated[Path, tyro.conf.arg(help="Folder of the runs.")] = dataclasses.field(default_factory=default_runs_dir)


@dataclasses.dataclass
class TryArguments:
    """Score completions with reward functions and print what tells a good reward from a bad one."""

    rewards: Annotated[tuple[str, ...], tyro.conf.Positional,
                       tyro.conf.arg(help="Files (my_reward.py, my_reward.py:function), built-in names, frozen ones (name@version).")]
    on: Annotated[str | None, tyro.conf.arg(help="A run's id or name, or a JSONL with prompt and completion in each line. None: the newest "
                                                 "run; where there is none, the recorded one.")] = None
    step: Annotated[int | None, tyro.conf.arg(help="Completions up to this step of the run. None: the newest.")] = None
    count: Annotated[int, tyro.conf.arg(help="At most so many completions of a run, in whole groups.")] = 128
    weights: Annotated[tuple[float, ...] | None, tyro.conf.arg(help="One per function, in their order. None: 1 each.")] = None
    against: Annotated[str | None, tyro.conf.arg(help="Another reward in the place of the first, to compare with.")] = None
    hostile: Annotated[bool, tyro.conf.arg(help="Also the fixed hostile set, for the first prompt.")] = True
    every_rule: Annotated[bool, tyro.conf.arg(help="Also the group whose rewards differ most under every advantage rule.")] = False
    rows: Annotated[int, tyro.conf.arg(help="Completions to print.")] = 16
    csv: Annotated[Path | None, tyro.conf.arg(help="Also write every completion with its scores to this file.")] = None
    runs: Annotated[Path, tyro.conf.arg(help="Folder of the runs.")] = dataclasses.field(default_factory=default_runs_dir)


def rewards(argv: list[str]) -> int:
    """The command; 1 where a function failed on a completion, so that a script can tell."""
    kinds = {"list": ListArguments, "test": TryArguments}
    arguments = tyro.extras.subcommand_cli_from_dict(kinds, prog="grpo-lab rewards", description="What there is to reward with, and a "
                                                     "reward tried on completions.", args=argv)
    try:
        return _list(arguments) if isinstance(arguments, ListArguments) else _test(arguments)
    except (ShelfError, ValueError) as error:
        print(f"grpo-lab rewards: {error}", file=sys.stderr)
        return 1


def _list(arguments: ListArguments) -> int:
    width = max(map(len, BUILTINS))
    for name, factory in BUILTINS.items():
        print(f"{name:{width}}  {(inspect.getdoc(factory) or '').partition(chr(10))[0]}")
    if (arguments.runs / FILE_NAME).is_file():
        shelf = RewardShelf.beside(arguments.runs)
        for version in shelf.versions():
            print(f"{version.label:{width}}  {shelf.file(version)}")
        shelf.close()
    return 0


def _test(arguments: TryArguments) -> int:
    if not arguments.rewards:
        raise ValueError("name at least one reward to test, such as my_reward.py or accuracy.")
    written = _found(arguments, arguments.rewards)
    groups, where, settings = _completions(arguments)
    result = _scored(arguments, written, groups, settings)
    print(f"{', '.join(arguments.rewards)} on {where}\n\n{report(result, arguments.rows)}")
    if arguments.every_rule:
        print(f"\n{every_rule(result)}")
    if arguments.against:
        other = _scored(arguments, [*_found(arguments, [arguments.against]), *written[1:]], groups, settings)
        print(f"\nagainst {arguments.against}:\n{result.against(other).to_string(na_rep='', float_format=lambda value: f'{value:.3f}')}")
    if arguments.csv:
        with opening(arguments.csv, to="written"):
            result.completions.to_csv(arguments.csv, index=False)
    return 1 if any(column.failures for column in result.columns) else 0


def _scored(arguments: TryArguments, written: list[str], groups: list, settings: dict[str, Any]) -> BenchResult:
    return bench(written, groups, weights=arguments.weights, hostile=arguments.hostile, system_prompt=settings.get("system_prompt"),
                 scale_rewards=settings.get("scale_rewards") or "group")


def _found(arguments: TryArguments, written) -> list[str]:
    """Frozen rewards as their files; everything else as it was written."""
    if not any("@" in each for each in written) or not (arguments.runs / FILE_NAME).is_file():
        return list(written)
    shelf = RewardShelf.beside(arguments.runs)
    try:
        return [shelf.reward_of(None, each) for each in written]
    finally:
        shelf.close()


def _completions(arguments: TryArguments) -> tuple[list, str, dict[str, Any]]:
    """Groups, what they are in words, and the settings they were made with."""
    on = arguments.on
    if on and (on.endswith((".jsonl", ".json")) or Path(on).is_file()):
        return read_completions(Path(on)), on, {}
    recorded = Store(asset("demo/lab.sqlite3"), read_only=True)
    store = Store(arguments.runs / FILE_NAME) if (arguments.runs / FILE_NAME).is_file() and on != RECORDED else recorded
    if on is None and not any(run.step for run in store.runs()):
        store = recorded
    runs = [run for run in store.runs() if run.step and on in (None, RECORDED, run.id, run.name)]
    if not runs:
        there = ", ".join(run.name for run in store.runs() if run.step) or "none"
        raise ValueError(f"There is no run {on!r} with completions in {arguments.runs}. Runs there: {there}; `--on {RECORDED}` is the "
                         f"recording that comes with the lab.")
    groups = newest_groups(store, runs[0].id, arguments.count, arguments.step)
    if not groups:
        raise ValueError(f"{runs[0].name} has no completions up to step {arguments.step}.")
    return groups, f"{runs[0].name} ({runs[0].id})", runs[0].config
