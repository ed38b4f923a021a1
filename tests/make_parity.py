"""TRL beside `lab.grpo`, setting by setting: `python -m tests.make_parity` prints the table and writes it for the app.

The oracle is a real `trl.GRPOTrainer` on a random two-layer Llama. Its own `_generate_and_score_completions` makes the
masks and advantages, its own `_compute_loss` the loss, and backward goes through its own forward pass. Ours starts from
the same model's log-probs. Only the completions, their rewards and a spread of old log-probs are given, so that ratios
leave the clip range on both sides. Gradients are those of all model parameters, as one vector.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func announces itself as experimental

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lab.grpo import batch_totals, grpo_loss
from lab.rules.advantages import advantages_of
from lab.rules.entropy import entropy_bonus, top_entropy_mask
from lab.rules.loss_stats import metrics
from lab.rules.masks import mask_truncated, off_policy_sequence_mask

JSON_FILE = Path(__file__).parent.parent / "assets" / "trl_parity.json"
TOLERANCE = 1e-6

DIFFERENCES = [
    "None from a reward function means not applicable: its weight goes to the others, or the group's mean stands in. TRL counts it as 0.",
    "A tied group (std up to 1e-6) has advantages of exactly 0. TRL keeps the rounding error, divided by 1e-4.",
    "Log-ratios are clamped to ±20 before they are exponentiated, and the clamped tokens are counted. TRL does not clamp (vespo apart).",
    "Normalisers of every loss span the whole optimiser batch. TRL averages bnpo and the entropy bonus per micro-batch, "
    "and takes the entropy threshold per micro-batch, so these depend on the split there.",
    "dapo, cispo and vespo divide by the tokens of this optimiser batch. With several optimiser steps per generation TRL "
    "divides by their average.",
    "KL is computed and logged at beta = 0 too. A fully masked completion counts in no clip metric; at sequence level TRL counts it.",
    "Correction for a separate sampling engine (vLLM) is not offered: one engine samples and trains.",
    "RLOO's advantages and on-policy gradient are those of TRL's RLOOTrainer, KL in the reward included. Off-policy its ratio is the "
    "product over all tokens; ours is per token or the sequence's mean.",
    "Ours only: losses dppo and dppo_kl; advantage rules rloo, maxrl, opo, rank; step rewards; KL estimators k1, k2 and plain k3 by name.",
]

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")
SCALINGS = (  # scale_rewards, multi_objective_aggregation
    ("group", "sum_then_normalize"),
    ("batch", "sum_then_normalize"),
    ("none", "sum_then_normalize"),
    ("group", "normalize_then_sum"),
)
KLS = ((0.0, False), (0.1, False), (0.1, True))  # beta, use_bias_correction_kl
MASKS = ("none", "truncated", "entropy", "off-policy")
DELTAS = (None, 1.35)
LATER_SETTINGS = dict(
    sapo_temperature_pos=1.0,
    sapo_temperature_neg=1.05,
    vespo_k_pos=2.0,
    vespo_lambda_pos=3.0,
    vespo_k_neg=3.0,
    vespo_lambda_neg=2.0,
)

NUM_GENERATIONS, MAX_LENGTH, EOS = 4, 6, 1
PROMPTS = ["t2 t3 t4"] * NUM_GENERATIONS + ["t5 t6 t7"] * NUM_GENERATIONS
FIRST_REWARDS = [1.0, 0.0, 0.0, None, 1.0, 1.0, 0.0, 1.0]  # row 3 is scored by nobody
SECOND_REWARDS = [0.0, 0.1, 0.1, None, 0.1, 0.1, 0.1, 0.1]
GROUP_IDS = torch.tensor([0] * NUM_GENERATIONS + [1] * NUM_GENERATIONS)


class Oracle:
    """A real GRPOTrainer whose settings are changed between calls."""

    def __init__(self):
        torch.manual_seed(0)
        self.completions = random_completions([6, 3, 5, 1, 4, 6, 2, 5], truncated=(0, 5))
        with tempfile.TemporaryDirectory() as folder:
            random_llama().save_pretrained(folder)
            self.trainer = trl.GRPOTrainer(
                model=folder,
                reward_funcs=[first_reward, second_reward],
                args=trainer_args(folder),
                train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS]),
                processing_class=word_tokenizer(),
                rollout_func=self.rollout,
            )
        self.trainer.model.train()
        self.trainer.current_gradient_accumulation_steps = 1
        for parameter in self.trainer.ref_model.parameters():  # away from the policy, so that there is a KL
            parameter.data += 0.05 * torch.randn_like(parameter)
        by_row = torch.tensor([0.5, -0.6, 0.0, 0.3, -0.5, -0.2, 0.6, 0.0])  # whole completions leave the clip range too
        self.old_noise = by_row[:, None] + 0.3 * torch.randn(len(PROMPTS), MAX_LENGTH)

    def rollout(self, prompts, trainer) -> dict[str, list]:
        return {
            "prompt_ids": [[int(word[1:]) for word in prompt.split()] for prompt in prompts],
            "completion_ids": self.completions,
            "logprobs": [[0.0] * len(ids) for ids in self.completions],
        }

    def configure(self, **settings: Any) -> None:
        """Put each setting where this version of TRL reads it: on the trainer, on its args, or on both."""
        for name, value in settings.items():
            for owner, attribute in ((self.trainer, name), (self.trainer.args, name)):
                if hasattr(owner, attribute):
                    setattr(owner, attribute, value)

    def scored_batch(self) -> dict[str, torch.Tensor]:
        batch = self.trainer._generate_and_score_completions([{"prompt": prompt} for prompt in PROMPTS])
        batch.pop("sampling_per_token_logps", None)
        batch["old_per_token_logps"] = batch["old_per_token_logps"] + self.old_noise
        return batch

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.trainer._compute_loss(self.trainer.model, batch)

    def logps_and_entropies(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        input_ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        attention_mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        logps, entropies, _ = self.trainer._get_per_token_logps_and_entropies(
            self.trainer.model, input_ids, attention_mask, batch["completion_ids"].shape[1], compute_entropy=True
        )
        return logps, entropies

    def gradient(self, loss: torch.Tensor) -> torch.Tensor:
        parameters = list(self.trainer.model.parameters())
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
        return torch.cat([gradient.flatten() for gradient in gradients])

    def last_metrics(self) -> dict[str, float]:
        return {name: values[-1] for name, values in self.trainer._metrics["train"].items()}


def ours(oracle: Oracle, batch: dict, forward: tuple, case: dict) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The same loss by `lab`, from the rewards on, and its metrics."""
    per_token_logps, entropies = forward
    finished = torch.tensor([ids[-1] == EOS for ids in oracle.completions])
    lengths = torch.tensor([len(ids) for ids in oracle.completions])
    mask = (torch.arange(MAX_LENGTH) < lengths[:, None]).int()
    mask = mask_truncated(mask, finished) if case["mask"] == "truncated" else mask
    advantages = our_advantages(case["scale_rewards"], case["aggregation"])

    policy_mask = effective = None
    if case["mask"] == "entropy":
        policy_mask = top_entropy_mask(entropies, mask, top_entropy_quantile=0.5)
        effective = mask * policy_mask
    if case["mask"] == "off-policy":
        policy_mask = off_policy_sequence_mask(
            per_token_logps, batch["old_per_token_logps"], advantages, mask, off_policy_mask_threshold=0.05
        )
    loss, stats = grpo_loss(
        per_token_logps,
        batch["old_per_token_logps"],
        batch["ref_per_token_logps"],
        advantages,
        mask,
        loss_type=case["loss_type"],
        epsilon=0.2,
        epsilon_high=epsilon_high_of(case["loss_type"]),
        delta=case["delta"],
        beta=case["beta"],
        kl_estimator="k3_corrected" if case["bias_correction"] else "k3",
        importance_sampling_level=case["level"],
        max_completion_length=MAX_LENGTH,
        totals=batch_totals(mask),
        policy_mask=policy_mask,
        **LATER_SETTINGS,
    )
    if case["entropy_coef"]:
        loss = loss - case["entropy_coef"] * entropy_bonus(entropies, mask if effective is None else effective)
    stats["entropy"] = entropies.detach()
    return loss, metrics([stats], loss_type=case["loss_type"], importance_sampling_level=case["level"])


