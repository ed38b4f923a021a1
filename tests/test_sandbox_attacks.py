"""Code that means harm: every attack is refused, nothing outside the worker changes, and the worker goes on.

All attacks of a kind of lock run in one worker, one call; the worker proves before each dangerous one that it can
neither fork nor signal its parent. The harmless ones also run with no lock at all, where they must get through.
"""

# ruff: noqa: E501  (tables of source text)

import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from lab.rewards.sandbox import Limits, RewardError, RewardHost, probe
from lab.rewards.sandbox import host as host_module
from lab.rewards.sandbox.seccomp import build_filter
from tests.sandbox_cases import DANGEROUS, HARMLESS, X86_ONLY_MARK, attack_source

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the lock is made of Linux system calls")

ATTACKS = {**HARMLESS, **DANGEROUS}
if platform.machine() != "x86_64":
    ATTACKS = {name: code for name, code in ATTACKS.items() if X86_ONLY_MARK not in code}
LOCKS = ["auto", "abi1", "abi3", "nofiles"]


class Battlefield:
    """Files and sockets that attacks aim at, and whether they are still as they were."""

    def __init__(self):
        self.folder = folder = Path(tempfile.mkdtemp(prefix="battlefield-", dir="/tmp"))  # a socket's path must be short
        self.victim, self.secret, self.empty = folder / "victim", folder / "secret", folder / "empty"
        self.victim.write_text("untouched")
        self.victim.chmod(0o666)
        self.secret.write_text("hf_secret")
        self.empty.mkdir()
        folder.chmod(0o777)
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(str(folder / "unix"))
        self.unix.listen()
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0grpo-lab-test-{os.getpid()}")
        self.abstract.listen()
        self.before = self.state()

    def state(self):
        about = self.victim.stat()
        return {"names": sorted(path.name for path in self.folder.iterdir()), "text": self.victim.read_text(), "mode": about.st_mode,
                "time": about.st_mtime_ns, "owner": about.st_uid, "links": about.st_nlink, "attributes": os.listxattr(self.victim),
                "stdlib": (Path(os.__file__).parent / "grpo_lab_marker.py").exists(),
                "shared memory": Path("/dev/shm/grpo-lab-marker").exists(), "hostname": socket.gethostname()}

    def env(self):
        return {"folder": str(self.folder), "victim": str(self.victim), "secret": str(self.secret), "empty": str(self.empty),
                "tcp": self.tcp.getsockname()[1], "unix": str(self.folder / "unix"), "abstract": f"\0grpo-lab-test-{os.getpid()}",
                "project": __file__, "worker": str(host_module.WORKER_SCRIPT), "token": os.environ["GRPO_LAB_TEST_TOKEN"]}

    def close(self):
        for listener in (self.tcp, self.unix, self.abstract):
            listener.close()
        shutil.rmtree(self.folder)


def outcomes_of(attacks, battlefield, lock):
    """{name: what happened}, and the children that were alive just after, of one call that runs them all."""
    names = list(attacks)
    with RewardHost(Limits(call_cpu_seconds=30.0, wall_seconds=120.0), lock=lock) as host:
        host.load(attack_source(), "attack", filename="attack.py")
        result = host.call("attack", prompts=names, completions=names, columns={
            "env": [battlefield.env()] * len(names), "code": list(attacks.values()), "dangerous": [name in DANGEROUS for name in names]})
        left = [child for child in psutil.Process(host.worker_pid).children(recursive=True)]
        again = host.call("attack", prompts=["p"], completions=["c"], columns={"env": [{}], "code": ["pass"], "dangerous": [lock != "off"]})
        assert again.scores == [1.0]
    return dict(zip(names, result.extra["outcome"], strict=True)), left


@pytest.fixture(scope="module")
def battlefield():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_LAB_TEST_TOKEN", "hf_of_the_parent")
        field = Battlefield()
        yield field
        field.close()


@pytest.fixture(scope="module")
def outcomes(battlefield):
    """{lock: ({attack: outcome}, children left)}, worked out once."""
    return {lock: outcomes_of(ATTACKS, battlefield, lock) for lock in LOCKS}


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused(outcomes, name, lock):
    outcome = outcomes[lock][0][name]
    assert outcome != "got through"
    assert not outcome.startswith(("NameError", "AttributeError", "SyntaxError", "TypeError", "IndentationError")), outcome


