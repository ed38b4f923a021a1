"""Break the code once for each report and each core rule, and see its test fail: `python -m tests.mutations`.

A test that passes whatever the code does proves nothing. Every entry below is a mistake that somebody made, put into a copy of the
project; the named test must fail there. The result is printed and written to `soak/results/mutations.json`. `tests.test_mutations`
keeps the list true at every change (each text is there, each report has an entry); breaking the code belongs to `--soak`.
"""

# ruff: noqa: E501  (a table of source text)

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("lab", "tests", "assets", "pyproject.toml", "README.md", "app.py")
RESULT = Path(__file__).parent / "soak" / "results" / "mutations.json"
TESTS_FAILED = 1  # pytest's exit status; anything else but 0 means that the tests did not even run


class Edit(NamedTuple):
    file: str
    old: str  # stands exactly once in the file
    new: str


class Mutation(NamedTuple):
    row: int | str  # of `tests.reports`, or the name of a core rule
    test: str  # module.function
    edits: tuple[Edit, ...]


def broken(row: int | str, test: str, file: str, old: str, new: str) -> Mutation:
    return Mutation(row, test, (Edit(file, old, new),))


GRPO, LOSSES, GROUPS, ADVANTAGES, PPO = (f"lab/{name}.py" for name in ("grpo", "rules/losses", "rules/groups", "rules/advantages", "rules/ppo"))
TRAINER, OBJECTIVE, COLLECTING, UPDATING, CHECKPOINT = (f"lab/{name}.py" for name in (
    "trainer", "training/objective", "training/collecting", "training/updating", "training/checkpoint"))
ADAPTERS, HEAD, DRAW, DECODE, MERGED = (f"lab/forward/{name}.py" for name in ("adapters", "head", "draw", "decode", "merged"))
SCORING, CONTRACT, LOCKED, RESULTS = (f"lab/rewards/{name}.py" for name in ("scoring", "contract", "locked", "sandbox/results"))

