"""A real engine process, driven through the store as the page drives it. Tests share one engine and go in order."""

import os
import subprocess
import sys
import threading
import time

import pytest

from lab.config import RunConfig
from lab.storage.run_folder import RunFolder, driver_info
from tests.engine_process import QUESTION, SMALL, ended, order, reaches, sample, start, until
from tests.test_judge import Server

# -- samples


def test_a_sample_streams_partial_texts_and_then_has_a_scored_group(engine, store):
    command, seen, texts = sample(engine), 0.0, []
    while store.command(command.id).status in ("queued", "taken"):
        live = store.live(seen)
        texts += [(x.index, x.n_tokens, x.prompt, x.owner) for x in live]
        time.sleep(0.01)
        seen = max([seen, *(x.updated for x in live)])
    assert store.command(command.id).status == "done" and store.live() == []
    assert {index for index, *_ in texts} == {0, 1, 2, 3} and {t[2:] for t in texts} == {(QUESTION["prompt"], "ada")}
    lengths = [n for index, n, *_ in texts if index == 0]
    assert lengths == sorted(lengths) and len(set(lengths)) > 1  # a text grew while it was watched
    group = store.rollout_groups(command.result["rollout"], arrays=True)[0]
    assert group.row["answer"] == "42" and group.mean is not None and len(group.completions) == 4
    for completion in group.completions:
        assert completion.rewards.keys() == {"accuracy", "format"} and completion.advantage is not None
        assert completion.arrays["logps"].tolist() == completion.arrays["ref_logps"].tolist()  # the base is its own reference
        assert len(completion.arrays["entropy"]) == len(completion.token_ids)
    assert store.rollout(command.result["rollout"]).settings["num_generations"] == 4


def test_a_typed_prompt_without_an_answer_has_no_accuracy_rather_than_none_right(engine, store):
    command = ended(engine, sample(engine, prompts=["Compute 2 + 2."]))
    completion = store.rollout_groups(command.result["rollout"])[0].completions[0]
    assert completion.rewards["accuracy"] is None and completion.rewards["format"] is not None


@pytest.mark.parametrize("args, sentence", [
    ({"prompts": []}, "no prompt"),
    ({"config": {"temperature": -1}}, "(temperature) is -1"),
    ({"config": {"model": "no/such-folder-here"}}, "no/such-folder-here"),
    ({"adapter": "nobody"}, "no run 'nobody'"),
])
def test_a_sample_that_cannot_be_had_fails_with_a_sentence(engine, store, args, sentence):
    command = ended(engine, sample(engine, **args))
    assert command.status == "failed" and sentence in command.error
    assert store.rollout(command.result["rollout"]).status == "failed"


def test_a_sample_whose_reward_breaks_keeps_its_texts(engine, store, tmp_path):
    command = ended(engine, sample(engine, config=dict(num_generations=2, max_completion_length=8, rewards=[broken_reward(tmp_path)])))
    assert command.status == "failed" and "broken" in command.error and "no luck today" in command.error
    group = store.rollout_groups(command.result["rollout"])[0]
    assert len(group.completions) == 2 and group.completions[0].reward is None


def test_a_sample_is_cancelled_while_it_is_written_and_while_it_waits(engine, store):
    # hot, so that no completion ends by itself: 64 texts of 400 tokens cannot be finished before they are cancelled
    slow = dict(num_generations=64, max_completion_length=400, temperature=5.0, num_threads=1)
    writing, waiting = sample(engine, config=slow), sample(engine, config=slow)
    until(store.live, engine)
    for cancel in [store.send_command("cancel", {"command": command.id}) for command in (waiting, writing)]:
        ended(engine, cancel)
    for command in (waiting, writing):
        assert ended(engine, command).status == "cancelled" and store.rollout(command.result["rollout"]).status == "cancelled"
    (kept,) = store.rollout_groups(writing.result["rollout"])  # what was written stays, without scores
    assert any(c.text for c in kept.completions) and all(c.reward is None and c.rewards == {} for c in kept.completions)
    assert store.rollout_groups(waiting.result["rollout"]) == []
    assert store.live() == [] and ended(engine, sample(engine)).status == "done"


# -- training


