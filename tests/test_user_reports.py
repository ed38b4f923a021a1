"""What users of other GRPO trainers reported, and the test that keeps it from happening here.

`REPORTS` lists them by what was seen. Most are proven where the code is tested anyway; those that are not, here.
"""

import ast
import json
import threading
from pathlib import Path

import pytest
import torch

from lab.config import RunConfig
from lab.grpo import POLICY_TERMS, grpo_loss
from lab.policy import Policy
from lab.rewards import resolve
from lab.rules.losses import LATER_SETTINGS
from lab.trainer import Trainer

from .conftest import add_random_adapter, letters, roll

REPORTS = {
    "loss is 0 at the start and stays near 0": ["test_grpo.test_on_policy_the_loss_is_about_zero_but_its_gradient_is_not"],
    "KL is huge at step 1 after supervised fine-tuning": [
        "test_trainer_rules.test_kl_of_a_continued_adapter_begins_at_zero_and_against_the_base_it_does_not",
        "test_cold_start.test_kl_of_the_first_step_is_exactly_0_after_a_cold_start"],
    "curves look healthy, the saved adapter is unchanged": [
        "test_policy.test_an_adapter_without_a_trainable_parameter_is_refused",
        "test_trainer.test_the_adapter_moves_and_the_base_does_not"],
    "KL of thousands at step 1, from dropout": ["test_user_reports.test_dropout_of_a_continued_adapter_is_off_in_every_pass"],
    "ratio is not 1 on-policy at a temperature": ["test_trainer.test_sampler_and_trainer_agree_at_any_temperature"],
    "ratio is below 1 with top-p": ["test_draw.test_log_probability_is_of_the_full_distribution_even_when_the_tail_is_cut"],
    "result depends on how the batch is split": [
        "test_trainer.test_the_token_budget_changes_memory_and_never_the_gradient",
        "test_trl_parity.test_trl_with_two_accumulation_steps_equals_our_whole_batch"],
    "masking cut-off completions changes the size of the loss": [
        "test_grpo.test_a_masked_completion_leaves_both_numerator_and_token_count",
        "test_grpo.test_a_fully_masked_batch_has_loss_zero_and_no_nan"],
    "the model never learns to stop": ["test_rollout.test_mask_counts_the_stop_token_and_nothing_after_it",
                                       "test_trainer.test_the_stop_token_is_trained_and_padding_is_not"],
    "most steps teach nothing": ["test_trainer_rules.test_dead_groups_and_no_beta_leave_the_adapter_bit_identical",
                                 "test_trainer_rules.test_a_dead_group_is_sampled_again_with_a_new_prompt_at_most_so_often"],
    "KL pushes on alone in dead groups": ["test_trainer_rules.test_skipping_dead_groups_keeps_kl_from_pushing_alone"],
    "a small group never learns": ["test_dead_groups.test_the_published_table"],
    "NaN after some hundred steps with groups of two": ["test_grpo.test_groups_of_two_with_a_tiny_difference_stay_finite"],
    "it trains, but only KL moves the weights": ["test_user_reports.test_without_kl_every_loss_still_moves_the_weights"],
    "one None reward poisons the batch or counts as 0": [
        "test_groups.test_none_for_some_of_a_group_makes_nobody_better_or_worse",
        "test_weigh.test_a_reward_that_applies_to_one_alone_makes_nobody_better",
        "test_rewards.test_the_page_and_the_algorithm_mean_the_same_by_none"],
    "unexpected keyword, or reward always 0": ["test_rewards.test_a_missing_column_is_named_with_those_that_exist",
                                               "test_rewards.test_functions_written_for_text_and_for_messages_both_work"],
    "generation_batch_size must be divisible by num_generations": ["test_config.test_any_group_size_from_two_and_any_number_of_prompts"],
    "another number of steps when G changes": ["test_user_reports.test_steps_and_prompts_do_not_depend_on_the_group_size"],
    "out of memory at the loss, not at the model": ["test_head.test_no_gradient_no_slope_kept",
                                                    "test_policy.test_the_head_in_chunks_gives_the_same_values_and_gradients"],
    "generation ten times slower than expected": ["test_user_reports.test_sampling_reads_every_token_once"],
    "KL is infinite, then the loss is NaN": ["test_grpo.test_extreme_log_ratios_stay_finite_and_are_counted"],
    "the KL penalty pulls the wrong way": ["test_grpo.test_expected_gradient_of_each_estimator_over_a_toy_vocabulary"],
    "clip ratio is always 0, more updates per batch do nothing": [
        "test_trainer.test_a_second_update_uses_the_same_completions_and_frozen_old_logps"],
    "a merged 4-bit model is much worse than its adapter": ["test_user_reports.test_weights_in_4_bits_are_never_merged"],
    "weights drift over many merges": ["test_fast_equals_plain.test_sampling_leaves_the_base_as_it_was"],
    "LoRA does not learn while full fine-tuning does": [
        "test_user_reports.test_the_adapter_moves_on_a_small_base_as_it_does_in_float32",
        "test_user_reports.test_the_default_learning_rate_is_one_for_lora"],
    "resume starts again or loads an untrained adapter": [
        "test_checkpoint.test_six_steps_equal_three_and_resume_three",
        "test_trainer_rules.test_every_rule_moves_the_adapter_and_three_steps_and_three_resumed_are_six"],
    "sampler and trainer disagree": ["test_rollout.test_sampling_logps_are_the_trainers"],
    "the run hangs for ever in a reward function": ["test_sandbox_faults.test_an_endless_loop_uses_no_more_cpu_time_than_it_may"],
    "two runs with one seed differ": ["test_trainer.test_equal_configs_give_bit_equal_runs"],
    "evaluation mixes with the training rewards": [
        "test_evaluation.test_an_evaluation_uses_its_own_rewards_temperature_and_number_of_samples"],
    "only the last reward function counts": ["test_rewards.test_the_total_is_the_weighted_sum"],
    "math rewards hang or raise inside the app only": ["test_user_reports.test_mathematics_is_graded_off_the_main_thread_too"],
    "the ratio explodes with length": ["test_grpo.test_three_tokens_at_the_three_levels"],
    "cispo's epsilon_high taken for a distance from 1": ["test_losses.test_cispo_with_grpos_epsilon_throttles_every_token",
                                                         "test_config.test_contradictions_are_refused_in_a_sentence"],
}


