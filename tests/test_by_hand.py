"""Scores given by hand: the rubric, what may be given, a trainer that waits, checkpoints while it waits, the page's routes."""

from __future__ import annotations

import copy

import pytest

from lab.records import AwaitingScores, Completion, Group, StepRecord
from lab.rewards import RewardNotFound, resolve, score
from lab.rewards.by_hand import ScoreError, ScoresAwaited, checked_ratings, criteria_of, digest
from lab.trainer import Trainer
from tests.webapp import ALICE, BOB, client, store

RUBRIC = {"clarity": 1.0, "correctness": 2.0, "relevance": 1.0}
SCORES = [1.0, 0.9, 0.0, 1.0]


def groups(*sizes):
    return [Group(g, f"prompt {g}", [1], {}, [Completion(i, f"text {g} {i}", [1, 2], True) for i in range(n)]) for g, n in enumerate(sizes)]


@pytest.fixture
def waiting_trainer(make_trainer):
    """A trainer that has sampled its first group and waits."""
    trainer = make_trainer(rewards=("by_hand",), prompts_per_step=1, max_steps=2)
    with pytest.raises(ScoresAwaited):
        next(trainer)
    return trainer


# -- the rubric


def test_a_score_is_the_weighted_mean_of_its_criteria():
    made = groups(4)[0]
    (reward,) = resolve("by_hand(criteria={'clarity': 1, 'evidence': 3})")
    for completion, rating in zip(made.completions, [{"clarity": 1, "evidence": 0}, {"clarity": 0, "evidence": 1}, {}, None], strict=True):
        completion.ratings = rating
    score([reward], None, [made])
    assert [c.reward for c in made.completions] == [0.25, 0.75, None, None]  # (1·1 + 3·0)/4, (1·0 + 3·1)/4; not scored is not 0
    assert made.completions[0].extra == {"clarity": 1, "evidence": 0}


def test_what_a_person_is_asked_is_what_the_functions_name():
    rewards = resolve(["format", "by_hand", "by_hand(criteria={'humour': 2})"])
    assert criteria_of(rewards) == RUBRIC | {"humour": 2.0}
    assert criteria_of(resolve("format")) == {}


@pytest.mark.parametrize("text, said", [
    ("by_hand(criteria={})", "criteria is empty"), ("by_hand(criteria={'a': 0})", "the weight of a is 0"),
    ("by_hand(criteria={'a': 'b'})", "the weight of a is 'b'"), ("by_hand(criteria={1: 1})", "criteria has 1"),
    ("by_hand(criteria='clarity')", "criteria is empty"), ("rank(of='by_hand')", "cannot rank by_hand"),
])
def test_a_rubric_that_cannot_work_is_refused(text, said):
    with pytest.raises(RewardNotFound, match=said):
        resolve(text)


# -- what may be given


def test_scores_come_as_numbers_or_by_criterion_flat_or_by_group():
    whole = {"clarity": 0.5, "correctness": 0.5, "relevance": 0.5}
    own = {"clarity": 0, "correctness": 1, "relevance": 0.25}
    assert checked_ratings([0.5, own, None], groups(2, 1), RUBRIC) == [[whole, own], [{}]]
    assert checked_ratings([[0.5, own], [None]], groups(2, 1), RUBRIC) == [[whole, own], [{}]]


@pytest.mark.parametrize("given, said", [
    ([1, 1], "There are 2 scores for 3 completions"), ([[1], [1, 1]], "scores for groups of 2, 1"), ("1, 1, 1", "not str"), (5, "not int"),
    ([1, 1, 1.5], "The score of prompt 2, completion 1 is 1.5: a number from 0 to 1"), ([1, -0.1, 1], "completion 2 is -0.1"),
    ([1, True, 1], "is True"), ([1, float("nan"), 1], "is nan"), ([1, "0.5", 1], "is '0.5'"), ([None, None, None], "No completion has"),
    ([1, {"clarity": 1}, 1], "has no number for correctness"), ([1, {**RUBRIC, "charm": 1}, 1], "'charm', which is no criterion"),
    ([1, {"clarity": 2, "correctness": 1, "relevance": 1}, 1], "clarity of prompt 1, completion 2 is 2"),
])
def test_scores_that_cannot_be_used_are_refused_in_a_sentence(given, said):
    with pytest.raises(ScoreError, match=said):
        checked_ratings(given, groups(2, 1), RUBRIC)