def test_attacks_change_nothing_and_leave_no_process(outcomes, battlefield):
    assert battlefield.state() == battlefield.before
    assert [left for _, left in outcomes.values()] == [[]] * len(LOCKS)


def test_the_harmless_attacks_get_through_without_a_lock(battlefield):
    attacks = {name: code for name, code in HARMLESS.items() if name in ATTACKS}
    outcomes, _ = outcomes_of(attacks, battlefield, "off")
    refused = {name: outcome for name, outcome in outcomes.items() if outcome != "got through"}
    assert refused == {}


# Machine code of another kind of system call ends the process at once: (instructions, the signal)
FOREIGN_CALLS = {
    "x32_getpid": bytes.fromhex("b8270000400f05c3"),  # mov eax, 0x40000027; syscall; ret
    "i386_getpid": bytes.fromhex("b814000000cd80c3"),  # mov eax, 20; int 0x80; ret
}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="machine code of x86-64")
@pytest.mark.parametrize("name", FOREIGN_CALLS)
def test_system_calls_of_another_architecture_kill_the_worker(name):
    source = """
import ctypes, mmap
def run(completions, code, **kwargs):
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex(code[0]))
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return [float(ctypes.CFUNCTYPE(ctypes.c_int)(address)() > 0)]
def good(completions, **kwargs):
    return [1.0]
"""
    with RewardHost() as host:
        host.load(source)
        with pytest.raises(RewardError) as caught:
            host.call("run", prompts=["p"], completions=["c"], columns={"code": [FOREIGN_CALLS[name].hex()]})
        assert caught.value.kind == "crashed"
        assert "SIGSYS" in caught.value.message or name == "i386_getpid" and "SIGSEGV" in caught.value.message  # kernel without ia32
        assert host.call("good", prompts=["p"], completions=["c"]).scores == [1.0]


def test_threads_can_be_allowed_but_still_no_process():
    source = """
import os, threading
def run(completions, **kwargs):
    seen = []
    t = threading.Thread(target=seen.append, args=(1,)); t.start(); t.join()
    try:
        os.fork() or os._exit(0)
        seen.append("forked")
    except PermissionError:
        pass
    return [float(seen == [1])]
"""
    with RewardHost(Limits(threads=True)) as host:
        host.load(source)
        assert host.call("run", prompts=["p"], completions=["c"]).scores == [1.0]


@pytest.mark.parametrize("lock, level", [("auto", "locked"), ("abi1", "locked"), ("nofiles", "locked, imports limited"), ("off", "fault protection only")])
def test_the_probe_says_what_the_lock_really_gives(lock, level):
    found = probe(lock)
    assert found.level == level
    assert found.is_locked is (lock != "off")
    assert any(found.attempts.values()) is (lock == "off"), found.attempts
    assert ("not against malice" in found.sentence) is (lock == "off")


def test_a_probe_that_cannot_run_promises_nothing(monkeypatch):
    monkeypatch.setattr(host_module, "WORKER_SCRIPT", Path("/no/such/worker.py"))
    found = probe.__wrapped__()
    assert found.level == "fault protection only" and "The probe failed" in found.sentence and not found.is_locked


