"""Advantage rules beside GRPO's own, GDPO, step rewards, KL in the reward: worked by hand."""

from __future__ import annotations

import pytest
import torch

from lab.rules.advantages import (
    ADVANTAGE_RULES,
    advantages_of,
    completion_kl,
    maxrl_advantages,
    normalize_then_sum,
    opo_advantages,
    process_advantages,
    rank_advantages,
    rloo_advantages,
    step_end_tokens,
)

NAN = float("nan")
ACCURACY = torch.tensor([1.0, 0, 0, 0, 1, 1, 0, 1])
STYLE = torch.tensor([0.0, 0.1, 0.1, 0.2, 0.1, 0.1, 0.1, 0.1])
IDS = torch.tensor([0] * 4 + [1] * 4)


def advantages(rewards_per_func, **changes):
    settings = dict(
        group_ids=IDS, advantage_rule="grpo", scale_rewards="group", multi_objective_aggregation="sum_then_normalize", lengths=None
    )
    return advantages_of(rewards_per_func, torch.ones(rewards_per_func.shape[1]), **(settings | changes))[1]


def test_summed_rewards_are_normalised_together():
    # totals 1, .1, .1, .2: mean .35; squares .4225 + .0625 · 2 + .0225 = .57, / 3, root .43589
    # .65 / .43599 = 1.4909;  −.25 / .43599 = −.5734;  −.15 / .43599 = −.3440
    # second group: 1.1, 1.1, .1, 1.1, which is [1, 1, 0, 1] moved by .1
    expected = torch.tensor([1.4909, -0.5734, -0.5734, -0.3440, 0.4999, 0.4999, -1.4997, 0.4999])
    assert torch.allclose(advantages(torch.stack([ACCURACY, STYLE], 1)), expected, rtol=0, atol=5e-5)


def test_gdpo_lifts_the_wrong_answer_with_the_better_style():
    # accuracy z: 1.4997, −.4999 ×3. style: mean .1, squares .01 + .01 = .02, / 3, root .08165: z −1.2232, 0, 0, 1.2232
    # sums: .2765, −.4999, −.4999, .7233 | .4999, .4999, −1.4997, .4999, together 0; squares 4.0978, / 7, root .76512
    # .2765 / .76522 = .3613;  −.4999 / .76522 = −.6533;  .7233 / .76522 = .9452;  −1.4997 / .76522 = −1.9598
    expected = torch.tensor([0.3613, -0.6532, -0.6532, 0.9452, 0.6532, 0.6532, -1.9597, 0.6532])
    gdpo = advantages(torch.stack([ACCURACY, STYLE], 1), multi_objective_aggregation="normalize_then_sum")
    assert torch.allclose(gdpo, expected, rtol=0, atol=2e-4)
    assert gdpo[3] > gdpo[0]


def test_gdpo_gives_a_group_dead_in_every_function_exactly_zero():
    rewards = torch.stack([torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 1]), torch.tensor([0.1] * 8)], 1)
    gdpo = normalize_then_sum(rewards, torch.ones(2), group_ids=IDS)
    assert (gdpo[4:] == 0).all() and (gdpo[:4] != 0).all()


def test_gdpo_ignores_what_does_not_apply():
    """A third function that is None everywhere changes nothing: its weight goes to the others and scale cancels."""
    two = torch.stack([ACCURACY, STYLE], 1)
    three = torch.cat([two, torch.full((8, 1), NAN)], 1)
    with_two = normalize_then_sum(two, torch.ones(2), group_ids=IDS)
    with_three = normalize_then_sum(three, torch.ones(3), group_ids=IDS)
    assert torch.allclose(with_two, with_three, rtol=0, atol=1e-4)


def test_gdpo_leaves_out_a_row_nobody_scored():
    rewards = torch.stack([ACCURACY, STYLE], 1)
    rewards[2] = NAN
    gdpo = normalize_then_sum(rewards, torch.ones(2), group_ids=IDS)
    assert gdpo[2] == 0 and gdpo.isfinite().all()


def test_rloo_compares_with_the_mean_of_the_others():
    # row 0: 1 − 0 = 1;  row 1: 0 − (1 + 0 + 0) / 3;  row 6: 0 − (1 + 1 + 1) / 3 = −1
    expected = [1, -1 / 3, -1 / 3, -1 / 3, 1 / 3, 1 / 3, -1, 1 / 3]
    assert rloo_advantages(ACCURACY, group_ids=IDS).tolist() == pytest.approx(expected)


def test_rloo_leaves_unscored_rows_out_of_the_baseline():
    # scored 1, 0, 0: row 0 → 1 − 0; rows 2, 3 → 0 − (1 + 0) / 2
    rewards = torch.tensor([1.0, NAN, 0.0, 0.0])
    assert rloo_advantages(rewards, group_ids=IDS[:4]).tolist() == [1.0, 0.0, -0.5, -0.5]


