"""The Reward tab's routes: drafts, checks, the bench in the web process, versions; owners kept apart."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from lab.web.reward.templates import templates
from lab.web.security import COOKIE
from tests.browser.made_runs import write_run
from tests.webapp import ADDRESS, ALICE, BOB, app_and_store, client, store

CLOSE = '''import re


def close_by(completions, answer, **kwargs):
    scores = []
    for completion, right in zip(completions, answer):
        found = re.findall(r"<answer>(.*?)</answer>", completion[0]["content"])
        scores.append(max(0.0, 1.0 - abs(int(found[-1]) - int(right)) / 10) if found else 0.0)
    return scores
'''
LOOP = "def loops(completions, **kwargs):\n    while True:\n        pass\n"


@pytest.fixture(scope="module")
def run():
    return write_run(store(), owner=ALICE, steps=3, status="finished")


def bench(source=CLOSE, owner=ALICE, **body):
    return client(owner).post("/api/rewards/bench", json={"source": source, **body})


def on_run(run, **more):
    return {"kind": "run", "run": run, **more}


def test_the_tab_begins_with_columns_templates_versions_and_the_sandbox_in_words(run):
    begin = client().get("/api/rewards", params={"run": run}).json()
    assert begin["columns"] == ["answer"] and begin["templates"][0]["name"] == "closeness"
    assert "zip(completions, answer)" in begin["templates"][-1]["source"]
    assert {"accuracy", "format"} <= {b["name"] for b in begin["builtins"]} and "judge" not in {b["name"] for b in begin["builtins"]}
    assert begin["sandbox"]["sentence"].startswith("Reward code runs") and run in [r["id"] for r in begin["runs"]]


@pytest.mark.parametrize("place", range(5))
def test_every_template_runs_as_it_is(run, place):
    template = client().get("/api/rewards", params={"run": run}).json()["templates"][place]
    answer = bench(template["source"], on=on_run(run)).json()
    (mine,) = answer["functions"]
    assert mine["name"] == template["name"] and answer["check"]["ok"] and not mine["failures"] and len(mine["values"]) == 128


@pytest.mark.parametrize("template", templates(["answer"]), ids=lambda t: t["name"])
@pytest.mark.parametrize("answer", ["82", 82, "x / 2", "8.5", "", None])
def test_no_template_breaks_on_what_a_model_may_write(template, answer):
    texts = ["", "82", "<answer></answer>",
             "<answer>eight</answer>", f"<answer>{'9' * 5000}</answer>", "<answer>8.5</answer>", "<answer>②</answer>"]
    scope = {}
    exec(template["source"], scope)
    scores = scope[template["name"]](completions=texts, answer=[answer] * len(texts))
    assert len(scores) == len(texts) and all(score is None or 0 <= score <= 1 for score in scores)


def test_a_draft_is_kept_checked_and_nobody_elses():
    draft = {"source": "def f(completions, level, **kw):\n    return [1]", "columns": ["answer"]}
    answer = client().post("/api/rewards/draft", json=draft).json()
    assert "the column level" in answer["check"]["problems"][0]["message"]
    assert client().get("/api/rewards").json()["draft"].startswith("def f(completions, level")
    assert client(BOB).get("/api/rewards").json()["draft"] is None


def test_values_of_every_function_on_128_completions_of_a_run(run):
    answer = bench(functions=["accuracy", "format"], on=on_run(run)).json()
    assert sum(len(g["completions"]) for g in answer["groups"]) == 128 and answer["on"]["columns"] == ["answer"]
    assert [f["name"] for f in answer["functions"]] == ["close_by", "accuracy", "format"]
    mine = answer["functions"][0]
    assert mine["values"][:8] == [pytest.approx(v) for v in (0.9, 1, 0, 1, 0, 0, 1, 0.8)] and not mine["failures"]
    assert len(answer["hostile"]) == len(mine["hostile"]) == 21 and mine["hostile"][0] == 1.0  # the honest answer stands first
    assert mine["hostile_failures"][0]["line"] == 8


def test_up_to_a_step_and_other_owners_runs(run):
    early = bench(on=on_run(run, step=1)).json()
    assert sum(len(g["completions"]) for g in early["groups"]) == 64 and "up to step 1" in early["on"]["label"]
    refused = bench(owner=BOB, on=on_run(run))
    assert refused.status_code == 404 and "no run" in refused.json()["error"]


def test_typed_text_with_a_known_answer():
    answer = bench(on={"kind": "typed", "prompt": "What is 69 + 13?", "texts": ["<answer>82</answer>", "<answer>81</answer>"]}).json()
    assert answer["functions"][0]["values"] == [1.0, 0.9] and answer["groups"][0]["answer"] == "82"
    missing = bench(on={"kind": "typed", "prompt": "Name a fruit.", "texts": ["mango"]}).json()
    assert "'answer', a column that was not stored" in missing["functions"][0]["failures"][0]["message"]
    assert missing["check"]["problems"][0]["message"].startswith("close_by needs the column answer, which was not stored")


@pytest.mark.parametrize(("body", "words"), [
    ({"on": {"kind": "typed", "prompt": "a", "texts": []}}, "Type 1 to 64"),
    ({"on": {"kind": "typed", "prompt": 1, "texts": ["a"]}}, "a prompt and a"),
    ({"on": {"kind": "file"}}, "not from 'file'"), ({"on": {"kind": "run", "run": "../x"}}, "no run"),
    ({"on": {"kind": "run", "step": "1"}}, "whole number"), ({"functions": ["/etc/passwd.py"]}, "cannot be tried here"),
    ({"functions": ["nope"]}, "no built-in reward"), ({"functions": ["judge(model='m')"]}, "judge needs a person, a network"),
    ({"functions": ["f"] * 13}, "At most 12"),
    ({"against": "close_by@9"}, "no frozen reward close_by@9"), ({"source": "x" * 200_000}, "at most 100,000"),
    ({"more": 1}, "Unknown field")])
def test_what_cannot_be_scored_is_refused_in_a_sentence(run, body, words):
    answer = bench(**{"on": on_run(run), **body}) if "source" not in body else bench(body["source"])
    assert answer.status_code in (404, 422) and words in answer.json()["error"]


def test_a_source_that_does_not_load_still_shows_the_completions_and_the_others(run):
    answer = bench("import nothing_there\ndef f(completions, **kw):\n    return [1]\n", functions=["accuracy"], on=on_run(run)).json()
    mine, accuracy = answer["functions"]
    assert mine["failures"][0]["line"] == 1 and "nothing_there" in mine["failures"][0]["message"] and mine["values"][0] is None
    assert 1.0 in accuracy["values"]
    nothing = bench("", on=on_run(run)).json()["functions"][0]
    assert "nothing here yet" in nothing["failures"][0]["message"]


def test_each_save_stands_beside_the_one_before(run):
    owner = "72" * 16
    mine = write_run(store(), owner=owner, steps=1, status="finished")
    first = bench(owner=owner, on=on_run(mine), against="previous").json()
    second = bench(CLOSE.replace("/ 10", "/ 5"), owner=owner, on=on_run(mine), against="previous").json()
    assert first["against"] is None and second["against"]["title"] == "the save before"
    assert second["against"]["values"] == first["functions"][0]["values"] != second["functions"][0]["values"]
    again = bench(CLOSE.replace("/ 10", "/ 5"), owner=owner, on=on_run(mine), against="previous").json()
    assert again["against"]["values"] == first["functions"][0]["values"], "saving the same once more compares with the same"


def test_a_version_is_frozen_compared_with_and_unknown_to_others(run):
    frozen = client().post("/api/rewards/versions", json={"source": CLOSE, "note": "first"}).json()
    assert frozen["label"] == "close_by@1" and client().get("/api/rewards/versions/close_by@1").json()["source"] == CLOSE
    answer = bench(CLOSE.replace("/ 10", "/ 2"), functions=["close_by@1"], on=on_run(run), against="close_by@1").json()
    assert answer["functions"][1]["values"] == answer["against"]["values"] and answer["against"]["title"] == "close_by@1"
    assert client(BOB).get("/api/rewards/versions/close_by@1").status_code == 404
    refused = client().post("/api/rewards/versions", json={"source": "def f(x):\n    return 1"})
    assert refused.status_code == 422 and "cannot be frozen yet" in refused.json()["error"]


def test_a_run_that_is_started_with_a_version_holds_a_copy_of_it():
    owner = "71" * 16
    client(owner).post("/api/rewards/versions", json={"source": CLOSE})
    config = {"model": "tiny", "task": "add2", "rewards": ["close_by@1", "format"], "max_steps": 1}
    started = client(owner).post("/api/runs", json={"config": config}).json()["run"]
    copy = store().path.parent.resolve() / started / "rewards" / "close_by@1.py"
    assert copy.read_text() == CLOSE and store().run(started).config["rewards"] == [f"{copy}:close_by", "format"]
    assert client(owner).get(f"/api/runs/{started}").json()["functions"][0]["name"] == "close_by@1"
    unknown = client(owner).post("/api/runs", json={"config": {**config, "rewards": ["close_by@7"]}})
    assert unknown.status_code == 422 and "no frozen reward close_by@7" in unknown.json()["error"]


def test_an_endless_loop_costs_nobody_else_anything_and_the_next_save_ends_it(run):
    """While ALICE's loop goes, BOB's save and plain routes are answered; ALICE's next save does not wait for the loop's end."""
    app, _ = app_and_store()
    bobs = write_run(store(), owner=BOB, steps=1, status="finished")

    async def ask():
        transport = httpx.ASGITransport(app=app)

        def browser(owner):
            return httpx.AsyncClient(transport=transport, base_url=ADDRESS, cookies={COOKIE: owner}, timeout=120)

        async with browser(ALICE) as alice, browser(BOB) as bob:
            looping = asyncio.create_task(alice.post("/api/rewards/bench", json={"source": LOOP, "on": on_run(run)}))
            benches = app.state.benches
            while not (benches._hosts.get(ALICE) and benches._hosts[ALICE].worker_pid):
                await asyncio.sleep(0.01)
            other = await bob.post("/api/rewards/bench", json={"source": CLOSE, "on": on_run(bobs)})
            plain = await bob.get("/api/runs")
            still_looping = not looping.done()
            begun = time.monotonic()
            mended = await alice.post("/api/rewards/bench", json={"source": CLOSE, "on": on_run(run)})
            print(f"\na save over a loop: {time.monotonic() - begun:.2f} s")
            ended = await looping
            same = {"source": CLOSE + "#", "on": on_run(run)}
            twice = await asyncio.gather(*(alice.post("/api/rewards/bench", json=same) for _ in range(2)))
            assert [answer.status_code for answer in twice] == [200, 200] and "functions" in twice[1].json()
            again = await alice.post("/api/rewards/bench", json=same)
            assert not again.json()["functions"][0]["failures"], "a worker that was ended by a newer save is not taken for a crash"
            return other, plain, still_looping, mended, ended

    other, plain, still_looping, mended, ended = asyncio.run(ask())
    assert other.status_code == 200 and not other.json()["functions"][0]["failures"] and plain.status_code == 200
    assert still_looping, "BOB was answered while ALICE's loop went on"
    assert mended.status_code == 200 and not mended.json()["functions"][0]["failures"]
    assert ended.json() == {"overtaken": True}


def test_a_loop_alone_is_stopped_and_its_line_named(run):
    mine = bench(LOOP, on=on_run(run, step=1)).json()["functions"][0]
    assert mine["failures"][0]["rows"] is None and mine["failures"][0]["line"] in (2, 3) and "stopped" in mine["failures"][0]["message"]
    assert mine["hostile"] is None