def test_the_digest_tells_the_texts_apart():
    one, other = groups(2), groups(2)
    assert digest(one) == digest(other)
    other[0].completions[1].text += "!"
    assert digest(one) != digest(other)


# -- the trainer


def test_a_loop_is_told_what_to_do_and_goes_on_when_it_has_scores(waiting_trainer):
    trainer = waiting_trainer
    with pytest.raises(ScoresAwaited, match="call trainer.give_scores") as told:
        next(trainer)  # asked again, nothing was lost
    assert told.value.criteria == RUBRIC and told.value.groups == trainer.waiting
    trainer.give_scores(SCORES)
    assert trainer.waiting == []
    step = next(trainer)
    completions = step.groups[0].completions
    assert [c.reward for c in completions] == SCORES and step.metrics["rewards/by_hand/mean"] == pytest.approx(0.725)
    # mean .725; Σ(r − m)² = .075625 + .030625 + .525625 + .075625 = .7075; std = √(.7075 / 3) = .48563
    expected = [(r - 0.725) / (0.48563 + 1e-4) for r in SCORES]
    assert [c.advantage for c in completions] == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ScoreError, match="Nothing waits"):
        trainer.give_scores(SCORES)


def test_the_step_pushes_in_the_direction_of_the_scores(waiting_trainer):
    """Σ over completions of advantage × change of log-probability is positive after one step."""
    trainer = waiting_trainer
    trainer.give_scores(SCORES)
    rollout = trainer.batch.rollout
    before, _ = trainer.policy.frozen_logps(rollout, trainer.adapter, max_tokens=4096)
    step = next(trainer)
    after, _ = trainer.policy.frozen_logps(rollout, trainer.adapter, max_tokens=4096)
    moved = (after - before).sum(1).tolist()
    assert sum(c.advantage * change for c, change in zip(step.groups[0].completions, moved, strict=True)) > 0


def test_events_can_be_answered_in_a_loop_and_other_rewards_count_beside(make_trainer):
    trainer = make_trainer(rewards=("by_hand", "brevity"), reward_weights=(1.0, 0.5), prompts_per_step=2, max_steps=2)
    asked, steps = [], []
    for event in trainer.events():
        if isinstance(event, AwaitingScores):
            asked.append(event)
            trainer.give_scores([[0.2 * c.index for c in group.completions] for group in event.groups])
        if isinstance(event, StepRecord):
            steps.append(event)
    assert [event.step for event in asked] == [1, 2] and len(asked[0].groups) == 2
    completion = steps[1].groups[1].completions[3]
    assert completion.reward == pytest.approx(0.6 + 0.5 * completion.rewards["brevity"])


def test_a_rubric_changed_while_the_run_waits_holds_at_once(waiting_trainer):
    waiting_trainer.change(rewards=("by_hand(criteria={'humour': 1})",))
    with pytest.raises(ScoresAwaited, match="humour"):
        next(waiting_trainer)
    waiting_trainer.change(rewards=("brevity",))
    assert "rewards/brevity/mean" in next(waiting_trainer).metrics


def test_groups_sampled_again_are_asked_for_alone(make_trainer):
    trainer = make_trainer(rewards=("by_hand",), prompts_per_step=2, max_steps=1, dead_groups="resample", max_resamples=1)
    asked = []
    for event in trainer.events():
        if isinstance(event, AwaitingScores):
            asked.append([group.index for group in event.groups])
            trainer.give_scores([SCORES if group.index == 0 or len(asked) > 1 else [1, 1, 1, 1] for group in event.groups])
    assert asked == [[0, 1], [1]]  # the second was dead


def test_a_checkpoint_keeps_completions_that_wait_and_scores_already_given(waiting_trainer, policy, make_trainer, tmp_path):
    waiting_trainer.save(tmp_path / "waits")
    told = digest(waiting_trainer.waiting)
    waiting_trainer.give_scores(SCORES)
    waiting_trainer.save(tmp_path / "given")
    expected = next(waiting_trainer)
    for name, asks in (("waits", True), ("given", False)):
        trainer = Trainer.load(tmp_path / name, policy=policy, adapter=f"again-{name}")
        make_trainer.adopt(trainer)
        assert bool(trainer.waiting) == asks
        if asks:
            assert digest(trainer.waiting) == told
            trainer.give_scores(SCORES)
        step = next(trainer)
        assert {**step.metrics, "step_time": 0} == {**expected.metrics, "step_time": 0}