MUTATIONS = (
    broken(1, "test_grpo.test_on_policy_the_loss_is_about_zero_but_its_gradient_is_not", GRPO,
           "old_logps = logps.detach() if old", "old_logps = logps if old"),
    broken(3, "test_trainer_rules.test_kl_of_a_continued_adapter_begins_at_zero_and_against_the_base_it_does_not", "lab/training/references.py",
           ' or (config.reference == "start" and config.adapter is not None)', ""),
    broken(3, "test_cold_start.test_kl_of_the_first_step_is_exactly_0_after_a_cold_start", TRAINER,
           "        self.optimizer.state.clear()\n        self.begin_reference()\n", "        self.optimizer.state.clear()\n"),
    broken(4, "test_policy.test_an_adapter_without_a_trainable_parameter_is_refused", ADAPTERS,
           'raise ModelError(f"The adapter does not fit this model: {error}") from error', "return"),
    broken(4, "test_trainer.test_the_adapter_moves_and_the_base_does_not", UPDATING, "        self.optimizer.step()\n", ""),
    Mutation(5, "test_user_reports.test_dropout_of_a_continued_adapter_is_off_in_every_pass", (
        Edit(ADAPTERS, "config.lora_dropout, config.inference_mode, config.init_lora_weights = 0.0, False, True",
             "config.inference_mode, config.init_lora_weights = False, True"),
        Edit(ADAPTERS, "            layer.eval()\n", "            layer.train()\n"),
    )),
    broken(6, "test_trainer.test_sampler_and_trainer_agree_at_any_temperature", HEAD, "scores /= temperature", "pass"),
    broken(7, "test_draw.test_log_probability_is_of_the_full_distribution_even_when_the_tail_is_cut", DRAW,
           "        tokens = inverse_cdf(_cut(probs, settings), uniforms)\n",
           "        probs = _cut(probs, settings)\n        probs = probs / probs.sum(-1, keepdim=True)\n"
           "        tokens = inverse_cdf(probs, uniforms)\n"),
    broken(8, "test_updating.test_the_token_budget_changes_memory_and_never_the_gradient", OBJECTIVE, "totals=self.totals,", "totals=None,"),
    broken(8, "test_trl_parity.test_trl_with_two_accumulation_steps_equals_our_whole_batch", GRPO,
           "mask / (lengths_of(mask) * num_sequences)", "mask / (lengths_of(mask) * num_sequences * 2)"),
    broken(9, "test_grpo.test_a_masked_completion_leaves_both_numerator_and_token_count", GRPO,
           "num_tokens=completion_mask.bool().sum()", "num_tokens=completion_mask.numel()"),
    broken(9, "test_grpo.test_a_fully_masked_batch_has_loss_zero_and_no_nan", GRPO,
           "return mask.sum(-1, keepdim=True).clamp(min=1)", "return mask.sum(-1, keepdim=True)"),
    *(broken(10, test, DECODE, "completion_mask=(torch.arange(width, device=device) < lengths[:, None]).long(),",
             "completion_mask=torch.tensor([[int(t not in self._eos) for t in tokens] + [0] * (width - len(tokens)) for tokens in written]),")
      for test in ("test_rollout.test_mask_counts_the_stop_token_and_nothing_after_it",
                   "test_trainer.test_the_stop_token_is_trained_and_padding_is_not")),
    broken(12, "test_trainer_rules.test_dead_groups_and_no_beta_leave_the_adapter_bit_identical", OBJECTIVE,
           "return (rewarded | bool(self.beta) | bool(self.entropy_coef)) & self.mask.any(1)", "return self.mask.any(1)"),
    broken(12, "test_trainer_rules.test_a_dead_group_is_sampled_again_with_a_new_prompt_at_most_so_often", COLLECTING,
           "return [index for index, group in enumerate(self.batch.groups) if group.dead]", "return []"),
    broken(12, "test_trainer_rules.test_skipping_dead_groups_keeps_kl_from_pushing_alone", OBJECTIVE,
           'if config.dead_groups == "skip":', "if False:"),
    broken(13, "test_dead_groups.test_the_published_table", "lab/rules/dead_groups.py",
           "return p**num_generations + (1 - p) ** num_generations", "return p**num_generations"),
    broken(14, "test_grpo_advantages.test_groups_of_two_with_a_tiny_difference_stay_finite", GRPO, "STD_EPSILON = 1e-4", "STD_EPSILON = 0.0"),
    broken(15, "test_user_reports.test_without_kl_every_loss_still_moves_the_weights", GRPO,
           "ratio, advantages = tokens.ratio, tokens.advantages", "ratio, advantages = tokens.ratio.detach(), tokens.advantages"),
    *(broken(16, test, GROUPS, "filled = torch.where(applies, rewards, mean[index])", "filled = torch.where(applies, rewards, 0.0)")
      for test in ("test_groups.test_none_for_some_of_a_group_makes_nobody_better_or_worse",
                   "test_weigh.test_a_reward_that_applies_to_one_alone_makes_nobody_better")),
    broken(16, "test_reward_totals.test_the_page_and_the_algorithm_mean_the_same_by_none", SCORING,
           "filled = [mean if value is None else value", "filled = [0.0 if value is None else value"),
    broken(17, "test_rewards.test_a_missing_column_is_named_with_those_that_exist", CONTRACT, "    if missing:", "    if False:"),
    broken(17, "test_rewards.test_functions_written_for_text_and_for_messages_both_work", CONTRACT,
           "if not _took_messages_for_text(error):", "if True:"),
    broken(18, "test_config.test_any_group_size_from_two_and_any_number_of_prompts", "lab/config.py", "        if not self.eval_rewards:\n",
           "        if self.prompts_per_step % self.num_generations:\n            raise ConfigError('must be divisible')\n"
           "        if not self.eval_rewards:\n"),
    broken(19, "test_user_reports.test_steps_and_prompts_do_not_depend_on_the_group_size", COLLECTING,
           "rows = self.task.rows(self.prompts, self.config.prompts_per_step)",
           "rows = self.task.rows(self.prompts, max(1, self.config.prompts_per_step * 4 // self.config.num_generations))"),
    broken(21, "test_user_reports.test_a_template_that_opens_the_thinking_itself_does_not_make_the_format_reward_0", "lab/training/sampling.py",
           'return opened[0] if opened else ""', 'return ""'),
    broken(22, "test_head.test_nothing_of_the_size_of_the_logits_is_kept_for_the_backward", HEAD,
           "checkpoint(_chunk_logps, h, t, logits_of, temperature, use_reentrant=False, preserve_rng_state=False)",
           "_chunk_logps(h, t, logits_of, temperature)"),
    broken(22, "test_policy.test_the_head_in_chunks_gives_the_same_values_and_gradients", HEAD,
           "return torch.cat(logps), torch.cat(entropies)", "return torch.cat(logps[::-1]), torch.cat(entropies)"),
    broken(23, "test_user_reports.test_sampling_reads_every_token_once", DECODE,
           "self._rows = [row for row in self._rows if not self.progress.ended[row]]", "self._rows = list(self._rows)"),
    broken(24, "test_user_reports.test_4_bits_are_unpacked_once_for_a_batch_and_not_again_for_every_token", "lab/forward/fast_path.py",
           "return MergedBody(model, adapter) if self.merges else self.body", "return self.body"),
    broken(25, "test_grpo_kl.test_extreme_log_ratios_stay_finite_and_are_counted", GRPO,
           "return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)", "return log_ratio"),
    broken(26, "test_grpo_kl.test_expected_gradient_of_each_estimator_over_a_toy_vocabulary", GRPO,
           "return ratio * (torch.expm1(d) - d)", "return ratio.detach() * (torch.expm1(d) - d)"),
    broken(27, "test_trainer.test_a_second_update_uses_the_same_completions_and_frozen_old_logps", UPDATING,
           "if batch.old_logps is None:", "if True:"),
    broken(28, "test_user_reports.test_weights_in_4_bits_are_never_merged", MERGED,
           "    return merged.to(weights[0].dtype)\n",
           "    from bitsandbytes.functional import quantize_4bit\n"
           "    for module, part in zip(modules, merged.split([len(w) for w in weights]), strict=True):\n"
           "        base = getattr(module, 'base_layer', module).weight.data\n"
           "        base.copy_(quantize_4bit(part.contiguous(), quant_type='nf4')[0].view_as(base))\n"
           "    return merged.to(weights[0].dtype)\n"),
    broken(29, "test_fast_equals_plain.test_sampling_leaves_the_base_as_it_was", MERGED,
           "part.addmm_(b, a, alpha=module.scaling[adapter])", "frozen_weight(module).data.addmm_(b, a, alpha=module.scaling[adapter])"),
    broken(30, "test_user_reports.test_the_adapter_moves_on_a_small_base_as_it_does_in_float32", ADAPTERS,
           "parameter.data = parameter.data.float()", "parameter.data = parameter.data.to(self._model.dtype)"),
    broken(30, "test_user_reports.test_the_default_learning_rate_is_one_for_lora", "lab/config.py",
           "learning_rate: float = knob(2e-5", "learning_rate: float = knob(5e-7"),
    broken(32, "test_checkpoint.test_six_steps_equal_three_and_resume_three", CHECKPOINT,
           '    _restore_optimizer(trainer, load_file(folder / "optimizer.safetensors"))\n', ""),
    broken(32, "test_trainer_rules.test_every_rule_moves_the_adapter_and_three_steps_and_three_resumed_are_six", CHECKPOINT,
           '    trainer.entropy_coefs = tuple(state["entropy_coefs"])\n', ""),
    broken(33, "test_rollout.test_sampling_logps_are_the_trainers", DRAW,
           "        scaled = scaled / settings.temperature\n", "        pass\n"),
    broken(34, "test_sandbox_faults.test_an_endless_loop_uses_no_more_cpu_time_than_it_may", RESULTS,
           "return self.call_cpu_seconds + self.cpu_seconds_per_completion * completions", "return 10 * self.call_cpu_seconds"),
    broken(36, "test_trainer.test_equal_configs_give_bit_equal_runs", "lab/training/sampling.py",
           "    return torch.Generator().manual_seed(mixed)\n",
           "    generator = torch.Generator()\n    generator.seed()\n    return generator\n"),
    broken(37, "test_evaluation.test_an_evaluation_uses_its_own_rewards_temperature_and_number_of_samples", "lab/training/evaluation.py",
           "rewards = resolve(config.eval_rewards)", "rewards = resolve(config.rewards)"),
    broken(39, "test_reward_totals.test_the_total_is_the_weighted_sum", SCORING,
           "return left * math.fsum(weight * value", "return left * max(weight * value"),
    Mutation(40, "test_user_reports.test_mathematics_is_graded_off_the_main_thread_too", (
        Edit("lab/rewards/check_math.py", ", parsing_timeout=None)", ")"),
        Edit("lab/rewards/check_math.py", ", timeout_seconds=None)", ")"),
        Edit(LOCKED, '        return self._worker().call("check", prompts=chosen, completions=chosen,\n'
                     "                                   columns={name: [values[row] for row in rows] for name, values in columns.items()}).scores\n",
             '        inside = {"__name__": "check"}\n'
             '        exec(Path(__file__).with_name(self.file).read_text(encoding="utf-8"), inside)\n'
             '        return inside["check"](chosen, **{name: [values[row] for row in rows] for name, values in columns.items()})\n'),
    )),
    broken(41, "test_grpo.test_three_tokens_at_the_three_levels", GRPO,
           "return (log_ratio * mask).sum(-1, keepdim=True) / lengths_of(mask)", "return (log_ratio * mask).sum(-1, keepdim=True)"),
    broken(42, "test_losses.test_cispo_with_grpos_epsilon_throttles_every_token", LOSSES,
           "capped = tokens.ratio.detach().clamp(max=epsilon_high)", "capped = tokens.ratio.detach().clamp(max=1 + epsilon_high)"),
    broken(42, "test_config.test_contradictions_are_refused_in_a_sentence", "lab/contradictions.py",
           'c.loss_type == "cispo" and high < 1,', 'c.loss_type == "cispo" and high < 0,'),
    # -- the core rules
    broken("dead group", "test_grpo_advantages.test_a_group_tied_up_to_rounding_gets_exactly_zero", GRPO,
           "return advantages.where(~groups.dead[groups.index], 0.0).nan_to_num(nan=0.0)", "return advantages.nan_to_num(nan=0.0)"),
    broken("no reward", "test_grpo_advantages.test_a_row_without_a_reward_gets_zero_and_does_not_move_the_others", GROUPS,
           "mean = sum_by_group(values, index) / count", "mean = sum_by_group(values, index) / sum_by_group(torch.ones_like(values), index)"),
    broken("KL sign", "test_grpo_kl.test_the_estimators_by_hand", GRPO,
           "d = clamp_log_ratio(ref_per_token_logps - per_token_logps)", "d = clamp_log_ratio(per_token_logps - ref_per_token_logps)"),
    broken("KL in the reward", "test_advantages.test_kl_in_the_reward_is_the_sum_over_the_completion_and_taken_off_the_total", ADVANTAGES,
           "totals = totals - penalty", "totals = totals + penalty"),
    broken("clip side", "test_grpo.test_one_token_of_the_clipped_objective", GRPO,
           "loss=-torch.min(capped * advantages", "loss=-torch.max(capped * advantages"),
    broken("RLOO", "test_trl_rloo.test_advantages_with_kl_in_the_reward_equal_trls", ADVANTAGES,
           "centred * (n / (n - 1))[groups.index]", "centred"),
    broken("step rewards", "test_advantages.test_each_token_gets_the_steps_that_end_at_it_or_later", ADVANTAGES,
           "still_to_come = at_step_ends.flip(-1).cumsum(-1).flip(-1)", "still_to_come = at_step_ends.cumsum(-1)"),
    broken("step rewards of a file", "test_sandbox_steps.test_steps_from_a_worker_that_was_taken_over_are_refused", RESULTS,
           "if not before < step[0] <= length:", "if not before < step[0]:"),
    broken("DPPO by KL", "test_losses.test_dppo_by_kl_measures_kl_of_the_token_against_all_others", LOSSES,
           "distance = p * (old - new) + rest * (rest / new_rest).log()", "distance = p * (old - new)"),
    broken("GAE", "test_ppo.test_gae_by_hand", PPO, "(error + gamma * lam * next_advantage)", "(error + gamma * next_advantage)"),
    broken("value clip", "test_ppo.test_value_loss_takes_the_worse_of_free_and_clipped", PPO,
           "worst = torch.max(free, clipped)", "worst = torch.min(free, clipped)"),
    broken("pass@k", "test_evaluation.test_pass_at_k_is_unbiased", "lab/training/evaluation_metrics.py",
           "return 1.0 - math.comb(n - c, k) / math.comb(n, k)", "return 1.0 - (1 - c / n) ** k"),
    broken("EMA reference", "test_trainer_rules.test_an_ema_reference_lies_between_start_and_policy", "lab/training/references.py",
           "parameter.lerp_(sources[key], share)", "parameter.lerp_(sources[key], 1 - share)"),
    broken("random numbers after a resume", "test_checkpoint.test_six_steps_equal_three_and_resume_three", CHECKPOINT,
           'trainer.rollouts, trainer.num_tokens = state["step"], state["rollouts"]', 'trainer.rollouts, trainer.num_tokens = state["step"], 0'),
    broken("a live change after a resume", "test_checkpoint.test_a_live_change_survives_a_resume", CHECKPOINT,
           'at_home(state["pending"], folder.parent).items()', "{}.items()"),
    broken("an evaluation that fails", "test_evaluation.test_a_reward_that_breaks_in_an_evaluation_ends_that_evaluation_and_not_the_run",
           "lab/training/between_steps.py", "    except RewardError as error:", "    except ZeroDivisionError as error:"),
    broken("reference of a sample", "test_sampling.test_sample_group_measures_against_the_reference_it_is_given", "lab/training/sampling.py",
           "policy.frozen_logps(rollout, reference, max_tokens", "policy.frozen_logps(rollout, None, max_tokens"),
)


