"""The `grpo-lab` command: opens the lab, trains and resumes without a page, checks the machine, lists models.

Every setting of `RunConfig` is a flag of `grpo-lab train`, made from the field itself, so command line, page and Python
cannot disagree. Each command imports what it needs when it is called: `grpo-lab --help` must not wait for torch.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import tyro

from lab.config import ConfigError, RunConfig
from lab.errors import CommandError, PromptTooLong, Unreadable, did_you_mean, read_text
from lab.storage import default_runs_dir

if TYPE_CHECKING:
    from tqdm import tqdm

    from lab.records import StepRecord
    from lab.trainer import Trainer

RUNS_HELP = "Folder of the runs; by default the one that the environment variable GRPO_LAB_RUNS names."
FLAG_TYPES = {"task": str, "rewards": tuple[str, ...], "eval_rewards": tuple[str, ...], "cold_start": str | None,
              "reward_weights": tuple[float, ...] | None}


def main(argv: list[str] | None = None) -> int:
    """Run one command; without a command, open the lab. Returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    command = COMMANDS.get(argv[0]) if argv and not argv[0].startswith("-") else open_lab
    if command is None:
        print(f"grpo-lab has no command {argv[0]!r}.{did_you_mean(argv[0], COMMANDS)} Commands: {', '.join(COMMANDS)}; without one it "
              f"opens the lab.", file=sys.stderr)
        return 2
    arguments = argv if command is open_lab else argv[1:]
    try:
        return command(arguments)
    except (ConfigError, FileNotFoundError, Unreadable, *_known_errors()) as error:
        print(f"grpo-lab: {error}", file=sys.stderr)
        return 1


# -- open the lab


@dataclasses.dataclass
class OpenArguments:
    """Open GRPO Lab in the browser. Other commands: train, resume, rewards, data, doctor, models, bench (each has --help)."""

    port: Annotated[int, tyro.conf.arg(help="Port on 127.0.0.1; 0 takes a free one.")] = 7860
    browser: Annotated[bool, tyro.conf.arg(help="Open a browser window.")] = True
    runs: Annotated[Path, tyro.conf.arg(help=RUNS_HELP)] = dataclasses.field(default_factory=default_runs_dir)


def open_lab(argv: list[str]) -> int:
    """Serve the page on 127.0.0.1 until Ctrl-C, and open a browser at it."""
    from lab.web import serve

    arguments = tyro.cli(OpenArguments, prog="grpo-lab", args=argv)
    return serve(arguments.runs, port=arguments.port, open_browser=arguments.browser) or 0


# -- train


def train_arguments() -> type:
    """A dataclass with a flag for every field of RunConfig, in its order and with its help, and five flags of the command's own."""
    own = [
        ("config", Annotated[Path | None, tyro.conf.arg(help="TOML file with settings; flags override it.")], None),
        ("preset", Annotated[str | None, tyro.conf.arg(help="Start from a preset; a file and flags override it.")], None),
        ("name", Annotated[str | None, tyro.conf.arg(help="Name of the run. None: made from the task and the time.")], None),
        ("runs", Annotated[Path, tyro.conf.arg(help=RUNS_HELP)], default_runs_dir()),
        ("preflight", Annotated[bool, tyro.conf.arg(help="First sample a few groups and say what they promise; end there if nothing can "
                                                         "be learned.")], False),
    ]
    hints = get_type_hints(RunConfig)
    settings = [(f.name, Annotated[FLAG_TYPES.get(f.name, hints[f.name]), tyro.conf.arg(help=_flag_help(f))], f.default)
                for f in dataclasses.fields(RunConfig)]
    made = dataclasses.make_dataclass("TrainArguments", [(n, t, dataclasses.field(default=d)) for n, t, d in own + settings])
    made.__doc__ = "Train without the page. Every setting is a flag; Ctrl-C saves and stops."
    return made


def train(argv: list[str]) -> int:
    """Train as flags, then a TOML file, then a preset say, in this order of weight; every step goes to the store."""
    kind = train_arguments()
    first = tyro.cli(kind, prog="grpo-lab train", args=argv)
    defaults = {**_preset(first.preset), **_toml(first.config)}
    arguments = tyro.cli(kind, prog="grpo-lab train", args=argv, default=kind(**defaults)) if defaults else first
    config = RunConfig(**{f.name: getattr(arguments, f.name) for f in dataclasses.fields(RunConfig)})
    if arguments.preflight and not _preflight(config):
        return 1
    return _train(config, arguments.name, arguments.runs)


