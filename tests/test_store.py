"""The store with real SQLite files, real threads and a real second process."""

import json
import math
import sqlite3
import subprocess
import sys
import threading

import numpy as np
import pytest

from lab.records import Completion, Group, StepRecord
from lab.storage.migrations import MIGRATIONS, NewerStoreError
from lab.store import Store, open_store

G, PROMPTS, TOKENS = 4, 2, 5


def make_step(step, *, value=None, iteration=0, groups=PROMPTS):
    """A step whose every number is `value` (its own number if not given), so that halves of two steps would show."""
    value = float(step if value is None else value)
    return StepRecord(step, {"reward": value, "kl": value / 2}, [make_group(g, value) for g in range(groups)], iteration)


def make_group(index, value):
    names = ("sampling_logps", "old_logps", "logps", "ref_logps", "entropy")
    completions = [Completion(i, f"answer {value}", [1, 2, 3, 4, 2], finished=True, rewards={"accuracy": value, "judge": None},
                              reward=value, advantage=-value, extra={"seen": "3"},
                              arrays={n: np.full(TOKENS, value, "f4") for n in names})
                   for i in range(G)]
    return Group(index, "What is 1 + 2?", [7, 8, 9], {"prompt": "What is 1 + 2?", "answer": "3"}, completions, value, 0.5, dead=False)


@pytest.fixture
def store(tmp_path):
    store = open_store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def run(store):
    return store.create_run({"seed": 42, "max_steps": 40}, name="First run", owner="ada")


def test_a_step_is_read_back_as_it_was_written(store, run):
    store.write_step(run, make_step(1, value=0.25))
    step = store.step(run, 1, arrays=True)
    assert step.metrics == {"reward": 0.25, "kl": 0.125}
    assert [g.index for g in step.groups] == [0, 1]
    group = step.groups[1]
    assert (group.prompt, group.prompt_ids, group.row["answer"], group.dead) == ("What is 1 + 2?", [7, 8, 9], "3", False)
    completion = group.completions[3]
    assert (completion.index, completion.text, completion.token_ids, completion.finished) == (3, "answer 0.25", [1, 2, 3, 4, 2], True)
    assert completion.rewards == {"accuracy": 0.25, "judge": None}  # not applicable stays None, never 0
    assert (completion.reward, completion.advantage, completion.extra) == (0.25, -0.25, {"seen": "3"})
    assert completion.arrays["logps"].dtype == np.float32 and completion.arrays["logps"].tolist() == [0.25] * TOKENS
    assert store.tokens(run, 1, 0).completions[0].arrays.keys() == completion.arrays.keys()
    assert store.tokens(run, 1, 9) is None and store.step(run, 2) is None


def test_token_arrays_are_exact_float32(store, run):
    values = np.array([-0.1, -1e-30, -math.pi, 0.0, -700.5], "f4")
    record = make_step(1)
    record.groups[0].completions[0].arrays["logps"] = values
    store.write_step(run, record)
    assert store.tokens(run, 1, 0).completions[0].arrays["logps"].tobytes() == values.tobytes()


def test_token_arrays_stay_only_with_the_newest_steps(store, run):
    for step in range(1, 7):  # 3 and 4 are two uses of one rollout
        store.write_step(run, make_step(step, iteration=int(step == 4)), keep_token_steps=2)
    stored = [step for step in range(1, 7) if store.tokens(run, step, 0).completions[0].arrays]
    # After step 6 those of 5 and 6 stay; the rollout of 3 and 4 went when 4 had to go.
    assert stored == [5, 6]
    assert store.step(run, 1).groups[1].completions[3].text == "answer 1.0" and store.step(run, 1).metrics["reward"] == 1.0


def test_without_tokens_everything_else_is_kept(store, run):
    store.write_step(run, make_step(1), tokens=False)
    completion = store.step(run, 1, arrays=True).groups[0].completions[0]
    assert completion.arrays == {} and completion.token_ids == [1, 2, 3, 4, 2]