def break_and_test(mutation: Mutation, copy: Path) -> tuple[int, str]:
    """pytest's exit status for the mutation's test with its edits in the copy, which is as before afterwards; and what it printed."""
    originals = {edit.file: (copy / edit.file).read_text(encoding="utf-8") for edit in mutation.edits}
    try:
        for edit in mutation.edits:
            path = copy / edit.file
            text = path.read_text(encoding="utf-8")
            if text.count(edit.old) != 1:
                raise ValueError(f"{edit.file} has {edit.old!r} {text.count(edit.old)} times; once is needed.")
            path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
        return run([mutation.test], copy)
    finally:
        for file, text in originals.items():
            (copy / file).write_text(text, encoding="utf-8")


def run(tests: list[str], copy: Path) -> tuple[int, str]:
    """pytest on these tests (module.function) of the copy, in a process of its own."""
    ids = [f"tests/{module}.py::{function}" for module, _, function in (test.partition(".") for test in tests)]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *ids], cwd=copy, env=environment,
                          capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def copied(folder: Path) -> Path:
    """The project in `folder`, without compiled files: they could hide an edit."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    return folder


def main() -> list[dict]:
    """One row for each mutation; raises RuntimeError if a test fails without any."""
    found = []
    with tempfile.TemporaryDirectory(prefix="grpo-lab-mutations-") as folder:
        copy = copied(Path(folder))
        status, printed = run(list(dict.fromkeys(mutation.test for mutation in MUTATIONS)), copy)
        if status:
            raise RuntimeError(f"These tests must pass before anything is broken:\n{printed[-4000:]}")
        for mutation in MUTATIONS:
            status, _ = break_and_test(mutation, copy)
            found.append({"row": mutation.row, "test": mutation.test, "failed": status == TESTS_FAILED, "status": status,
                          "edits": [edit._asdict() for edit in mutation.edits]})
            print(f"{'failed' if status == TESTS_FAILED else f'NOT FAILED ({status})':<16} {mutation.row!s:<30} {mutation.test}", flush=True)
    proven = sum(row["failed"] for row in found)
    print(f"{proven} of {len(found)} mutations made their test fail.")
    RESULT.write_text(json.dumps({"proven": proven, "of": len(found), "mutations": found}, indent=1) + "\n", encoding="utf-8")
    return found


if __name__ == "__main__":
    sys.exit(0 if all(row["failed"] for row in main()) else 1)
