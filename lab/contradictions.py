"""Settings that are fine one by one and cannot be meant together, each refused with a sentence that says what to change;
and settings that work but bias what is learned, told in words.

Leaves out ranges and choices of a single setting, which stand with the field in `config`. Standard library only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.config import RunConfig

CLIPPED_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
ON_POLICY = {"cispo": "bnpo", "sapo": "grpo", "vespo": "bnpo", "dppo": "bnpo", "dppo_kl": "bnpo"}  # same gradient where all ratios are 1


def contradiction(config: RunConfig) -> str | None:
    """The first contradiction among the settings, as a sentence; None if there is none."""
    return next((sentence for holds, sentence in _rules(config) if holds), None)


def cautions(config: RunConfig) -> list[str]:
    """What works and is yet worth a second thought, in sentences for page and terminal."""
    from lab.config import with_labels

    told = [_cut_draw(config), _idle_cold_start(config), _idle_ratio(config)]
    return [with_labels(sentence) for sentence in told if sentence]


def _cut_draw(config: RunConfig) -> str | None:
    cuts = [name for name, on in (("top-k", config.top_k), ("top-p", config.top_p < 1), ("min-p", config.min_p)) if on]
    if not cuts:
        return None
    verb = "cuts" if len(cuts) == 1 else "cut"
    return (f"{' and '.join(cuts)} {verb} unlikely tokens off, so completions are not drawn from the policy that is trained: the "
            "probability ratio and KL are biased.")


def _idle_cold_start(config: RunConfig) -> str | None:
    if config.cold_start is None or config.cold_start_steps:
        return None
    return "Cold-start examples are given, but Cold-start steps is 0: they are not used. Set cold_start_steps to 20, for example."


def _idle_ratio(c: RunConfig) -> str | None:
    """On-policy every ratio is exactly 1, and what acts on ratios alone has nothing to act on."""
    idle = [sentence for holds, sentence in (
        (c.importance_sampling_level == "sequence", "importance_sampling_level sequence does what token does"),
        (c.loss_type in ON_POLICY, f"loss_type {c.loss_type} has the gradient of {ON_POLICY.get(c.loss_type)}"),
        (c.epsilon_high not in (None, c.epsilon) and c.loss_type not in ON_POLICY, "epsilon_high never acts"),
        (c.delta is not None, "delta never acts"),
        (c.off_policy_mask_threshold is not None, "off_policy_mask_threshold never acts"),
    ) if holds]
    if c.num_iterations > 1 or not idle:
        return None
    return f"num_iterations is 1, so every probability ratio is 1: {', '.join(idle)}. With 2 or more the difference shows."


def _rules(c: RunConfig) -> list[tuple[bool, str]]:
    paid_nothing = c.reward_weights is not None and not any(c.reward_weights)
    level, high = c.importance_sampling_level, c.epsilon if c.epsilon_high is None else c.epsilon_high
    return [
        (paid_nothing, "reward_weights is 0 for every reward function, so nothing could be learned: give one of them a weight."),
        (c.loss_type in ("vespo", "dppo", "dppo_kl") and level == "sequence",
         f"loss_type is {c.loss_type}, which makes its own weights from single tokens: set importance_sampling_level to token."),
        (c.loss_type == "luspo" and level == "token",
         "loss_type is luspo, which is made for one ratio per completion: set importance_sampling_level to sequence."),
        (c.loss_type == "cispo" and high < 1,
         f"epsilon_high is {c.epsilon_high}, but for loss_type cispo it is the largest ratio that counts, not a distance from 1: "
         f"set it to 5, for example. Below 1 it would throttle every token."),
        (c.delta is not None and c.loss_type not in CLIPPED_LOSSES,
         f"delta is {c.delta}, but loss_type {c.loss_type} has no clip for it to act on: leave delta at none."),
        (c.delta is not None and c.delta <= 1 + c.epsilon,
         f"delta is {c.delta}, inside the clip at 1 + epsilon = {1 + c.epsilon:g}: choose a larger one, such as 4, or none."),
        (c.multi_objective_aggregation == "normalize_then_sum" and (c.advantage_rule, c.scale_rewards) != ("grpo", "group"),
         "multi_objective_aggregation is normalize_then_sum, which has its own rule and scaling: set advantage_rule to grpo and "
         "scale_rewards to group."),
        (c.algorithm == "grpo" and c.advantage_rule != "grpo" and any(map(_of_single_steps, c.rewards)),
         f"advantage_rule is {c.advantage_rule}, but rewards of single steps (each=True) are compared by GRPO's own rule: set "
         f"advantage_rule to grpo, or reward whole completions."),
        (c.kl_placement == "reward" and c.multi_objective_aggregation == "normalize_then_sum",
         "kl_placement is reward, which needs one total reward to be taken from: set multi_objective_aggregation to "
         "sum_then_normalize."),
        (c.kl_placement == "reward" and c.advantage_rule == "maxrl",
         "kl_placement is reward, which makes rewards negative, and advantage_rule maxrl divides by their mean: set kl_placement "
         "to loss."),
        (c.kl_placement == "reward" and c.dead_groups != "keep",
         f"dead_groups is {c.dead_groups}, but with kl_placement reward hardly any group is tied: set dead_groups to keep."),
        (c.algorithm == "ppo" and c.dead_groups != "keep",
         f"dead_groups is {c.dead_groups}, but algorithm ppo does not compare within groups: set dead_groups to keep."),
        (any(str(reward).partition("(")[0] == "by_hand" for reward in c.eval_rewards),
         "eval_rewards has by_hand, but nobody is asked during an evaluation: name other functions."),
        (c.entropy_coef_min > c.entropy_coef_max,
         f"entropy_coef_min is {c.entropy_coef_min}, above entropy_coef_max, {c.entropy_coef_max}: exchange them."),
    ]


def _of_single_steps(reward: Any) -> bool:
    """Whether a built-in says so; of one's own it is known when it answers (`training.weigh`)."""
    return isinstance(reward, str) and re.search(r"\beach\s*=\s*True\b", reward) is not None
