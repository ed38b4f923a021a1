"""Every word the lab shows, explained once: the same text stands in tooltips, in the README and in the guide.

Settings explain themselves in `lab/config.py` and built-in rewards in their docstrings; here are the metrics (TRL's names)
and the words. `python -m lab.glossary README.md` rewrites the README's tables from all of them. Standard library only.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from inspect import getdoc, signature
from pathlib import Path

from lab.config import RunConfig


@dataclass(frozen=True)
class Metric:
    """`name` is TRL's where TRL has the metric. `{func}` stands for a reward function's name."""

    name: str
    label: str
    unit: str
    text: str


METRICS = (
    Metric("reward", "reward", "reward", "Mean total reward of the step's completions. The number GRPO raises; look here first."),
    Metric("reward_std", "reward spread", "reward", "Standard deviation of the total reward over the whole batch."),
    Metric("rewards/{func}/mean", "reward of one function", "reward", "Mean of one reward function before its weight, over the "
           "completions it applies to."),
    Metric("rewards/{func}/std", "spread of one function", "reward", "Standard deviation of one reward function over the whole batch."),
    Metric("kl", "KL to the reference", "nats per token", "How far the policy has moved from the reference. k3's single points jump: "
           "read the smoothed line."),
    Metric("frac_reward_zero_std", "share of dead groups", "share", "Share of groups whose rewards are all equal. They teach nothing."),
    Metric("groups/live", "groups with signal", "groups", "Groups whose rewards differ, so that some completion is better than another."),
    Metric("groups/resampled", "groups sampled again", "groups", "Dead groups thrown away and sampled again in the step. Their tokens are "
           "counted in tokens so far."),
    Metric("groups/distinct_completions", "different completions", "share", "Share of different texts within a group, mean over groups. "
           "Near 1 / G all say the same, and a group has nothing left to compare."),
    Metric("groups/distinct_answers", "different answers", "share", "Share of different final answers within a group, among the "
           "completions that give one. It falls as the model grows sure: good if they are right, a warning if not."),
    Metric("groups/total", "groups", "groups", "Groups sampled in the step: one per prompt."),
    Metric("entropy", "entropy", "nats per token", "How undecided the policy is about its next token. Near 0 it always says the same."),
    Metric("completions/mean_length", "completion length", "tokens", "Mean tokens per completion, the stop token included."),
    Metric("completions/min_length", "shortest completion", "tokens", "Tokens of the shortest completion of the step."),
    Metric("completions/max_length", "longest completion", "tokens", "Tokens of the longest completion of the step."),
    Metric("completions/clipped_ratio", "cut off", "share", "Share of completions that reached the token limit before they ended."),
    Metric("completions/mean_terminated_length", "length of ended completions", "tokens", "Mean tokens of those completions that ended "
           "by themselves; 0 if none did."),
    Metric("completions/min_terminated_length", "shortest ended completion", "tokens", "Shortest completion that ended by itself."),
    Metric("completions/max_terminated_length", "longest ended completion", "tokens", "Longest completion that ended by itself."),
    Metric("grad_norm", "gradient norm", "", "Length of the adapter's gradient before clipping. 0 means that nothing is learned."),
    Metric("clip_ratio/low_mean", "clipped low", "share", "Share of tokens with a negative advantage whose ratio fell below 1 − ε. "
           "0 on the first update of a rollout: the ratio is 1 everywhere."),
    Metric("clip_ratio/high_mean", "clipped high", "share", "Share of tokens with a positive advantage whose ratio rose above 1 + ε_high."),
    Metric("clip_ratio/region_mean", "clipped", "share", "Share of tokens clipped on either side."),
    Metric("clip_ratio/low_min", "least clipped low", "share", "Smallest share clipped low in any micro-batch."),
    Metric("clip_ratio/high_max", "most clipped high", "share", "Largest share clipped high in any micro-batch."),
    Metric("cispo_clip_ratio", "capped", "share", "With the loss cispo: share of tokens with a positive advantage whose ratio was cut to "
           "ε_high."),
    Metric("vespo/phi_seq_mean", "VESPO weight", "", "With the loss vespo: mean weight of the completions; 1 on-policy."),
    Metric("log_ratio_clamped", "log-ratios cut", "tokens", "Tokens whose log-ratio to the sampling policy was cut at ±20 so that nothing "
           "overflows. Anything above 0 means the policy has run away."),
    Metric("kl_clamped", "KL cut", "tokens", "Tokens whose log-ratio to the reference was cut at ±20."),
    Metric("critic/loss", "critic's loss", "", "PPO: half the squared gap between the critic's values and what came, with the value clip."),
    Metric("critic/explained_variance", "critic: explained", "share",
           "PPO: how much of the returns' variation the critic foresaw. 1 is all; "
           "0 or less is no better than a constant."),
    Metric("critic/value_mean", "critic: mean value", "reward", "PPO: mean of the critic's values before the update."),
    Metric("critic/value_std", "critic: spread of values", "reward", "PPO: standard deviation of the critic's values over all tokens."),
    Metric("critic/clip_ratio", "critic: clipped", "share", "PPO: share of values that moved further than the value clip allows."),
    Metric("critic/grad_norm", "critic's gradient norm", "", "PPO: length of the critic's gradient before clipping."),
    Metric("critic/seconds", "critic: time", "s", "PPO: seconds of the step that the critic took. GRPO does not spend them."),
    Metric("critic/bytes", "critic: memory", "bytes",
           "PPO: weights, gradients and optimiser state of the critic. GRPO does not hold them."),
    Metric("eval_accuracy", "held-out accuracy", "share", "Share of held-out prompts answered rightly without chance."),
    Metric("entropy_coef", "entropy bonus", "", "Weight of the entropy bonus applied in this step."),
    Metric("policy_loss", "loss without bonus", "", "The loss before the entropy bonus is taken off."),
    Metric("learning_rate", "learning rate", "", "Step size of the optimiser in this step, after warm-up and schedule."),
    Metric("num_tokens", "tokens so far", "tokens", "Prompt and completion tokens of the run up to this step."),
    Metric("step_time", "time of the step", "s", "Seconds from the first sampled token to the end of the update."),
    Metric("sampling/sampling_logp_difference/mean", "sampler gap, mean", "nats", "Mean gap between the sampler's log-probability of a "
           "token and the trainer's. Only rounding separates them."),
    Metric("sampling/sampling_logp_difference/max", "sampler gap, largest", "nats", "Largest such gap of the step."),
    Metric("loss", "loss", "", "What the optimiser minimises. ≈ 0 is normal: advantages of a group add up to 0, so the value says little; "
           "its gradient does the work."),
)

WORDS = {
    "prompt": "What the model is asked.",
    "completion": "One answer that the model writes to a prompt.",
    "group": "The completions sampled for one prompt. They are compared with each other and with nothing else.",
    "reward": "A number for one completion, from one or several reward functions: their weighted sum.",
    "reward function": "A Python function that takes prompts and completions and returns a number for each completion.",
    "advantage": "How much better a completion is than its group: (reward − mean of the group) / (standard deviation + 0.0001).",
    "dead group": "A group whose rewards are all equal. Every advantage is 0, so the step learns nothing from it.",
    "policy": "The model that is being trained: the base with its adapter on.",
    "reference": "The model the policy must stay near: the base with the adapter off, or another adapter that is frozen or follows.",
    "rubric": "What a person scores by hand: criteria with weights, each from 0 to 1.",
    "step reward": "A reward for one step of a completion, given where the step ends. Each token gets the steps that end at or after it.",
    "process supervision": "Rewarding the steps of a completion one by one, rather than only what comes out at its end.",
    "entropy bonus": "A term of the loss that rewards the policy for staying undecided.",
    "adapter": "A LoRA adapter: small matrices beside the model's frozen weights. Only they are trained.",
    "KL": "A distance between two distributions, here of the policy from the reference, in nats per token.",
    "ratio": "A token's probability now divided by its probability when it was sampled.",
    "clip": "Stops counting a ratio that has moved further than ε, so that one batch cannot pull the policy too far.",
    "cut off": "The completion reached the token limit before the model ended it.",
    "pushed up": "The completion has a positive advantage: the update makes its tokens likelier.",
    "pushed down": "The completion has a negative advantage: the update makes its tokens less likely.",
    "critic": "PPO's second network: it predicts the reward still to come, token by token. GRPO uses the group's mean instead.",
    "cold start": "A few supervised steps on worked examples before reinforcement learning, as in DeepSeek-R1. R1-Zero has none.",
    "held-out prompts": "Prompts that training never sees. Evaluations answer them.",
    "greedy": "The likeliest token each time, without chance.",
    "pass@k": "Probability that at least one of k sampled answers is right.",
    "branch": "A new run that goes on from a checkpoint of another, with changed settings.",
    "checkpoint": "Everything needed to go on from a step: adapter, optimiser, random state, place in the data.",
    "attempt": "A run resumed from a checkpoint goes on as a new attempt. Steps done again stay readable in the old one.",
    "recorded": "A run that was made earlier and is shown again. Nothing on it is live.",
}


CHOICES = {
    "loss_type": {
        "grpo": "Mean over each completion's tokens, then over completions: each completion counts alike (DeepSeekMath).",
        "bnpo": "Mean over all tokens that count in the batch: long completions weigh more.",
        "dr_grpo": "Sum over tokens divided by a constant, the token limit: length gives no advantage (Dr. GRPO).",
        "dapo": "Mean over all tokens of the whole optimiser step (DAPO; TRL's default).",
        "luspo": "The completion's own sum, not divided by its length; needs one ratio per completion.",
        "cispo": "Caps the ratio as a weight instead of clipping, so that no token loses its gradient.",
        "sapo": "A soft gate in place of the clip, steeper for completions worse than their group.",
        "vespo": "Weighs each completion by a smooth function of its ratio that falls off on both sides.",
        "dppo": "A token stops counting when its probability, not its ratio, has moved by ε.",
        "dppo_kl": "As dppo, with the binary KL of the token's two probabilities as the distance.",
    },
    "scale_rewards": {
        "group": "Divides by the group's own std: every group counts alike, however close its rewards lie (DeepSeekMath).",
        "batch": "Divides by the std of the whole batch: groups that differ more count more.",
        "none": "Divides by nothing: the advantage is the distance from the mean (Dr. GRPO).",
    },
    "importance_sampling_level": {
        "token": "Each token has its own ratio and its own clip (GRPO).",
        "sequence": "One ratio per completion, the geometric mean of its tokens' (GSPO). Wants a far smaller ε.",
    },
    "kl_estimator": {
        "k1": "−d, with d = log π_ref − log π: unbiased, often negative, and without any gradient in expectation.",
        "k2": "d² / 2: biased but never negative; its gradient is that of KL(π ‖ ref).",
        "k3": "e^d − d − 1: unbiased, never negative, now and then very large (DeepSeekMath).",
        "k3_corrected": "k3 times the ratio: its gradient is that of KL(π ‖ ref) (DeepSeek-V3.2; TRL's default).",
    },
    "kl_placement": {
        "loss": "A term of every token's loss (GRPO).",
        "reward": "Taken off each completion's reward before groups are compared, as PPO and RLOO do.",
    },
    "reference": {
        "start": "The adapter as the run began. For a new adapter that is the base itself, and KL starts at 0.",
        "base": "The bare model, also where the run goes on from an adapter.",
        "snapshot": "A copy of the policy, made anew every so many steps (iterative GRPO).",
        "ema": "Follows the policy slowly: every so many steps it takes over a share of it.",
    },
    "advantage_rule": {
        "grpo": "(reward − group mean) / (std + 0.0001); what divides is the advantage scale.",
        "rloo": "reward − mean of the others. Not divided by anything; the scale does not act.",
        "maxrl": "(reward − mean) / mean: the rarer success is, the more it counts. Rewards must not be negative.",
        "opo": "reward − mean weighted by length: the baseline with the least variance.",
        "rank": "Share of the group beaten minus share lost to: only the order counts, so no outlier can outweigh the rest.",
    },
    "multi_objective_aggregation": {
        "sum_then_normalize": "The weighted sum of the rewards is compared within the group.",
        "normalize_then_sum": "Each reward is compared by itself, then they are summed and scaled over the batch (GDPO).",
    },
    "dead_groups": {
        "keep": "They stay in the batch; only KL acts on them.",
        "skip": "They are left out of the loss.",
        "resample": "They are thrown away and other prompts are sampled, up to the most rounds (DAPO).",
        "replace": "Prompts that had signal before take their place.",
    },
    "algorithm": {
        "grpo": "A completion is compared with its group: no critic.",
        "ppo": "A critic predicts the reward token by token, and is trained beside the policy.",
    },
    "lr_scheduler_type": {
        "constant": "The rate stays where it is after the warm-up.",
        "linear": "Falls in a straight line to the final share at the last step.",
        "cosine": "Falls slowly, then fast, then slowly to the final share.",
    },
    "dtype": {
        "auto": "float32 for small models on a CPU, bfloat16 on CUDA.",
        "float32": "Four bytes a weight, exact.",
        "bfloat16": "Two bytes a weight, about three digits.",
    },
    "device": {
        "auto": "CUDA if there is one, then MPS, else the CPU.",
        "cpu": "Bit-equal when done again.",
        "cuda": "An NVIDIA GPU.",
        "mps": "An Apple GPU.",
    },
}
"""What each value of a setting with names to choose from does: the page shows the chosen one's under its field."""


