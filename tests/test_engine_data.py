"""Scans and pre-flights as the engine's work: samples go before a scan, a training takes turns with it, a cancelled one keeps
what it found.

The real engine and the real tiny model, worked event by event in this process.
"""

from __future__ import annotations

import pytest

from lab.config import RunConfig
from lab.engine import Engine, recover
from lab.presets import preset
from lab.storage.datasets import MOST_SETS, Datasets
from lab.store import open_store
from lab.tasks import TaskError, load_task

CONFIG = RunConfig(**preset("first-run").settings).replace(max_completion_length=24, num_threads=1, prompts_per_step=2, num_generations=4)
QUESTION = {"prompts": [{"prompt": "What is 1 + 2?", "answer": "3"}], "config": CONFIG.to_dict()}


@pytest.fixture(scope="module")
def loaded():
    """The engine's models, kept between tests."""
    return {}


@pytest.fixture
def engine(tmp_path, loaded):
    engine = Engine(open_store(tmp_path))
    engine.models._loaded = loaded
    yield engine
    for work in engine.runs.values():
        work.trainer.close()
    engine.store.close()


@pytest.fixture
def datasets(engine):
    return Datasets(engine.store.path)


@pytest.fixture
def sums(datasets):
    rows = [{**row, "held_out": n % 4 == 0} for n, row in enumerate(load_task("add2").rows(0, 16))]
    return datasets.add("Sums", rows, {"rewards": ["accuracy"]}, owner="ada")


def send(engine, kind, args, **options):
    return engine.store.send_command(kind, args, owner="ada", **options).id


def turn(engine) -> bool:
    commands = engine.store.take_commands()
    for command in commands:
        engine._obey(command)
    return engine._work() or bool(commands)


def until(engine, condition, turns=3000):
    for _ in range(turns):
        if condition():
            return
        turn(engine)
    pytest.fail("it never came to that")


def status(engine, command):
    return engine.store.command(command).status


def scan(engine, dataset, **args):
    return send(engine, "scan", {"dataset": dataset.id, "config": CONFIG.to_dict(), "samples": 4} | args)


def test_a_scan_tells_what_it_found_about_each_row_that_is_not_held_out(engine, datasets, sums):
    command = scan(engine, sums, prompts=8)
    seen = []
    while status(engine, command) != "done":
        turn(engine)
        seen.append(len((datasets.find(sums.id, "ada").scan or {}).get("prompts", [])))
    found = datasets.find(sums.id, "ada").scan
    assert [entry["row"] for entry in found["prompts"]] == [1, 2, 3, 5, 6, 7, 9, 10]  # rows 0, 4, 8 and 12 are held out
    rows = datasets.rows(sums)
    assert all(entry["prompt"] == rows[entry["row"]]["prompt"] and entry["samples"] == 4 for entry in found["prompts"])
    assert found["status"] == "done" and found["summary"]["of"] == 8 and set(found["summary"]["live"]) == {"2", "4"}
    assert engine.store.command(command).result == {"prompts": 8} and seen == sorted(seen)


def test_a_sample_goes_before_a_scan_that_has_begun(engine, datasets, sums):
    scanning = scan(engine, sums)
    until(engine, lambda: engine.samples and engine.samples[0].begun)
    turn(engine)
    sampling = send(engine, "sample", QUESTION)
    until(engine, lambda: status(engine, sampling) == "done")
    assert status(engine, scanning) == "taken"
    until(engine, lambda: status(engine, scanning) == "done")
    assert len(datasets.find(sums.id, "ada").scan["prompts"]) == 12


def test_a_training_takes_turns_with_a_scan(engine, datasets, sums):
    run = engine.store.create_run(CONFIG.replace(max_steps=50).to_dict(), name="r", owner="ada")
    send(engine, "train", {}, run=run)
    until(engine, lambda: engine.store.run(run).step == 1)
    scanning = scan(engine, sums)
    until(engine, lambda: status(engine, scanning) == "done")
    assert engine.store.run(run).step > 1  # it did not wait for the whole scan
    send(engine, "stop", {}, run=run)
    until(engine, lambda: engine.store.run(run).status == "stopped")


