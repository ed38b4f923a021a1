"""Trying rewards for the page: one locked worker per function of an owner's own, in threads of their own, the newest save first.

A reward that loops or waits costs its owner the deadline, and nobody else anything: it runs in another process, the thread
that waits for it is none of those that answer the page, and the owner's next save ends it at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

from lab.rewards import RewardError, RewardNotFound, resolve
from lab.rewards.bench import Column, Failure, fresh, hostile_texts, score_rows
from lab.rewards.resolve import Reward, short_name
from lab.rewards.sandbox import RewardHost, SandboxedReward
from lab.rewards.signature import check_source
from lab.storage.rewards import VERSION, RewardShelf
from lab.web.actions import ActionError
from lab.web.reward.sources import Source

THREADS = 8
REMEMBERED = 64  # scores of one source on one set of completions; a weight moved or a version looked at again asks nobody
NOT_HERE = ("by_hand", "judge", "reward_model")  # need a person, a network or a model: they score in a run, not on the bench
END = getattr(signal, "SIGKILL", signal.SIGTERM)


class Overtaken(Exception):
    """The same owner has saved again: nobody waits for this answer any more."""


class Benches:
    """The benches of all owners."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="reward-bench")
        self._newest: dict[str, int] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._hosts: dict[str, RewardHost] = {}
        self._scores: OrderedDict[tuple, tuple[Column, Column | None]] = OrderedDict()
        self._saved: dict[str, list[str]] = {}  # per owner the last two sources that were saved, the newer last

    async def run(self, owner: str, job: Callable[[], Any]) -> Any:
        """`job` in a thread. An owner's newer job ends the one that goes on and overtakes those that wait: they raise Overtaken."""
        mine = self._newest[owner] = self._newest.get(owner, 0) + 1
        self._end_running(owner)
        async with self._turns.setdefault(owner, asyncio.Lock()):
            if self._newest[owner] == mine:
                answer = await asyncio.get_running_loop().run_in_executor(self._pool, job)
            if self._newest[owner] != mine:
                raise Overtaken
            return answer

    def close(self) -> None:
        """Ends every worker; what is still being scored is given up."""
        for owner in list(self._hosts):
            self._end_running(owner)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def previous(self, owner: str, source: str) -> str | None:
        """The source that was saved before this one, which is remembered as the newest."""
        saved = self._saved.setdefault(owner, [])
        if not saved or saved[-1] != source:
            self._saved[owner] = saved = [*saved[-1:], source]
        return saved[0] if len(saved) == 2 else None

    def own(self, owner: str, source: str, on: Source, function: str | None = None) -> tuple[Column, Column | None]:
        """Scores of a person's source on the completions and, unless it failed as a whole, on the hostile set."""
        key = owner, sha256(source.encode("utf-8", "replace")).digest(), function, on.key
        if key not in self._scores:
            self._scores[key] = self._ask_own(owner, source, on, function)
            while len(self._scores) > REMEMBERED:
                self._scores.popitem(last=False)
        self._scores.move_to_end(key)
        return self._scores[key]

    def _ask_own(self, owner: str, source: str, on: Source, function: str | None) -> tuple[Column, Column | None]:
        groups = fresh(on.groups)
        count = sum(len(group.completions) for group in groups)
        check = check_source(source)
        if check.main is None:
            problem = check.problems[0]
            return Column("reward", [None] * count, [Failure(None, problem.line, problem.message)], 0.0), None
        name = function or check.main.name
        with RewardHost() as host:
            self._hosts[owner] = host
            try:
                found = next(f for f in host.load(source, name, f"{name}.py").functions)
                heard = _Heard(host)
                reward = Reward(name, SandboxedReward(heard, found), doc=found.doc)
                column = score_rows(reward, groups, on.system_prompt)
                column.seconds, column.printed = heard.cpu_seconds, heard.printed
                hopeless = any(failure.row is None for failure in column.failures)
                return column, None if hopeless else score_rows(reward, hostile_texts(groups[0])[1], on.system_prompt)
            except RewardError as error:
                failure = Failure(None, getattr(error, "line", None), error.message, getattr(error, "traceback", ""))
                return Column(name, [None] * count, [failure], 0.0), None
            finally:
                if self._hosts.pop(owner, None) is not host:  # ended from outside: what came of it says nothing about the source
                    raise Overtaken

    def _end_running(self, owner: str) -> None:
        host = self._hosts.pop(owner, None)
        pid = host.worker_pid if host is not None else None
        if pid is not None:
            try:
                os.kill(pid, END)
            except OSError:
                pass  # it has just ended by itself