def test_training_gives_the_same_steps_as_the_plain_trainer_though_samples_come_in_between(engine, store):
    config = dict(max_steps=4, seed=3)
    run = start(engine, config)
    sampled = []
    while store.run(run).status == "training":
        command = ended(engine, sample(engine, adapter=run))
        sampled.append((store.run(run).step, store.rollout(command.result["rollout"])))
    assert store.run(run).status == "finished" and store.run(run).step == 4
    assert any(step < 4 and r.adapter == run and r.adapter_step <= step for step, r in sampled)  # served while it trained
    from lab.trainer import Trainer

    plain = list(Trainer(RunConfig(**SMALL | config)))
    for step in plain:
        stored = store.step(run, step.step, arrays=True)
        assert {**stored.metrics, "step_time": 0} == {**step.metrics, "step_time": 0}
        assert [c.text for g in stored.groups for c in g.completions] == [c.text for g in step.groups for c in g.completions]
        one, other = stored.groups[1].completions[2].arrays, step.groups[1].completions[2].arrays
        assert one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_a_sample_under_a_runs_adapter_measures_kl_against_the_runs_own_reference(engine, store):
    """A snapshot taken after every step is the policy itself, so KL is exactly 0; against the base it would not be."""
    run = start(engine, dict(max_steps=3, reference="snapshot", ref_model_sync_steps=1), steps=2)
    reaches(engine, run, "paused")
    for status in ("paused", "stopped"):  # the adapter in the engine, then the one in the checkpoint
        if status == "stopped":
            order(engine, "stop", run)
            reaches(engine, run, status)
        command = ended(engine, sample(engine, adapter=run))
        assert command.status == "done", command.error
        (group,) = store.rollout_groups(command.result["rollout"], arrays=True)
        assert all(c.arrays["logps"].tolist() == c.arrays["ref_logps"].tolist() for c in group.completions)


def test_partial_texts_of_a_training_step_are_seen_before_the_step_and_gone_with_it(engine, store):
    run = start(engine, dict(max_steps=2))
    live = until(lambda: [x for x in store.live() if x.run == run], engine)
    assert {x.kind for x in live} == {"train"} and live[0].step in (1, 2) and live[0].prompt
    reaches(engine, run, "finished")
    assert store.live() == []


def test_one_step_n_more_pause_resume_and_stop(engine, store):
    run = start(engine, dict(max_steps=50), steps=1)
    assert reaches(engine, run, "paused").step == 1
    order(engine, "step", run, n=2)
    assert reaches(engine, run, "paused").step == 3
    order(engine, "resume", run)
    until(lambda: store.run(run).step >= 4, engine)
    order(engine, "pause", run)
    at = store.run(run).step
    assert store.run(run).status == "paused" and engine.status().state == "running"
    ended(engine, sample(engine, adapter=run))
    assert store.run(run).step == at  # paused is paused
    stopped = order(engine, "stop", run).result["step"]
    assert store.run(run).status == "stopped"
    folder = RunFolder(store, run)
    assert folder.checkpoints()[-1][0] == stopped == at and (folder.path / "config.json").is_file()
    late = ended(engine, store.send_command("pause", run=run))
    assert late.status == "failed" and "Resume the run first" in late.error
    tuned = ended(engine, sample(engine, adapter=run))  # its checkpoint's adapter serves
    assert tuned.status == "done" and store.rollout(tuned.result["rollout"]).adapter_step == at


def test_at_most_three_checkpoints_are_kept(engine, store):
    run = start(engine, dict(max_steps=5, save_steps=1))
    reaches(engine, run, "finished")
    assert [step for step, _ in RunFolder(store, run).checkpoints()] == [3, 4, 5]
    assert len(list((engine.runs_dir / run / "completions").glob("completions_0000[1-5].parquet"))) == 5


def test_a_live_change_is_stored_and_acts_from_its_step_on(engine, store):
    run = start(engine, dict(max_steps=4), steps=1)
    reaches(engine, run, "paused")
    assert order(engine, "change", run, learning_rate=5e-4).result["from_step"] == 2
    refused = ended(engine, store.send_command("change", {"seed": 1}, run=run))
    assert refused.status == "failed" and "cannot be changed" in refused.error
    order(engine, "resume", run)
    reaches(engine, run, "finished")
    rates = [store.step(run, n).metrics["learning_rate"] for n in (1, 2, 3, 4)]
    assert rates == [1e-3, 5e-4, 5e-4, 5e-4]
    assert [(e.step, e.data) for e in store.events(run) if e.kind == "change"] == [(2, {"learning_rate": 5e-4})]


def test_a_reward_that_breaks_pauses_the_run_and_a_mended_one_lets_it_go_on(engine, store, tmp_path):
    run = start(engine, dict(max_steps=2, rewards=(broken_reward(tmp_path),), reward_weights=None))
    paused = reaches(engine, run, "paused")
    assert "broken" in paused.error and "no luck today" in paused.error and paused.step == 0
    assert store.events(run)[-1].kind == "scoring_failed"
    order(engine, "change", run, rewards=["format"])
    order(engine, "resume", run)
    assert reaches(engine, run, "finished").error is None
    assert "rewards/format/mean" in store.step(run, 1).metrics


def test_a_reward_file_that_a_change_names_is_kept_with_the_run(engine, store, tmp_path):
    path = tmp_path / "half.py"
    path.write_text("def half(completions, **kwargs):\n    return [0.5] * len(completions)\n")
    run = start(engine, dict(max_steps=2, rewards=("format",), reward_weights=None), steps=1)
    reaches(engine, run, "paused")
    order(engine, "change", run, rewards=["format", str(path)], reward_weights=[1.0, 1.0])
    copy = (engine.runs_dir / run / "rewards" / "half.py").resolve()
    path.unlink()
    assert store.events(run)[-1].data["rewards"] == ["format", str(copy)]
    order(engine, "resume", run)
    reaches(engine, run, "finished")
    assert store.step(run, 2).metrics["rewards/half/mean"] == 0.5


