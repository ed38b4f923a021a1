"""What users of other GRPO trainers reported, by what they saw, and the tests that keep it from happening here.

Row numbers are those of the survey the reports were gathered in; the numbers left out are of several devices or servers, which
the lab does not have. `tests.test_user_reports` checks that every test exists, `tests.mutations` that it can fail.
"""

from __future__ import annotations

from typing import NamedTuple


class Report(NamedTuple):
    row: int
    seen: str
    tests: tuple[str, ...]  # module.function, both in this folder


REPORTS = (
    Report(1, "loss is 0 at the start and stays near 0", (
        "test_grpo.test_on_policy_the_loss_is_about_zero_but_its_gradient_is_not",
    )),
    Report(3, "KL is huge at step 1 after supervised fine-tuning", (
        "test_trainer_rules.test_kl_of_a_continued_adapter_begins_at_zero_and_against_the_base_it_does_not",
        "test_cold_start.test_kl_of_the_first_step_is_exactly_0_after_a_cold_start",
    )),
    Report(4, "curves look healthy, the saved adapter is unchanged", (
        "test_policy.test_an_adapter_without_a_trainable_parameter_is_refused",
        "test_trainer.test_the_adapter_moves_and_the_base_does_not",
    )),
    Report(5, "KL of thousands at step 1, from dropout", (
        "test_user_reports.test_dropout_of_a_continued_adapter_is_off_in_every_pass",
    )),
    Report(6, "ratio is not 1 on-policy at a temperature", ("test_trainer.test_sampler_and_trainer_agree_at_any_temperature",)),
    Report(7, "ratio is below 1 with top-p", (
        "test_draw.test_log_probability_is_of_the_full_distribution_even_when_the_tail_is_cut",
    )),
    Report(8, "result depends on how the batch is split", (
        "test_updating.test_the_token_budget_changes_memory_and_never_the_gradient",
        "test_trl_parity.test_trl_with_two_accumulation_steps_equals_our_whole_batch",
    )),
    Report(9, "masking cut-off completions changes the size of the loss", (
        "test_grpo.test_a_masked_completion_leaves_both_numerator_and_token_count",
        "test_grpo.test_a_fully_masked_batch_has_loss_zero_and_no_nan",
    )),
    Report(10, "the model never learns to stop", (
        "test_rollout.test_mask_counts_the_stop_token_and_nothing_after_it",
        "test_trainer.test_the_stop_token_is_trained_and_padding_is_not",
    )),
    Report(12, "most steps teach nothing", (
        "test_trainer_rules.test_dead_groups_and_no_beta_leave_the_adapter_bit_identical",
        "test_trainer_rules.test_a_dead_group_is_sampled_again_with_a_new_prompt_at_most_so_often",
    )),
    Report(12, "KL pushes on alone in dead groups", (
        "test_trainer_rules.test_skipping_dead_groups_keeps_kl_from_pushing_alone",
    )),
    Report(13, "a small group never learns", ("test_dead_groups.test_the_published_table",)),
    Report(14, "NaN after some hundred steps with groups of two", (
        "test_grpo_advantages.test_groups_of_two_with_a_tiny_difference_stay_finite",
    )),
    Report(15, "it trains, but only KL moves the weights", (
        "test_user_reports.test_without_kl_every_loss_still_moves_the_weights",
    )),
    Report(16, "one None reward poisons the batch or counts as 0", (
        "test_groups.test_none_for_some_of_a_group_makes_nobody_better_or_worse",
        "test_weigh.test_a_reward_that_applies_to_one_alone_makes_nobody_better",
        "test_reward_totals.test_the_page_and_the_algorithm_mean_the_same_by_none",
    )),
    Report(17, "unexpected keyword, or reward always 0", (
        "test_rewards.test_a_missing_column_is_named_with_those_that_exist",
        "test_rewards.test_functions_written_for_text_and_for_messages_both_work",
    )),
    Report(18, "generation_batch_size must be divisible by num_generations", (
        "test_config.test_any_group_size_from_two_and_any_number_of_prompts",
    )),
    Report(19, "another number of steps when G changes", (
        "test_user_reports.test_steps_and_prompts_do_not_depend_on_the_group_size",
    )),
    Report(21, "the format reward is always 0 with a model that thinks", (
        "test_user_reports.test_a_template_that_opens_the_thinking_itself_does_not_make_the_format_reward_0",
    )),
    Report(22, "out of memory at the loss, not at the model", (
        "test_head.test_nothing_of_the_size_of_the_logits_is_kept_for_the_backward",
        "test_policy.test_the_head_in_chunks_gives_the_same_values_and_gradients",
    )),
    Report(23, "generation ten times slower than expected", ("test_user_reports.test_sampling_reads_every_token_once",)),
    Report(24, "4 bits are slower than 16", (
        "test_user_reports.test_4_bits_are_unpacked_once_for_a_batch_and_not_again_for_every_token",
    )),
    Report(25, "KL is infinite, then the loss is NaN", ("test_grpo_kl.test_extreme_log_ratios_stay_finite_and_are_counted",)),
    Report(26, "the KL penalty pulls the wrong way", (
        "test_grpo_kl.test_expected_gradient_of_each_estimator_over_a_toy_vocabulary",
    )),
    Report(27, "clip ratio is always 0, more updates per batch do nothing", (
        "test_trainer.test_a_second_update_uses_the_same_completions_and_frozen_old_logps",
    )),
    Report(28, "a merged 4-bit model is much worse than its adapter", (
        "test_user_reports.test_weights_in_4_bits_are_never_merged",
    )),
    Report(29, "weights drift over many merges", ("test_fast_equals_plain.test_sampling_leaves_the_base_as_it_was",)),
    Report(30, "LoRA does not learn while full fine-tuning does", (
        "test_user_reports.test_the_adapter_moves_on_a_small_base_as_it_does_in_float32",
        "test_user_reports.test_the_default_learning_rate_is_one_for_lora",
    )),
    Report(32, "resume starts again or loads an untrained adapter", (
        "test_checkpoint.test_six_steps_equal_three_and_resume_three",
        "test_trainer_rules.test_every_rule_moves_the_adapter_and_three_steps_and_three_resumed_are_six",
    )),
    Report(33, "sampler and trainer disagree", ("test_rollout.test_sampling_logps_are_the_trainers",)),
    Report(34, "the run hangs for ever in a reward function", (
        "test_sandbox_faults.test_an_endless_loop_uses_no_more_cpu_time_than_it_may",
    )),
    Report(36, "two runs with one seed differ", ("test_trainer.test_equal_configs_give_bit_equal_runs",)),
    Report(37, "evaluation mixes with the training rewards", (
        "test_evaluation.test_an_evaluation_uses_its_own_rewards_temperature_and_number_of_samples",
    )),
    Report(39, "only the last reward function counts", ("test_reward_totals.test_the_total_is_the_weighted_sum",)),
    Report(40, "math rewards hang or raise inside the app only", (
        "test_user_reports.test_mathematics_is_graded_off_the_main_thread_too",
    )),
    Report(41, "the ratio explodes with length", ("test_grpo.test_three_tokens_at_the_three_levels",)),
    Report(42, "cispo's epsilon_high taken for a distance from 1", (
        "test_losses.test_cispo_with_grpos_epsilon_throttles_every_token",
        "test_config.test_contradictions_are_refused_in_a_sentence",
    )),
)
