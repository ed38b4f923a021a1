"""Checks that need a library which can hang on hostile text: they run in the locked worker, a row at a time if need be.

The files `check_*.py` beside this one are sent to the worker as source and never imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lab.rewards.contract import RewardError

SECONDS_PER_ROW = 1.0  # of computing; a check that takes longer has met a hostile text


class LockedCheck:
    """`check(texts, **columns)` → one float per text; a text on which the check hangs or crashes gets 0.

    `needs` is the package to install when `preload` is missing. The worker starts at the first call.
    """

    def __init__(self, file: str, *, preload: Sequence[str] = (), needs: str = "", memory_gb: int = 1):
        missing = [module for module in preload if find_spec(module) is None]
        if missing:
            raise ValueError(f"it needs the package {needs}: pip install {needs}.")
        self.file, self.preload, self.memory_gb = file, tuple(preload), memory_gb
        self._host = None

    def __call__(self, texts: Sequence[str], **columns: Sequence[Any]) -> list[float]:
        verdicts = [0.0] * len(texts)
        left = list(range(len(texts)))
        while left:
            try:
                for row, verdict in zip(left, self._ask(texts, columns, left), strict=True):
                    verdicts[row] = verdict
                break
            except RewardError as error:
                if getattr(error, "kind", "") not in ("timeout", "memory", "crashed"):
                    raise
                if len(left) == 1:
                    break
                left = self._without_culprit(texts, columns, left, error.row, verdicts)
        return verdicts

    def _without_culprit(self, texts, columns, left: list[int], culprit: int | None, verdicts: list[float]) -> list[int]:
        """The rows still to check: without the one that hung, or, if nobody knows which, after asking one by one."""
        if culprit is not None and culprit < len(left):
            return left[:culprit] + left[culprit + 1:]
        for row in left:
            verdicts[row] = self([texts[row]], **{name: [values[row]] for name, values in columns.items()})[0]
        return []

    def _ask(self, texts, columns, rows: list[int]) -> list[float]:
        chosen = [texts[row] for row in rows]
        return self._worker().call("check", prompts=chosen, completions=chosen,
                                   columns={name: [values[row] for row in rows] for name, values in columns.items()}).scores

    def _worker(self):
        if self._host is None:
            from lab.rewards.sandbox import Limits, RewardHost

            # the libraries are ours to trust, so by the clock there is patience for a busy machine
            limits = Limits(start_seconds=120, wall_seconds=60, call_cpu_seconds=SECONDS_PER_ROW, memory_bytes=self.memory_gb << 30)
            self._host = RewardHost(limits, preload=self.preload)
            self._host.load(Path(__file__).with_name(self.file).read_text(encoding="utf-8"), "check", self.file)
        return self._host
