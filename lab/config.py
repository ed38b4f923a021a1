"""One frozen dataclass that says everything about a run.

The page's form, the command line and the README table are all made from `RunConfig`'s fields: the help text sits beside
the field and nowhere else. Names and meanings are TRL's wherever TRL has the setting; defaults are the DeepSeekMath
paper's (arXiv 2402.03300), and TRL 1.16's default is kept beside ours in `trl`. Contradictions are refused here, at
construction, with a sentence that says what to change. Standard library only: the page imports this without torch.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from lab.contradictions import contradiction
from lab.errors import did_you_mean

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo", "dppo", "dppo_kl")
ADVANTAGE_RULES = ("grpo", "rloo", "maxrl", "opo", "rank")
AGGREGATIONS = ("sum_then_normalize", "normalize_then_sum")
SCALE_REWARDS = ("group", "batch", "none")
KL_ESTIMATORS = ("k1", "k2", "k3", "k3_corrected")
REFERENCES = ("base", "start", "snapshot", "ema")
DEAD_GROUPS = ("keep", "skip", "resample", "replace")
DTYPES = ("auto", "float32", "bfloat16")
SCHEDULES = ("constant", "linear", "cosine")
ALGORITHMS = ("grpo", "ppo")
REWARD_FIELDS = ("rewards", "eval_rewards")  # names, or callables in Python
LARGEST_WEIGHT = 1_000_000  # of a reward: sums stay far from what a float can hold


class ConfigError(ValueError):
    """A setting that cannot work: the message names the field, the value and what to change."""


def knob(default: Any, label: str, help: str, *, group: str, trl: Any = None, choices: tuple[str, ...] = (),
         low: float | None = None, high: float | None = None, simple: bool = False, live: bool = False) -> Any:
    """A config field with everything a form, a command line and a README table need to show it.

    `trl` is TRL 1.16's default (None where TRL has no such setting), `simple` puts the field among the simple settings
    of the page, `live` says that it may be changed while a run is going.
    """
    return field(default=default, metadata=dict(label=label, help=help, group=group, trl=trl, choices=choices,
                                                low=low, high=high, simple=simple, live=live))


def _refuses_unknown_settings(config: type[RunConfig]) -> type[RunConfig]:
    """Makes a misspelt setting a ConfigError that names the nearest one, where Python would raise a TypeError."""
    made = config.__init__

    @functools.wraps(made)
    def init(self: RunConfig, *args: Any, **settings: Any) -> None:
        _check_names(settings)
        made(self, *args, **settings)

    config.__init__ = init
    return config


@_refuses_unknown_settings
@dataclass(frozen=True)
class RunConfig:
    """Everything that decides what a run does. Two runs with equal configs on one machine's CPU are bit-equal."""

    # -- what is trained on what
    model: str = knob("tiny", "Model", "A name from `grpo-lab models`, a Hugging Face Hub id, or a folder of safetensors.",
                      group="model", simple=True)
    adapter: str | None = knob(None, "Start from adapter", "A folder with an existing LoRA adapter to go on training.", group="model")
    task: Any = knob("add2", "Task", "Where prompts come from: a built-in task, one of reasoning-gym such as gym/gcd, a list "
                     "of rows with a prompt column, or a JSONL, CSV or Parquet file.", group="task", simple=True)
    system_prompt: str | None = knob("", "System message", "Put before every prompt. Empty: the model's own default; "
                                     "none: no system message.", group="task", simple=True)
    rewards: Any = knob(("accuracy", "format"), "Rewards", "Reward functions by name; in Python also callables with TRL's "
                        "signature. Each completion's reward is their weighted sum.", group="rewards", simple=True)
    reward_weights: tuple[float, ...] | None = knob(None, "Reward weights", "One weight per reward function, in order. "
                                                    "None: all 1.", group="rewards", simple=True, live=True)

    # -- before reinforcement learning
    cold_start: Any = knob(None, "Cold-start examples", "Worked examples to imitate before reinforcement learning (R1): rows or a JSONL "
                           "file with prompt and completion, or worked for an arithmetic task's own. None: none (R1-Zero).",
                           group="cold start")
    cold_start_steps: int = knob(0, "Cold-start steps", "Supervised steps on these examples, as many at a time as there are prompts in "
                                 "a step. Only completions are learned; the result is then the reference.", group="cold start", low=0)

    # -- sampling
    num_generations: int = knob(8, "Group size G", "Completions sampled for each prompt. The advantage compares each with "
                                "the others of its group.", group="sampling", trl=8, low=2, high=64, simple=True)
    prompts_per_step: int = knob(8, "Prompts per step", "Fresh prompts in each step. Completions per step = prompts × G.",
                                 group="sampling", trl=1, low=1, high=512, simple=True)
    max_completion_length: int = knob(256, "Max tokens", "A completion that has not ended after this many tokens is cut off.",
                                      group="sampling", trl=512, low=1, high=32768, simple=True, live=True)
    temperature: float = knob(1.0, "Temperature", "Logits are divided by it, when sampling and in every log-probability.",
                              group="sampling", trl=1.0, low=0.05, high=5.0, simple=True, live=True)
    top_p: float = knob(1.0, "Top-p", "Sample only from the smallest set of tokens with this probability. Below 1 the ratio "
                        "to the full distribution is biased.", group="sampling", trl=1.0, low=0.01, high=1.0)
    top_k: int = knob(0, "Top-k", "Sample only from the k likeliest tokens; 0 is off. Biases the ratio like top-p.",
                      group="sampling", trl=0, low=0)
    min_p: float = knob(0.0, "Min-p", "Drop tokens below this share of the likeliest token's probability; 0 is off. "
                        "Biases the ratio like top-p.", group="sampling", low=0.0, high=1.0)
    seed: int = knob(42, "Seed", "Decides prompts, sampling and the adapter's start.", group="sampling", trl=42, low=0, high=2**32 - 1,
                     simple=True)

    # -- the update
    max_steps: int = knob(100, "Steps", "Optimiser steps of the whole run.", group="update", low=1, high=10_000_000, simple=True)
    learning_rate: float = knob(2e-5, "Learning rate", "AdamW's step size. LoRA wants about ten times a full fine-tune's.",
                                group="update", trl=1e-6, low=0.0, simple=True, live=True)
    lr_scheduler_type: str = knob("constant", "Schedule", "How the learning rate moves after the warm-up.", group="update",
                                  trl="linear", choices=SCHEDULES)
    lr_end_ratio: float = knob(0.0, "Final share of the rate", "Share of the learning rate left at the last step of a "
                               "linear or cosine schedule.", group="update", low=0.0, high=1.0)
    warmup_steps: int = knob(0, "Warm-up steps", "Steps in which the learning rate rises from near zero.", group="update", trl=0, low=0)
    beta: float = knob(0.04, "KL weight β", "Weight of the KL term that keeps the policy near the reference. KL is computed "
                       "and drawn even at 0.", group="update", trl=0.0, low=0.0, simple=True, live=True)
    kl_estimator: str = knob("k3", "KL estimator", "k3 is the paper's; k3_corrected multiplies it by the ratio as TRL does, "
                             "which changes its gradient.", group="update", trl="k3_corrected", choices=KL_ESTIMATORS)
    epsilon: float = knob(0.2, "Clip ε", "The ratio of new to old probability counts only between 1 − ε and 1 + ε_high. At 1 the lower "
                          "side never acts.", group="update", trl=0.2, low=0.0, high=1.0, live=True)
    epsilon_high: float | None = knob(None, "Clip ε_high", "Upper clip; None: the same as ε. DAPO uses 0.28. For the loss cispo it is "
                                      "the largest ratio that counts, such as 5.", group="update", low=0.0, live=True)
    delta: float | None = knob(None, "Two-sided clip δ", "Also bounds the ratio of completions with negative advantage "
                               "(INTELLECT-2); None is off.", group="update", low=0.0)
    loss_type: str = knob("grpo", "Loss", "How token losses are weighed and averaged: grpo per completion (the paper), bnpo and dapo "
                          "over tokens, dr_grpo by a constant length, luspo not at all. cispo, sapo, vespo, dppo and dppo_kl replace the "
                          "clip.",
                          group="update", trl="dapo", choices=LOSS_TYPES)
    scale_rewards: str = knob("group", "Advantage scale", "What the centred reward is divided by: the group's std (the paper), "
                              "the batch's, or nothing (Dr. GRPO).", group="update", trl="group", choices=SCALE_REWARDS)
    importance_sampling_level: str = knob("token", "Ratio level", "One ratio per token (GRPO) or one per completion (GSPO).",
                                          group="update", trl="token", choices=("token", "sequence"))
    num_iterations: int = knob(1, "Updates per rollout μ", "How often each sampled batch is used. Above 1 the clip can act.",
                               group="update", trl=1, low=1)
    mask_truncated_completions: bool = knob(False, "Mask cut-off completions", "Leave completions that were cut off out of the "
                                            "loss; their rewards still count in the group.", group="update", trl=False)
    weight_decay: float = knob(0.0, "Weight decay", "AdamW's weight decay on the adapter.", group="update", trl=0.0, low=0.0)
    adam_beta1: float = knob(0.9, "Adam β1", "Decay of AdamW's mean of gradients.", group="update", trl=0.9, low=0.0, high=1.0)
    adam_beta2: float = knob(0.99, "Adam β2", "Decay of AdamW's mean of squared gradients.", group="update", trl=0.999, low=0.0, high=1.0)
    max_grad_norm: float = knob(1.0, "Gradient clip", "The gradient is scaled down to this norm.", group="update", trl=1.0, low=0.0)

    # -- PPO
    algorithm: str = knob("grpo", "Algorithm", "grpo compares a completion with its group. ppo has a critic, on an adapter of its own, "
                          "that predicts the reward token by token; β then weighs KL in the reward.", group="ppo", choices=ALGORITHMS)
    gamma: float = knob(1.0, "Discount γ", "PPO: what a reward counts one token earlier.", group="ppo", low=0.0, high=1.0)
    lam: float = knob(0.95, "GAE λ", "PPO: 0 trusts the critic's next value, 1 only the rewards that came.", group="ppo", low=0.0, high=1.0)
    cliprange_value: float = knob(0.2, "Value clip", "PPO: how far a value may move from its old self in one update.", group="ppo", low=0.0)
    critic_learning_rate: float | None = knob(None, "Critic's learning rate", "PPO: step size of the critic; None: the policy's.",
                                              group="ppo", low=0.0)

    # -- other rules for the advantage
    advantage_rule: str = knob("grpo", "Advantage rule", "grpo divides by the spread; rloo compares with the others' mean; maxrl divides "
                               "by the mean, so rare successes count more; opo weighs the mean by length; rank counts wins.",
                               group="advantage", choices=ADVANTAGE_RULES)
    multi_objective_aggregation: str = knob("sum_then_normalize", "Several rewards", "Sum the rewards and compare the sums, or compare "
                                            "each reward by itself and then sum (GDPO), so that a small one is not drowned.",
                                            group="advantage", trl="sum_then_normalize", choices=AGGREGATIONS)

    # -- other policy terms
    sapo_temperature_pos: float = knob(1.0, "SAPO τ, better", "Steepness of sapo's soft gate for completions better than their group.",
                                       group="loss", trl=1.0, low=0.01)
    sapo_temperature_neg: float = knob(1.05, "SAPO τ, worse", "Steepness of sapo's soft gate for completions worse than their group.",
                                       group="loss", trl=1.05, low=0.01)
    vespo_k_pos: float = knob(2.0, "VESPO k, better", "Power of the completion's ratio in vespo's weight, for positive advantages.",
                              group="loss", trl=2.0, low=0.0)
    vespo_lambda_pos: float = knob(3.0, "VESPO λ, better", "Decay of vespo's weight with the ratio, for positive advantages.",
                                   group="loss", trl=3.0, low=0.0)
    vespo_k_neg: float = knob(3.0, "VESPO k, worse", "Power of the completion's ratio in vespo's weight, for negative advantages.",
                              group="loss", trl=3.0, low=0.0)
    vespo_lambda_neg: float = knob(2.0, "VESPO λ, worse", "Decay of vespo's weight with the ratio, for negative advantages.",
                                   group="loss", trl=2.0, low=0.0)
    dppo_ratio_cap: float = knob(20.0, "DPPO cap", "Largest weight that a token's ratio may have in dppo and dppo_kl, which stop tokens "
                                 "by how far their probability moved (ε and ε_high), as a difference or as KL.", group="loss", low=1.0)
    top_entropy_quantile: float = knob(1.0, "Undecided tokens", "Learn only from this share of the tokens, those with the highest "
                                       "entropy; 0.2 is the 80/20 rule, 1 is all.", group="loss", trl=1.0, low=0.0, high=1.0)
    entropy_coef: float = knob(0.0, "Entropy bonus", "Weight of the mean entropy in the loss: rewards staying undecided; 0 is off.",
                               group="loss", trl=0.0, low=0.0, live=True)
    use_adaptive_entropy: bool = knob(False, "Adaptive bonus", "Raise the bonus while entropy is below its target, lower and rest it "
                                      "above (Skywork-OR1).", group="loss", trl=False)
    entropy_target: float = knob(0.2, "Entropy target", "Mean entropy in nats that the adaptive bonus aims at.", group="loss",
                                 trl=0.2, low=0.0)
    entropy_coef_delta: float = knob(0.005, "Bonus step", "How much the adaptive bonus changes in one step.", group="loss",
                                     trl=0.005, low=0.0)
    entropy_coef_min: float = knob(0.0, "Least bonus", "The adaptive bonus never goes below this.", group="loss", trl=0.0, low=0.0)
    entropy_coef_max: float = knob(1.0, "Largest bonus", "The adaptive bonus never goes above this.", group="loss", trl=1.0, low=0.0)
    off_policy_mask_threshold: float | None = knob(None, "Off-policy mask", "Leave out completions with negative advantage that the policy "
                                                   "has left by more than this many nats per token; None is off.", group="loss", low=0.0)

    # -- the reference
    kl_placement: str = knob("loss", "Where the KL goes", "Into the loss of every token (GRPO), or off the completion's reward before "
                             "groups are compared, as earlier methods did.", group="reference", choices=("loss", "reward"))
    reference: str = knob("start", "Reference", "What KL is measured against: start is the adapter as the run began (for a new adapter the "
                          "base itself), base the bare model, snapshot and ema follow the policy.", group="reference", choices=REFERENCES)
    ref_model_sync_steps: int = knob(512, "Renew every", "Steps after which a snapshot or ema reference is brought up to date.",
                                     group="reference", trl=512, low=1)
    ref_model_mixup_alpha: float = knob(0.6, "EMA share", "Share of the policy that an ema reference takes over each time.",
                                        group="reference", trl=0.6, low=0.0, high=1.0)

    # -- groups without signal, and runs that went wrong
    dead_groups: str = knob("keep", "Dead groups", "keep: only KL acts on them. skip: leave them out. resample: sample new prompts. "
                            "replace: take prompts that had signal before. Sampling again costs time, which is counted.",
                            group="signal", choices=DEAD_GROUPS)
    max_resamples: int = knob(3, "Most rounds", "How often dead groups of one step are sampled again.", group="signal", low=1, high=100)
    stop_window: int = knob(5, "Stop: over steps", "The rules below look at the mean of so many steps.", group="signal", low=1)
    stop_reward_drop: float | None = knob(None, "Stop: reward fell by", "Stop when the mean reward is this far below its best; None: off.",
                                          group="signal", low=0.0, live=True)
    stop_entropy_below: float | None = knob(None, "Stop: entropy below", "Stop when the policy is this decided (nats per token); "
                                            "None is off.", group="signal", low=0.0, live=True)
    stop_kl_above: float | None = knob(None, "Stop: KL above", "Stop when the policy is this far from the reference (nats per token); "
                                       "None is off.", group="signal", low=0.0, live=True)
    stop_clipped_above: float | None = knob(None, "Stop: cut off above", "Stop when a larger share of completions is cut off; None is off.",
                                            group="signal", low=0.0, high=1.0, live=True)

    # -- adapter and precision
    lora_r: int = knob(16, "LoRA rank", "Rank of the adapter on every linear layer.", group="adapter", low=1, high=512)
    lora_alpha: int = knob(32, "LoRA alpha", "The adapter's output is scaled by alpha / rank.", group="adapter", low=1)
    dtype: str = knob("auto", "Precision of the base", "auto takes float32 for small models on CPU and bfloat16 on CUDA. The "
                      "adapter is float32 always.", group="adapter", choices=DTYPES)
    load_in_4bit: bool | None = knob(None, "4-bit base", "NF4 with double quantisation. None: on for CUDA, off on CPU.",
                                     group="adapter")
    device: str = knob("auto", "Device", "auto takes CUDA if there is one, then MPS, else CPU.", group="adapter",
                       choices=("auto", "cpu", "cuda", "mps"))
    num_threads: int = knob(0, "CPU threads", "0: one for a small model, as many as the machine offers for others. "
                            "Results on CPU depend on it.",
                            group="adapter", low=0)
    micro_batch_tokens: int = knob(16384, "Tokens per micro-batch", "Upper limit of tokens in one forward and backward. "
                                   "Changes memory, never the result.", group="adapter", low=1)

    # -- evaluation
    eval_steps: int = knob(0, "Evaluate every", "Steps between evaluations on held-out prompts; the base is evaluated before the first. "
                           "0: only on demand.", group="evaluation", low=0)
    eval_prompts: int = knob(32, "Held-out prompts", "How many held-out prompts an evaluation answers.", group="evaluation",
                             low=1, high=4096)
    eval_samples: int = knob(8, "Samples for pass@k", "Completions sampled for each held-out prompt beside the greedy one, from which "
                             "pass@k is estimated. 0: greedy only.", group="evaluation", low=0, high=1024)
    eval_temperature: float = knob(1.0, "Temperature in evaluation", "For the sampled completions of an evaluation.", group="evaluation",
                                   low=0.05, high=5.0)
    eval_rewards: Any = knob(("accuracy",), "Rewards in evaluation", "Reward functions of the evaluation. The first says what is right: "
                             "0.5 or more.", group="evaluation")
    held_out_share: float = knob(0.0, "Held-out share", "Part of your own rows kept out of training, for evaluation. Built-in tasks hold "
                                 "back their own.", group="evaluation", low=0.0, high=0.9)

    # -- keeping
    save_steps: int = knob(10, "Checkpoint every", "Steps between checkpoints; resume goes on from the last one.", group="keeping",
                           trl=500, low=1)
    store_tokens: bool = knob(True, "Store token arrays", "Keep log-probabilities, entropy and KL of every token, so that each "
                              "number can be opened.", group="keeping")
    keep_token_steps: int = knob(1000, "Token arrays of", "Newest steps whose token arrays are kept, so that the store stops growing by "
                                 "them; older steps keep texts, rewards and metrics. 0: all steps.", group="keeping", low=0)

    def __post_init__(self):
        for name in REWARD_FIELDS:
            object.__setattr__(self, name, _as_tuple(getattr(self, name)))
        if self.reward_weights is not None:
            object.__setattr__(self, "reward_weights", tuple(float(w) for w in _as_tuple(self.reward_weights)))
            if not all(abs(weight) <= LARGEST_WEIGHT for weight in self.reward_weights):
                raise ConfigError(f"{named('reward_weights')} is {self.reward_weights}: finite numbers are needed, "
                                  f"at most {LARGEST_WEIGHT:,}.")
        for f in fields(self):
            _check_range(f, getattr(self, f.name))
        if not self.rewards:
            raise ConfigError(f"{named('rewards')} is empty: name at least one reward function, for example accuracy.")
        if self.reward_weights is not None and len(self.reward_weights) != len(self.rewards):
            raise ConfigError(f"{named('reward_weights')} has {_count(len(self.reward_weights), 'number')} for "
                              f"{_count(len(self.rewards), 'reward function')}: give one weight per function, in the order of rewards.")
        if not self.eval_rewards:
            raise ConfigError(f"{named('eval_rewards')} is empty: name at least one reward function, for example accuracy.")
        if self.cold_start_steps and self.cold_start is None:
            raise ConfigError(f"{named('cold_start_steps')} is {self.cold_start_steps} but {named('cold_start')} names no examples: give "
                              f"examples, or 0 steps.")
        if sentence := contradiction(self):
            raise ConfigError(with_labels(sentence))

    @property
    def completions_per_step(self) -> int:
        """Prompts × completions of each, as sampled before dead groups are sampled again."""
        return self.num_generations * self.prompts_per_step

    @property
    def weights(self) -> tuple[float, ...]:
        """One weight per reward function."""
        return self.reward_weights or (1.0,) * len(self.rewards)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values. Reward callables become the name they are shown under (their code is not stored here)."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in REWARD_FIELDS:
            values[name] = [reward_name(reward) for reward in values[name]]
        for name in ("task", "cold_start"):
            values[name] = str(values[name]) if isinstance(values[name], Path) else values[name]
        return json.loads(json.dumps(values))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunConfig:
        """The settings of `to_dict`, of a TOML file or of a preset; those not named keep their defaults. Raises ConfigError."""
        values = {k: tuple(v) if isinstance(v, list) and k in (*REWARD_FIELDS, "reward_weights") else v for k, v in values.items()}
        return cls(**values)

    def replace(self, **changes: Any) -> RunConfig:
        """These settings with `changes`, checked as at construction. Raises ConfigError."""
        return dataclasses.replace(self, **changes)