def metric(name: str) -> Metric:
    """The glossary entry of a metric as it is logged, `rewards/accuracy/mean` included. Raises KeyError for an unknown name."""
    for entry in METRICS:
        head, _, tail = entry.name.partition("{func}")
        if name == entry.name or (tail and name.startswith(head) and name.endswith(tail)):
            return entry
    raise KeyError(f"{name} is not in the glossary: add it to lab/glossary.py.")


def settings_table() -> str:
    """Markdown: every field of RunConfig with its default, TRL's default and its help."""
    rows = [f"| `{f.name}` | {f.metadata['label']} | {_value(f.default)} | {_value(f.metadata['trl'], none='–')} | {f.metadata['help']} |"
            for f in fields(RunConfig)]
    return "\n".join(["| setting | in the page | default | TRL 1.16 | what it does |", "| --- | --- | --- | --- | --- |", *rows])


def metrics_table() -> str:
    rows = [f"| `{m.name}` | {m.label} | {m.unit or '–'} | {m.text} |" for m in METRICS]
    return "\n".join(["| metric | in the page | unit | what it says |", "| --- | --- | --- | --- |", *rows])


def words_table() -> str:
    return "\n".join(["| word | meaning |", "| --- | --- |", *(f"| {word} | {text} |" for word, text in WORDS.items())])


def rewards_table() -> str:
    """Markdown: every built-in reward with its parameters and the first sentences of its documentation."""
    from lab.rewards import BUILTINS  # only for the README

    rows = [f"| `{name}` | {', '.join(f'`{p}`' for p in signature(factory).parameters) or '–'} | {getdoc(factory).partition(chr(10))[0]} |"
            for name, factory in BUILTINS.items()]
    return "\n".join(["| reward | parameters | what it gives |", "| --- | --- | --- |", *rows])


TABLES = {"rewards": rewards_table, "settings": settings_table, "metrics": metrics_table, "words": words_table}


def fill_tables(text: str) -> str:
    """`text` with the part between `<!-- settings -->` and `<!-- /settings -->` (and so on) made anew."""
    for name, table in TABLES.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, found_start, rest = text.partition(start)
        _, found_end, after = rest.partition(end)
        if not (found_start and found_end):
            raise ValueError(f"the text has no {start} … {end} to fill")
        text = f"{before}{start}\n{table()}\n{end}{after}"
    return text


def _value(value: object, none: str = "None") -> str:
    if value is None:
        return none
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else (str(value) or "empty")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(fill_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
