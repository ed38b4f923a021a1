"""Checks that need a library which can hang on hostile text: they run in the locked worker, a row at a time if need be.

The files `check_*.py` beside this one are sent to the worker as source and never imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lab.rewards.contract import RewardError

SECONDS_PER_ROW = 1.0  # of computing; a check that takes longer has met a hostile text
MOST_HANGS = 5  # in one call; a policy that found out how to make a check hang must not make each step take minutes


class LockedCheck:
    """`check(texts, **columns)` → one float per text; a text on which the check hangs or crashes gets 0.

    After `MOST_HANGS` of them the texts not checked yet get None, and `log_extra` a sentence that names them: by their
    rows in the batch, which are `at` where the texts are only some `of` it.

    `needs` is the package to install when `preload` is missing. The worker starts at the first call.
    """

    def __init__(self, file: str, *, preload: Sequence[str] = (), needs: str = "", memory_gb: int = 1):
        missing = [module for module in preload if find_spec(module) is None]
        if missing:
            raise ValueError(f"it needs the package {needs}: pip install {needs}.")
        self.file, self.preload, self.memory_gb = file, tuple(preload), memory_gb
        self._host = None

    def __call__(self, texts: Sequence[str], *, at: Sequence[int] | None = None, of: int | None = None, log_extra: Callable | None = None,
                 **columns: Sequence[Any]) -> list[float | None]:
        """One value per text: 0.0 where the check hung on it, None where too many had hung before it. `at` and `of` place the texts
        among all completions, for `log_extra`."""
        verdicts: list[float | None] = [None] * len(texts)
        parts, hung = [list(range(len(texts)))], []
        while parts and len(hung) < MOST_HANGS:
            rows = parts.pop(0)
            try:
                for row, verdict in zip(rows, self._ask(texts, columns, rows), strict=True):
                    verdicts[row] = verdict
            except RewardError as error:
                if getattr(error, "kind", "") not in ("timeout", "memory", "crashed"):
                    raise
                place = 0 if len(rows) == 1 else error.row
                if place is None or place >= len(rows):  # nobody knows which: one by one
                    parts = [[row] for row in rows] + parts
                    continue
                verdicts[rows[place]] = 0.0
                hung.append(rows[place])
                parts = [part for part in (rows[:place], rows[place + 1:]) if part] + parts
        if parts and log_extra:
            at = range(len(texts)) if at is None else at
            left = sorted(at[row] for part in parts for row in part)
            said = _not_checked(sorted(at[row] for row in hung), left)
            log_extra("not checked", [said if row in left else None for row in range(len(at) if of is None else of)])
        return verdicts

    def _ask(self, texts, columns, rows: list[int]) -> list[float]:
        chosen = [texts[row] for row in rows]
        return self._worker().call("check", prompts=chosen, completions=chosen,
                                   columns={name: [values[row] for row in rows] for name, values in columns.items()}).scores

    def _worker(self):
        if self._host is None:
            from lab.rewards.sandbox import Limits, RewardHost

            # the libraries are ours to trust, so by the clock there is patience for a busy machine
            limits = Limits(start_seconds=120, load_cpu_seconds=30, wall_seconds=60, call_cpu_seconds=SECONDS_PER_ROW,
                            memory_bytes=self.memory_gb << 30)
            self._host = RewardHost(limits, preload=self.preload)
            self._host.load(Path(__file__).with_name(self.file).read_text(encoding="utf-8"), "check", self.file)
        return self._host


def _not_checked(hung: list[int], rows: list[int]) -> str:
    return (f"The check hung on {len(hung)} completions (rows {_listed(hung)}), and no more than that are waited for in one call: rows "
            f"{_listed(rows)} were not checked and have no score.")


def _listed(rows: list[int]) -> str:
    """Numbers as a person would write them: 3, 5–7."""
    runs: list[list[int]] = []
    for row in rows:
        if runs and row == runs[-1][1] + 1:
            runs[-1][1] = row
        else:
            runs.append([row, row])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs)