def epsilon_high_of(loss_type: str) -> float:
    """cispo's is an absolute cap on the ratio."""
    return 1.2 if loss_type == "cispo" else 0.28


def our_advantages(scale_rewards: str, aggregation: str) -> torch.Tensor:
    rewards = torch.tensor([[float("nan") if r is None else r for r in func] for func in (FIRST_REWARDS, SECOND_REWARDS)]).T
    return advantages_of(
        rewards,
        torch.tensor([1.0, 1.0]),
        group_ids=GROUP_IDS,
        advantage_rule="grpo",
        scale_rewards=scale_rewards,
        multi_objective_aggregation=aggregation,
    )[1]


def compare(oracle: Oracle, batches: dict, case: dict) -> dict[str, float]:
    """Run one case on both sides. `grad_diff` is the length of the gradients' difference over the length of TRL's."""
    oracle.configure(
        loss_type=case["loss_type"],
        importance_sampling_level=case["level"],
        beta=case["beta"],
        use_bias_correction_kl=case["bias_correction"],
        epsilon_high=epsilon_high_of(case["loss_type"]),
        delta=case["delta"],
        top_entropy_quantile=0.5 if case["mask"] == "entropy" else 1.0,
        off_policy_mask_threshold=0.05 if case["mask"] == "off-policy" else None,
        entropy_coef=case["entropy_coef"],
        _entropy_bonus_enabled=bool(case["entropy_coef"]),
    )
    batch, forward = batches[case["scale_rewards"], case["aggregation"], case["mask"] == "truncated"]
    theirs = oracle.loss(batch)
    mine, my_metrics = ours(oracle, batch, forward, case)
    their_gradient, my_gradient = oracle.gradient(theirs), oracle.gradient(mine)
    their_metrics = oracle.last_metrics()
    shared = [name for name in my_metrics if name in their_metrics and (name != "kl" or case["beta"])]
    return {
        "loss": theirs.item(),
        "loss_diff": (theirs - mine).abs().item(),
        "grad_diff": ((their_gradient - my_gradient).norm() / their_gradient.norm()).item(),
        "metric_diff": max(abs(their_metrics[name] - my_metrics[name].item()) for name in shared),
    }


