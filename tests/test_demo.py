"""The recorded run that travels with the lab is a real one, small, and says what it is."""

import pytest

from lab.assets import asset
from lab.charts import smooth
from lab.config import RunConfig
from lab.demo import make
from lab.presets import preset
from lab.storage.migrations import MIGRATIONS
from lab.store import Store


@pytest.fixture(scope="module")
def demo():
    return Store(asset("demo/lab.sqlite3"), read_only=True)


def test_it_is_small_and_says_what_it_was_recorded_on(demo):
    run = demo.runs()[0]
    assert demo.path.stat().st_size < 3e6 and run.kind == "recorded" and run.status == "finished"
    assert run.info["label"].startswith(f"Recorded: seed {run.config['seed']}, {run.info['threads']} CPU thread")


def test_it_has_the_newest_tables(demo):
    """It is opened read-only and so never migrated: a new migration asks for `python -m lab.demo`."""
    assert demo._connection.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)


def test_its_settings_are_the_first_run_presets(demo):
    run = demo.runs()[0]
    recorded = RunConfig.from_dict(run.config)
    assert recorded == preset("first-run").config(seed=run.config["seed"], num_threads=run.config["num_threads"])


def test_its_reward_climbs_as_promised(demo):
    run = demo.runs()[0]
    steps = demo.steps_after(run.id)
    rewards = smooth([row[1 + steps.columns.index("reward")] for row in steps.rows], "mean of 4")
    assert len(rewards) == run.config["max_steps"] and rewards[0] < 0.4 and max(rewards) >= 0.9


def test_every_step_can_be_opened_down_to_its_tokens(demo):
    run = demo.runs()[0]
    for number in range(1, run.step + 1):
        for group in demo.step(run.id, number, arrays=True).groups:
            for completion in group.completions:
                assert {"logps", "old_logps", "ref_logps", "entropy", "sampling_logps"} == completion.arrays.keys()
                assert {len(a) for a in completion.arrays.values()} == {len(completion.token_ids)}


def test_the_script_makes_such_a_file(tmp_path, monkeypatch):
    monkeypatch.setitem(preset("first-run").settings, "max_steps", 1)
    monkeypatch.setitem(preset("first-run").settings, "prompts_per_step", 1)
    make(tmp_path / "demo.sqlite3", seed=7)
    made = Store(tmp_path / "demo.sqlite3", read_only=True)
    assert made.runs()[0].step == 1 and made.runs()[0].info["seed"] == 7
    assert [p.name for p in tmp_path.iterdir()] == ["demo.sqlite3"]
