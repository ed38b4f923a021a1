"""Task rows → groups a person can read: sampling with partial texts as events, scoring, advantages.

The trainer and the page's Sample button both come through here, so a group means the same in both. Leaves out the
update (`updating`) and the decoding itself (`rollout`).
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from lab.config import RunConfig
from lab.policy import Policy
from lab.records import Completion, Event, Group, GroupSampled, GroupScored, TokensSampled
from lab.rewards import Reward, TrainerState, resolve, scoring
from lab.rollout import Progress, Rollout, SamplingSettings, sample
from lab.rules.advantages import completion_kl
from lab.training.weigh import weigh

PREFILL_TOKENS = 16  # of the prompt's end: as many as a tag with white space may take


def sample_group(
    policy: Policy, config: RunConfig, prompts: Sequence[dict[str, Any]], adapter: str | None = None, *,
    reference: str | None = None, seed: int | None = None, greedy: bool = False, token_arrays: bool = True,
) -> Generator[Event, None, list[Group]]:
    """Sample, score and weigh one group for each row of `prompts`, without learning from it. Adapter None is the base.

    Yields TokensSampled, GroupSampled, RewardAwaited and GroupScored; the groups are also returned. `seed` None takes the config's.
    With `token_arrays` each completion has its log-probabilities under the adapter and under `reference`, the adapter that
    KL is measured against; None is the base here too. Raises RewardError when a reward function breaks.
    """
    settings = SamplingSettings.of(config, greedy=greedy)
    generator = seeded(config.seed if seed is None else seed)
    rollout, groups = yield from sample_groups(policy, config, prompts, adapter, settings, generator, step=0)
    kl = None
    if token_arrays or config.kl_placement == "reward":
        logps, entropy = policy.frozen_logps(rollout, adapter, max_tokens=config.micro_batch_tokens)
        ref_logps = logps
        if reference != adapter:
            ref_logps, _ = policy.frozen_logps(rollout, reference, max_tokens=config.micro_batch_tokens)
        attach(groups, rollout, logps=logps, old_logps=logps, ref_logps=ref_logps, entropy=entropy)
        kl = completion_kl(logps, ref_logps, rollout.completion_mask) if config.kl_placement == "reward" else None
    yield from scoring(resolve(config.rewards), config.weights, groups, system_prompt=config.system_prompt)
    weigh(groups, rollout, config, decode=policy.decode, kl=kl)
    for group in groups:
        yield GroupScored(0, group)
    return groups


def sample_groups(
    policy: Policy, config: RunConfig, rows: Sequence[dict[str, Any]], adapter: str | None, settings: SamplingSettings,
    generator: torch.Generator, step: int,
) -> Generator[Event, None, tuple[Rollout, list[Group]]]:
    """Sample one group for each task row. Yields TokensSampled while they are written, then GroupSampled for each."""
    prompts = [policy.prompt_ids(row["prompt"], config.system_prompt) for row in rows]
    shown = [_text_of_prompt(row["prompt"]) for row in rows]
    sampler = sample(policy, prompts, adapter, settings, generator)
    texts = _GrowingTexts(policy, len(rows) * settings.num_generations)
    while True:
        try:
            progress = next(sampler)
        except StopIteration as stop:
            rollout = stop.value
            break
        yield TokensSampled(step, texts.partial(progress, settings.num_generations), shown)
    groups = _groups(policy, rollout, rows, shown, prompts, settings.num_generations)
    for group in groups:
        yield GroupSampled(step, group)
    return rollout, groups


def score_groups(groups: list[Group], rewards: list[Reward], config: RunConfig, *, step: int) -> Generator[Event, None, dict[str, float]]:
    """Fill every completion's rewards; returns what functions logged themselves. Yields RewardAwaited. Raises RewardError."""
    state = TrainerState(global_step=step, max_steps=config.max_steps)
    return (yield from scoring(rewards, config.weights, groups, trainer_state=state, system_prompt=config.system_prompt))


def attach(groups: list[Group], rollout: Rollout, **arrays: Tensor) -> None:
    """Give each completion its row of each (N, T) tensor as float32 numpy, cut to its length."""
    on_cpu = {name: tensor.detach().float().cpu().numpy() for name, tensor in arrays.items()}
    completions = [c for group in groups for c in group.completions]
    for row, completion in enumerate(completions):
        for name, array in on_cpu.items():
            completion.arrays[name] = array[row, : len(completion.token_ids)].copy()


def seeded(*numbers: int) -> torch.Generator:
    """A CPU generator of its own for these numbers, for example (seed, number of the rollout)."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 6364136223846793005 + number + 1442695040888963407) % 2**63
    return torch.Generator().manual_seed(mixed)


def _groups(policy: Policy, rollout: Rollout, rows, shown, prompts, num_generations: int) -> list[Group]:
    ids, lengths, finished = rollout.completion_ids.tolist(), rollout.lengths.tolist(), rollout.finished.tolist()
    prefills = [prefill_of(policy, ids) for ids in prompts]
    rows = [row | {"prefill": begun} if begun else dict(row) for row, begun in zip(rows, prefills, strict=True)]
    groups = [Group(i, shown[i], prompts[i], row, []) for i, row in enumerate(rows)]
    for row, group in enumerate(rollout.group_ids.tolist()):
        tokens = ids[row][: lengths[row]]
        groups[group].completions.append(Completion(row % num_generations, policy.decode(tokens), tokens, finished[row]))
    attach(groups, rollout, sampling_logps=rollout.sampling_logps)
    return groups


def prefill_of(policy: Policy, prompt_ids: list[int]) -> str:
    """What the chat template has already written of the answer: an opened tag such as `<think>`; mostly nothing.

    A completion then begins inside the tag, and a reward that looks for the whole form in it alone would be 0 for ever: so
    reward functions get this as the column `prefill`.
    """
    opened = re.search(r"<\w+>\s*$", policy.decode(prompt_ids[-PREFILL_TOKENS:]))
    return opened[0] if opened else ""


def _text_of_prompt(prompt: str | list[dict]) -> str:
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


class _GrowingTexts:
    """Texts of completions being written, decoded a few tokens at a time.

    A character of several bytes may be spread over tokens, and some tokenizers treat a first word specially: so each
    addition is decoded together with the piece before it, and an unfinished character waits.
    """

    def __init__(self, policy: Policy, count: int):
        self._decode = policy.decode
        self._text = [""] * count
        self._prefix = [0] * count  # where the piece before the new tokens starts
        self._read = [0] * count  # how many tokens are in the text

    def partial(self, progress: Progress, num_generations: int) -> list[tuple[int, int, str, int, bool]]:
        """What TokensSampled carries, for every row."""
        result = []
        for row, (tokens, ended) in enumerate(zip(progress.tokens, progress.ended, strict=True)):
            if len(tokens) > self._read[row]:
                self._extend(row, tokens)
            result.append((*divmod(row, num_generations), self._text[row], len(tokens), ended))
        return result

    def _extend(self, row: int, tokens: list[int]) -> None:
        before = self._decode(tokens[self._prefix[row] : self._read[row]])
        after = self._decode(tokens[self._prefix[row] :])
        if after.endswith("\ufffd"):
            return
        self._text[row] += after[len(before) :]
        self._prefix[row], self._read[row] = self._read[row], len(tokens)
