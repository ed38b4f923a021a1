"""Evaluations, lineage, branches and more steps over HTTP: what is told, what reaches the engine, what is refused. Real app and store."""

from __future__ import annotations

import inspect
import re

import pytest

from lab.config import RunConfig
from lab.records import Completion, EvaluationRecord, Group
from lab.training.evaluation_metrics import evaluation_metrics
from lab.web import routes
from tests.browser.made_runs import write_run
from tests.webapp import ALICE, BOB, client, store

PROMPTS = ("What is 1 + 1?", "What is 2 + 2?", "What is 3 + 3?")


def answers(rights, of=1):
    """A group for each prompt; `rights[i]` of its `of` completions are right."""
    return [Group(i, prompt, [1], {"answer": str(2 * i + 2)},
                  [Completion(k, f"<answer>{k}</answer>", [5, 6], True, {"accuracy": float(k < right)}, float(k < right))
                   for k in range(of)])
            for i, (prompt, right) in enumerate(zip(PROMPTS, rights, strict=True))]


def evaluated(step, adapter, greedy, sampled, of=4):
    one, many = answers(greedy), answers(sampled, of)
    return EvaluationRecord(step, adapter, evaluation_metrics(one, many, "accuracy"), one, many)


def write_evaluations(run):
    """The base answers one of three; the tuned model two, but not the one that the base had."""
    store().write_evaluation(run, evaluated(0, "base", [1, 0, 0], [2, 0, 0]))
    store().write_evaluation(run, evaluated(10, "tuned", [0, 1, 1], [1, 4, 2]))


@pytest.fixture(scope="module")
def run():
    run = write_run(store(), owner=ALICE, steps=12, status="finished", with_groups=False)
    write_evaluations(run)
    return run


def get(path, **parameters):
    answer = client().get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def order(run, kind, owner=ALICE, **args):
    return client(owner).post(f"/api/runs/{run}/commands", json={"kind": kind, "args": args})


def test_evaluations_are_told_by_step_with_how_much_they_rest_on(run):
    answer = get(f"/api/runs/{run}/evaluations")
    assert [(row["step"], row["adapter"], row["prompts"], row["samples"]) for row in answer["rows"]] == [(0, "base", 3, 4),
                                                                                                        (10, "tuned", 3, 4)]
    assert answer["rows"][1]["accuracy"] == pytest.approx(2 / 3)
    # pass@2 of 1, 4 and 2 right among 4: 1 − C(3,2)/C(4,2) = 1/2; 1; 1 − C(2,2)/C(4,2) = 5/6
    assert answer["rows"][1]["pass"]["2"] == pytest.approx((1 / 2 + 1 + 5 / 6) / 3)
    assert answer["ks"] == [1, 2, 4]
    assert [trace["name"] for trace in answer["figure"]["data"]] == ["greedy, tuned", "greedy, base", "pass@4, tuned",
                                                                     "pass@4, base"]


def test_an_evaluation_that_failed_is_told_with_its_reason():
    run = write_run(store(), owner=ALICE, steps=2, status="finished", with_groups=False)
    store().add_event(run, 2, "evaluation_failed", {"message": "accuracy: no answer."})
    assert get(f"/api/runs/{run}/evaluations")["failed"] == [{"step": 2, "message": "accuracy: no answer."}]


def test_an_evaluation_opens_down_to_its_prompts_and_completions(run):
    answer = get(f"/api/runs/{run}/evaluations/10")
    assert answer["base_step"] == 0  # the base's own evaluation, made before the first step, answered the same prompts
    first = answer["prompts"][0]
    assert first["prompt"] == PROMPTS[0] and first["answer"] == "2"
    base, tuned = first["base"], first["tuned"]
    assert (base["right"], tuned["right"], base["sampled_right"], tuned["sampled"]) == (True, False, 2, 4)
    assert (answer["gained"], answer["lost"]) == ([1, 2], [0])
    sampled = get(f"/api/runs/{run}/evaluations/10/prompts/2")
    assert [c["right"] for c in sampled["tuned"]] == [True, True, False, False] and sampled["base"][3]["text"] == "<answer>3</answer>"


def test_what_was_not_evaluated_is_not_found_and_nobody_elses_is_told(run):
    assert client().get(f"/api/runs/{run}/evaluations/3").status_code == 404
    assert client().get(f"/api/runs/{run}/evaluations/10/prompts/9").status_code == 404
    assert client(BOB).get(f"/api/runs/{run}/evaluations").status_code == 404
    assert client(BOB).get(f"/api/runs/{run}/lineage").status_code == 404


def test_an_evaluation_is_asked_for_with_its_own_settings_only(run):
    answer = order(run, "evaluate", config={"eval_prompts": "16", "eval_samples": "4"})
    assert store().command(answer.json()["command"]).args == {"config": {"eval_prompts": 16, "eval_samples": 4}}
    assert "no setting of an evaluation" in order(run, "evaluate", config={"beta": "0"}).json()["error"]
    refused = order(run, "evaluate", config={"eval_prompts": "0"}).json()["error"]
    assert "Held-out prompts (eval_prompts) is 0: the smallest value is 1" in refused


def test_a_branch_takes_what_was_typed_and_is_checked_before_the_engine_sees_it(run):
    typed = {"learning_rate": "1e-3", "max_steps": "50", "rewards": ["accuracy"], "reward_weights": ""}
    answer = order(run, "branch", step=10, config=typed)
    args = store().command(answer.json()["command"]).args
    assert args == {"step": 10, "config": {"learning_rate": 1e-3, "max_steps": 50, "rewards": ["accuracy"], "reward_weights": None}}
    refused = order(run, "branch", step=10, config={"temperature": "0"})
    assert refused.status_code == 422 and "Temperature (temperature) is 0.0" in refused.json()["error"]


def test_nothing_is_branched_while_a_run_goes():
    parent = write_run(store(), owner=BOB, steps=3, status="paused", with_groups=False)
    answer = order(parent, "branch", BOB, step=3)
    assert answer.status_code == 409 and "is still paused: stop it first" in answer.json()["error"]
    store().set_status(parent, "stopped")


@pytest.mark.parametrize("more, sentence", [(0, "from 1 to"), ("ten", "from 1 to"), (True, "from 1 to"), (10**9, "from 1 to")])
def test_more_steps_are_a_number(run, more, sentence):
    answer = order(run, "resume_run", more=more)
    assert answer.status_code == 422 and sentence in answer.json()["error"]


def test_a_run_knows_its_parent_its_checkpoints_and_its_branches(run):
    folder = store().path.parent / run
    for step in (5, 10):
        (folder / f"checkpoint-{step}").mkdir(parents=True)
    child = store().create_run(RunConfig(max_steps=50).to_dict(), name="child", owner=ALICE, status="stopped", parent=run, parent_step=10)
    told = get(f"/api/runs/{run}/lineage")
    assert told["checkpoints"] == [10, 5] and told["parent"] is None
    assert [(b["id"], b["step"]) for b in told["branches"]] == [(child, 10)]
    assert get(f"/api/runs/{child}/lineage")["parent"] == {"id": run, "name": "made up", "step": 10}


def test_every_route_and_command_is_documented():
    text = inspect.getdoc(routes)
    for route in routes.router.routes:
        path, method = route.path, next(iter(route.methods))
        assert re.search(rf"{method}\s+{re.escape(path)}(?![\w/])", text), f"{method} {path} is not in the docstring of lab.web.routes"
    from lab.web.actions import RUN_COMMANDS
    assert all(re.search(rf"\b{kind}\b", text) for kind in RUN_COMMANDS)
