"""From a group's rewards to the advantages of its completions and tokens, by hand."""

import numpy as np
import pytest
import torch

from lab.config import RunConfig
from lab.records import Completion, Group
from lab.rewards import RewardError
from lab.rollout import Rollout
from lab.training.weigh import token_ends, weigh

TEXTS = ["ab", "cdef"]


def decode(ids):
    """One token per letter."""
    return "".join(chr(i) for i in ids)


def group_and_rollout(rewards, steps=({}, {}), texts=TEXTS):
    completions = [Completion(i, text, [ord(c) for c in text], True, rewards=r, steps=s)
                   for i, (text, r, s) in enumerate(zip(texts, rewards, steps, strict=True))]
    width = max(map(len, texts))
    mask = torch.tensor([[1] * len(t) + [0] * (width - len(t)) for t in texts])
    rollout = Rollout(torch.zeros(1, 1), torch.ones(1, 1), mask, mask, torch.ones(2, dtype=torch.bool), torch.zeros(mask.shape),
                      torch.tensor([0, 0]), 1.0)
    return Group(0, "q", [1], {}, completions), rollout


def test_a_reward_that_applies_to_one_alone_makes_nobody_better():
    group, rollout = group_and_rollout([{"a": 1.0, "b": None}, {"a": 1.0, "b": 0.5}])
    advantages = weigh([group], rollout, RunConfig(rewards=("a", "b")), decode=decode)
    assert advantages.tolist() == [0.0, 0.0] and group.dead is True


def test_hand_worked_process_supervision():
    # Steps: 1 at the end of "a", 0 at the end of "ab"; 0 at "cd", 1 at "cdef". Mean ½, so each step is ±½ (no scaling).
    steps = ({"p": [(1, 1.0), (2, 0.0)]}, {"p": [(2, 0.0), (4, 1.0)]})
    group, rollout = group_and_rollout([{"p": 0.5}, {"p": 0.5}], steps)
    advantages = weigh([group], rollout, RunConfig(rewards=("p",), scale_rewards="none"), decode=decode)
    # Each token: the sum of the steps that end at it or later.
    assert advantages.tolist() == [[0.0, -0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]]
    assert group.dead is False
    assert [c.advantage for c in group.completions] == [-0.25, 0.25]
    assert np.array_equal(group.completions[0].arrays["advantages"], np.float32([0.0, -0.5]))


def test_steps_under_another_rule_than_grpos_are_refused_rather_than_weighed_by_it():
    group, rollout = group_and_rollout([{"p": 1.0}, {"p": 0.0}], ({"p": [(2, 1.0)]}, {"p": [(4, 0.0)]}))
    with pytest.raises(RewardError, match="Reward p: it rewarded single steps.*advantage_rule is rloo"):
        weigh([group], rollout, RunConfig(rewards=("p",), advantage_rule="rloo"), decode=decode)


def test_outcome_and_steps_are_added_with_their_weights():
    steps = ({"p": [(2, 1.0)]}, {"p": [(4, 0.0)]})
    group, rollout = group_and_rollout([{"o": 0.0, "p": 1.0}, {"o": 1.0, "p": 0.0}], steps)
    config = RunConfig(rewards=("o", "p"), reward_weights=(2.0, 1.0), scale_rewards="none")
    # outcome: 2·(0 − ½) = −1 and +1; steps: ±½
    assert weigh([group], rollout, config, decode=decode).tolist() == [[-0.5, -0.5, 0.0, 0.0], [0.5] * 4]


def test_equal_steps_everywhere_are_dead():
    group, rollout = group_and_rollout([{"p": 1.0}, {"p": 1.0}], ({"p": [(2, 1.0)]}, {"p": [(4, 1.0)]}))
    assert not weigh([group], rollout, RunConfig(rewards=("p",)), decode=decode).any() and group.dead is True


def test_positions_of_tokens_with_several_or_no_characters():
    pieces = {1: "ab", 2: "", 3: "c d"}
    assert token_ends(lambda ids: "".join(pieces[i] for i in ids), [1, 2, 3, 2]) == [2, 2, 5, 5]


def test_a_character_of_several_tokens_belongs_to_the_last_of_them():
    data = list("aä€".encode())  # 1 + 2 + 3 bytes
    assert token_ends(lambda ids: bytes(ids).decode(errors="replace"), data) == [1, 1, 2, 2, 2, 3]


@pytest.mark.parametrize("text", ["7+5=12, 12-3=9", " hello  world", "naïve €5 → ok", "<think>a</think> 😀"])
def test_positions_with_a_real_tokenizer(policy, text):
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"] + policy.eos_ids[:1]
    ends = token_ends(policy.decode, ids)
    whole = policy.decode(ids)
    assert ends == sorted(ends) and ends[-1] == len(whole)
    for i, end in enumerate(ends):
        shown = policy.decode(ids[: i + 1])
        assert shown.endswith("\ufffd") or whole[:end] == shown