def test_a_number_that_json_does_not_have_becomes_null(store, run):
    record = make_step(1)
    record.metrics |= {"bad": float("nan"), "far": float("inf"), "numpy": np.float32(0.5)}
    store.write_step(run, record)
    metrics = store.step(run, 1).metrics
    assert math.isnan(metrics.pop("bad")) and math.isnan(metrics.pop("far"))  # numbers again for whoever calculates
    assert metrics == {"reward": 1.0, "kl": 0.5, "numpy": 0.5}
    assert dict(zip(store.steps_after(run).columns, store.steps_after(run).rows[0][1:], strict=True))["bad"] is None


def test_a_step_that_breaks_half_way_leaves_nothing(store, run):
    broken = make_step(1)
    broken.groups[1].completions[3].index = 2  # the same key twice: the last insert fails
    with pytest.raises(sqlite3.IntegrityError):
        store.write_step(run, broken)
    assert store.steps_after(run).rows == [] and store.run(run).step == 0
    assert store._connection.execute("SELECT COUNT(*) FROM groups").fetchone()[0] == 0


def test_a_full_disk_costs_the_step_and_nothing_else(store, run):
    store.write_step(run, make_step(1))
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own way of having no room left
    with pytest.raises(sqlite3.OperationalError, match="full"):
        for step in range(2, 100):
            store.write_step(run, make_step(step))
    reached = store.run(run).step
    assert len(store.step(run, reached, arrays=True).groups) == PROMPTS
    store._connection.execute("PRAGMA max_page_count = 1000000")
    store.write_step(run, make_step(reached + 1))
    assert store.run(run).step == reached + 1


def test_a_second_use_of_a_rollout_adds_only_what_it_changed(store, run):
    first, again = make_step(1, value=1), make_step(2, value=2, iteration=1)
    assert store.write_step(run, first) == store.write_step(run, again)
    old, new = (store.step(run, n, arrays=True).groups[0].completions[0] for n in (1, 2))
    assert old.text == new.text == "answer 1.0"
    assert old.arrays["logps"][0] == 1 and new.arrays["logps"][0] == 2
    assert new.arrays["old_logps"][0] == 1 and new.arrays["ref_logps"][0] == 1  # those of the rollout's first use


# -- reading while another process writes

READER = """
import json, sys
from lab.store import open_store
store, run = open_store(sys.argv[1]), sys.argv[2]
seen, reads, last = 0, 0, 0
print("ready", flush=True)
while last < int(sys.argv[3]):
    steps = store.steps_after(run, last)
    for row in steps.rows:
        step = store.step(run, int(row[0]), arrays=True)
        values = [c.reward for g in step.groups for c in g.completions] + [v for g in step.groups for c in g.completions
                  for a in c.arrays.values() for v in a.tolist()] + [step.metrics["reward"], row[1]]
        assert len(values) == 2 + 2 * 4 * (1 + 5 * 5), len(values)
        assert set(values) == {float(row[0])}, (row, set(values))
        assert not [x for x in store.live() if x.step == row[0]], "partial texts outlived their step"
    last, reads, seen = steps.cursor, reads + 1, seen + len(steps.rows)
print(json.dumps([seen, reads]))
"""


def test_a_second_process_reading_all_the_time_never_sees_half_a_step(store, run, tmp_path):
    count = 150
    reader = subprocess.Popen([sys.executable, "-c", READER, str(tmp_path), run, str(count)], stdout=subprocess.PIPE, text=True)
    assert reader.stdout.readline() == "ready\n"
    for step in range(1, count + 1):
        rollout = store.begin_rollout(owner="ada", kind="train", prompts=["a", "b"], run=run, attempt=1, step=step)
        store.write_live(rollout, [(g, i, "ans", 1, False) for g in range(PROMPTS) for i in range(G)])
        store.write_step(run, make_step(step), rollout=rollout)
    out, _ = reader.communicate(timeout=60)
    seen, reads = json.loads(out)
    assert reader.returncode == 0 and seen == count and reads > 5


