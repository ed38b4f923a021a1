"""Which way log-probabilities are made and completions sampled: the fastest body that agrees with the plain path here.

The plain path (padded rows through the model's own forward) is right for nearly every architecture, and a model for which it
is not is refused. A fast body is used only if, on this very model, it gives the plain path's log-probabilities and samples by
them; otherwise a sentence says why not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lab.forward.blocks import LlamaBody
from lab.forward.bodies import Attend, Body, HuggingFaceBody
from lab.forward.merged import MergedBody, copy_bytes, is_known
from lab.memory import free
from lab.models.registry import ModelError
from lab.planner import COPY_ROOM
from lab.rollout import Rollout, SamplingSettings, pad_left

if TYPE_CHECKING:
    from lab.policy import Policy

# Largest difference of a log-probability. 16-bit and 4-bit bases round differently with every order of summation, single
# tokens by up to half a unit: there the mean counts, which rounding leaves near 0.1 and one position too many makes 0.35.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
TOLERANCE_ROUNDED = 0.2
PROMPTS = (9, 5)  # lengths of the invented prompts
UNPADDED = (0, 3)  # rows of the invented rollout, one of each prompt, that the model also reads alone
WINDOWS = ("sliding_window", "attention_chunk_size")  # where transformers' masks find how far a layer sees
GRAPHS = " and CUDA graphs"  # ends the name of a way that samples with them (`static_decode`)


@dataclass(frozen=True)
class FastPath:
    """The body that makes log-probabilities (None: the plain path), whether a merged copy may sample, a sentence why,
    and whether sampling replays CUDA graphs.

    It holds for sequences of up to `longest` tokens: beyond it a model with a sliding window no longer sees all of them.
    """

    body: Body | None
    merges: bool
    reason: str
    longest: float = math.inf
    graphs: bool = False

    @property
    def way(self) -> str:
        """A name for the choice, kept with a run so that it goes on in the same way."""
        if self.body is None:
            return "plain"
        if not isinstance(self.body, LlamaBody):
            return "shared"
        return ("own with a merged copy" if self.merges else "own") + (GRAPHS if self.graphs else "")

    def takes(self, tokens: int) -> bool:
        """Whether sequences of this many tokens, prompt included, may go the fast way."""
        return self.body is not None and tokens <= self.longest

    def sampler(self, model: nn.Module, adapter: str | None) -> Body:
        """The body for sampling one batch with an adapter as it is now."""
        return MergedBody(model, adapter) if self.merges else self.body


@torch.no_grad()
def choose(policy: Policy, way: str | None = None) -> FastPath:
    """The fastest path that gives the plain path's log-probabilities and samples by them, tried on a small invented rollout.

    `way` is what a run that goes on had before: its body is not bettered, and free memory is not asked again. Raises
    ModelError for a model on which even the plain path does not give the model's own numbers.
    """
    rollout = _probe(policy)
    plain = _plain_logps(policy, rollout)
    why = ""
    for make in _candidates(policy, way and way.removesuffix(GRAPHS)):
        try:
            path = make(why)
            why = (path.body and _logp_problem(policy, path.body, rollout, plain)) or _sampling_problem(policy, path)
        except Exception as error:  # any architecture may refuse in any way; the next one is always left
            why = f"it refuses ({type(error).__name__}: {error})"
        if not why:
            return path
    raise ModelError(f"{policy.name} ({type(policy.model).__name__}) cannot be sampled here: {why}.")


def _candidates(policy: Policy, way: str | None) -> Iterator[Callable[[str], FastPath]]:
    """What makes each path that may be taken, given what was wrong with the one before: the fastest first, the plain one last."""
    model = policy.model
    before = model.config._attn_implementation
    if way not in ("plain", "shared") and is_known(model):
        own = FastPath(LlamaBody(model), False, "Fast path: prompts are shared by their group and layers are our own. "
                                                "Checked against the plain path.")
        # Decided once, not by what is free from batch to batch: a run must not change its way of sampling.
        if way == "own with a merged copy" if way else COPY_ROOM * copy_bytes(model) < free(policy.device):
            yield lambda why: replace(own, merges=True)
        yield lambda why: own
    if way != "plain":
        config = model.config.get_text_config()
        window = min(getattr(config, name, None) or math.inf for name in WINDOWS)
        yield lambda why: FastPath(HuggingFaceBody(model, policy.adapters), False,
                                   "Fast path: prompts are shared by their group. Checked against the plain path.", window)

    def plain(why: str) -> FastPath:
        model.set_attn_implementation(before)
        return FastPath(None, False, f"Plain path: this architecture does not run with shared prompts, {why}." if why else
                        "Plain path, as when this run began.")

    yield plain


def _plain_logps(policy: Policy, rollout: Rollout) -> Tensor:
    """The plain path's log-probabilities (N, T), after a comparison with the model's own forward of rows without padding.

    Body and head are called apart from each other and rows are padded on the left: neither may change a number.
    """
    logps = policy.plain_logps(rollout, None)[0]
    for row in UNPADDED:
        prompt = rollout.prompt_ids[rollout.group_ids[row]][rollout.prompt_mask[rollout.group_ids[row]].bool()]
        written = rollout.completion_ids[row, : rollout.lengths[row]]
        ids = torch.cat([prompt, written])[None]
        own = policy.logits(policy.trunk(input_ids=ids, use_cache=False).last_hidden_state).float()
        theirs = policy.model(input_ids=ids, use_cache=False).logits.float()
        if own.shape != theirs.shape or not torch.allclose(own, theirs, rtol=1e-2, atol=5e-2 * theirs.std().item()):
            raise ModelError(f"{policy.name} makes its logits in a way that is not known here "
                             f"({type(policy.model).__name__}), so its log-probabilities would be wrong.")
        alone = theirs[0, len(prompt) - 1 : -1].log_softmax(-1).gather(-1, written[:, None]).squeeze(-1)
        if differ(alone, logps[row, : len(written)], policy):
            raise ModelError(f"{policy.name} ({type(policy.model).__name__}) gives other log-probabilities when its prompts are "
                             f"padded on the left, so it cannot be trained here.")
    return logps


def _logp_problem(policy: Policy, body: Body, rollout: Rollout, plain: Tensor) -> str | None:
    """What is wrong with the log-probabilities that a body makes on this model; None if nothing is.

    In 16 bits a missing mask can be smaller than rounding, so what it does is looked at, too: each layer attends once.
    """
    layers: list[int] = []

    def noting(ids: Tensor, positions: Tensor, attend: Attend, adapter: str | None) -> Tensor:
        def noted(layer: int, *others) -> Tensor:
            layers.append(layer)
            return attend(layer, *others)

        return body(ids, positions, noted, adapter)

    logps = policy.packed_logps(rollout, None, noting)[0]
    if layers != list(range(policy.model.config.get_text_config().num_hidden_layers)):
        return "not every layer attends just once through transformers' attention interface"
    gap = differ(*(x[rollout.completion_mask.bool()] for x in (logps, plain)), policy)
    return gap and f"its log-probabilities differ by {gap:.2g} there"


def _sampling_problem(policy: Policy, path: FastPath) -> str | None:
    """What is wrong with a few tokens sampled by a path; None if their log-probabilities are those that it trains with."""
    policy.fast = path
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, policy.vocab_size, (length,), generator=generator).tolist() for length in PROMPTS]
    decoding = policy.decoding(prompts, None, SamplingSettings(num_generations=2, max_completion_length=3), generator)
    while decoding.writing:
        decoding.advance()
    rollout = decoding.rollout()
    gap = differ(*(x[rollout.completion_mask.bool()] for x in (rollout.sampling_logps, policy.logps(rollout, None)[0])), policy)
    return gap and f"its log-probabilities differ by {gap:.2g} when it samples"


def differ(logps: Tensor, others: Tensor, policy: Policy) -> float | None:
    """By how much the log-probabilities of the same tokens, made in two ways, differ; None if that is rounding."""
    gaps = (logps - others).abs().nan_to_num(math.inf)
    exact = None if policy.load_in_4bit else TOLERANCE.get(policy.dtype)
    gap, limit = (gaps.mean(), TOLERANCE_ROUNDED) if exact is None else (gaps.max(), exact)
    return None if gap <= limit else gap.item()


def _probe(policy: Policy) -> Rollout:
    """Two prompts of different length with three and two completions of different lengths, all of random tokens."""
    generator = torch.Generator().manual_seed(0)

    def words(count: int) -> list[int]:
        return torch.randint(0, policy.vocab_size, (count,), generator=generator).tolist()

    prompt_ids, prompt_mask = pad_left([words(length) for length in PROMPTS], policy.pad_id, policy.device)
    lengths = torch.tensor([6, 1, 4, 7, 3], device=policy.device)
    ids = torch.tensor([words(7) for _ in lengths], device=policy.device)
    return Rollout(
        prompt_ids=prompt_ids, prompt_mask=prompt_mask, completion_ids=ids,
        completion_mask=(torch.arange(7, device=policy.device) < lengths[:, None]).long(),
        finished=torch.ones(5, dtype=torch.bool, device=policy.device), sampling_logps=torch.zeros(5, 7, device=policy.device),
        group_ids=torch.tensor([0, 0, 0, 1, 1], device=policy.device), temperature=1.0,
    )
