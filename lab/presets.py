"""Named settings to start from: first runs that work, what fits which hardware, what the papers used.

A preset is a set of overrides of `RunConfig`; everything it does not name stays as it was. Papers trained every weight
of large models, so their batch sizes, lengths and learning rates are not copied: what is copied is the algorithm.
Leaves out which preset a model starts with (`lab.models.registry`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from lab.config import ConfigError, RunConfig

THINK_FIRST = ("Think step by step between <think> and </think>, then give only the result between <answer> and </answer>.")


@dataclass(frozen=True)
class Preset:
    """`settings` override a RunConfig; `group` is "first run", "hardware" or "paper"; `source` says where they come from."""

    name: str
    title: str
    why: str
    source: str
    group: str
    settings: dict[str, Any] = field(default_factory=dict)

    def config(self, **changes: Any) -> RunConfig:
        """The default config with this preset's settings, and `changes` on top."""
        return RunConfig(**{**self.settings, **changes})


def preset(name: str) -> Preset:
    """The preset of that name. Raises ConfigError."""
    if name not in PRESETS:
        raise ConfigError(f"There is no preset {name!r}. Presets: {', '.join(PRESETS)}.")
    return PRESETS[name]


def trl_defaults() -> dict[str, Any]:
    """TRL 1.16's defaults for every setting that TRL has too."""
    return {f.name: f.metadata["trl"] for f in fields(RunConfig) if f.metadata["trl"] is not None}


def _first_runs() -> list[Preset]:
    tiny = dict(model="tiny", num_generations=8, prompts_per_step=8, learning_rate=2e-3, lr_scheduler_type="linear",
                lr_end_ratio=0.1, warmup_steps=3, adam_beta2=0.99, max_steps=40, max_completion_length=48, beta=0.001)
    smollm2 = dict(model="smollm2-135m", num_generations=8, prompts_per_step=4, max_completion_length=32,
                   learning_rate=2e-4, lr_scheduler_type="constant", beta=0.02, max_steps=20)
    return [
        Preset("first-run", "First run", "The tiny model learns to work out sums instead of guessing, in under a minute.",
               "Measured on this lab's tiny model.", "first run",
               {**tiny, "task": "add2", "rewards": ("accuracy", "format"), "reward_weights": (0.8, 0.2)}),
        Preset("aha", "Aha", "Guessing a chain of four is nearly always wrong: reward rises because answers get longer.",
               "Measured on this lab's tiny model.", "first run",
               {**tiny, "task": "chain", "rewards": ("accuracy",), "num_generations": 16, "prompts_per_step": 6,
                "max_steps": 30, "max_completion_length": 56, "lr_end_ratio": 0.2}),
        Preset("one-word", "One word", "A model that speaks learns to answer with a single word, and drifts far from the "
               "base for it: watch KL.", "Measured with SmolLM2 135M.", "first run",
               {**smollm2, "task": "one_word", "rewards": ("brevity",)}),
        Preset("digit-sum", "Short and right", "A model that speaks learns to answer sums briefly, and gets more of them "
               "right on the way.", "Measured with SmolLM2 135M.", "first run",
               {**smollm2, "task": "digit_sum", "rewards": ("accuracy(source='number')", "word_penalty")}),
    ]


