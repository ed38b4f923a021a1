"""Named settings to start from: first runs that work, what fits which hardware, what the papers used.

A preset is a set of overrides of `RunConfig`; everything it does not name stays as it was. Papers trained every weight
of large models, so their batch sizes, lengths and learning rates are not copied: what is copied is the algorithm.
Leaves out which preset a model starts with (`lab.models.registry`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from lab.config import ConfigError, RunConfig
from lab.errors import did_you_mean

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
        raise ConfigError(f"There is no preset {name!r}.{did_you_mean(name, PRESETS)} Presets: {', '.join(PRESETS)}.")
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
               {**tiny, "task": "add2", "rewards": ("accuracy", "format"), "reward_weights": (0.8, 0.2), "beta": 0.04}),
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
        Preset("debate", "Debate, scored by you", "Four statements on a motion: the run waits until you have scored each on a small "
               "rubric, then learns what you liked.", "One step measured with SmolLM2 135M.", "first run",
               {**smollm2, "task": "debate", "rewards": ("by_hand",), "num_generations": 4, "prompts_per_step": 1,
                "max_completion_length": 64, "learning_rate": 1e-4, "beta": 0.04}),
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
    def paper(name: str, title: str, why: str, source: str, **settings: Any) -> Preset:
        return Preset(name, title, why, source, "paper", {**PLAIN_GRPO, **settings})

    return [
        paper("deepseekmath", "GRPO as first published", "Advantage by the group's mean and std, k3 KL in the loss, one update "
              "per batch. The paper samples 64 answers of up to 1,024 tokens for each question.", "DeepSeekMath, arXiv 2402.03300",
              beta=0.04, num_generations=64),
        paper("iterative", "Iterative GRPO", "As first published, in stages: the reference becomes the policy of the stage before. "
              "The paper's stages are long; here one has 50 steps.", "DeepSeekMath, arXiv 2402.03300, algorithm 1",
              beta=0.04, num_generations=64, reference="snapshot", ref_model_sync_steps=50),
        paper("r1", "DeepSeek-R1", "Hardly any KL and a clip so wide that it seldom acts. The paper gives answers 32,768 tokens.",
              "DeepSeek-R1, arXiv 2501.12948", beta=0.001, epsilon=1.0, epsilon_high=10.0, num_generations=16),
        paper("r1-cold-start", "DeepSeek-R1, cold start", "A few supervised steps on worked examples first, here those of the arithmetic "
              "tasks. Give your own examples for another task.", "DeepSeek-R1, arXiv 2501.12948, section 2.3",
              beta=0.001, epsilon=1.0, epsilon_high=10.0, num_generations=16, cold_start="worked", cold_start_steps=5),
        paper("ppo", "PPO", "A critic on an adapter of its own instead of the group's mean, KL in the reward, several updates per batch. "
              "Shows what GRPO saves.", "PPO, arXiv 1707.06347, as in InstructGPT, arXiv 2203.02155",
              algorithm="ppo", loss_type="bnpo", beta=0.05, gamma=1.0, lam=0.95, cliprange_value=0.2, num_iterations=4),
        paper("v3.2", "DeepSeek-V3.2", "KL corrected by the ratio, and completions that the policy has left are not pushed down further. "
              "The paper does not print β and threshold; these are mild ones.",
              "DeepSeek-V3.2, arXiv 2512.02556", beta=0.001, kl_estimator="k3_corrected", off_policy_mask_threshold=0.5,
              **SO_THAT_RATIOS_MOVE),
        Preset("trl", "TRL's defaults", "What TRL 1.16 does when nothing is set: token-averaged loss, no KL.",
               "TRL 1.16, GRPOConfig", "paper", {**PLAIN_GRPO, **trl_defaults()}),
        paper("dapo", "DAPO", "Clips less above than below, averages over tokens, no KL, cut-off answers left out of the loss, dead "
              "groups sampled again. The paper gives answers 20,480 tokens.", "DAPO, arXiv 2503.14476",
              loss_type="dapo", epsilon_high=0.28, mask_truncated_completions=True, num_generations=16, dead_groups="resample",
              **SO_THAT_RATIOS_MOVE),
        paper("dr-grpo", "Dr. GRPO", "Not divided by the std, and by a constant in place of the answer's own length: long wrong "
              "answers and easy or hard questions get no special weight.",
              "Dr. GRPO, arXiv 2503.20783", loss_type="dr_grpo", scale_rewards="none"),
        paper("gspo", "GSPO", "One ratio per answer instead of one per token, and so a far narrower clip.",
              "GSPO, arXiv 2507.18071", epsilon=3e-4, epsilon_high=4e-4, importance_sampling_level="sequence", **SO_THAT_RATIOS_MOVE),
        paper("luspo", "LUSPO", "GSPO without dividing by the length, so that long answers do not count less.",
              "LUSPO, arXiv 2602.05261", loss_type="luspo", epsilon=2e-3, epsilon_high=2.5e-3, importance_sampling_level="sequence",
              **SO_THAT_RATIOS_MOVE),
        paper("cispo", "CISPO", "The ratio is capped instead of clipped, so that no token loses its gradient.",
              "MiniMax-M1, arXiv 2506.13585", loss_type="cispo", epsilon_high=5.0, **SO_THAT_RATIOS_MOVE),
        paper("scalerl", "ScaleRL", "CISPO with the batch's spread as the scale.", "ScaleRL, arXiv 2510.13786",
              loss_type="cispo", epsilon_high=5.0, scale_rewards="batch", **SO_THAT_RATIOS_MOVE),
        paper("sapo", "SAPO", "A soft gate instead of the clip, steeper for completions worse than their group.",
              "SAPO, arXiv 2511.20347", loss_type="sapo", sapo_temperature_pos=1.0, sapo_temperature_neg=1.05,
              **SO_THAT_RATIOS_MOVE),
        paper("vespo", "VESPO", "Each completion is weighed by a smooth function of its ratio that falls off on both sides.",
              "VESPO, as in TRL 1.16", loss_type="vespo", **SO_THAT_RATIOS_MOVE),
        paper("dppo", "DPPO", "A token stops when its probability has moved by 0.2, however likely or rare it was.",
              "DPPO, arXiv 2602.04879", loss_type="dppo", epsilon=0.2, epsilon_high=0.2, **SO_THAT_RATIOS_MOVE),
        paper("intellect-2", "INTELLECT-2", "A second clip at 4 where completions are worse than their group, and little KL.",
              "INTELLECT-2, arXiv 2505.07291", beta=0.001, delta=4.0, **SO_THAT_RATIOS_MOVE),
        paper("rloo", "RLOO", "Each completion against the mean of the others, divided neither by the spread nor by its length; KL taken "
              "off the reward.",
              "RLOO, arXiv 2402.14740", loss_type="dr_grpo", advantage_rule="rloo", beta=0.05, kl_placement="reward"),
        paper("opo", "OPO", "A mean weighted by length as the baseline, every token alike, no KL, one update per batch.",
              "OPO, arXiv 2505.23585", loss_type="dapo", advantage_rule="opo", scale_rewards="none"),
        paper("maxrl", "MaxRL", "Divides by the mean reward: a rare success on a hard prompt counts more.", "MaxRL, arXiv 2602.02710",
              advantage_rule="maxrl"),
        paper("gdpo", "GDPO", "Each reward is compared by itself before they are summed, so that a small one is not drowned.",
              "GDPO, arXiv 2601.05242", multi_objective_aggregation="normalize_then_sum"),
        paper("lite-ppo", "Lite PPO", "The group's mean, but the whole batch's spread, and an average over tokens.",
              "Lite PPO, arXiv 2508.08221", loss_type="dapo", scale_rewards="batch"),
        paper("80-20", "The 80/20 rule", "Only the fifth of the tokens at which the policy is least decided is learned from.",
              "Beyond the 80/20 rule, arXiv 2506.01939", loss_type="dapo", epsilon_high=0.28, top_entropy_quantile=0.2,
              **SO_THAT_RATIOS_MOVE),
        paper("skywork", "Skywork-OR1", "An entropy bonus that grows while the policy is too decided.", "Skywork-OR1, arXiv 2505.22312",
              loss_type="dapo", use_adaptive_entropy=True, entropy_target=0.2),
        paper("2-grpo", "Groups of two", "Two completions per prompt and more prompts: cheap, but most groups are dead where success is "
              "rare.", "It takes two, arXiv 2510.00977", num_generations=2),
    ]


PLAIN_GRPO = dict(
    loss_type="grpo", scale_rewards="group", advantage_rule="grpo", multi_objective_aggregation="sum_then_normalize", beta=0.0,
    kl_estimator="k3", kl_placement="loss", reference="start", epsilon=0.2, epsilon_high=None, delta=None,
    importance_sampling_level="token", num_iterations=1, mask_truncated_completions=False, num_generations=8, dead_groups="keep",
    top_entropy_quantile=1.0, entropy_coef=0.0, use_adaptive_entropy=False, off_policy_mask_threshold=None, algorithm="grpo",
    cold_start_steps=0,
)
"""What every paper's preset starts from, so that none leaves a rule of the one chosen before."""

SO_THAT_RATIOS_MOVE = dict(num_iterations=2)
"""For papers whose rule acts on ratios. They cut a rollout into several updates; with a single one every ratio is 1 and all of these
rules are the same."""

PRESETS: dict[str, Preset] = {p.name: p for p in (*_first_runs(), *_hardware(), *_papers())}