def test_many_threads_write_and_read_one_file(store, run):
    def work(number):
        store.write_step(run, make_step(number))
        assert store.step(run, number).metrics["reward"] == number

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 17)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert [row[0] for row in store.steps_after(run).rows] == list(range(1, 17))


def test_many_processes_may_open_a_new_file_at_once(tmp_path):
    code = "import sys; from lab.store import open_store; print(open_store(sys.argv[1]).create_run({}, name='x'))"
    started = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
               for _ in range(4)]
    results = [process.communicate(timeout=60) for process in started]
    assert all(process.returncode == 0 for process in started), results
    assert len({out for out, _ in results}) == 4 == len(open_store(tmp_path).runs())


def test_a_closed_store_leaves_no_open_file_and_can_be_used_again(store, run):
    store.write_step(run, make_step(1))
    store.close()
    assert not store.path.with_name(store.path.name + "-wal").exists()  # SQLite removes it with the last connection
    assert store.run(run).step == 1


# -- cursor and thinning


def test_the_cursor_gives_only_what_is_new(store, run):
    for step in (1, 2, 3):
        store.write_step(run, make_step(step))
    first = store.steps_after(run, 1)
    assert first.columns == ["reward", "kl"] and first.rows == [[2, 2.0, 1.0], [3, 3.0, 1.5]] and first.cursor == 3
    assert store.steps_after(run, first.cursor).rows == [] and store.steps_after(run, first.cursor).cursor == 3
    with pytest.raises(KeyError, match="no run 'nobody'"):
        store.steps_after("nobody")


def test_a_metric_that_some_steps_lack_is_none_there(store, run):
    store.write_step(run, StepRecord(1, {"reward": 1.0}, []))
    store.write_step(run, StepRecord(2, {"reward": 2.0, "kl": 0.1}, []))
    steps = store.steps_after(run)
    assert steps.columns == ["reward", "kl"] and steps.rows == [[1, 1.0, None], [2, 2.0, 0.1]]


def test_five_thousand_steps_are_thinned_to_a_thousand_that_keep_both_ends(store, run):
    for step in range(1, 5001):
        store.write_step(run, make_step(step, groups=0))
    thinned = store.steps_after(run)
    numbers = [row[0] for row in thinned.rows]
    # 4,999 gaps over at most 999 kept gaps: every 6th step, 1, 7, …, 4,999, and the last
    assert thinned.stride == 6 and numbers == [*range(1, 5000, 6), 5000] and len(numbers) <= 1000
    assert thinned.cursor == 5000 and all(row[1] == row[0] for row in thinned.rows)
    assert len(store.steps_after(run, limit=None).rows) == 5000
    assert [row[0] for row in store.steps_after(run, 4990).rows] == list(range(4991, 5001))
    plan = " ".join(row[3] for row in store._connection.execute(
        "EXPLAIN QUERY PLAN SELECT COUNT(*) FROM updates u WHERE run = ? AND step > ?", (run, 5)))
    assert "(run=? AND step>?)" in plan  # the cost of an update grows neither with the run nor with the others


# -- attempts


def test_a_resume_supersedes_later_steps_and_keeps_them_readable(store, run):
    for step in range(1, 6):
        store.write_step(run, make_step(step))
    assert store.begin_attempt(run, from_step=3) == 2
    assert store.run(run).step == 3
    assert [row[0] for row in store.steps_after(run).rows] == [1, 2, 3] and store.steps_after(run).attempt == 2
    store.write_step(run, make_step(4, value=40))
    assert [row[:2] for row in store.steps_after(run).rows] == [[1, 1], [2, 2], [3, 3], [4, 40]]
    assert store.step(run, 4).metrics["reward"] == 40
    assert store.step(run, 4, attempt=1).metrics["reward"] == 4 and store.step(run, 5, attempt=1).metrics["reward"] == 5
    assert store.step(run, 5) is None
    store.begin_attempt(run, from_step=1)
    assert [row[0] for row in store.steps_after(run).rows] == [1]