@pytest.fixture
def slow_judge():
    """A judge that answers nothing until `answers` is set."""
    server = Server()
    server.answers = threading.Event()
    server.script = lambda asked, number: server.answers.wait(120) and str(len(asked) % 10)
    server.reward = f"judge(base_url={server.url!r}, model='m', parallel=16)"
    yield server
    server.answers.set()
    server.shutdown()
    server.server_close()


def test_while_a_judge_is_waited_for_samples_are_written_and_the_run_can_be_paused_and_stopped(engine, store, slow_judge):
    config = dict(max_steps=2, rewards=(slow_judge.reward, "format"))
    run = start(engine, config)
    until(lambda: slow_judge.calls, engine)
    assert until(lambda: engine.status().info.get("awaits"), engine) == "the judge at 127.0.0.1"
    assert engine.status().info["phase"] == "training"
    assert ended(engine, sample(engine)).status == "done"
    order(engine, "pause", run)
    assert store.run(run).status == "paused" and store.run(run).step == 0
    order(engine, "resume", run)
    other = start(engine, config)
    until(lambda: len(slow_judge.calls) >= 16, engine)
    order(engine, "stop", other)
    assert store.run(other).status == "stopped"
    slow_judge.answers.set()
    assert reaches(engine, run, "finished").step == 2
    until(lambda: not engine.status().info.get("awaits"), engine)
    from lab.trainer import Trainer

    plain = [step.metrics["rewards/judge/mean"] for step in Trainer(RunConfig(**SMALL | config))]
    assert [store.step(run, n).metrics["rewards/judge/mean"] for n in (1, 2)] == plain


def test_a_sample_that_waits_for_its_judge_stops_no_training_and_can_be_cancelled(engine, store, slow_judge):
    command = sample(engine, config=dict(num_generations=4, max_completion_length=24, num_threads=1, rewards=[slow_judge.reward]))
    until(lambda: slow_judge.calls, engine)
    reaches(engine, start(engine, dict(max_steps=2)), "finished")
    assert ended(engine, sample(engine)).status == "done" and store.command(command.id).status == "taken"
    order(engine, "cancel", None, command=command.id)
    assert ended(engine, command).status == "cancelled"
    (kept,) = store.rollout_groups(command.result["rollout"])
    assert len(kept.completions) == 4 and all(c.reward is None for c in kept.completions)  # the texts stay, without scores


def test_a_run_that_cannot_start_fails_alone(engine, store):
    run = store.create_run({**RunConfig(**SMALL).to_dict(), "task": "no-such-task"}, name="bad")
    command = ended(engine, store.send_command("train", run=run))
    failed = store.run(run)
    assert command.status == "failed" == failed.status and "no-such-task" in failed.error == command.error
    assert "Traceback" in failed.traceback
    assert ended(engine, store.send_command("dance")).error.startswith("There is no command 'dance'")
    assert ended(engine, sample(engine)).status == "done"  # the engine goes on


def test_a_run_that_another_process_trains_is_not_resumed_beside_it(engine, store):
    config = RunConfig(**SMALL | {"max_steps": 2}).to_dict()
    run = store.create_run(config, name="of a notebook", status="training", info=driver_info())  # by this process
    command = ended(engine, store.send_command("resume_run", run=run))
    assert command.status == "failed" and f"still training: process {os.getpid()} has it" in command.error
    assert store.run(run).status == "training" and store.run(run).attempt == 1
    store.set_status(run, "stopped")
    order(engine, "resume_run", run)
    assert reaches(engine, run, "finished").attempt == 2


def test_the_heartbeat_says_what_the_header_shows(engine, store):
    first = engine.status()
    until(lambda: engine.status().info.get("phase") == "idle" and store.process("engine").heartbeat > time.time() - 5, engine)
    info = engine.status().info
    assert (info["model"], info["device"], info["run"], info["queue"]) == ("tiny", "cpu", None, 0)
    assert info["params"] > 1e6 and 1e8 < info["rss"] < info["memory_total"] and info["threads"] >= 1
    assert engine.status().pid == first.pid


def test_a_second_engine_on_the_same_folder_ends_at_once(engine):
    second = subprocess.run([sys.executable, "-m", "lab.engine", "--runs", engine.runs_dir], capture_output=True, text=True, timeout=60)
    assert second.returncode == 1 and "Another engine already works" in second.stderr
    assert engine.status().state == "running"


def broken_reward(folder):
    file = folder / "broken.py"
    file.write_text("def broken(completions, **kwargs):\n    raise ValueError('no luck today')\n")
    return str(file)
