"""Evaluation: its numbers by hand, its independence of training, and its way into the store."""

from __future__ import annotations

import itertools
import math

import pytest

from lab.config import ConfigError, RunConfig
from lab.records import Completion, EvaluationFailed, EvaluationRecord, Group, StepRecord
from lab.rewards import RewardNotFound
from lab.storage.recorder import open_run, recording
from lab.store import Store
from lab.trainer import Trainer
from lab.training.evaluation import evaluate, finished
from lab.training.evaluation_metrics import evaluation_metrics, pass_at_k

from .conftest import SMALL_RUN

QUICK = dict(eval_prompts=4, eval_samples=3, max_completion_length=24)


def group(*rights, prompt="1 + 1 = ?"):
    completions = [Completion(i, "", [1, 2], True, rewards={"accuracy": right}, reward=right) for i, right in enumerate(rights)]
    return Group(0, prompt, [1], {}, completions, dead=False)


def record(*greedy, adapter="tuned", step=0):
    groups = [group(right, prompt=f"prompt {i}") for i, right in enumerate(greedy)]
    return EvaluationRecord(step, adapter, evaluation_metrics(groups, [], "accuracy"), groups, [])


# -- pass@k


@pytest.mark.parametrize(("n", "c", "k", "value"), [
    (4, 1, 1, 1 / 4),
    (4, 1, 2, 1 / 2),  # of the 6 pairs, 3 have the right one
    (4, 2, 2, 5 / 6),  # only the pair of the two wrong ones fails
    (4, 3, 2, 1.0),  # no pair of wrong ones is left
    (5, 0, 3, 0.0), (5, 5, 1, 1.0)])
def test_pass_at_k_counts_the_choices_of_k_with_a_right_one(n, c, k, value):
    assert pass_at_k(n, c, k) == pytest.approx(value, abs=1e-15)
    choices = list(itertools.combinations([1] * c + [0] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, choices)) / len(choices))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_pass_at_k_is_unbiased(k):
    p, n = 0.3, 5  # every c with its probability: the mean must be the true 1 − (1 − p)^k
    mean = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
    assert mean == pytest.approx(1 - (1 - p) ** k)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1)])
def test_what_cannot_be_estimated_is_refused(n, c, k):
    with pytest.raises(ValueError, match="k must be from 1 to n"):
        pass_at_k(n, c, k)


# -- metrics


def test_metrics_of_an_evaluation_by_hand():
    greedy, sampled = [group(1.0), group(0.0)], [group(1.0, 0.0, 0.0), group(0.0, 0.0, 0.0)]
    metrics = evaluation_metrics(greedy, sampled, "accuracy")
    assert metrics["eval_accuracy"] == 0.5
    # k = 1, 2 and 3: the first prompt has 1 of 3 right, so 1/3, 2/3 and 1; the second never
    assert [metrics[f"eval_pass@{k}"] for k in (1, 2, 3)] == pytest.approx([1 / 6, 2 / 6, 1 / 2])
    assert metrics["eval_reward"] == pytest.approx(1 / 6) and metrics["eval_completions/mean_length"] == 2


def test_a_prompt_without_a_known_answer_is_left_out_rather_than_wrong():
    metrics = evaluation_metrics([group(1.0), group(None)], [group(1.0, 1.0), group(None, None)], "accuracy")
    assert metrics["eval_accuracy"] == 1.0 and metrics["eval_pass@2"] == 1.0
    assert "eval_accuracy" not in evaluation_metrics([group(None)], [], "accuracy")


# -- with the model


def test_an_evaluation_uses_its_own_rewards_temperature_and_number_of_samples(make_trainer):
    trainer = make_trainer(**QUICK, temperature=2.0, num_generations=2)  # trained with the reward `letters`
    found = trainer.evaluate()
    assert len(found.greedy) == 4 and [len(g.completions) for g in found.sampled] == [3] * 4
    assert {name for g in found.sampled for c in g.completions for name in c.rewards} == {"accuracy"}
    assert found.metrics.keys() >= {"eval_accuracy", "eval_pass@1", "eval_pass@2", "eval_pass@3", "eval_reward", "eval_runtime"}
    assert found.greedy[0].row["answer"] and found.greedy[0].completions[0].arrays == {}
    again = make_trainer(**QUICK, temperature=0.5, num_generations=4).evaluate()
    assert texts(found) == texts(again)