# -- samples, partial texts, commands


def test_a_sample_has_its_rollout_from_the_start_and_its_partial_texts_go_with_its_end(store):
    command = store.send_command("sample", {"prompts": ["Name a fruit."], "adapter": "base"}, owner="ada")
    rollout = command.result["rollout"]
    assert store.rollout(rollout).status == "queued" and store.rollout(rollout).owner == "ada"
    store.start_rollout(rollout, prompts=["Name a fruit."], settings={"temperature": 1.0})
    store.write_live(rollout, [(0, 0, "An ap", 2, False), (0, 1, "Fig", 1, True)])
    live = store.live()
    assert [(x.owner, x.prompt, x.group, x.index, x.text, x.n_tokens, x.ended) for x in live] == [
        ("ada", "Name a fruit.", 0, 0, "An ap", 2, False), ("ada", "Name a fruit.", 0, 1, "Fig", 1, True)]
    store.write_live(rollout, [(0, 0, "An apple", 3, True)])
    assert [x.text for x in store.live(after=live[0].updated)] == ["An apple"]  # only what changed
    assert store.rollout_groups(rollout) == []
    store.finish_rollout(rollout, [make_group(0, 0.5)])
    assert store.live() == [] and store.rollout(rollout).status == "done"
    assert len(store.rollout_groups(rollout, arrays=True)[0].completions) == G
    assert [r.id for r in store.samples(owner="ada")] == [rollout] and store.samples(owner="bob") == []


def test_each_command_is_taken_once_and_in_order(store, run):
    sent = [store.send_command(kind, run=run, owner="ada").id for kind in ("train", "pause", "stop")]
    assert [c.id for c in store.take_commands()] == sent and store.take_commands() == []
    assert [c.status for c in store.open_commands()] == ["taken"] * 3
    store.finish_command(sent[0], result={"step": 3})
    store.finish_command(sent[1], "failed", error="The run is not going.")
    assert (store.command(sent[0]).status, store.command(sent[0]).result) == ("done", {"step": 3})
    assert store.command(sent[1]).error == "The run is not going." and [c.id for c in store.open_commands()] == sent[2:]
    assert store.command(99) is None


def test_two_processes_never_take_the_same_command(store, tmp_path):
    sent = [store.send_command("pause").id for _ in range(50)]
    code = ("import sys; from lab.store import open_store; s = open_store(sys.argv[1]); taken = []\n"
            "while s.open_commands() and any(c.status == 'queued' for c in s.open_commands()): taken += [c.id for c in s.take_commands()]\n"
            "print(*taken)")
    takers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    taken = [int(i) for t in takers for i in t.communicate(timeout=60)[0].split()]
    assert sorted(taken) == sent


def test_what_a_dead_engine_had_begun_is_closed_and_what_waits_stays(store, run):
    taken, waiting = store.send_command("sample"), None
    store.take_commands()
    waiting = store.send_command("sample")
    training = store.begin_rollout(owner="ada", kind="train", prompts=["a"], run=run, attempt=1, step=4)
    store.write_live(training, [(0, 0, "4", 1, False)])
    store.abandon_open_work("The engine stopped unexpectedly.")
    assert store.live() == [] and store.rollout(training).status == "interrupted"
    assert store.command(taken.id).status == "failed" and "unexpectedly" in store.command(taken.id).error
    assert store.rollout(taken.result["rollout"]).status == "interrupted"
    assert store.command(waiting.id).status == "queued" and store.rollout(waiting.result["rollout"]).status == "queued"


# -- runs, events, processes


