"""RLOO beside TRL's own RLOOTrainer: advantages with the KL in the reward, and the gradient of an on-policy step.

TRL's ratio is the product over all tokens, exp(Σ log ρ), which explodes with length; ours is per token or the sequence's mean.
On-policy all of them are 1 and the gradient is that of A · Σ log π: with luspo's weights (1 / N) ours is TRL's, with dr_grpo's
(1 / (N · max_completion_length)) it is that many times smaller.
"""

from __future__ import annotations

import tempfile

import pytest
import torch
import trl
from datasets import Dataset

from lab.grpo import combine_rewards, grpo_loss
from lab.rules.advantages import completion_kl, rloo_advantages
from tests import make_parity
from tests.make_parity import GROUP_IDS, LATER_SETTINGS, MAX_LENGTH, NUM_GENERATIONS, PROMPTS, TOLERANCE

BETA = 0.05  # TRL's default for RLOO


@pytest.fixture(scope="module")
def oracle():
    """A real RLOOTrainer on a random two-layer Llama that is given its completions and rewards."""
    torch.manual_seed(1)
    completions = make_parity.random_completions([6, 3, 5, 1, 4, 6, 2, 5], truncated=(0, 5))
    with tempfile.TemporaryDirectory() as folder:
        make_parity.random_llama().save_pretrained(folder)
        args = trl.RLOOConfig(
            output_dir=folder, per_device_train_batch_size=len(PROMPTS), gradient_accumulation_steps=1, num_generations=NUM_GENERATIONS,
            max_completion_length=MAX_LENGTH, beta=BETA, bf16=False, use_cpu=True, gradient_checkpointing=False, report_to=[],
            save_strategy="no",
        )
        trainer = trl.RLOOTrainer(
            model=folder, reward_funcs=[make_parity.first_reward, make_parity.second_reward], args=args,
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS]), processing_class=make_parity.word_tokenizer(),
        )
    trainer._generate_single_turn = lambda *_: completions
    trainer.model.train()
    for parameter in trainer.ref_model.parameters():  # away from the policy, so that there is a KL
        parameter.data += 0.05 * torch.randn_like(parameter)
    return trainer


@pytest.fixture(scope="module")
def batch(oracle):
    return oracle._generate_and_score_completions([{"prompt": prompt} for prompt in PROMPTS])


def logps(oracle, batch, model):
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    return oracle._get_per_token_logps_and_entropies(model, ids, mask, batch["completion_ids"].shape[1])[0]


def our_advantages(oracle, batch, beta):
    rewards = torch.tensor([[float("nan") if r is None else r for r in func]
                            for func in (make_parity.FIRST_REWARDS, make_parity.SECOND_REWARDS)]).T
    totals = combine_rewards(rewards, torch.ones(2), group_ids=GROUP_IDS)
    with torch.no_grad():
        policy, reference = logps(oracle, batch, oracle.model), logps(oracle, batch, oracle.ref_model)
    return rloo_advantages(totals - beta * completion_kl(policy, reference, batch["completion_mask"]), group_ids=GROUP_IDS)


def test_advantages_with_kl_in_the_reward_equal_trls(oracle, batch):
    theirs = batch["advantages"]
    mine = our_advantages(oracle, batch, BETA)
    assert torch.allclose(mine, theirs, rtol=0, atol=TOLERANCE) and theirs[3] == 0  # nobody scored row 3
    assert not torch.allclose(mine, our_advantages(oracle, batch, 0.0), atol=1e-4)  # the KL counts


@pytest.mark.parametrize(("loss_type", "smaller"), [("luspo", 1), ("dr_grpo", MAX_LENGTH)])
def test_the_gradient_of_an_on_policy_step_equals_trls(oracle, batch, loss_type, smaller):
    parameters = list(oracle.model.parameters())
    theirs = torch.autograd.grad(oracle._compute_loss(oracle.model, batch), parameters)
    mine, _ = grpo_loss(
        logps(oracle, batch, oracle.model), None, None, our_advantages(oracle, batch, BETA), batch["completion_mask"],
        loss_type=loss_type, epsilon=0.2, epsilon_high=None, delta=None, beta=0.0, kl_estimator="k3", importance_sampling_level="token",
        max_completion_length=MAX_LENGTH, **LATER_SETTINGS,
    )
    ours = torch.autograd.grad(mine * smaller, parameters)
    theirs, ours = (torch.cat([g.flatten() for g in gradients]) for gradients in (theirs, ours))
    assert theirs.norm() > 1e-3 and (theirs - ours).norm() / theirs.norm() <= TOLERANCE