def test_a_fresh_adapter_answers_exactly_as_the_base(make_trainer):
    trainer = make_trainer(**QUICK)
    base, tuned = trainer.evaluate(base=True), trainer.evaluate()
    assert (base.adapter, tuned.adapter) == ("base", "tuned") and texts(base) == texts(tuned)


def test_training_is_bit_equal_with_and_without_evaluations(make_trainer):
    runs = [make_trainer(**QUICK, max_steps=2, eval_steps=n) for n in (0, 1)]
    for trainer in runs:
        list(trainer.events())
    prints = [t.policy.adapters.fingerprint(t.adapter) for t in runs]
    assert prints[0] == prints[1]


def test_the_base_comes_first_then_every_n_steps_and_after_the_last(make_trainer):
    trainer = make_trainer(**QUICK, max_steps=3, eval_steps=2)
    seen = [(type(e).__name__, e.step, getattr(e, "adapter", None)) for e in trainer.events()
            if isinstance(e, (StepRecord, EvaluationRecord))]
    assert seen == [("EvaluationRecord", 0, "base"), ("StepRecord", 1, None), ("StepRecord", 2, None), ("EvaluationRecord", 2, "tuned"),
                    ("StepRecord", 3, None), ("EvaluationRecord", 3, "tuned")]


def test_a_run_stopped_before_its_evaluation_makes_it_up_and_never_twice(make_trainer, policy, tmp_path):
    trainer = make_trainer(**QUICK, max_steps=2, eval_steps=1)
    assert next(trainer).step == 1
    trainer.save(tmp_path / "before")  # the evaluation of step 1 is still to come
    assert next(e for e in trainer.events() if isinstance(e, EvaluationRecord)).step == 1
    trainer.save(tmp_path / "after")

    def evaluated(folder, name):
        resumed = Trainer.load(tmp_path / folder, policy=policy, adapter=name, rewards=trainer.config.rewards)
        make_trainer.adopt(resumed)
        return [e.step for e in resumed.events() if isinstance(e, EvaluationRecord)]

    assert evaluated("before", "resumed-before") == [1, 2]
    assert evaluated("after", "resumed-after") == [2]


def test_a_reward_that_breaks_in_an_evaluation_ends_that_evaluation_and_not_the_run(make_trainer):
    def breaks_on_base_and_at_step_2(completions, trainer_state, **kwargs):
        if trainer_state.global_step in (0, 2):
            raise ZeroDivisionError("no luck")
        return [1.0] * len(completions)

    trainer = make_trainer(**QUICK, eval_rewards=(breaks_on_base_and_at_step_2,), eval_steps=1, max_steps=3)
    events = list(trainer.events())
    failed = [event for event in events if isinstance(event, EvaluationFailed)]
    assert [event.step for event in failed] == [0, 2]
    assert failed[0].message.startswith("This evaluation is left out, the run goes on. Reward breaks_on_base_and_at_step_2: raised ZeroDiv")
    assert [event.step for event in events if isinstance(event, EvaluationRecord)] == [1, 3]
    assert [event.step for event in events if isinstance(event, StepRecord)] == [1, 2, 3]


def test_an_evaluation_that_failed_is_an_event_of_the_recorded_run(policy, tmp_path):
    def breaks(completions, **kwargs):
        raise ZeroDivisionError("no luck")

    config = RunConfig(**SMALL_RUN | QUICK | dict(max_steps=1, eval_steps=1, eval_rewards=(breaks,)))
    trainer = Trainer(config, policy=policy, adapter="unlucky-evaluation")
    list(recording(trainer, "unlucky", tmp_path))
    trainer.close()
    run = open_run("unlucky", tmp_path)
    events = [(e.step, e.data["message"]) for e in run.store.events(run.id) if e.kind == "evaluation_failed"]
    assert [step for step, _ in events] == [0, 1] and "no luck" in events[0][1]
    assert (run.status, run.run.step) == ("finished", 1)


