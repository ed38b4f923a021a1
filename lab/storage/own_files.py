"""Files that a run needs and that lie in its runs folder: copies of its reward files, and prepared data sets.

Settings name such a file by its whole path. Where the runs folder was moved or copied, `at_home` names the file that came
along, so that runs, resumes, branches and evaluations go on there. Leaves out who writes the files (`lab.storage.rewards`,
`lab.storage.datasets`) and who reads them (`lab.rewards`, `lab.tasks`).
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.config import REWARD_FIELDS, RunConfig

REWARDS, DATA = "rewards", "data"  # folders: of a run, and of all runs
READ_ONLY = 0o444
REWARD_FILE = re.compile(r"(?P<path>.+\.py)(?P<function>:\w+)?", re.DOTALL)
KEPT_REWARD = re.compile(rf".*[\\/]{REWARDS}[\\/](?P<name>[^\\/]+\.py)(?P<function>:\w+)?", re.DOTALL)
KEPT_DATA = re.compile(rf".*[\\/]{DATA}[\\/](?P<name>[^\\/]+)", re.DOTALL)


def keep_reward_files(config: RunConfig, folder: Path) -> RunConfig:
    """Copies every reward file that the settings name into the run's `folder`; the returned settings name the copies."""
    copies = {field: kept(getattr(config, field), folder) for field in REWARD_FIELDS}
    return config if all(copies[field] == getattr(config, field) for field in REWARD_FIELDS) else config.replace(**copies)


def kept(rewards: Sequence[Any], folder: Path) -> tuple[Any, ...]:
    """The rewards with every file as its copy in `<folder>/rewards/`. Copies never change: a file whose name is taken by one
    with other contents gets a digest behind its name. What is no file, or is not there, stays as it is."""
    return tuple(_kept(reward, folder.resolve() / REWARDS) for reward in rewards)


def at_home(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Settings of the run in `folder` that name its own copies of reward files, and data sets beside it, where they are now."""
    rewards = {field: [_own_reward(reward, folder) for reward in settings[field]]
               for field in REWARD_FIELDS if isinstance(settings.get(field), (list, tuple))}
    rows = {name: _own_data(settings[name], folder.parent) for name in ("task", "cold_start") if isinstance(settings.get(name), str)}
    return {**settings, **rewards, **rows}


def _kept(reward: Any, folder: Path) -> Any:
    match = REWARD_FILE.fullmatch(str(reward)) if isinstance(reward, (str, Path)) else None
    if match is None or not Path(match["path"]).is_file():
        return reward
    path = Path(match["path"])
    copy = folder / path.name
    if copy.is_file() and copy.read_bytes() != path.read_bytes():
        copy = copy.with_stem(f"{path.stem}-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}")
    if not copy.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        copy.chmod(READ_ONLY)
    return f"{copy}{match['function'] or ''}"


def _own_reward(reward: Any, folder: Path) -> Any:
    match = KEPT_REWARD.fullmatch(reward) if isinstance(reward, str) else None
    own = match and folder.resolve() / REWARDS / match["name"]
    return f"{own}{match['function'] or ''}" if own and own.is_file() else reward


def _own_data(rows: str, runs: Path) -> str:
    match = KEPT_DATA.fullmatch(rows)
    own = match and runs.resolve() / DATA / match["name"]
    return str(own) if own and own.is_file() and not Path(rows).is_file() else rows
