"""An engine, or a web process, that dies: what it leaves behind, and how its runs go on. Tests go in order."""

import os
import shutil
import signal
import subprocess
import sys
import time

from lab.jobs import Engine, process_is_there
from lab.storage.run_folder import RunFolder
from tests.engine_process import ended, order, reaches, sample, start, until


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