def test_an_evaluation_reward_that_does_not_exist_is_refused_before_the_first_step(make_trainer):
    with pytest.raises(RewardNotFound, match="no built-in reward 'acuracy'"):
        make_trainer(**QUICK, eval_rewards=("acuracy",), eval_steps=1)


def test_held_out_rows_of_a_list_never_come_up_in_training(make_trainer):
    rows = [{"prompt": f"What is {i} + 2?", "answer": str(i + 2)} for i in range(60)]
    trainer = make_trainer(task=rows, held_out_share=0.3, eval_prompts=100)
    held_out = {row["prompt"] for row in trainer.task.held_out(100)}
    trained = {row["prompt"] for row in trainer.task.rows(0, 200)}
    assert held_out and not held_out & trained and held_out | trained == {row["prompt"] for row in rows}


def test_a_task_that_holds_nothing_back_is_refused_before_the_first_step(make_trainer):
    with pytest.raises(ConfigError, match="held_out_share"):
        make_trainer(task=["Say hello."], eval_steps=1)
    with pytest.raises(ConfigError, match=r"\(eval_rewards\) is empty"):
        RunConfig(eval_rewards=())


# -- stored like steps


def test_evaluations_are_stored_with_their_answers(policy, tmp_path):
    config = RunConfig(num_generations=2, prompts_per_step=2, max_steps=1, eval_steps=1, learning_rate=1e-3, **QUICK)
    trainer = Trainer(config, policy=policy, adapter="stored")
    list(recording(trainer, "evaluated", tmp_path))
    made = trainer.evaluate()
    trainer.close()
    run = open_run("evaluated", tmp_path)
    first, second = run.store.evaluations(run.id)
    assert (first.step, first.adapter, second.step, second.adapter) == (0, "base", 1, "tuned")
    assert second.metrics["eval_accuracy"] == made.metrics["eval_accuracy"]
    assert [g.completions[0].text for g in run.store.rollout_groups(second.greedy)] == [g.completions[0].text for g in made.greedy]
    assert run.store.rollout(second.sampled).kind == "eval" and run.store.samples() == []
    assert list(run.evaluations["adapter"]) == ["base", "tuned"] and "eval_pass@3" in run.evaluations


def test_an_evaluation_superseded_by_a_resume_is_left_out_and_one_made_again_counts_once(tmp_path):
    store = Store(tmp_path / "lab.sqlite3")
    run = store.create_run({}, name="r")
    for step, right in ((0, 0.0), (10, 0.0), (20, 0.0), (10, 1.0)):
        store.write_evaluation(run, record(right, step=step))
    store.begin_attempt(run, from_step=10)
    store.write_evaluation(run, record(1.0, step=15))
    found = [(e.step, e.metrics["eval_accuracy"], e.sampled) for e in store.evaluations(run)]
    assert found == [(0, 0.0, None), (10, 1.0, None), (15, 1.0, None)]


def test_progress_rises_and_lets_others_take_their_turn(policy):
    config = RunConfig(prompts_per_step=1, num_generations=2, **QUICK)
    shares = [event.share for event in evaluate(policy, config, None)]
    assert len(shares) >= 8 and shares == sorted(shares) and shares[0] == 0 and shares[-1] < 1


def texts(found: EvaluationRecord) -> list[str]:
    return [c.text for g in [*found.greedy, *found.sampled] for c in g.completions]


def test_finished_gives_the_record(policy):
    assert finished(evaluate(policy, RunConfig(eval_prompts=2, eval_samples=0, max_completion_length=8), None)).sampled == []