def _hardware() -> list[Preset]:
    reasoning = dict(task="add3+chain", rewards=("accuracy", "format"), reward_weights=(0.8, 0.2), system_prompt=THINK_FIRST,
                     learning_rate=2e-5, warmup_steps=5, beta=0.001, max_steps=100)

    def gpu(name: str, title: str, why: str, **settings: Any) -> Preset:
        return Preset(name, title, why, "Estimated for a 4-bit base with a rank-16 adapter.", "hardware", {**reasoning, **settings})

    return [
        Preset("laptop-cpu", "Laptop without GPU", "SmolLM2 135M in full precision, short answers: a step takes some ten seconds.",
               "Measured on two cores.", "hardware",
               dict(model="smollm2-135m", task="digit_sum", rewards=("accuracy(source='number')", "word_penalty"),
                    num_generations=8, prompts_per_step=2, max_completion_length=32, learning_rate=2e-4, beta=0.02,
                    max_steps=30, micro_batch_tokens=4096)),
        gpu("gpu-6gb", "6 GB GPU", "Qwen2.5 0.5B with groups of 8.", model="Qwen/Qwen2.5-0.5B-Instruct",
            num_generations=8, prompts_per_step=4, max_completion_length=256, micro_batch_tokens=8192),
        gpu("gpu-8gb", "8 GB GPU", "Qwen2.5 1.5B with groups of 8.", model="Qwen/Qwen2.5-1.5B-Instruct",
            num_generations=8, prompts_per_step=4, max_completion_length=256, micro_batch_tokens=8192),
        gpu("gpu-12gb", "12 GB GPU", "Qwen2.5 3B with groups of 8.", model="Qwen/Qwen2.5-3B-Instruct",
            num_generations=8, prompts_per_step=4, max_completion_length=384, micro_batch_tokens=8192),
        gpu("gpu-16gb", "16 GB GPU", "Qwen2.5 3B with groups of 16 and room to think.", model="Qwen/Qwen2.5-3B-Instruct",
            num_generations=16, prompts_per_step=4, max_completion_length=768, micro_batch_tokens=16384),
        gpu("gpu-24gb", "24 GB GPU", "Qwen2.5 7B with groups of 16.", model="Qwen/Qwen2.5-7B-Instruct",
            num_generations=16, prompts_per_step=4, max_completion_length=768, micro_batch_tokens=16384),
    ]


def _papers() -> list[Preset]:
    return [
        Preset("deepseekmath", "GRPO as first published", "Advantage by the group's mean and std, k3 KL in the loss, one update "
               "per batch. The paper samples 64 answers of up to 1,024 tokens for each question.",
               "DeepSeekMath, arXiv 2402.03300", "paper",
               dict(loss_type="grpo", scale_rewards="group", kl_estimator="k3", beta=0.04, epsilon=0.2, epsilon_high=None,
                    delta=None, importance_sampling_level="token", num_iterations=1, mask_truncated_completions=False,
                    num_generations=64)),
        Preset("r1", "DeepSeek-R1", "Hardly any KL and a clip so wide that it seldom acts. The paper gives answers 32,768 tokens.",
               "DeepSeek-R1, arXiv 2501.12948", "paper",
               dict(loss_type="grpo", scale_rewards="group", kl_estimator="k3", beta=0.001, epsilon=10.0, epsilon_high=None,
                    delta=None, importance_sampling_level="token", num_iterations=1, num_generations=16)),
        Preset("trl", "TRL's defaults", "What TRL 1.16 does when nothing is set: token-averaged loss, no KL.",
               "TRL 1.16, GRPOConfig", "paper", trl_defaults()),
        Preset("dapo", "DAPO", "Clips less above than below, averages over tokens, no KL, cut-off answers left out of the loss. "
               "The paper gives answers 20,480 tokens.", "DAPO, arXiv 2503.14476", "paper",
               dict(loss_type="dapo", scale_rewards="group", beta=0.0, epsilon=0.2, epsilon_high=0.28, delta=None,
                    importance_sampling_level="token", mask_truncated_completions=True, num_generations=16)),
        Preset("dr-grpo", "Dr. GRPO", "No division by the std and by a constant length: long wrong answers and easy or hard "
               "questions get no special weight.", "Dr. GRPO, arXiv 2503.20783", "paper",
               dict(loss_type="dr_grpo", scale_rewards="none", beta=0.0, epsilon=0.2, epsilon_high=None, delta=None,
                    importance_sampling_level="token", num_generations=8)),
        Preset("gspo", "GSPO", "One ratio per answer instead of one per token, and so a far narrower clip.",
               "GSPO, arXiv 2507.18071", "paper",
               dict(loss_type="grpo", scale_rewards="group", beta=0.0, epsilon=3e-4, epsilon_high=4e-4, delta=None,
                    importance_sampling_level="sequence", num_generations=8)),
    ]


PRESETS: dict[str, Preset] = {p.name: p for p in (*_first_runs(), *_hardware(), *_papers())}
