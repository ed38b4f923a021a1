"""The life of a worker: threads, restarts, what it leaves behind, its environment, and systems without poll or /proc."""

# ruff: noqa: E501  (tables of source text)

import os
import select
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest

from lab.rewards.sandbox import Limits, RewardError, RewardHost, process
from tests.sandbox_leaks import nothing_left_behind
from tests.test_sandbox_contract import SHAPES, ask


@pytest.fixture(scope="module")
def host():
    with RewardHost() as host:
        host.load(SHAPES, filename="shapes.py")
        yield host


def test_calls_from_many_threads_take_turns_and_outlive_the_threads():
    """A worker that were started by a thread of its own would be killed by the kernel when that thread ends."""
    with RewardHost() as own:
        results = []

        def work(number):
            results.append(ask(own, "text", completions=["x" * number] * 3).scores[0] == number)

        starter = threading.Thread(target=lambda: own.load(SHAPES))
        starter.start()
        starter.join()
        pid = own.worker_pid
        threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [True] * 12
        assert own.worker_pid == pid


def test_a_closed_or_forgotten_host_leaves_nothing_behind(tmp_path, monkeypatch):
    RewardHost().close()
    with RewardHost() as warm:
        warm.load("def f(completions): return [1.0]")  # the thread that starts workers stays, once
        with nothing_left_behind(tmp_path, monkeypatch):
            first = RewardHost()
            first.load("def f(completions): return [1.0]")
            first.close()
            second = RewardHost()
            second.load("def f(completions): return [1.0]")
            del second
            with pytest.raises(RewardError):
                RewardHost().load("def f(")


def test_a_closed_host_starts_again_when_it_is_used(host):
    host.close()
    assert host.worker_pid is None
    assert ask(host, "text").scores == [1, 1, 2]


def test_a_worker_killed_from_outside_is_replaced(host):
    import signal

    ask(host, "text")
    os.kill(host.worker_pid, signal.SIGKILL)
    try:
        ask(host, "text")
    except RewardError as error:  # it was dying while it was asked
        assert error.kind == "crashed"
    assert ask(host, "text").scores == [1, 1, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals of POSIX")
def test_a_worker_that_does_not_read_is_given_up_by_the_clock():
    import signal

    with RewardHost(Limits(call_cpu_seconds=1.0, wall_seconds=1.0, cpu_seconds_per_completion=0.0)) as host:
        host.load(SHAPES)
        os.kill(host.worker_pid, signal.SIGSTOP)
        with pytest.raises(RewardError) as caught:
            ask(host, "text", completions=["x" * 2_000_000] * 3)  # more than a pipe holds
        assert caught.value.kind == "timeout"
        assert ask(host, "text").scores == [1, 1, 2]


def test_large_batches_pass(host):
    completions = ["x" * 2000] * 2000
    result = host.call("text", prompts=["p"] * 2000, completions=completions)
    assert result.scores == [2000.0] * 2000


def test_the_environment_of_a_worker_is_made_from_nothing(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with RewardHost() as own:
        own.load("import os\ndef f(completions, log_extra, **kwargs):\n    log_extra('names', [' '.join(sorted(os.environ))])\n    return [0.0]\n")
        names = own.call("f", prompts=["p"], completions=["c"]).extra["names"][0].split()
    assert "HF_TOKEN" not in names and "HOME" not in names and "PATH" not in names
    assert "OMP_NUM_THREADS" in names


def test_importing_the_sandbox_needs_neither_torch_nor_psutil():
    code = "import sys; import lab.rewards.sandbox; print([name for name in ('torch', 'transformers', 'gradio', 'psutil') if name in sys.modules])"
    root = Path(__file__).resolve().parent.parent
    assert subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True).stdout.strip() == "[]"


class ByPsutil(process.Usage):
    """As where there is no /proc."""

    def __init__(self, pid):
        self._stat, self._process = None, process._psutil_process(pid)


def test_everything_but_the_lock_works_where_pipes_cannot_be_polled_and_there_is_no_proc(monkeypatch, tmp_path):
    """As on Windows (pipes) and macOS (/proc): the same host over the replacements that it uses there."""
    RewardHost().load("def f(completions): return [1.0]")
    monkeypatch.setattr(process, "Usage", ByPsutil)
    monkeypatch.setattr(process, "select", types.SimpleNamespace(select=select.select))
    with nothing_left_behind(tmp_path, monkeypatch):
        with RewardHost(Limits(call_cpu_seconds=0.3, cpu_seconds_per_completion=0.0), lock="off") as host:
            host.load(SHAPES + "def loop(completions, **kwargs):\n    while True: pass\ndef crash(completions, **kwargs):\n    import os\n    os._exit(3)\n")
            assert isinstance(host._worker.content._chunks, process._ChunksByThread)
            for name, kind in (("loop", "timeout"), ("crash", "crashed")):
                with pytest.raises(RewardError) as caught:
                    ask(host, name)
                assert caught.value.kind == kind
                assert ask(host, "text").scores == [1, 1, 2]