@pytest.mark.parametrize("seen", REPORTS)
def test_every_report_has_its_test(seen):
    for name in REPORTS[seen]:
        module, _, function = name.partition(".")
        tree = ast.parse((Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8"))
        assert any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body), name


def test_dropout_of_a_continued_adapter_is_off_in_every_pass(make_trainer, tmp_path):
    first = make_trainer(max_steps=1)
    next(first)
    folder = first.save(tmp_path / "a")
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(settings | {"lora_dropout": 0.5, "inference_mode": True}))
    record = next(make_trainer(adapter=str(folder)))
    assert record.metrics["kl"] == 0.0 and record.metrics["sampling/sampling_logp_difference/max"] < 1e-4


@pytest.mark.parametrize("loss_type", POLICY_TERMS)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_without_kl_every_loss_still_moves_the_weights(loss_type, level):
    logps = torch.full((2, 3), -1.0, requires_grad=True)
    settings = {name: getattr(RunConfig(), name) for name in LATER_SETTINGS}
    loss, _ = grpo_loss(
        logps, None, None, torch.tensor([1.0, -1.0]), torch.ones(2, 3), loss_type=loss_type, epsilon=0.2,
        epsilon_high=5.0 if loss_type == "cispo" else None, delta=None, beta=0.0, kl_estimator="k3",
        importance_sampling_level=level, max_completion_length=3, **settings,
    )
    loss.backward()
    assert (logps.grad[0] < 0).all() and (logps.grad[1] > 0).all()


def test_steps_and_prompts_do_not_depend_on_the_group_size(make_trainer):
    seen = {}
    for num_generations in (2, 5):
        records = list(make_trainer(num_generations=num_generations, prompts_per_step=3, max_steps=2, max_completion_length=2))
        assert [len(group.completions) for record in records for group in record.groups] == [num_generations] * 6
        seen[num_generations] = [group.prompt for record in records for group in record.groups]
    assert len(seen[2]) == 6 and seen[2] == seen[5]


def test_sampling_reads_every_token_once(policy):
    """With a cache a prompt is read once and each new token once; without one, each token reads all before it again."""
    read = []
    hook = policy.model.get_input_embeddings().register_forward_hook(lambda module, inputs, output: read.append(inputs[0].numel()))
    try:
        rollout = roll(policy, num_generations=4, max_completion_length=24)
    finally:
        hook.remove()
    assert 0 < sum(read) <= rollout.prompt_ids.numel() + int(rollout.lengths.sum())


def test_weights_in_4_bits_are_never_merged(policy_4bit):
    """The copy that samples is in 16 bits and beside them: rounded back to 4 bits an adapter would be lost."""
    adapter = add_random_adapter(policy_4bit, seed=2)
    before = {name: p.clone() for name, p in policy_4bit.model.named_parameters()}
    roll(policy_4bit, adapter, num_generations=2, max_completion_length=4)
    assert all(torch.equal(p, before[name]) for name, p in policy_4bit.model.named_parameters())
    policy_4bit.remove_adapter(adapter)


def test_the_default_learning_rate_is_one_for_lora():
    assert 1e-5 <= RunConfig().learning_rate <= 5e-5


@pytest.mark.parametrize("base", ["bfloat16", "4-bit"])
def test_the_adapter_moves_on_a_small_base_as_it_does_in_float32(policy, base, request):
    """At 1e-5 an A matrix in bfloat16 keeps an eighth of its movement (rounding swallows the rest). Ours is float32 always."""
    small = request.getfixturevalue("policy_4bit") if base == "4-bit" else Policy.load(
        "tiny", device="cpu", dtype="bfloat16", load_in_4bit=False, num_threads=1)
    expected, got = movement(policy), movement(small)
    for matrix in ("lora_A", "lora_B"):
        assert got[matrix] >= 0.95 * expected[matrix] > 0


def movement(policy):
    """Summed size of what A and B moved in ten steps at 1e-5, over elements."""
    config = RunConfig(model="tiny", task="add2", rewards=(letters,), num_generations=4, prompts_per_step=2, max_completion_length=8,
                       learning_rate=1e-5, max_steps=10, lora_r=8)
    trainer = Trainer(config, policy=policy, adapter="movement")
    start = {key: p.detach().clone() for key, p in policy.adapters.parameters("movement").items()}
    list(trainer)
    moved = {"lora_A": 0.0, "lora_B": 0.0}
    for key, p in policy.adapters.parameters("movement").items():
        moved["lora_A" if "lora_A" in key else "lora_B"] += float((p.detach() - start[key]).abs().sum())
    trainer.close()
    return moved


def test_mathematics_is_graded_off_the_main_thread_too():
    pytest.importorskip("math_verify", reason="math-verify is an extra")
    graded = []

    def grade():
        function = resolve("accuracy(source='boxed', math=True)")[0].function
        graded.extend(function(completions=[r"\boxed{\frac{1}{2}}", r"\boxed{3}"], answer=["0.5", "4"]))

    thread = threading.Thread(target=grade)
    thread.start()
    thread.join()
    assert graded == [1.0, 0.0]
