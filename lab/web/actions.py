"""What can be done from the page: plain functions that form events and HTTP routes share.

Each takes the owner who asks and touches only what that owner may see. Nothing here waits for the engine: an action
leaves a command in the store and answers with its id. Errors for people are ActionError with a sentence.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lab.assets import asset
from lab.config import REWARD_FIELDS, ConfigError, RunConfig
from lab.models.registry import ModelError
from lab.models.registry import resolve as resolve_model
from lab.presets import preset
from lab.rewards import RewardNotFound
from lab.rewards import resolve as resolve_rewards
from lab.storage.datasets import FOLDER as DATA_FOLDER
from lab.storage.datasets import Datasets
from lab.storage.own_files import keep_reward_files
from lab.storage.rewards import RewardShelf, ShelfError
from lab.storage.run_folder import RunFolder
from lab.store import ALIVE_STATUSES, LOCAL_OWNER, Command, Run, Store, open_store
from lab.tasks import BUILTIN_TASKS, TaskError, load_task
from lab.tasks.sources import task_name
from lab.web.answers import answer_to
from lab.web.changes import read_changes
from lab.web.form import read_form

RUN_COMMANDS = ("pause", "resume", "step", "stop", "resume_run", "change", "branch", "evaluate")
MOST_STEPS = 1_000_000
MOST_PROMPT = 200_000  # characters; a text of many megabytes would hold up the engine before it is found too long
SAMPLE_SETTINGS = ("model", "adapter", "system_prompt", "task", "rewards", "reward_weights", "num_generations", "max_completion_length",
                   "temperature", "top_p", "top_k", "min_p", "seed", "dtype", "load_in_4bit", "device", "num_threads")


class ActionError(Exception):
    """Something that cannot be done, in a sentence; `status` is its HTTP status."""

    def __init__(self, message: str, status: int = 422):
        super().__init__(message)
        self.status = status


@dataclass
class Lab:
    """The stores behind the page: the runs folder's, and the recorded run that travels with the lab."""

    store: Store
    demo: Store | None

    @classmethod
    def open(cls, runs_dir: Path) -> Lab:
        """The lab over a runs folder, with the recorded run beside it where the assets hold one."""
        try:
            demo = Store(asset("demo/lab.sqlite3"), read_only=True)
        except FileNotFoundError:
            demo = None
        return cls(open_store(runs_dir), demo)

    @cached_property
    def shelf(self) -> RewardShelf:
        """Reward drafts and frozen versions, in the same file."""
        return RewardShelf(self.store.path)

    def with_versions(self, owner: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Settings in which a frozen reward, `name@version`, stands as its file, which the engine runs in a locked worker."""
        try:
            frozen = {name: [self.shelf.reward_of(owner, reward) if isinstance(reward, str) else reward for reward in settings[name]]
                      for name in REWARD_FIELDS if isinstance(settings.get(name), (list, tuple))}
        except ShelfError as error:
            raise ActionError(str(error)) from error
        return {**settings, **frozen}

    def with_dataset(self, owner: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Settings whose task, where it names a data set as the forms do, is the path of its file. Another's is not found."""
        task = settings.get("task")
        if not isinstance(task, str) or not task.startswith(f"{DATA_FOLDER}/"):
            return settings
        found = Datasets(self.store.path).find(task, owner)
        if found is None:
            raise ActionError(f"There is no data set {task!r} here: choose another task.", 404)
        return {**settings, "task": str(found.file.resolve())}

    def runs(self, owner: str) -> list[Run]:
        """Runs the owner may see, newest first, recorded ones last."""
        own = [run for run in self.store.runs() if run.owner in (owner, LOCAL_OWNER)]
        return own + (self.demo.runs() if self.demo else [])

    def find(self, owner: str, run_id: str) -> tuple[Store, Run]:
        """A run the owner may see, and the store it lies in. Another owner's run is as unknown as one that never was."""
        run = self.store.run(run_id)
        if run and run.owner in (owner, LOCAL_OWNER):
            return self.store, run
        recorded = self.demo.run(run_id) if self.demo else None
        if recorded:
            return self.demo, recorded
        raise ActionError(f"There is no run {run_id!r} here.", 404)

    def current_run(self, owner: str) -> Run | None:
        """What the page shows when its address names no run: one that is going, else the newest, else the recorded one."""
        runs = self.runs(owner)
        going = [run for run in runs if run.status in ALIVE_STATUSES and run.kind != "recorded"]
        return (going or runs or [None])[0]


def sample(lab: Lab, owner: str, prompt: str, settings: dict[str, Any], adapter: str = "base") -> dict[str, int]:
    """Asks for one group of completions to `prompt`. `adapter` is "base" or the id of a run."""
    if not prompt.strip():
        raise ActionError("The prompt is empty: type a question or take one of the examples.")
    if len(prompt) > MOST_PROMPT:
        raise ActionError(f"The prompt has {len(prompt):,} characters; at most {MOST_PROMPT:,} are taken.")
    settings = {name: value for name, value in settings.items() if name in SAMPLE_SETTINGS}
    config = _config(lab.with_dataset(owner, lab.with_versions(owner, settings)))
    if adapter != "base":
        lab.find(owner, adapter)
    row = {"prompt": prompt, **known_answer(prompt)}
    command = lab.store.send_command("sample", {"config": config.to_dict(), "prompts": [row], "adapter": adapter}, owner=owner)
    return {"command": command.id, "rollout": command.result["rollout"]}


def known_answer(prompt: str) -> dict[str, str]:
    """{"answer": …} if the prompt is an arithmetic question; otherwise {}, and accuracy is "not applicable"."""
    answer = answer_to(prompt)
    return {} if answer is None else {"answer": answer}


def cancel(lab: Lab, owner: str, command_id: int) -> dict[str, int]:
    """Stops a sample that waits or is being written."""
    asked = own_command(lab, owner, command_id)
    return {"command": lab.store.send_command("cancel", {"command": asked.id}, owner=owner).id}


def own_command(lab: Lab, owner: str, command_id: int) -> Command:
    """The owner's command of this id. ActionError 404 for one that is unknown or another's."""
    command = lab.store.command(command_id)
    if command is None or command.owner != owner:
        raise ActionError(f"There is no command {command_id} here.", 404)
    return command


def start_run(lab: Lab, owner: str, settings: dict[str, Any], name: str | None = None, steps: int | None = None) -> dict[str, Any]:
    """A new run with these settings; `steps` lets it pause after so many."""
    if steps is not None and not 1 <= steps <= MOST_STEPS:
        raise ActionError(f"Pause after {steps} steps: a whole number from 1 to {MOST_STEPS:,} is needed.")
    config = _config(lab.with_dataset(owner, lab.with_versions(owner, settings)))
    _none_going(lab, owner)
    name = name or f"{task_name(config.task)} {time.strftime('%H:%M:%S')}"
    run = lab.store.create_run(config.to_dict(), name=name, owner=owner)
    config = keep_reward_files(config, RunFolder(lab.store, run).path)
    lab.store.set_config(run, config.to_dict())
    args = {"config": config.to_dict(), "name": name} | ({"steps": steps} if steps else {})
    lab.store.send_command("preflight", {"config": config.to_dict()}, owner=owner, run=run)  # in the queue it comes first
    command = lab.store.send_command("train", args, owner=owner, run=run)
    return {"run": run, "command": command.id}


def preflight(lab: Lab, owner: str, settings: dict[str, Any]) -> dict[str, int]:
    """A few groups sampled with these settings, without a run; what they promise is the command's result."""
    config = _config(lab.with_dataset(owner, lab.with_versions(owner, settings)))
    return {"command": lab.store.send_command("preflight", {"config": config.to_dict()}, owner=owner).id}


def config_of(lab: Lab, owner: str, settings: dict[str, Any]) -> RunConfig:
    """What a form says, as a config whose model, task and rewards exist. Raises ActionError."""
    return _config(lab.with_dataset(owner, lab.with_versions(owner, settings)))


def command_run(lab: Lab, owner: str, run_id: str, kind: str, args: dict[str, Any]) -> dict[str, int]:
    """pause, resume, step {n}, stop, resume_run {more}, change, branch {step, config, name}, evaluate {config} for a run of the owner's."""
    if kind not in RUN_COMMANDS:
        raise ActionError(f"A run has no command {kind!r}. Commands: {', '.join(RUN_COMMANDS)}.")
    _, run = lab.find(owner, run_id)
    if run.kind == "recorded":
        raise ActionError("This run is a recording: start one of your own with Train.", 409)
    read = {"change": _changes, "branch": _branch, "evaluate": _evaluation, "resume_run": _more_steps}
    if kind in read:
        asked = args.get("config")
        args = {**lab.with_versions(owner, args), **({"config": lab.with_versions(owner, asked)} if isinstance(asked, dict) else {})}
        args = read[kind](lab, run, args)
    if kind == "branch":
        _none_going(lab, owner)
    return {"command": lab.store.send_command(kind, args, owner=owner, run=run_id).id}


def first_run(model: str = "tiny") -> RunConfig:
    """The settings with which this model visibly learns on its first run; the defaults where none are known."""
    source = resolve_model(model)
    return preset(source.preset).config() if source.preset else RunConfig(model=model)


def examples(model: str, task: str) -> dict[str, Any]:
    """Prompts to offer beside the prompt box, and what the model is limited to, in a sentence."""
    try:
        source = resolve_model(model)
    except ModelError as error:
        return {"examples": [], "note": str(error), "size": None}
    known = task and all(part in BUILTIN_TASKS for part in task.split("+"))  # files are read when a run asks for them
    prompts = load_task(task).examples if known else ()
    shown = list(dict.fromkeys([*prompts[:3], *source.examples]))[:5]
    return {"examples": shown, "note": source.only or source.note, "params": source.params, "preset": source.preset}


def _changes(lab: Lab, run: Run, args: dict[str, Any]) -> dict[str, Any]:
    if run.status not in ALIVE_STATUSES:
        raise ActionError(f"{run.name} is {run.status}: settings change while a run goes. Resume it first, or branch from it.", 409)
    try:
        changes = read_changes(args, run, lab.store.events(run.id))
        resolve_rewards([reward for reward in changes.get("rewards", ()) if ".py" not in reward])
    except (ConfigError, RewardNotFound) as error:
        raise ActionError(str(error)) from error
    return changes


def _branch(lab: Lab, run: Run, args: dict[str, Any]) -> dict[str, Any]:
    """The settings that a branch changes must work together with those it keeps."""
    asked = args.get("config") or {}
    whole = _config({**run.config, **asked}).to_dict()
    return {**args, "config": {name: whole[name] for name in asked}}


def _evaluation(lab: Lab, run: Run, args: dict[str, Any]) -> dict[str, Any]:
    asked = args.get("config") or {}
    others = sorted(name for name in asked if not name.startswith("eval_"))
    if others:
        raise ActionError(f"{', '.join(others)} is no setting of an evaluation; those begin with eval_.")
    whole = _config({**run.config, **asked}).to_dict()
    return {**args, "config": {name: whole[name] for name in asked}}


def _more_steps(lab: Lab, run: Run, args: dict[str, Any]) -> dict[str, Any]:
    more = args.get("more")
    if more is None:
        return args
    if not isinstance(more, int) or isinstance(more, bool) or not 1 <= more <= MOST_STEPS:
        raise ActionError(f"{more!r} more steps: a whole number from 1 to {MOST_STEPS:,} is needed.")
    if run.status in ALIVE_STATUSES:
        raise ActionError(f"{run.name} is still {run.status}: more steps can be given when it has ended.", 409)
    return args


def _none_going(lab: Lab, owner: str) -> None:
    going = [run for run in lab.runs(owner) if run.status in ALIVE_STATUSES and run.owner == owner]
    if going:
        raise ActionError(f"{going[0].name} is still {going[0].status}: stop it first, or let it finish.", 409)


def _config(settings: dict[str, Any]) -> RunConfig:
    if nul := [name for name, value in settings.items() if isinstance(value, str) and "\0" in value]:
        raise ActionError(f"{', '.join(nul)} holds a NUL character, which no name or path can have.")
    try:
        config = RunConfig.from_dict(read_form(settings))
        resolve_model(config.model)
        resolve_rewards([reward for reward in config.rewards if ".py" not in reward])  # files run code: the engine's matter
        load_task(config.task)
    except (ConfigError, ModelError, RewardNotFound, TaskError) as error:
        raise ActionError(str(error)) from error
    return config