def test_maxrl_divides_by_the_mean():
    # mean 1/4: (1 − 1/4) / (1/4) = 3, −1 ×3;  mean 3/4: 1/3, and −1
    expected = [3, -1, -1, -1, 1 / 3, 1 / 3, -1, 1 / 3]
    assert maxrl_advantages(ACCURACY, group_ids=IDS).tolist() == pytest.approx(expected)


def test_maxrl_gives_a_group_without_success_zero():
    assert maxrl_advantages(torch.zeros(4), group_ids=IDS[:4]).tolist() == [0.0] * 4


def test_maxrl_refuses_negative_rewards():
    with pytest.raises(ValueError, match="row 1 has -1"):
        maxrl_advantages(torch.tensor([1.0, -1.0]), group_ids=IDS[:2])


def test_opo_weights_the_baseline_by_length():
    # baseline (1 · 10 + 0 · 30 + 0 · 20 + 1 · 40) / 100 = 1/2
    lengths = torch.tensor([10, 30, 20, 40])
    rewards = torch.tensor([1.0, 0, 0, 1])
    assert opo_advantages(rewards, group_ids=IDS[:4], lengths=lengths).tolist() == [0.5, -0.5, -0.5, 0.5]
    # without the last row: 10 / 60 = 1/6
    rewards[3] = NAN
    assert opo_advantages(rewards, group_ids=IDS[:4], lengths=lengths).tolist() == pytest.approx([5 / 6, -1 / 6, -1 / 6, 0])


def test_opo_needs_lengths():
    with pytest.raises(ValueError, match="pass lengths"):
        opo_advantages(ACCURACY, group_ids=IDS, lengths=None)


def test_rank_counts_wins_and_losses_whatever_their_size():
    # 9: beats 3 of 3;  0.2: beats 2, loses to 1 → 1/3;  0.1 twice: loses to 2, ties with 1 → −2/3
    expected = [1, 1 / 3, -2 / 3, -2 / 3]
    rewards = torch.tensor([9.0, 0.2, 0.1, 0.1])
    assert rank_advantages(rewards, group_ids=IDS[:4]).tolist() == pytest.approx(expected)
    assert torch.equal(rank_advantages(rewards.exp(), group_ids=IDS[:4]), rank_advantages(rewards, group_ids=IDS[:4]))


def test_rank_never_compares_across_groups():
    both = rank_advantages(torch.cat([ACCURACY[:4], 100 + ACCURACY[4:]]), group_ids=IDS)
    assert torch.equal(both, rank_advantages(ACCURACY, group_ids=IDS))


@pytest.mark.parametrize("rule", ADVANTAGE_RULES)
def test_every_rule_gives_dead_groups_and_unscored_rows_exactly_zero(rule):
    rewards = torch.tensor([[0.3], [0.3], [0.3], [0.3], [1.0], [0.0], [NAN], [0.0]])
    result = advantages(rewards, advantage_rule=rule, lengths=torch.arange(1, 9))
    assert (result[:4] == 0).all() and result[6] == 0
    assert result[4] > 0 > result[5]


@pytest.mark.parametrize("rule", ADVANTAGE_RULES)
def test_every_rule_follows_its_rows_in_any_order(rule):
    order = torch.tensor([6, 0, 3, 5, 1, 7, 2, 4])
    rewards, lengths = torch.stack([ACCURACY, STYLE], 1), torch.arange(1, 9)
    straight = advantages(rewards, advantage_rule=rule, lengths=lengths)
    shuffled = advantages(rewards[order], advantage_rule=rule, lengths=lengths[order], group_ids=IDS[order])
    assert torch.allclose(straight[order], shuffled, rtol=0, atol=1e-6)


def test_totals_come_back_with_the_advantages():
    totals, _ = advantages_of(
        torch.stack([ACCURACY, STYLE], 1),
        torch.tensor([0.8, 0.2]),
        group_ids=IDS,
        advantage_rule="rloo",
        scale_rewards="group",
        multi_objective_aggregation="sum_then_normalize",
    )
    assert torch.allclose(totals, 0.8 * ACCURACY + 0.2 * STYLE)


@pytest.mark.parametrize(
    "changes, message",
    [(dict(advantage_rule="best"), "advantage_rule is 'best'"), (dict(multi_objective_aggregation="sum"), "'sum_then_normalize' or")],
)
def test_an_unknown_rule_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        advantages(torch.stack([ACCURACY, STYLE], 1), **changes)


# ---------------------------------------------------------------- step rewards


def process(step_rewards, step_rows, step_ends, mask, group_ids=(0, 0), scale_rewards="none"):
    tensors = (torch.tensor(step_rewards), torch.tensor(step_rows), torch.tensor(step_ends))
    return process_advantages(*tensors, group_ids=torch.tensor(group_ids), completion_mask=mask, scale_rewards=scale_rewards)


