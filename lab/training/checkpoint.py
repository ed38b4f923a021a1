"""A trainer as a folder, and back: adapter, reference, optimizer, cursor, a rollout in use, config.

    checkpoint/
      adapter_config.json, adapter_model.safetensors   PEFT's layout: any PEFT program loads the folder as an adapter
      reference/                                       the reference, where it is an adapter
      critic/                                          PPO's critic: adapter, head and its optimizer
      optimizer.safetensors                            AdamW's moments by parameter
      trainer.json                                     config, counters, changes, and the groups of a rollout in use
      rollout.safetensors                              its tensors

There is no random state to keep: every random number comes from (seed, number of the rollout). JSON and safetensors only,
nothing that could run code. A folder appears complete or not at all.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lab.config import DTYPES, REWARD_FIELDS, RunConfig, reward_name
from lab.errors import Unreadable, opening, read_text, shown_path
from lab.models.registry import ModelError
from lab.policy import MACHINE_THREADS, Policy
from lab.records import Completion, Group
from lab.rewards import RewardNotFound
from lab.rollout import Rollout
from lab.storage.own_files import at_home
from lab.trainer import Batch, Trainer, TrainingError
from lab.training.resampling import HardPrompts
from lab.training.stop_rules import StopRules

FORMAT = 2


def save(trainer: Trainer, folder: Path) -> Path:
    """Write `trainer` to `folder`, replacing a checkpoint that is there. Raises TrainingError for a full disk, and for a file or
    folder of something else, which stays; Unreadable for what cannot be a folder."""
    folder = folder.absolute()
    draft = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    with opening(folder, to="written"):
        _refuse_to_replace(folder)
        draft.mkdir(parents=True)
    try:
        _write(trainer, draft)
        _put_in_place(draft, folder)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise TrainingError(f"The disk is full: the checkpoint {folder} was not written. Earlier ones are unharmed; free "
                                f"some space.") from error
        raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def load(folder: Path, *, policy: Policy | None, adapter: str, output_dir: str | Path | None,
         changes: dict[str, Any]) -> Trainer:
    """The trainer that was saved in `folder`, with `changes` to its config. Raises ModelError for a folder that is no checkpoint,
    RewardNotFound where the run had reward functions written in Python and none are given."""
    state = _read_state(folder)
    before = state["policy"]
    _require_python_rewards(state, changes, folder)
    config = as_before(RunConfig.from_dict(at_home(state["config"], folder.parent)), before).replace(**changes)
    policy = policy or Policy.load(config.model, dtype=config.dtype, load_in_4bit=config.load_in_4bit, device=config.device,
                                   num_threads=config.num_threads, way=before.get("way"))
    # Adapter and reference come from the checkpoint: the folder that the run once continued may be gone.
    trainer = Trainer(config.replace(adapter=str(folder), reference="base"), policy=policy, adapter=adapter, output_dir=output_dir)
    trainer.config = config
    trainer.not_as_before = _not_as_before(policy, before)
    _restore_reference(trainer, folder / "reference", RunConfig.from_dict(state["config"]).reference)
    if trainer.critic is not None:
        trainer.critic.load(folder / "critic")
    _restore_optimizer(trainer, load_file(folder / "optimizer.safetensors"))
    trainer.step, trainer.rollouts, trainer.num_tokens = state["step"], state["rollouts"], state["num_tokens"]
    trainer.changes = [(step, settings) for step, settings in state["changes"]]
    trainer.pending = {name: value for name, value in at_home(state["pending"], folder.parent).items() if name not in changes}
    trainer.prompts = state["prompts"]
    trainer.hard_prompts = HardPrompts(state["hard_prompts"])
    trainer.stop_rules = StopRules(**state["stop_rules"])
    trainer.entropy_coefs = tuple(state["entropy_coefs"])
    trainer.cold_start_steps, trainer.evaluated_at = state.get("cold_start_steps", 0), state.get("evaluated_at")
    if state["batch"] is not None:
        trainer.batch = _restore_batch(state["batch"], load_file(folder / "rollout.safetensors"), trainer.policy.device)
    return trainer


def as_before(config: RunConfig, resolved: dict[str, Any]) -> RunConfig:
    """`config` with what it left open as it was decided when the run began; `resolved` is that time's `Policy.info`.

    More threads than this machine offers are not asked for.
    """
    settled: dict[str, Any] = {}
    if config.dtype == "auto" and resolved.get("dtype") in DTYPES:
        settled["dtype"] = resolved["dtype"]
    if config.load_in_4bit is None and "load_in_4bit" in resolved:
        settled["load_in_4bit"] = resolved["load_in_4bit"]
    if config.num_threads == 0 and resolved.get("threads", MACHINE_THREADS + 1) <= MACHINE_THREADS:
        settled["num_threads"] = resolved["threads"]
    return config.replace(**settled)


def _not_as_before(policy: Policy, before: dict[str, Any]) -> str | None:
    names = {"device": "device", "dtype": "number format", "load_in_4bit": "4 bits", "threads": "threads", "way": "way of computing",
             "torch": "version of torch"}
    now = policy.resolved
    changed = [f"{word} {before[name]} before, {now[name]} now" for name, word in names.items()
               if name in before and before[name] != now[name]]
    return f"Steps from here on are not bit-equal to a run that never stopped: {'; '.join(changed)}." if changed else None


def _restore_reference(trainer: Trainer, folder: Path, kind: str) -> None:
    """The saved one; a branch that asked for another kind begins it here."""
    if trainer.config.reference != kind:
        trainer.begin_reference()
    elif folder.is_dir():
        trainer.reference = trainer.reference_name
        trainer.policy.adapters.add_from(trainer.reference, folder)


def _write(trainer: Trainer, folder: Path) -> None:
    adapters = trainer.policy.adapters
    adapters.save(trainer.adapter, folder)
    if trainer.reference is not None:
        (folder / "reference").mkdir()
        adapters.save(trainer.reference, folder / "reference")
    if trainer.critic is not None:
        trainer.critic.save(folder / "critic")
    save_file(_optimizer_tensors(trainer), folder / "optimizer.safetensors")
    state = dict(
        format=FORMAT, config=trainer.config.to_dict(), step=trainer.step, rollouts=trainer.rollouts,
        prompts=trainer.prompts, hard_prompts=trainer.hard_prompts.kept, stop_rules=dataclasses.asdict(trainer.stop_rules),
        entropy_coefs=trainer.entropy_coefs, num_tokens=trainer.num_tokens,
        changes=[(step, _plain(settings)) for step, settings in trainer.changes], pending=_plain(trainer.pending), batch=None,
        cold_start_steps=trainer.cold_start_steps, evaluated_at=trainer.evaluated_at, from_python=_from_python(trainer),
        torch=torch.__version__, threads=torch.get_num_threads(), policy=trainer.policy.info,
    )
    if trainer.batch is not None:
        state["batch"] = _batch_state(trainer.batch)
        save_file(_batch_tensors(trainer.batch), folder / "rollout.safetensors")
    (folder / "trainer.json").write_text(json.dumps(state, indent=1, default=str), encoding="utf-8")


def _refuse_to_replace(folder: Path) -> None:
    is_other = folder.is_dir() and any(folder.iterdir()) and not (folder / "trainer.json").is_file()
    if folder.is_file() or is_other:
        raise TrainingError(f"{folder} is there already and is no checkpoint of a run: name a new folder to save to.")


def _put_in_place(draft: Path, folder: Path) -> None:
    """A folder cannot be replaced in one step on every system, so an old one steps aside first."""
    old = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.old")
    if folder.exists():
        folder.rename(old)
    draft.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _read_state(folder: Path) -> dict[str, Any]:
    try:
        state = json.loads(read_text(folder / "trainer.json"))
    except Unreadable as error:
        raise ModelError(f"{shown_path(folder)} is not a checkpoint of a run: it has no trainer.json that can be read.") from error
    except ValueError as error:
        raise ModelError(f"The checkpoint {folder} is damaged: trainer.json is not valid JSON.") from error
    if state.get("format") != FORMAT:
        raise ModelError(f"The checkpoint {folder} has format {state.get('format')}; this version reads format {FORMAT}.")
    return state


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Live changes as JSON: reward functions become their names, as in the config."""
    rewards = {"rewards": [reward_name(r) for r in settings["rewards"]]} if "rewards" in settings else {}
    return settings | rewards