def test_the_worker_has_no_capability_and_cannot_gain_privileges():
    with RewardHost() as host:
        assert host.lock_kind == "full"
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{host.worker_pid}/status").read_text().splitlines() if ":\t" in line)
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("opens_files", [True, False])
@pytest.mark.parametrize("threads", [True, False])
def test_the_filter_does_what_its_list_says_on_both_architectures(machine, opens_files, threads):
    """The filter's own instructions, run by a small interpreter: the second architecture is not at hand to be tried."""
    from lab.rewards.sandbox import seccomp

    column, arch = seccomp.ARCHITECTURES[machine]
    program = build_filter(opens_files=opens_files, threads=threads, machine=machine, pid=4242)
    allow, eperm, enosys, kill = 0x7FFF0000, 0x50001, 0x50026, 0x80000000

    def verdict(number, *arguments, arch=arch):
        return run_filter(program, number, arch, arguments)

    allowed = {numbers[column] for numbers in seccomp.ALLOWED.values()} - {None}
    special = {call[column] for call in (seccomp.OPEN, seccomp.OPENAT, seccomp.FCNTL, seccomp.IOCTL, seccomp.PRLIMIT, seccomp.TGKILL,
                                         seccomp.CLONE, seccomp.CLONE3)}
    for number in range(600):
        if number not in special:
            assert verdict(number) == (allow if number in allowed else eperm), number
    assert verdict(0, arch=arch ^ 1) == kill
    openat = seccomp.OPENAT[column]
    assert verdict(openat, 0, 0, os.O_RDONLY) == (allow if opens_files else eperm)
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_APPEND):
        assert verdict(openat, 0, 0, flags) == eperm
    assert verdict(seccomp.FCNTL[column], 0, 1) == allow and verdict(seccomp.FCNTL[column], 0, 8) == eperm
    assert verdict(seccomp.IOCTL[column], 0, 0x5401) == allow and verdict(seccomp.IOCTL[column], 0, 0x5412) == eperm
    assert verdict(seccomp.PRLIMIT[column], 0, 7, 0) == allow
    assert verdict(seccomp.PRLIMIT[column], 0, 7, 1 << 32) == eperm and verdict(seccomp.PRLIMIT[column], 1, 7, 0) == eperm
    assert verdict(seccomp.TGKILL[column], 4242) == allow and verdict(seccomp.TGKILL[column], 4242 | 1 << 32) == eperm
    assert verdict(seccomp.CLONE[column], 0x10000) == (allow if threads else eperm) and verdict(seccomp.CLONE[column], 17) == eperm
    assert verdict(seccomp.CLONE3[column]) == enosys
    if machine == "x86_64":
        assert verdict(0x40000000) == kill


def run_filter(program, number, arch, arguments):
    """Classic BPF over struct seccomp_data, as the kernel's: only the five instructions that the filter uses."""
    import struct

    data = struct.pack("=IIQ6Q", number, arch, 0, *(tuple(arguments) + (0,) * 6)[:6])
    instructions = list(struct.iter_unpack("=HBBI", program))
    position, accumulator = 0, 0
    while True:
        code, yes, no, k = instructions[position]
        position += 1
        if code == 0x06:
            return k
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, k)
        else:
            holds = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[code]
            position += yes if holds else no


def test_the_numbers_of_system_calls_are_those_of_the_kernels_headers():
    """Where the headers are installed (they describe both architectures on any machine)."""
    import re

    from lab.rewards.sandbox import seccomp

    headers = (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm-generic/unistd.h"))
    if not all(header.exists() for header in headers):
        pytest.skip("the kernel's headers are not installed")
    x86, arm = (dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())) for header in headers)
    calls = dict(seccomp.ALLOWED, open=seccomp.OPEN, openat=seccomp.OPENAT, fcntl=seccomp.FCNTL, ioctl=seccomp.IOCTL,
                 prlimit64=seccomp.PRLIMIT, tgkill=seccomp.TGKILL, clone=seccomp.CLONE, clone3=seccomp.CLONE3, seccomp=seccomp.SECCOMP_CALL)
    for name, (on_x86, on_arm) in calls.items():
        assert int(x86[name]) == on_x86
        assert on_arm is None or int(arm.get(name) or arm["fstatat"]) == on_arm, name


ORPHANS = """
import sys, threading
sys.path.insert(0, {root!r})
from lab.rewards.sandbox import CodeHost, RewardHost
host = RewardHost()
host.load("def loop(completions, **kwargs):\\n    while True: pass\\n")
code = CodeHost()
code.prefork(2)
thread = threading.Thread(target=lambda: host.call("loop", prompts=["p"], completions=["c"]), daemon=True)
print(host.worker_pid, code.server_pid, flush=True)
thread.start()
threading.Event().wait()
"""


def test_workers_end_when_the_lab_is_killed_while_they_compute(tmp_path):
    root = str(Path(__file__).resolve().parent.parent)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}  # a killed lab cannot remove its worker's empty folder
    lab = subprocess.Popen([sys.executable, "-c", ORPHANS.format(root=root)], stdout=subprocess.PIPE, text=True, env=environment)
    with lab:
        pids = [int(pid) for pid in lab.stdout.readline().split()]
        pids += [child.pid for child in psutil.Process(pids[1]).children()]
        lab.kill()
    patience = time.monotonic() + 20
    while any(is_running(pid) for pid in pids) and time.monotonic() < patience:
        time.sleep(0.05)
    assert [pid for pid in pids if is_running(pid)] == []
    assert len(pids) >= 3  # the worker, the fork server and at least one of its children


def is_running(pid):
    """A zombie that the system has not collected yet does not run."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