def test_nobody_is_asked_when_a_group_is_only_sampled(policy):
    from lab.config import RunConfig
    from lab.training.sampling import sample_group

    config = RunConfig(rewards=("by_hand", "brevity"), num_generations=2, max_completion_length=6)
    events = list(sample_group(policy, config, [{"prompt": "What is 1 + 1?"}]))
    assert {c.rewards["by_hand"] for c in events[-1].group.completions} == {None}
    assert all(c.reward is not None for c in events[-1].group.completions)


def test_a_look_before_the_run_says_that_it_will_wait_and_not_that_nothing_can_be_learned(policy):
    from lab.config import RunConfig
    from lab.training.preflight import preflight

    config = RunConfig(rewards=("by_hand",), num_generations=4, prompts_per_step=2, max_completion_length=24)
    found = preflight(config, policy=policy, groups=2)
    assert found.can_learn
    assert found.warnings[-1] == "The run will wait for you in every step, with 8 completions to score by hand."
    assert not any(sentence.startswith("by_hand") for sentence in found.warnings)


# -- the routes


ASKED = {"id": "abc", "criteria": RUBRIC, "groups": [{"index": 0, "prompt": "p", "completions": [
    {"index": i, "text": f"<b>{i}</b>", "tokens": 3, "finished": True} for i in range(2)]}]}


def made_run(status="paused", owner=ALICE):
    run = store().create_run({"rewards": ["by_hand"]}, name="hand", owner=owner, status=status)
    store().add_event(run, 1, "awaiting_scores", ASKED)
    return run


def test_the_page_is_told_what_waits_and_leaves_the_scores_for_the_engine():
    run, alice = made_run(), client()
    told = alice.get(f"/api/runs/{run}/scores").json()["waiting"]
    assert told == {**ASKED, "step": 1, "going": True}
    answer = alice.post(f"/api/runs/{run}/scores", json={"id": "abc", "scores": [[1, {"clarity": 0, "correctness": 0.5, "relevance": 1}]]})
    command = store().command(answer.json()["command"])
    whole = {name: 1.0 for name in RUBRIC}
    assert (command.kind, command.run, command.args) == ("scores", run, {
        "id": "abc", "scores": [[whole, {"clarity": 0, "correctness": 0.5, "relevance": 1}]]})
    store().finish_command(command.id)
    store().add_event(run, 1, "scores", {"id": "abc", "scores": []})
    assert alice.get(f"/api/runs/{run}/scores").json()["waiting"] is None


@pytest.mark.parametrize("body, status, said", [
    ({"id": "abc", "scores": [1, 2]}, 422, "completion 2 is 2"), ({"id": "abc", "scores": [1]}, 422, "There are 1 scores for 2"),
    ({"id": "old", "scores": [1, 1]}, 409, "no longer wait"), ({"id": "abc"}, 422, "There are 0 scores"),
    ({"id": "abc", "scores": "x"}, 422, "scores must be a list"), ({"marks": []}, 422, "Unknown field marks"),
])
def test_scores_that_do_not_fit_are_refused_before_they_reach_the_engine(body, status, said):
    run = made_run()
    answer = client().post(f"/api/runs/{run}/scores", json=body)
    assert answer.status_code == status and said in answer.json()["error"]
    assert not [c for c in store().open_commands() if c.run == run]


def test_a_run_out_of_the_engine_is_resumed_first_and_another_owners_is_unknown():
    run = made_run(status="interrupted")
    assert client().get(f"/api/runs/{run}/scores").json()["waiting"]["going"] is False
    answer = client().post(f"/api/runs/{run}/scores", json={"id": "abc", "scores": [1, 0]})
    assert answer.status_code == 409 and "resume it first" in answer.json()["error"]
    assert client(BOB).get(f"/api/runs/{run}/scores").status_code == 404
    assert client(BOB).post(f"/api/runs/{run}/scores", json={"id": "abc", "scores": [1, 0]}).status_code == 404


def test_a_new_attempt_waits_only_when_it_has_asked_again():
    run = made_run()
    store().begin_attempt(run, 0)
    assert client().get(f"/api/runs/{run}/scores").json()["waiting"] is None
    store().add_event(run, 1, "awaiting_scores", copy.deepcopy(ASKED))
    assert client().get(f"/api/runs/{run}/scores").json()["waiting"]["id"] == "abc"