def test_each_token_gets_the_steps_that_end_at_it_or_later():
    # Completion 0: 5 tokens, steps end at tokens 1 and 4 with rewards 1 and 0. Completion 1: 3 tokens, a step at 2, reward 0.5.
    # One set [1, 0, .5]: mean .5, so .5, −.5, 0. Token 0, 1 of completion 0: .5 − .5 = 0; tokens 2, 3, 4: −.5.
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    result = process([1.0, 0.0, 0.5], [0, 0, 1], [1, 4, 2], mask)
    assert result.tolist() == [[0.0, 0.0, -0.5, -0.5, -0.5], [0.0, 0.0, 0.0, 0.0, 0.0]]


def test_steps_are_normalised_as_one_set_per_group_with_the_sample_std():
    # [1, 0, 0, 1]: mean 1/2, squares 1, / 3, root .57735: ±.5 / .57745 = ±.86588
    # completion 0 has steps 1, 0, 0 at tokens 0, 1, 2: .8659 − 2 · .8659 = −.8659; −1.7318; −.8659. completion 1: +.8659 at token 0
    mask = torch.ones(2, 3)
    result = process([1.0, 0.0, 0.0, 1.0], [0, 0, 0, 1], [0, 1, 2, 0], mask, scale_rewards="group")
    expected = torch.tensor([[-0.8659, -1.7318, -0.8659], [0.8659, 0.0, 0.0]])
    assert torch.allclose(result, expected, rtol=0, atol=5e-5)


def test_steps_of_other_groups_do_not_mix():
    mask = torch.ones(4, 2)
    together = process([1.0, 0.0, 5.0, 9.0], [0, 1, 2, 3], [1, 1, 1, 1], mask, group_ids=(4, 4, 2, 2))
    assert together.tolist() == [[0.5, 0.5], [-0.5, -0.5], [-2.0, -2.0], [2.0, 2.0]]


def test_two_steps_that_end_in_the_same_token_add_up():
    # [1, 1, 0, 0]: ±.5; completion 0 carries .5 + .5 at token 1
    assert process([1.0, 1.0, 0.0, 0.0], [0, 0, 1, 1], [1, 1, 0, 1], torch.ones(2, 2)).tolist() == [[1.0, 1.0], [-1.0, -0.5]]


def test_all_equal_steps_give_exactly_zero():
    assert (process([0.7] * 4, [0, 0, 1, 1], [0, 1, 0, 1], torch.ones(2, 2), scale_rewards="group") == 0).all()


def test_one_step_at_the_end_is_outcome_supervision():
    from lab.grpo import group_advantages

    outcome = group_advantages(ACCURACY, group_ids=IDS, scale_rewards="group")
    steps = process_advantages(
        ACCURACY, torch.arange(8), torch.full((8,), 4), group_ids=IDS, completion_mask=torch.ones(8, 5), scale_rewards="group"
    )
    assert torch.equal(steps, outcome[:, None].expand(8, 5))


def test_a_step_after_the_end_of_its_completion_is_refused():
    with pytest.raises(ValueError, match="ends at token 2, but completion 1 has 2 tokens"):
        process([1.0, 0.0], [0, 1], [2, 2], torch.tensor([[1, 1, 1], [1, 1, 0]]))


def test_character_positions_become_tokens():
    # "2+3=5\n" as tokens "2", "+3", "=5", "\n", EOS, which end at characters 1, 3, 5, 6, 6
    token_ends = torch.tensor([1, 3, 5, 6, 6])
    assert step_end_tokens(torch.tensor([1, 2, 5, 6]), token_ends).tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="character 9, after the end of the text, 6"):
        step_end_tokens(torch.tensor([9]), token_ends)


def test_rewards_that_only_rounding_tells_apart_share_a_rank():
    # 0.1 + 0.2 = 0.30000000000000004 as the sum of two functions, beside 0.3 of one: each beats only the last, (1 − 0) / 2
    rewards = torch.tensor([0.1 + 0.2, 0.3, 0.0], dtype=torch.float64)
    assert rank_advantages(rewards, group_ids=torch.zeros(3, dtype=torch.long)).tolist() == [0.5, 0.5, -1.0]


# ---------------------------------------------------------------- KL in the reward


def test_kl_in_the_reward_is_the_sum_over_the_completion_and_taken_off_the_total():
    # k1 per token .3 and .1, padding ignored
    old = torch.tensor([[-1.0, -2.0, NAN]])
    ref = torch.tensor([[-1.3, -2.1, NAN]])
    assert completion_kl(old, ref, torch.tensor([[1, 1, 0]])).tolist() == pytest.approx([0.4])
    # totals 1 and .2 less .4 and .1 are .6 and .1: half their difference above and below their mean
    _, advantages = advantages_of(
        torch.tensor([[1.0], [0.2]]), torch.ones(1), group_ids=torch.zeros(2, dtype=torch.long), advantage_rule="grpo",
        scale_rewards="none", multi_objective_aggregation="sum_then_normalize", penalty=torch.tensor([0.4, 0.1]),
    )
    assert advantages.tolist() == pytest.approx([0.25, -0.25])