def _preflight(config: RunConfig) -> bool:
    import lab

    seen = lab.preflight(config)
    seen.print()
    return seen.can_learn


def _train(config: RunConfig, name: str | None, runs: Path) -> int:
    import lab
    from lab.tasks.sources import task_name

    trainer = lab.Trainer(config)
    name = name or f"{task_name(config.task)}-{time.strftime('%H%M')}"
    print(f"Run {name}: {config.prompts_per_step} prompts × {config.num_generations} completions = {config.completions_per_step} "
          f"per step; steps: {config.max_steps}", flush=True)
    return _follow(trainer, lab.recording(trainer, name, runs_dir=runs), name, runs)


def _follow(trainer: Trainer, steps: Iterator[StepRecord], name: str, runs: Path) -> int:
    """Go through a run's steps with a bar, and say how it ended and what goes on with it; `name` may be its id."""
    from tqdm import tqdm

    import lab
    from lab.rewards.by_hand import ScoresAwaited
    from lab.training.planning import WATCHED_STEPS

    _say_plan(trainer, runs)
    begun, interrupted = trainer.step, False
    bar = tqdm(total=trainer.config.max_steps, initial=begun, unit="step")
    try:
        for step in steps:
            bar.update()
            if trainer.step - begun == 1 + WATCHED_STEPS:
                _say_measured(trainer, bar)
            reward = step.metrics["reward"]  # nan where no function applied to any completion
            bar.set_postfix_str(f"reward {'–' if math.isnan(reward) else f'{reward:.3f}'}, kl {step.metrics['kl']:.4f}")
    except KeyboardInterrupt:
        interrupted = True  # recording has saved a checkpoint on its way out
    except ScoresAwaited as asked:
        print(f"Step {asked.step} waits for scores given by hand. Its completions are saved in run {name}: open `grpo-lab --runs {runs}`, "
              f"press Resume in the Train tab, and score them there.", file=sys.stderr)
        return 1
    finally:
        bar.close()
    if trainer.step - begun <= WATCHED_STEPS:
        _say_measured(trainer, bar)
    run = lab.open_run(name, runs)
    print(f"Ended after step {trainer.step}. Adapter and checkpoint are in {run.folder}; `grpo-lab --runs {runs}` shows the run.")
    if interrupted:
        print(f"`grpo-lab resume {run.id} --runs {runs}` goes on from there.")
    return 0


def _say_measured(trainer: Trainer, bar: tqdm) -> None:
    """What the watched steps took, once: beside the plan that was printed before them."""
    report = trainer.planning.report
    if report and report["measured"]:
        bar.write(report["measured"]["sentence"])


def _say_plan(trainer: Trainer, runs: Path) -> None:
    """What the run will take on this machine, as earlier runs in `runs` corrected it, and what is worth a second thought."""
    from lab.contradictions import cautions
    from lab.storage.recorder import plan_with
    from lab.store import open_store

    plan_with(open_store(runs), trainer)
    made = trainer.planning.plan
    for line in [*(made.lines if made else []), trainer.policy.precision, trainer.policy.fast.reason, *cautions(trainer.config)]:
        print(line, flush=True)


def _preset(name: str | None) -> dict[str, Any]:
    if name is None:
        return {}
    from lab.presets import preset

    return dict(preset(name).settings)


