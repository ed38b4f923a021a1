"""The HTTP routes: what other programs rely on, and what the page reads. Real app, real store."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from lab import charts
from lab.config import RunConfig
from lab.presets import preset
from lab.records import Completion, Group, StepRecord
from lab.web.answers import answer_to
from tests.browser.made_runs import CONFIG, hostile_group, scored, write_run, write_step
from tests.webapp import ALICE, client, store


@pytest.fixture(scope="module")
def run():
    return write_run(store(), owner=ALICE, steps=12, status="finished")


def get(path, **parameters):
    answer = client().get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_steps_come_only_after_the_cursor_and_the_cursor_moves_on(run):
    first = get(f"/api/runs/{run}/steps")
    assert [row[0] for row in first["rows"]] == list(range(1, 13)) and first["cursor"] == 12 and first["newest_group_step"] == 12
    assert "reward" in first["columns"] and "rewards/accuracy/mean" in first["columns"] and first["state"] == "finished"
    later = get(f"/api/runs/{run}/steps", after=10)
    assert [row[0] for row in later["rows"]] == [11, 12]
    nothing = get(f"/api/runs/{run}/steps", after=12)
    assert nothing["rows"] == [] and nothing["cursor"] == 12


def test_asked_columns_come_in_the_asked_order(run):
    answer = get(f"/api/runs/{run}/steps", columns="kl,reward", after=11)
    assert answer["columns"] == ["kl", "reward"] and len(answer["rows"][0]) == 3


def test_curves_are_smoothed_alike_in_one_piece_and_in_deltas(run):
    whole = get(f"/api/runs/{run}/steps", columns="curves")
    pieces = [get(f"/api/runs/{run}/steps", columns="curves", after=after) for after in range(11)]
    assert all(piece["columns"] == whole["columns"] for piece in pieces)
    for after, piece in enumerate(pieces):
        assert piece["smooth"] == whole["smooth"][after:]
    rewards = [row[1 + whole["columns"].index("reward")] for row in whole["rows"]]
    assert whole["smooth"][7][whole["columns"].index("reward")] == pytest.approx(sum(rewards[4:8]) / 4, abs=1e-4)  # mean of 4


def test_an_update_of_the_curves_is_under_a_kilobyte():
    long = write_run(store(), owner=ALICE, steps=300, with_groups=False)
    answer = client().get(f"/api/runs/{long}/steps", params={"columns": "curves", "after": 299})
    assert len(answer.content) <= 1000 and len(answer.json()["rows"]) == 1


def test_a_long_run_is_thinned_to_a_thousand_points_and_keeps_its_last():
    long = store().create_run(CONFIG.to_dict(), name="long", owner=ALICE)
    for step in range(1, 2502):
        store().write_step(long, StepRecord(step, {"reward": step / 2501, "kl": 0.0}, []))
    rows = get(f"/api/runs/{long}/steps", columns="curves")["rows"]
    assert len(rows) <= 1000 and rows[0][0] == 1 and rows[-1][0] == 2501


def test_groups_of_a_step_hold_every_number_of_the_arithmetic(run):
    answer = get(f"/api/runs/{run}/steps/3/groups")
    group = answer["groups"][0]
    assert answer["functions"] == [{"name": "accuracy", "weight": 0.8}, {"name": "format", "weight": 0.2}]
    assert group["prompt"] == "What is 69 + 13?" and group["answer"] == "82" and not group["dead"] and group["verdict"] is None
    assert group["mean"] == pytest.approx(0.4)  # (0.2 + 1 + 0 + 0.8 + 0.2 + 0 + 1 + 0) / 8
    assert group["std"] == pytest.approx(math.sqrt(1.44 / 7))
    second = group["completions"][1]
    assert second["rewards"] == {"accuracy": 1.0, "format": 1.0} and second["tokens"] == 22 and second["finished"]
    assert second["advantage"] == pytest.approx(0.6 / (math.sqrt(1.44 / 7) + 1e-4))
    assert group["completions"][5]["finished"] is False


def test_tokens_of_a_group_come_with_their_arrays():
    import numpy as np

    group = Group(0, "1 + 1 = ?", [5, 6], {"answer": "2"}, [Completion(i, "2", [7, 8], True, {"accuracy": 1.0}, 1.0, 0.0,
                                                                     arrays={"logps": np.array([-0.5, -0.25],
                                                                         dtype=np.float32)}) for i in range(2)])
    run = store().create_run(CONFIG.to_dict(), name="tokens", owner=ALICE)
    store().write_step(run, StepRecord(1, {"reward": 1.0}, [scored(group)]))
    answer = get(f"/api/runs/{run}/steps/1/groups/0/tokens")["group"]
    assert answer["prompt_ids"] == [5, 6] and answer["completions"][0]["token_ids"] == [7, 8]
    assert answer["completions"][0]["arrays"]["logps"] == [-0.5, -0.25]


@pytest.mark.parametrize(("accuracy", "verdict"), [([1.0, 1.0], "all right"), ([0.0, 0.0], "all wrong"),
                                                   ([None, None], "all equal"), ([0.0, 1.0], "all equal")])
def test_dead_groups_are_told_apart(accuracy, verdict):
    from lab.web.views import group_view

    completions = [Completion(i, "x", [1], True, {"accuracy": a}, 0.5) for i, a in enumerate(accuracy)]
    assert group_view(scored(Group(0, "p", [1], {}, completions)))["verdict"] == verdict


def test_a_group_to_which_no_reward_applies_is_not_scored_and_has_no_std():
    from lab.rewards import summarise
    from lab.web.views import group_view

    group = Group(0, "p", [1], {}, [Completion(i, "x", [1], True, {"code": None}) for i in range(2)])
    summarise(group)
    view = group_view(group)
    assert (view["mean"], view["std"], view["verdict"]) == (None, None, "not scored")


def test_not_applicable_stays_null():
    group = Group(0, "Name a fruit.", [1], {},
                  [Completion(i, "Apple", [1], True, {"accuracy": None, "format": 0.0}, 0.0) for i in range(2)])
    run = store().create_run(CONFIG.to_dict(), name="free", owner=ALICE)
    store().write_step(run, StepRecord(1, {"reward": 0.0}, [scored(group)]))
    shown = get(f"/api/runs/{run}/steps/1/groups")["groups"][0]["completions"][0]
    assert shown["rewards"] == {"accuracy": None, "format": 0.0}


def test_hostile_text_travels_as_json_text_unchanged():
    run = store().create_run(CONFIG.to_dict(), name="hostile", owner=ALICE)
    store().write_step(run, StepRecord(1, {"reward": 0.5}, [hostile_group()]))
    answer = client().get(f"/api/runs/{run}/steps/1/groups")
    assert answer.headers["content-type"] == "application/json"
    assert [c["text"] for c in answer.json()["groups"][0]["completions"]] == [c.text for c in hostile_group().completions]


def test_a_sample_becomes_a_command_with_the_known_answer():
    answer = client().post("/api/sample", json={"prompt": "What is 69 + 13?",
                                                "config": {"num_generations": 4, "temperature": "0.7", "seed": "3"}}).json()
    command = store().command(answer["command"])
    assert command.owner == ALICE and command.result == {"rollout": answer["rollout"]}
    assert command.args["prompts"] == [{"prompt": "What is 69 + 13?", "answer": "82"}] and command.args["adapter"] == "base"
    assert command.args["config"]["temperature"] == 0.7 and command.args["config"]["num_generations"] == 4
    live = get("/api/live")
    assert live["phase"] in ("sampling", "loading") and any(c["id"] == command.id for c in live["queue"] if c["mine"])
    cancel = client().post(f"/api/commands/{command.id}/cancel", json={}).json()
    assert store().command(cancel["command"]).args == {"command": command.id}
    store().finish_command(command.id, "cancelled")


def test_a_free_prompt_has_no_answer():
    answer = client().post("/api/sample", json={"prompt": "Name a fruit."}).json()
    assert store().command(answer["command"]).args["prompts"] == [{"prompt": "Name a fruit."}]
    store().finish_command(answer["command"], "cancelled")


@pytest.mark.parametrize(("prompt", "answer"), [("What is 69 + 13?", "82"), ("72 - 18 = ?", "54"), ("Compute 12 + 7 + 30.", "49"),
                                                ("Calculate 7 + 5 - 3 + 4", "13"), ("Is 37 even or odd?", "odd"), ("Is 37 > 12?", "yes"),
                                                ("is 3 > 12?", "no"), ("  3+4 ", "7"), ("5 \u2212 9", "-4"), ("Name a fruit.", None),
                                                ("What is 3 times 4?", None), ("", None), ("What is 12?", None)])
def test_answers_of_typed_arithmetic(prompt, answer):
    assert answer_to(prompt) == answer


def test_every_built_in_arithmetic_prompt_has_its_own_answer():
    from lab.tasks.arithmetic import GENERATORS, rows

    for row in rows(list(GENERATORS), 210, seed=5):
        assert answer_to(row["prompt"]) == row["answer"], row


def test_a_run_starts_from_the_first_run_preset_and_only_once():
    answer = client("d" * 32).post("/api/runs", json={}).json()
    run = store().run(answer["run"])
    assert RunConfig.from_dict(run.config) == preset("first-run").config() and run.owner == "d" * 32 and run.status == "queued"
    assert store().command(answer["command"]).kind == "train"
    again = client("d" * 32).post("/api/runs", json={})
    assert again.status_code == 409 and "stop it first" in again.json()["error"]
    for kind, args in [("pause", {}), ("resume", {}), ("step", {"n": 10}), ("stop", {}), ("resume_run", {})]:
        sent = client("d" * 32).post(f"/api/runs/{answer['run']}/commands", json={"kind": kind, "args": args}).json()
        command = store().command(sent["command"])
        assert (command.kind, command.args, command.run) == (kind, args, answer["run"])


@pytest.mark.parametrize(("body", "part"), [
    ({"config": {"num_generations": "1"}}, "smallest value is 2"), ({"config": {"learning_rate": "fast"}}, "a number is needed"),
    ({"config": {"max_steps": "2.5"}}, "a whole number is needed"), ({"config": {"rewards": ["nosuch"]}}, "no built-in reward"),
    ({"config": {"reward_weights": "1, 2, 3"}}, "one weight per function"), ({"config": {"modle": "tiny"}}, "Unknown setting modle"),
    ({"config": {"task": "no-such-task"}}, "no-such-task"), ({"config": {"model": "no such model"}}, "There is no model"),
    ({"config": "tiny"}, "config must be a dict"), ({"conf": {}}, "Unknown field conf"), ({"steps": "many"}, "steps must be a int")])
def test_what_cannot_start_is_refused_with_a_sentence(body, part):
    answer = client("e" * 32).post("/api/runs", json=body)
    assert answer.status_code == 422 and part in answer.json()["error"]


def test_unknown_things_are_not_found_and_say_so():
    for path in ("/api/runs/none", "/api/runs/none/steps", "/api/samples/999999", "/api/live?run=none"):
        answer = client().get(path)
        assert answer.status_code == 404 and answer.json()["error"].startswith("There is no")
    assert client().post("/api/runs/none/commands", json={"kind": "pause"}).status_code == 404


def test_a_resumed_run_shows_its_newest_attempt():
    run = write_run(store(), owner=ALICE, steps=4)
    store().begin_attempt(run, 2)
    write_step(store(), run, 3)
    answer = get(f"/api/runs/{run}/steps")
    assert answer["attempt"] == 2 and [row[0] for row in answer["rows"]] == [1, 2, 3]
    assert get("/api/live", run=run)["run"]["step"] == 3


def test_large_answers_are_compressed_and_small_ones_are_not(run):
    large = client().get(f"/api/runs/{run}/steps/3/groups", headers={"accept-encoding": "gzip"})
    small = client().get("/api/live", headers={"accept-encoding": "gzip"})
    assert large.headers.get("content-encoding") == "gzip" and "content-encoding" not in small.headers
    assert json.loads(large.content)["step"] == 3


def test_the_pages_curves_are_those_of_charts():
    answer = get("/api/curves", theme="dark")
    always = [c for c in answer["curves"] if not c["optional"]]
    assert [c["metric"] for c in always] == [c.metric for c in charts.CURVES] and always[-1]["metric"] == "loss"
    assert [c["metric"] for c in answer["curves"] if c["optional"]] == [c.metric for c in charts.CRITIC_CURVES]
    assert always[-1]["unit"] == "≈ 0 is normal"
    assert answer["theme"] == dataclasses.asdict(charts.DARK) | {"parts": list(charts.DARK.parts)}


def test_examples_follow_the_model_and_say_what_it_cannot_do():
    tiny = get("/api/examples", model="tiny", task="add2")
    assert "arithmetic" in tiny["note"] and len(tiny["examples"]) >= 3
    assert any("fruit" in text for text in get("/api/examples", model="smollm2-135m")["examples"])
    assert "There is no model" in get("/api/examples", model="no such model")["note"]


def test_showing_and_starting_runs_never_runs_a_reward_file(tmp_path):
    marker, file = tmp_path / "ran", tmp_path / "my_reward.py"
    file.write_text(f"open({str(marker)!r}, 'w')\ndef score(completions, **kwargs): return [0.0 for _ in completions]\n")
    config = {"rewards": [str(file)], "num_generations": 2}
    started = client("c" * 32).post("/api/runs", json={"config": config}).json()
    completions = [Completion(i, "x", [1], True, {"score": float(i)}, float(i)) for i in range(2)]
    store().write_step(started["run"], StepRecord(1, {"reward": 0.5}, [scored(Group(0, "p", [1], {}, completions))]))
    shown = client("c" * 32).get(f"/api/runs/{started['run']}/steps/1/groups").json()
    assert shown["functions"] == [{"name": "score", "weight": 1.0}] and not marker.exists()


def test_examples_read_no_file(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "secret", "answer": "1"}\n')
    assert "secret" not in client().get("/api/examples", params={"task": str(tmp_path / "rows.jsonl")}).text
