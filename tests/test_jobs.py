"""What the web process knows about the engine, with real processes that die."""

import os
import subprocess
import sys
import time

import lab.jobs
from lab.jobs import Engine, identity, process_is_there


def test_a_process_is_told_from_a_later_one_with_the_same_id():
    assert process_is_there(os.getpid(), time.time())
    assert not process_is_there(os.getpid(), since=0)  # this process is younger than 1970
    ended = subprocess.Popen([sys.executable, "-c", ""])
    time.sleep(0.5)
    assert not process_is_there(ended.pid, time.time())  # a zombie is not a process that works
    ended.wait()
    assert not process_is_there(ended.pid, time.time())


def test_an_engine_that_was_never_started_is_off(tmp_path):
    status = Engine(tmp_path).status()
    assert (status.state, status.pid, status.info) == ("off", None, {})


def test_an_engine_that_cannot_start_says_why_and_is_tried_again_after_a_growing_pause(tmp_path, monkeypatch):
    engine = Engine(tmp_path, arguments=("--nonsense",))
    starts = []
    monkeypatch.setattr(lab.jobs, "FIRST_PAUSE", 0.05)
    engine._pause = 0.05
    real_start = engine.start
    monkeypatch.setattr(engine, "start", lambda: (starts.append(time.time()), real_start()))
    end = time.time() + 60
    while len(starts) < 3 and time.time() < end:
        status = engine.ensure()
        time.sleep(0.01)
    assert len(starts) == 3 and engine._pause == 0.2  # 0.05, doubled at each of two deaths
    engine._child.wait()
    status = engine.status()
    assert status.state == "dead" and "did not start" in status.sentence and "unrecognized arguments: --nonsense" in status.sentence


def test_a_stale_heartbeat_changes_what_is_said_and_ends_nothing(tmp_path):
    engine = Engine(tmp_path)
    engine.store.register("engine", {"phase": "training"})  # this process plays the engine
    assert engine.status().state == "running"
    engine.store._connection.execute("UPDATE processes SET heartbeat = heartbeat - 30")
    status = engine.ensure()
    assert status.state == "stale" and "no sign of life for 30 s" in status.sentence and status.pid == os.getpid()
    engine.store.beat("engine")
    assert engine.status().state == "running" and engine._child is None


def test_a_dead_engine_is_told_from_one_that_ended_by_itself(tmp_path):
    code = "import sys; from lab.store import open_store; s = open_store(sys.argv[1]); s.register('engine', {'phase': sys.argv[2]})"
    for phase, state in (("training", "dead"), ("off", "off")):
        subprocess.run([sys.executable, "-c", code, str(tmp_path), phase], check=True)
        assert Engine(tmp_path).status().state == state


def test_only_what_the_fallen_engine_itself_wrote_is_quoted(tmp_path):
    code = "import sys; from lab.store import open_store; open_store(sys.argv[1]).register('engine', {'phase': 'training'})"
    log = tmp_path / "engine.log"
    log.write_text("RuntimeError: of an engine long ago\n")
    os.utime(log, (time.time() - 60, time.time() - 60))
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert Engine(tmp_path).status().sentence.endswith("It left nothing in engine.log.")
    log.write_text("loading\nKilled\n")
    assert Engine(tmp_path).status().sentence.endswith("Its last line in engine.log: Killed")
    restarted = Engine(tmp_path, arguments=("--nonsense",))
    restarted.start()  # appends to the log: only its own lines are its last words
    restarted._child.wait()
    assert "unrecognized arguments: --nonsense" in restarted._last_words() and "Killed" not in restarted._last_words()


def test_an_engine_of_other_code_or_options_is_told_and_is_exchanged_only_when_it_is_idle(tmp_path):
    code = ("import sys, time; from lab.store import open_store; s = open_store(sys.argv[1])\n"
            "s.register('engine', {'phase': 'training', 'identity': sys.argv[2]}); time.sleep(600)")
    engine = Engine(tmp_path)
    assert identity() == engine._identity != identity(("--idle-exit", "5"))
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), "another"])
    try:
        until(lambda: engine.store.process("engine"))
        assert engine.ensure().other_version and process.poll() is None  # it has work to do
        engine.store._connection.execute("UPDATE processes SET info = json_set(info, '$.phase', 'idle')")
        assert engine.ensure().other_version
        assert process.wait(60) != 0  # it was asked to end
    finally:
        process.kill()
    same = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), engine._identity])
    try:
        until(lambda: engine.store.process("engine").pid == same.pid)
        assert not engine.status().other_version
    finally:
        same.kill()


def until(true):
    for _ in range(600):
        if true():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come true within a minute")


def test_the_stored_error_of_a_fallen_engine_is_what_the_page_says(tmp_path):
    code = ("import sys; from lab.store import open_store; s = open_store(sys.argv[1]); s.register('engine')\n"
            "s.report_crash('engine', 'The disk is full.', 'Traceback: in write_step')")
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    status = Engine(tmp_path).status()
    assert status.sentence == "The engine stopped: The disk is full." and status.traceback == "Traceback: in write_step"
