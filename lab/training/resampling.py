"""Groups that teach nothing, sampled again: which prompts come instead, and how the new groups take the old ones' places.

DAPO's dynamic sampling (arXiv 2503.14476) takes new prompts; `replace` takes prompts that had signal before, the hardest
first. Leaves out when this happens (`collecting`) and how likely it is needed (`dead_groups`).

    N rows · T completion tokens · P prompt tokens
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from lab.records import Event, Group, GroupSampled, TokensSampled
from lab.rollout import Rollout

MOST_KEPT = 64  # prompts


class HardPrompts:
    """Rows of prompts whose last group had signal, with that group's mean reward."""

    def __init__(self, kept: Sequence[Sequence[Any]] = ()):
        self.kept: list[tuple[float, dict[str, Any]]] = [(mean, row) for mean, row in kept]

    def remember(self, groups: Sequence[Group]) -> None:
        """Keep the prompts of live groups; the newest `MOST_KEPT`."""
        self.kept = (self.kept + [(g.mean, g.row) for g in groups if not g.dead and g.mean is not None])[-MOST_KEPT:]

    def hardest(self, count: int) -> list[dict[str, Any]]:
        """At most `count` rows, lowest mean reward first."""
        return [row for _, row in self._ordered()[:count]]

    def forget_hardest(self, count: int) -> None:
        """They are being asked again; with signal they will be remembered anew."""
        self.kept = self._ordered()[count:]

    def _ordered(self) -> list[tuple[float, dict[str, Any]]]:
        return sorted(self.kept, key=lambda entry: entry[0])


def sample_again(stream: Generator[Event, None, tuple[Rollout, list[Group]]], groups: Sequence[Group],
                 places: Sequence[int]) -> Generator[Event, None, tuple[Rollout, list[Group]]]:
    """The events of `sampling.sample_groups`, told under the numbers of the groups whose places are taken."""
    while True:
        try:
            event = next(stream)
        except StopIteration as stop:
            return stop.value
        if isinstance(event, TokensSampled):
            prompts = [group.prompt for group in groups]
            for place, prompt in zip(places, event.prompts, strict=True):
                prompts[place] = prompt
            event = TokensSampled(event.step, [(places[g], *rest) for g, *rest in event.partial], prompts)
        if isinstance(event, GroupSampled):
            event.group.index = places[event.group.index]
        yield event


def put_in_place(rollout: Rollout, new: Rollout, places: Sequence[int]) -> Rollout:
    """`rollout` with group places[j] taken by group j of `new`; both have the same number of completions per group."""
    rows = torch.cat([(rollout.group_ids == place).nonzero().squeeze(1) for place in places])
    new_rows = torch.cat([(new.group_ids == j).nonzero().squeeze(1) for j in range(len(places))])
    prompts, new_prompts = torch.tensor(list(places), device=rows.device), torch.arange(len(places), device=rows.device)
    return Rollout(
        prompt_ids=_replaced(rollout.prompt_ids, prompts, new.prompt_ids, new_prompts, left=True),
        prompt_mask=_replaced(rollout.prompt_mask, prompts, new.prompt_mask, new_prompts, left=True),
        completion_ids=_replaced(rollout.completion_ids, rows, new.completion_ids, new_rows),
        completion_mask=_replaced(rollout.completion_mask, rows, new.completion_mask, new_rows),
        finished=rollout.finished.index_copy(0, rows, new.finished[new_rows]),
        sampling_logps=_replaced(rollout.sampling_logps, rows, new.sampling_logps, new_rows),
        group_ids=rollout.group_ids, temperature=rollout.temperature,
    )


def _replaced(old: Tensor, rows: Tensor, new: Tensor, new_rows: Tensor, left: bool = False) -> Tensor:
    """Rows of `old` overwritten by rows of `new`, both padded with 0 to the wider of the two."""
    width = max(old.shape[1], new.shape[1])
    old, new = (pad(t, (width - t.shape[1], 0) if left else (0, width - t.shape[1])) for t in (old, new))
    return old.index_copy(0, rows, new[new_rows])