LIVE_SETTINGS = tuple(f.name for f in fields(RunConfig) if f.metadata["live"]) + ("rewards",)  # may change while a run goes


def named(name: str) -> str:
    """A setting as sentences name it: what the page calls it, then its name in code and on the command line."""
    return f"{_LABELS[name]} ({name})"


def as_text(value: Any) -> str:
    """A setting's value as one would type it: 2e-05 as 2e-5, weights with commas, none as an empty box."""
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        return ", ".join(as_text(item) for item in value)
    if isinstance(value, float):
        small = 0 < abs(value) < 0.005
        mantissa, _, exponent = (f"{value:.6e}" if small else f"{value:g}").partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if small else mantissa
        mantissa = mantissa if "." in mantissa or exponent else f"{mantissa}.0"
        return f"{mantissa}e{int(exponent)}" if exponent else mantissa
    return str(value)


def reward_name(reward: Callable | str | Path) -> str:
    """The name a reward function is shown and stored under (TRL: the function's own name)."""
    return str(reward) if isinstance(reward, (str, Path)) else getattr(reward, "__name__", type(reward).__name__)


_LABELS = {f.name: f.metadata["label"] for f in fields(RunConfig)}


def with_labels(sentence: str) -> str:
    """A sentence that names settings as code does, with the page's label before each, the first time it comes up.

    Names that are plain words, such as `delta`, are meant as settings only where the sentence begins with one.
    """
    for name in (each for each in _LABELS if "_" in each or sentence.startswith(f"{each} ")):
        sentence = re.sub(rf"\b{name}\b(?!\))", lambda found: named(found[0]), sentence, count=1)
    return sentence


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _as_tuple(value: Any) -> tuple:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _check_names(settings: Iterable[str]) -> None:
    unknown = [name for name in settings if name not in _LABELS]
    if unknown:
        meant = "".join(did_you_mean(name, _LABELS) for name in unknown)
        raise ConfigError(f"Unknown setting {', '.join(unknown)}.{meant} Known settings: {', '.join(sorted(_LABELS))}.")


def _check_range(f: dataclasses.Field, value: Any) -> None:
    low, high, choices = f.metadata["low"], f.metadata["high"], f.metadata["choices"]
    if choices and value not in choices:
        raise ConfigError(f"{named(f.name)} is {value!r}: choose one of {', '.join(choices)}.")
    if value is None or (low is None and high is None):
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{named(f.name)} is {value!r}: a finite number is needed.")
    if low is not None and value < low:
        raise ConfigError(f"{named(f.name)} is {value}: the smallest value is {low}.")
    if high is not None and value > high:
        raise ConfigError(f"{named(f.name)} is {value}: the largest value is {high}.")