class _Heard:
    """A host that remembers what the last whole call printed and cost."""

    def __init__(self, host: RewardHost):
        self._host, self.printed, self.cpu_seconds = host, "", 0.0

    def call(self, function: str, **given: Any):
        try:
            result = self._host.call(function, **given)
        except RewardError as error:
            self.printed = self.printed or getattr(error, "printed", "")
            raise
        self.printed, self.cpu_seconds = self.printed or result.printed, max(self.cpu_seconds, result.cpu_seconds)
        return result


def score_builtin(written: str, on: Source) -> tuple[Column, Column | None]:
    """A built-in of the lab on the completions and the hostile set. Its code is ours, so it runs here."""
    groups = fresh(on.groups)
    try:
        (reward,) = resolve(written)
    except RewardNotFound as error:
        raise ActionError(str(error)) from error
    column = score_rows(reward, groups, on.system_prompt)
    hopeless = any(failure.row is None for failure in column.failures)
    return column, None if hopeless else score_rows(reward, hostile_texts(groups[0])[1], on.system_prompt)


def score_all(benches: Benches, shelf: RewardShelf, owner: str, source: str, functions: list[str], on: Source,
              against: str | None) -> dict[str, Any]:
    """What the page draws: the completions, every function's values and failures on them and on the hostile set, and those of the
    version it is compared with. Totals and advantages are made in the browser, so that a weight moves them at once."""
    started = time.perf_counter()
    previous = benches.previous(owner, source)
    columns = [("mine", *benches.own(owner, source, on))]
    columns += [(written, *_other(benches, shelf, owner, written, on)) for written in functions]
    compared = _compared(benches, shelf, owner, against, previous, on)
    attempts, _ = hostile_texts(fresh(on.groups)[0])
    return {
        "source": source,
        "on": {"label": on.label, "key": on.key, "columns": on.columns, "step": on.step, "scale_rewards": on.scale_rewards},
        "groups": [{"prompt": g.prompt[:2000], "answer": g.row.get("answer"), "completions": [
            {"text": c.text[:2000], "tokens": len(c.token_ids), "finished": c.finished} for c in g.completions]} for g in on.groups],
        "functions": [column_view(written, column, hostile) for written, column, hostile in columns],
        "against": compared, "check": check_source(source, on.columns).to_dict(),
        "hostile": [{"kind": a.kind, "text": a.text[:400], "why": a.why} for a in attempts],
        "seconds": time.perf_counter() - started,
    }


def column_view(written: str, column: Column, hostile: Column | None) -> dict[str, Any]:
    """Values are null where the function failed and where it does not apply: `failures` tells which."""
    return {"written": written, "name": column.name, "doc": column.doc, "values": column.values, "failures": _failures(column),
            "seconds": column.seconds, "printed": column.printed[:4000],
            "hostile": hostile.values if hostile else None, "hostile_failures": _failures(hostile) if hostile else []}


def _failures(column: Column) -> list[dict[str, Any]]:
    """Rows that failed alike stand together; `rows` null is every one."""
    alike: dict[tuple, dict[str, Any]] = {}
    for f in column.failures:
        entry = alike.setdefault((f.line, f.message), {"rows": [], "line": f.line, "message": f.message, "traceback": f.traceback[:4000]})
        entry["rows"] = None if f.row is None else [*entry["rows"], f.row]
    return list(alike.values())


def _other(benches: Benches, shelf: RewardShelf, owner: str, written: str, on: Source) -> tuple[Column, Column | None]:
    match = VERSION.fullmatch(written.strip())
    if match is None:
        if ".py" in written:
            raise ActionError("A file of this computer cannot be tried here: import it into the editor.")
        if short_name(written) in NOT_HERE:
            raise ActionError(f"{short_name(written)} needs a person, a network or a model: it scores in a run, not here.")
        return score_builtin(written, on)
    version = shelf.version(owner, match[0])
    return benches.own(owner, version.source, on, version.name)


def _compared(benches: Benches, shelf: RewardShelf, owner: str, against: str | None, previous: str | None,
              on: Source) -> dict[str, Any] | None:
    if not against or (against == "previous" and previous is None):
        return None
    if against == "previous":
        return {"title": "the save before"} | column_view(against, *benches.own(owner, previous, on))
    version = shelf.version(owner, against)
    return {"title": version.label} | column_view(against, *benches.own(owner, version.source, on, version.name))
