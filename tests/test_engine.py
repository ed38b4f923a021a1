"""A real engine process with the real tiny model, driven through the store as the page drives it.

Tests share one engine and go in order; the last ones kill it.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from lab.config import RunConfig
from lab.jobs import Engine, process_is_there
from lab.storage.run_folder import RunFolder
from tests.test_judge import Server

SMALL = dict(num_generations=4, prompts_per_step=2, max_completion_length=24, save_steps=3, num_threads=1, learning_rate=1e-3,
             reward_weights=(0.8, 0.2))
QUESTION = {"prompt": "What is 12 + 30?", "answer": "42"}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = Engine(tmp_path_factory.mktemp("runs"), arguments=("--idle-exit", "3600"))
    engine.ensure()
    until(lambda: engine.status().info.get("phase") == "idle", engine)
    yield engine
    if engine.status().state in ("running", "stale"):
        os.kill(engine.status().pid, signal.SIGTERM)
        until(lambda: engine.status().state == "off", engine)
    engine.store.close()


@pytest.fixture
def store(engine):
    return engine.store


def until(condition, engine, seconds=120):
    """Waits for something the engine will do; says what the engine's log holds if it never does."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            pytest.fail(f"Waited {seconds} s in vain. {engine.status()}\n{(engine.runs_dir / 'engine.log').read_text()[-3000:]}")
        time.sleep(0.03)
    return found


def sample(engine, **args):
    args = {"prompts": [QUESTION], "config": dict(num_generations=4, max_completion_length=24, num_threads=1)} | args
    return engine.store.send_command("sample", args, owner="ada")


def ended(engine, command):
    return until(lambda: (c := engine.store.command(command.id)).status not in ("queued", "taken") and c, engine)


def order(engine, kind, run, **args):
    """A command for a run, carried out."""
    command = ended(engine, engine.store.send_command(kind, args, run=run))
    assert command.status == "done", command.error
    return command


def start(engine, config=None, **args):
    run = engine.store.create_run(RunConfig(**SMALL | (config or {})).to_dict(), name="small", owner="ada")
    order(engine, "train", run, **args)
    return run


def reaches(engine, run, status, seconds=120):
    until(lambda: engine.store.run(run).status == status, engine, seconds)
    return engine.store.run(run)


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


# -- what dies


def test_a_killed_engine_is_started_again_and_its_run_resumes_with_the_same_steps(engine, store):
    run = start(engine, dict(max_steps=8, seed=5), steps=4)
    reaches(engine, run, "paused")
    changed_from = order(engine, "change", run, beta=0.5).result["from_step"]  # after the checkpoint of step 3
    order(engine, "resume", run)
    until(lambda: store.run(run).step >= 5 and [x for x in store.live() if x.run == run], engine)  # in mid-step
    os.kill(engine.status().pid, signal.SIGKILL)
    until(lambda: engine.status().state == "dead", engine)
    reached = store.run(run).step
    assert "ended from outside or ran out of memory" in engine.ensure().sentence
    before = {n: store.step(run, n, arrays=True) for n in range(1, reached + 1)}  # readable, every step whole
    until(lambda: engine.ensure().state == "running", engine)
    left = reaches(engine, run, "interrupted")
    checkpoint = RunFolder(store, run).checkpoints()[-1][0]
    assert left.error == (f"The engine stopped unexpectedly at step {reached}; the last checkpoint is step {checkpoint}. "
                          f"Resume goes on from there.")
    assert store.live() == []
    assert order(engine, "resume_run", run).result["step"] == checkpoint
    done = reaches(engine, run, "finished")
    assert done.attempt == 2 and done.step == 8
    assert [row[0] for row in store.steps_after(run).rows] == list(range(1, 9))
    for n in range(checkpoint + 1, reached + 1):
        again, first = store.step(run, n, arrays=True), store.step(run, n, attempt=1, arrays=True)
        assert {**again.metrics, "step_time": 0} == {**first.metrics, "step_time": 0} == {**before[n].metrics, "step_time": 0}
        for one, other in zip(again.groups, first.groups, strict=True):
            assert [c.token_ids for c in one.completions] == [c.token_ids for c in other.completions]
            assert all(c.arrays[k].tobytes() == d.arrays[k].tobytes() for c, d in zip(one.completions, other.completions, strict=True)
                       for k in d.arrays)
    changes = [(e.attempt, e.step) for e in store.events(run) if e.kind == "change"]
    assert changes == [(1, changed_from)] + [(2, changed_from)] * (changed_from > checkpoint)


