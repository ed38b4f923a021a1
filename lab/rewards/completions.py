"""Completions to try a reward on: of a stored run, of a JSONL, or typed. Whole groups, newest first where there is a choice."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from lab.errors import read_text
from lab.records import Completion, Group
from lab.rewards.contract import text_of
from lab.store import Store

MOST_LINES = 10_000


def groups_of(on: Any, count: int = 128) -> list[Group]:
    """Groups from whatever a person has: see `bench`."""
    if hasattr(on, "store") and hasattr(on, "run"):  # an open run
        return newest_groups(on.store, on.id, count)
    if isinstance(on, (str, os.PathLike)):
        return read_completions(Path(on))
    on = list(on)
    if all(isinstance(each, Group) for each in on):
        return on
    if all(isinstance(each, str) for each in on):
        return [typed_group("", on)]
    raise ValueError("A reward is tried on groups, an open run, the path of a JSONL, or a list of texts.")


def newest_groups(store: Store, run: str, count: int = 128, step: int | None = None) -> list[Group]:
    """Groups of the newest steps, up to `step` if given, until `count` completions are there; one group at least where there is any."""
    newest = store.run(run)
    last = newest.step if newest else 0
    found: list[Group] = []
    for number in range(last if step is None else min(step, last), 0, -1):
        record = store.step(run, number)
        for group in record.groups if record else []:
            if found and sum(len(g.completions) for g in found) + len(group.completions) > count:
                return found
            found.append(group)
    return found


def typed_group(prompt: str, texts: Sequence[str], row: dict[str, Any] | None = None) -> Group:
    """Texts as the completions of one prompt. Their tokens are not known, so words stand for them."""
    completions = [Completion(i, text, list(range(len(text.split()))), True) for i, text in enumerate(texts)]
    return Group(0, prompt, [], {"prompt": prompt, **(row or {})}, completions)


def read_completions(path: Path) -> list[Group]:
    """A JSONL with `prompt` and `completion` in each line, and any further columns; neighbours with the same prompt and columns
    are a group. Texts or lists of messages. ValueError names the line that cannot be read."""
    rows = [_row(line, number, path) for number, line in enumerate(read_text(path).split("\n"), start=1) if line.strip()]
    if not rows:
        raise ValueError(f"{path} is empty: it needs lines with prompt and completion.")
    if len(rows) > MOST_LINES:
        raise ValueError(f"{path} has {len(rows):,} completions; the bench takes at most {MOST_LINES:,}.")
    return [dataclasses.replace(typed_group(prompt, [text for text, _ in members], columns), index=place, row=columns)
            for place, (prompt, columns, members) in enumerate(_neighbours(rows))]


def _row(line: str, number: int, path: Path) -> tuple[str, dict[str, Any]]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}, line {number}: not JSON ({error}).") from None
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), (str, list)) or not isinstance(row.get("completion"), (str, list)):
        raise ValueError(f"{path}, line {number}: a line needs a prompt and a completion, each a text or a list of messages.")
    return text_of(row.pop("completion")), row


def _neighbours(rows: list[tuple[str, dict[str, Any]]]):
    for columns, members in groupby(rows, key=lambda row: row[1]):
        prompt = columns["prompt"]
        yield prompt if isinstance(prompt, str) else text_of(prompt[-1:]), columns, list(members)