def _from_python(trainer: Trainer) -> dict[str, list[str]]:
    """Names of the reward functions that are no names or files, those of a change that waits included."""
    used = {field: (*getattr(trainer.config, field), *trainer.pending.get(field, ())) for field in REWARD_FIELDS}
    return {field: [reward_name(r) for r in rewards if not isinstance(r, (str, Path))] for field, rewards in used.items()}


def _require_python_rewards(state: dict[str, Any], changes: dict[str, Any], folder: Path) -> None:
    """A function of one's own is not replaced by a built-in one that happens to have its name."""
    for field, names in state.get("from_python", {}).items():
        if names and field not in changes:
            raise RewardNotFound(f"This run was trained with {', '.join(names)}, written in Python, which no checkpoint holds. Go on from "
                                 f"Python and pass its reward functions: Trainer.load({str(folder)!r}, {field}=[{', '.join(names)}]).")


# -- optimizer


def _optimizer_tensors(trainer: Trainer) -> dict[str, Tensor]:
    named = trainer.policy.adapters.parameters(trainer.adapter)
    return {f"{key}|{moment}": value.detach().cpu().contiguous()
            for key, parameter in named.items() for moment, value in trainer.optimizer.state.get(parameter, {}).items()}


def _restore_optimizer(trainer: Trainer, tensors: dict[str, Tensor]) -> None:
    named = trainer.policy.adapters.parameters(trainer.adapter)
    for key, value in tensors.items():
        name, moment = key.rsplit("|", 1)
        device = "cpu" if moment == "step" else named[name].device  # AdamW counts steps on the CPU
        # A file's tensors lie anywhere in memory; a copy lies where vector instructions give the same bits as before.
        trainer.optimizer.state[named[name]][moment] = value.clone().to(device)