def test_a_cancelled_scan_keeps_what_it_found(engine, datasets, sums):
    command = scan(engine, sums, samples=8)
    until(engine, lambda: len((datasets.find(sums.id, "ada").scan or {}).get("prompts", [])) >= 4)
    send(engine, "cancel", {"command": command})
    until(engine, lambda: status(engine, command) == "cancelled")
    found = datasets.find(sums.id, "ada").scan
    assert found["status"] == "cancelled" and 4 <= len(found["prompts"]) < 12 and not engine.samples


def test_a_scan_that_cannot_be_done_says_why(engine, datasets, sums):
    command = scan(engine, sums, config=CONFIG.replace(rewards=("accuracy(column='nothing')",), reward_weights=None).to_dict())
    until(engine, lambda: status(engine, command) == "failed")
    assert "no column 'nothing'" in engine.store.command(command).error
    assert datasets.find(sums.id, "ada").scan["status"] == "failed" and "nothing" in datasets.find(sums.id, "ada").scan["error"]
    other = engine.store.send_command("scan", {"dataset": sums.id, "config": CONFIG.to_dict()}, owner="bob").id
    until(engine, lambda: status(engine, other) == "failed")
    assert engine.store.command(other).error == f"There is no data set {sums.id!r}."


def test_a_scan_whose_engine_died_is_known_to_be_interrupted(engine, datasets, sums):
    from lab.web.actions import Lab
    from lab.web.data import dataset_view

    command = scan(engine, sums)
    until(engine, lambda: (datasets.find(sums.id, "ada").scan or {}).get("status") == "scanning")
    recover(engine.store)  # what the next engine does first
    assert status(engine, command) == "failed"
    assert dataset_view(Lab(engine.store, None), datasets.find(sums.id, "ada"))["scan"]["status"] == "interrupted"


def test_a_preflight_before_a_run_comes_first_and_leaves_its_steps_as_they_are(engine):
    def trained(look: bool):
        run = engine.store.create_run(CONFIG.replace(max_steps=2).to_dict(), name="r", owner="ada")
        looked = send(engine, "preflight", {"config": CONFIG.to_dict()}, run=run) if look else None
        send(engine, "train", {}, run=run)
        if look:
            until(engine, lambda: status(engine, looked) == "done")
            assert engine.store.run(run).step == 0
            assert engine.store.command(looked).result["groups"] == 2 and "signal" in engine.store.command(looked).result["summary"]
        until(engine, lambda: engine.store.run(run).status == "finished")
        steps = [engine.store.step(run, number, arrays=True) for number in (1, 2)]
        return [[(c.token_ids, c.reward, c.arrays["logps"].tolist()) for g in step.groups for c in g.completions] for step in steps]

    assert trained(look=True) == trained(look=False)


# -- what is kept


def test_a_data_set_is_whole_named_and_can_be_trained_on_by_its_path(datasets, sums):
    assert sums.task == f"data/{sums.id}.jsonl" and sums.n_rows == 16 and datasets.find(sums.task, "ada") == sums
    task = load_task(sums.file)
    assert task.size == 12 and len(task.held_out()) == 4
    assert not list(sums.file.parent.glob("*.unfinished")) and datasets.find(sums.id, "bob") is None


def test_an_owner_may_keep_so_many_and_others_are_not_touched(datasets, sums):
    for number in range(MOST_SETS - 1):
        datasets.add(f"set {number}", [{"prompt": "p"}], {}, owner="ada")
    with pytest.raises(TaskError, match=f"You have {MOST_SETS} data sets"):
        datasets.add("one more", [{"prompt": "p"}], {}, owner="ada")
    datasets.delete(sums)
    assert datasets.add("one more", [{"prompt": "p"}], {}, owner="ada").n_rows == 1 and not sums.file.exists()
    assert datasets.add("his", [{"prompt": "p"}], {}, owner="bob").owner == "bob"


def test_the_next_upload_takes_the_place_of_the_last(datasets):
    from lab.tasks.tables import Table

    first = datasets.keep_upload(Table(["prompt"], [{"prompt": "a"}]), "a.csv", owner="ada")
    assert datasets.upload(first, owner="ada")[0].rows == [{"prompt": "a"}]
    second = datasets.keep_upload(Table(["prompt"], [{"prompt": "b"}]), "b.csv", owner="ada")
    for token, owner in ((first, "ada"), (second, "bob"), ("", "ada"), ("", "bob")):
        with pytest.raises(TaskError, match="Choose a file first"):
            datasets.upload(token, owner=owner)
    assert datasets.upload(second, owner="ada")[1] == "b.csv"