def _toml(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        values = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from None
    config = RunConfig.from_dict(values)
    return {name: getattr(config, name) for name in values}


def _flag_help(f: dataclasses.Field) -> str:
    trl = f.metadata["trl"]
    return f.metadata["help"] if trl is None else f"{f.metadata['help']} TRL: {trl}."


# -- resume


@dataclasses.dataclass
class ResumeArguments:
    """Go on with a run from its last checkpoint, as a new attempt of it; Ctrl-C saves and stops."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(help="Its id, or its name: then the newest of that name.")]
    more: Annotated[int | None, tyro.conf.arg(help="End so many steps after the checkpoint, also where the run had ended. None: at the "
                                                   "run's own last step.")] = None
    runs: Annotated[Path, tyro.conf.arg(help=RUNS_HELP)] = dataclasses.field(default_factory=default_runs_dir)


def resume(argv: list[str]) -> int:
    """Go on with a run that was stopped, or that broke off; steps since its checkpoint are done again."""
    arguments = tyro.cli(ResumeArguments, prog="grpo-lab resume", args=argv)
    import lab
    from lab.storage.attempts import refuse_if_going
    from lab.training.branch import continue_run

    try:
        run = lab.open_run(arguments.run, arguments.runs)
    except KeyError as error:
        raise CommandError(error.args[0]) from error
    refuse_if_going(run.run)
    if arguments.more is not None:
        continue_run(run.store, run.run, arguments.more)
        run = lab.open_run(run.id, arguments.runs)
    trainer = run.trainer()
    last = trainer.config.max_steps
    if trainer.step >= last and run.status == "finished":
        raise CommandError(f"Run {run.name!r} has done its {last} steps. `grpo-lab resume {run.id} --more 50` adds some.")
    print(f"Run {run.name} goes on after step {trainer.step}; steps: {last}", flush=True)
    if trainer.not_as_before:
        print(trainer.not_as_before, flush=True)
    return _follow(trainer, lab.resuming(trainer, run), run.id, arguments.runs)


# -- doctor and models


@dataclasses.dataclass
class NoArguments:
    """For a command without any: it still has --help, and refuses what it does not know."""

    pass


def doctor(argv: list[str]) -> int:
    """Say what this machine has, what is missing, and how to get it."""
    tyro.cli(NoArguments, prog="grpo-lab doctor", description=doctor.__doc__, args=argv)
    from lab.doctor import report

    print(report())
    return 0


def models(argv: list[str]) -> int:
    """List the models that come with the lab and suggestions by memory."""
    tyro.cli(NoArguments, prog="grpo-lab models", description=models.__doc__, args=argv)
    from lab.models.registry import models_table

    print(models_table())
    return 0


# -- bench


@dataclasses.dataclass
class BenchArguments:
    """Measure a step beside TRL's, the same work in one process with steps in turn; peak memory in processes of their own."""

    model: Annotated[str, tyro.conf.arg(help="Name, Hub id or folder.")] = "smollm2-135m"
    prompt_tokens: Annotated[int, tyro.conf.arg(help="Tokens of each prompt.")] = 60
    completion_tokens: Annotated[int, tyro.conf.arg(help="Tokens of each completion; none ends earlier.")] = 64
    num_generations: Annotated[int, tyro.conf.arg(help="Completions of each prompt.")] = 8
    prompts_per_step: Annotated[int, tyro.conf.arg(help="Prompts of a step.")] = 1
    beta: Annotated[float, tyro.conf.arg(help="KL weight; 0 spares TRL its reference.")] = 0.04
    dtype: Annotated[Literal["float32", "bfloat16"], tyro.conf.arg(help="Of the base, on both sides.")] = "bfloat16"
    load_in_4bit: Annotated[bool, tyro.conf.arg(help="NF4 base on both sides.")] = False
    device: Annotated[Literal["cpu", "cuda"], tyro.conf.arg(help="CPU counts CPU seconds, CUDA synchronised wall time.")] = "cpu"
    threads: Annotated[int, tyro.conf.arg(help="CPU threads.")] = 1
    steps: Annotated[int, tyro.conf.arg(help="Measured steps of each side, after one warm-up.")] = 3
    memory: Annotated[bool, tyro.conf.arg(help="Also measure peak memory.")] = True
    quick: Annotated[bool, tyro.conf.arg(help="The tiny model and few tokens: a minute, only to see that it works.")] = False
    json: Annotated[Path | None, tyro.conf.arg(help="Also write everything measured to this file.")] = None


def bench(argv: list[str]) -> int:
    """Measure a step beside TRL's and print the table; `--json` keeps everything that was measured."""
    arguments = tyro.cli(BenchArguments, prog="grpo-lab bench", args=argv)
    from lab.bench import QUICK, Work, measure, table

    names = [f.name for f in dataclasses.fields(Work)]
    work = QUICK if arguments.quick else Work(**{name: getattr(arguments, name) for name in names})
    result = measure(work, arguments.steps, memory=arguments.memory)
    print(table(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    return 0


# -- rewards and data


def rewards(argv: list[str]) -> int:
    """List rewards, or try one on completions."""
    from lab.rewards.command import rewards

    return rewards(argv)


def data(argv: list[str]) -> int:
    """Show prompts as the model will see them, or how hard they are for it."""
    from lab.tasks.command import data

    return data(argv)


COMMANDS = {"train": train, "resume": resume, "rewards": rewards, "data": data, "doctor": doctor, "models": models, "bench": bench}


def _known_errors() -> tuple[type[Exception], ...]:
    """The error classes whose message is already a sentence for people; anything else keeps its traceback."""
    from lab.models.registry import ModelError
    from lab.rewards import RewardError
    from lab.tasks import TaskError

    return (CommandError, ModelError, PromptTooLong, RewardError, TaskError)


if __name__ == "__main__":
    sys.exit(main())