# -- a rollout in use


def _batch_state(batch: Batch) -> dict[str, Any]:
    groups = [dataclasses.asdict(dataclasses.replace(group, completions=[])) for group in batch.groups]
    for state, group in zip(groups, batch.groups, strict=True):
        # The arrays are rows of the rollout's tensors; the update fills them again.
        state["completions"] = [dataclasses.asdict(dataclasses.replace(c, arrays={})) for c in group.completions]
    return dict(groups=groups, logged=batch.logged, iteration=batch.iteration, rounds=batch.rounds, resampled=batch.resampled,
                temperature=batch.rollout.temperature)


def _batch_tensors(batch: Batch) -> dict[str, Tensor]:
    found = {f.name: getattr(batch.rollout, f.name) for f in dataclasses.fields(Rollout)}
    found |= {name: getattr(batch, name) for name in ("advantages", "old_logps", "ref_logps", "values", "returns")}
    return {name: value.detach().cpu().contiguous() for name, value in found.items() if isinstance(value, Tensor)}


def _restore_batch(state: dict[str, Any], tensors: dict[str, Tensor], device: torch.device) -> Batch:
    tensors = {name: value.clone().to(device) for name, value in tensors.items()}
    names = [f.name for f in dataclasses.fields(Rollout) if f.name in tensors]
    rollout = Rollout(**{name: tensors.pop(name) for name in names}, temperature=state["temperature"])
    return Batch(rollout, [_group(g, rollout) for g in state["groups"]], logged=state["logged"], iteration=state["iteration"],
                 rounds=state["rounds"], resampled=state["resampled"], **tensors)


def _group(state: dict[str, Any], rollout: Rollout) -> Group:
    completions = [Completion(**c) for c in state.pop("completions")]
    logps = rollout.sampling_logps[rollout.group_ids == state["index"]].cpu().numpy()
    for completion, row in zip(completions, logps, strict=True):
        completion.arrays["sampling_logps"] = row[: len(completion.token_ids)].copy()
    return Group(**state, completions=completions)