def cases() -> list[dict[str, Any]]:
    """Every combination TRL accepts. A δ is tried only where a loss clips, and vespo only has token level."""
    names = ("loss_type", "scaling", "level", "kl", "mask", "delta", "entropy_coef")
    product = itertools.product(LOSS_TYPES, SCALINGS, ("token", "sequence"), KLS, MASKS, DELTAS, (0.0, 0.01))
    listed = []
    for values in product:
        case = dict(zip(names, values, strict=True))
        (case["scale_rewards"], case["aggregation"]), (case["beta"], case["bias_correction"]) = case.pop("scaling"), case.pop("kl")
        clips = case["loss_type"] in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
        bonus_repeats = case["entropy_coef"] and (case["beta"] or case["delta"] or case["scale_rewards"] != "group")
        if (case["delta"] and not clips) or (case["loss_type"] == "vespo" and case["level"] == "sequence") or bonus_repeats:
            continue
        listed.append(case)
    return listed


def parity_table(oracle: Oracle) -> list[dict[str, Any]]:
    batches = {}
    for (scale_rewards, aggregation), truncated in itertools.product(SCALINGS, (False, True)):
        oracle.configure(
            scale_rewards=scale_rewards,
            multi_objective_aggregation=aggregation,
            mask_truncated_completions=truncated,
            beta=0.1,
        )
        batch = oracle.scored_batch()
        batches[scale_rewards, aggregation, truncated] = batch, oracle.logps_and_entropies(batch)
    return [case | compare(oracle, batches, case) for case in cases()]


def summary(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The worst of each loss and level over all other settings."""
    rows = []
    for loss_type, level in itertools.product(LOSS_TYPES, ("token", "sequence")):
        mine = [row for row in table if (row["loss_type"], row["level"]) == (loss_type, level)]
        if mine:
            worst = {name: max(row[name] for row in mine) for name in ("loss_diff", "grad_diff", "metric_diff")}
            rows.append({"loss_type": loss_type, "level": level, "cases": len(mine)} | worst)
    return rows


def as_text(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'loss':<8} {'level':<9} {'cases':>5}  {'loss diff':>9}  {'grad diff':>9}  {'metrics':>9}"]
    for row in rows:
        numbers = "  ".join(f"{row[name]:9.1e}" for name in ("loss_diff", "grad_diff", "metric_diff"))
        lines.append(f"{row['loss_type']:<8} {row['level']:<9} {row['cases']:>5}  {numbers}")
    return "\n".join(lines)


def as_json(table: list[dict[str, Any]]) -> dict[str, Any]:
    columns = list(table[0])
    rows = [[float(f"{row[name]:.3g}") if isinstance(row[name], float) else row[name] for name in columns] for row in table]
    return {
        "trl": trl.__version__,
        "torch": torch.__version__,
        "tolerance": TOLERANCE,
        "cases": len(table),
        "summary": summary(table),
        "differences": DIFFERENCES,
        "columns": columns,
        "rows": rows,
    }


# ---------------------------------------------------------------- what the oracle is made of


def first_reward(completions, **_):
    return FIRST_REWARDS


def second_reward(completions, **_):
    return SECOND_REWARDS


def random_completions(lengths: list[int], truncated: tuple[int, ...]) -> list[list[int]]:
    """Ids from 2 on, ended by EOS except in the truncated rows."""
    completions = [torch.randint(2, 24, (length,)).tolist() for length in lengths]
    return [ids if row in truncated else [*ids[:-1], EOS] for row, ids in enumerate(completions)]


def random_llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=24,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=EOS,
        initializer_range=0.3,  # wide, so that entropies and log-probs differ between tokens
    )
    return LlamaForCausalLM(config)


def word_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {"<pad>": 0, "<eos>": EOS} | {f"t{i}": i for i in range(2, 24)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def trainer_args(folder: str) -> trl.GRPOConfig:
    return trl.GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=len(PROMPTS),
        gradient_accumulation_steps=1,
        num_generations=NUM_GENERATIONS,
        max_completion_length=MAX_LENGTH,
        num_iterations=2,  # makes TRL compute old log-probs
        beta=0.1,
        epsilon=0.2,
        epsilon_high=0.28,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        **LATER_SETTINGS,
    )


def main() -> None:
    torch.set_num_threads(1)
    table = parity_table(Oracle())
    print(as_text(summary(table)))
    JSON_FILE.write_text(json.dumps(as_json(table), separators=(",", ":")), encoding="utf-8")
    print(f"{len(table)} cases against TRL {trl.__version__} written to {JSON_FILE}")


if __name__ == "__main__":
    main()