def test_runs_are_found_by_owner_and_name_newest_first(store):
    ids = [store.create_run({}, name=name, owner=owner) for name, owner in (("a", "ada"), ("b", "bob"), ("a", "ada"))]
    assert [r.id for r in store.runs()] == ids[::-1]
    assert [r.id for r in store.runs(owner="ada", name="a")] == [ids[2], ids[0]] and store.run("none") is None


def test_a_run_id_is_a_safe_folder_name(store):
    run = store.create_run({}, name="../../Ré sumé: <b>con</b>\\x")
    assert set(run) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") and not run.startswith("-")


def test_an_error_belongs_to_its_status(store, run):
    store.set_status(run, "failed", error="The reward broke.", traceback="Traceback …")
    assert (store.run(run).status, store.run(run).error, store.run(run).traceback) == ("failed", "The reward broke.", "Traceback …")
    store.set_status(run, "training")
    assert (store.run(run).status, store.run(run).error, store.run(run).traceback) == ("training", None, None)


def test_events_keep_their_order_and_attempt(store, run):
    store.add_event(run, 3, "change", {"learning_rate": 1e-3})
    store.begin_attempt(run, 3)
    store.add_event(run, 3, "resumed")
    events = store.events(run)
    assert [(e.kind, e.step, e.attempt, e.data) for e in events] == [("change", 3, 1, {"learning_rate": 1e-3}), ("resumed", 3, 2, {})]
    assert store.events(run, after=events[0].id) == events[1:]


def test_a_heartbeat_moves_and_a_new_process_forgets_the_old_error(store):
    store.register("engine", {"phase": "idle"})
    first = store.process("engine")
    store.beat("engine", {"phase": "training"})
    assert store.process("engine").heartbeat >= first.heartbeat and store.process("engine").info == {"phase": "training"}
    store.report_crash("engine", "Out of memory.", "Traceback …")
    store.beat("engine")
    assert store.process("engine").error == "Out of memory." and store.process("engine").info == {"phase": "training"}
    store.register("engine")
    assert store.process("engine").error is None and store.process("web") is None


# -- the file


def test_a_file_of_a_newer_version_is_refused_with_a_sentence(store, tmp_path):
    store._connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(NewerStoreError, match="Update GRPO Lab"):
        open_store(tmp_path)


def test_a_migration_that_breaks_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    open_store(tmp_path).close()
    monkeypatch.setattr("lab.storage.migrations.MIGRATIONS", (*MIGRATIONS, ("CREATE TABLE extra (x)", "not SQL")))
    with pytest.raises(sqlite3.OperationalError):
        open_store(tmp_path)
    with sqlite3.connect(tmp_path / "lab.sqlite3") as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
        assert not db.execute("SELECT * FROM sqlite_master WHERE name = 'extra'").fetchall()
    db.close()


def test_a_read_only_store_reads_a_file_nobody_may_write(store, run):
    store.write_step(run, make_step(1))
    store.close()
    store.path.chmod(0o444)
    reading = Store(store.path, read_only=True)
    assert reading.step(run, 1).metrics["reward"] == 1 and reading.runs()[0].id == run
    with pytest.raises(sqlite3.OperationalError):
        reading.set_status(run, "failed")
    assert [p.name for p in store.path.parent.iterdir()] == ["lab.sqlite3"]  # no files left beside it
    with pytest.raises(FileNotFoundError, match="no run store"):
        Store(store.path.with_name("other.sqlite3"), read_only=True)


def test_a_copy_is_one_file_with_everything_in_it(store, run, tmp_path):
    store.write_step(run, make_step(1))
    store.copy_to(tmp_path / "copy.sqlite3")
    copy = Store(tmp_path / "copy.sqlite3", read_only=True)
    assert copy.step(run, 1, arrays=True).groups[0].completions[0].arrays["logps"].tolist() == [1.0] * TOKENS
    assert copy.run(run) == store.run(run)


def test_the_store_needs_no_pandas():
    done = subprocess.run([sys.executable, "-c", "import lab.store, sys; sys.exit('pandas' in sys.modules)"], timeout=60)
    assert done.returncode == 0