def test_a_run_waits_for_scores_by_hand_and_a_killed_engine_asks_for_the_same_and_repeats_those_given(engine, store):
    run = start(engine, dict(max_steps=3, prompts_per_step=1, rewards=("by_hand", "format"), seed=11))
    asked = awaiting(engine, run, 1)
    assert asked["criteria"] == {"clarity": 1, "correctness": 2, "relevance": 1} and len(asked["groups"][0]["completions"]) == 4
    assert ended(engine, sample(engine)).status == "done" and store.run(run).status == "paused"  # other work goes on
    order(engine, "resume", run)  # pressing Train gives no scores: it waits on, and is not asked twice
    until(lambda: store.run(run).status == "paused", engine)
    assert [e.kind for e in store.events(run)].count("awaiting_scores") == 1
    stale = ended(engine, store.send_command("scores", {"id": "another", "scores": [1, 1, 1, 1]}, run=run))
    assert stale.status == "failed" and "no longer wait" in stale.error
    wrong = ended(engine, store.send_command("scores", {"id": asked["id"], "scores": [1, 1]}, run=run))
    assert wrong.status == "failed" and wrong.error == "There are 2 scores for 4 completions: give one each."
    order(engine, "scores", run, id=asked["id"], scores=[[1.0, 0.9, 0.0, {"clarity": 1, "correctness": 0.5, "relevance": 1}]])
    order(engine, "scores", run, id=awaiting(engine, run, 2)["id"], scores=[0.1, 0.7, None, 0.3])
    third = awaiting(engine, run, 3)
    first = store.step(run, 1).groups[0]
    assert [c.rewards["by_hand"] for c in first.completions] == [1.0, 0.9, 0.0, 0.75]
    assert first.completions[3].extra == {"clarity": 1.0, "correctness": 0.5, "relevance": 1.0}
    os.kill(engine.status().pid, signal.SIGKILL)
    until(lambda: engine.status().state == "dead", engine)
    for step, folder in RunFolder(store, run).checkpoints():
        if step > 0:  # as if the crash had come before they were written
            shutil.rmtree(folder)
    until(lambda: engine.ensure().state == "running", engine)
    reaches(engine, run, "interrupted")
    assert order(engine, "resume_run", run).result["step"] == 0
    again = awaiting(engine, run, 3)
    assert again["id"] == third["id"] and store.run(run).attempt == 2  # the two steps were scored without asking
    for n in (1, 2):
        one, other = store.step(run, n, arrays=True), store.step(run, n, attempt=1, arrays=True)
        assert {**one.metrics, "step_time": 0} == {**other.metrics, "step_time": 0}
        assert all(c.arrays[name].tobytes() == d.arrays[name].tobytes() for c, d in zip(
            one.groups[0].completions, other.groups[0].completions, strict=True) for name in d.arrays)
    order(engine, "scores", run, id=again["id"], scores=[0, 1, 0, 1])
    reaches(engine, run, "finished")


def awaiting(engine, run, step):
    """What the run asks a person for in this step, once it does."""
    def told():
        events = [e for e in engine.store.events(run) if e.kind == "awaiting_scores" and e.attempt == engine.store.run(run).attempt]
        return events and events[-1].step == step and engine.store.run(run).status == "paused" and events[-1].data
    return until(told, engine)


def test_an_engine_told_to_end_saves_its_runs(engine, store):
    run = start(engine, dict(max_steps=50))
    until(lambda: store.run(run).step >= 1, engine)
    os.kill(engine.status().pid, signal.SIGTERM)
    until(lambda: engine.status().state == "off", engine)
    left = store.run(run)
    assert left.status == "stopped" and left.error.startswith(f"Saved at step {left.step} when the engine ended")
    assert RunFolder(store, run).checkpoints()[-1][0] == left.step


WEB = """
import sys, time
from lab.config import RunConfig
from lab.jobs import Engine
engine = Engine(sys.argv[1], arguments=("--idle-exit", "1"))
engine.store.register("web")
engine.ensure()
run = engine.store.create_run(RunConfig(max_steps=6, num_generations=2, prompts_per_step=1, max_completion_length=16).to_dict(), name="r")
engine.store.send_command("train", run=run)
while engine.store.run(run).step < 1:
    engine.store.beat("web")
    time.sleep(0.05)
print(run, engine.status().pid, flush=True)
time.sleep(600)
"""


def test_a_killed_web_process_does_not_stop_training_and_an_idle_engine_ends_by_itself(tmp_path):
    web = subprocess.Popen([sys.executable, "-c", WEB, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    run, pid = web.stdout.readline().split()
    web.kill()
    web.wait()
    engine = Engine(tmp_path)
    assert process_is_there(int(pid), time.time())
    assert reaches(engine, run, "finished").step == 6
    until(lambda: engine.status().state == "off", engine)
    assert engine.status().sentence == "The engine ended because nothing was left to do."


def test_an_engine_that_falls_stores_why(tmp_path):
    code = ("import sys, lab.engine as e\ndef fall(store): raise RuntimeError('the sky is down')\ne.recover = fall\n"
            "e.main(['--runs', sys.argv[1]])")
    fallen = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert fallen.returncode == 1 and "the sky is down" in fallen.stderr
    status = Engine(tmp_path).status()
    assert status.state == "dead" and status.sentence == "The engine stopped: the sky is down" and "in fall" in status.traceback


def broken_reward(folder):
    file = folder / "broken.py"
    file.write_text("def broken(completions, **kwargs):\n    raise ValueError('no luck today')\n")
    return str(file)
