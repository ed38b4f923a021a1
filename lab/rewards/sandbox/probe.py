"""What this machine's kernel really gives: a throw-away worker locks itself and then tries to break out.

Never asks for kernel versions or feature files, which are wrong both ways; only what was tried and refused counts.
"""

from dataclasses import dataclass
from functools import cache

from .host import RewardHost
from .results import Limits, RewardError

LOCKED, IMPORTS_LIMITED, FAULTS_ONLY = "locked", "locked, imports limited", "fault protection only"
SENTENCES = {
    LOCKED: "Reward code runs locked: it cannot read your files, reach the network, start programs or touch other processes.",
    IMPORTS_LIMITED: "Reward code runs locked and cannot open any file, so it can import only the common standard modules.",
    FAULTS_ONLY: "Reward code runs in a process of its own: this protects against mistakes, not against malice.",
}
ATTEMPTS = '''
import os, socket

def attempt(action):
    try:
        action()
    except (PermissionError, FileNotFoundError):  # inside an outer box the file is not even there
        return 0.0
    except (AttributeError, OSError, RuntimeError):
        return 1.0
    return 1.0

def fork():
    if os.fork() == 0:
        os._exit(0)
    os.wait()

def read_a_file():
    open("/etc/passwd").close()

def read_the_library():
    open(os.__file__).close()

def probe(completions, log_metric, **kwargs):
    log_metric("reads files", attempt(read_a_file))
    log_metric("opens sockets", attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()))
    log_metric("starts processes", attempt(fork))
    log_metric("signals the lab", attempt(lambda: os.kill(os.getppid(), 0)))
    log_metric("reads the library", attempt(read_the_library))
    return [0.0]

def execute(completions, **kwargs):
    os.execv("/bin/true", ["true"])
    return [0.0]
'''


@dataclass(frozen=True)
class Probe:
    """level: "locked", "locked, imports limited" or "fault protection only"; sentence: the same for people.
    attempts: {what was tried: whether it worked}."""

    level: str
    sentence: str
    attempts: dict

    @property
    def is_locked(self):
        """Whether code that may be hostile (a model's, a stranger's) may run here."""
        return self.level != FAULTS_ONLY


@cache
def probe(lock="auto"):
    """Try it, once per process (a fifth of a second). `lock` as in RewardHost."""
    with RewardHost(Limits(), lock=lock) as host:
        try:
            host.load(ATTEMPTS, filename="probe.py")
            attempts = {name: value > 0 for name, value in host.call("probe", prompts=[""], completions=[""]).metrics.items()}
            attempts["executes programs"] = _executes_programs(host)
        except RewardError as error:
            return Probe(FAULTS_ONLY, f"{SENTENCES[FAULTS_ONLY]} (The probe failed: {error.message})", {})
    reads_library = attempts.pop("reads the library")
    level = FAULTS_ONLY if any(attempts.values()) else LOCKED if reads_library else IMPORTS_LIMITED
    return Probe(level, SENTENCES[level], attempts)


def _executes_programs(host):
    """exec replaces the worker where it works, so anything but a plain PermissionError means that it did."""
    try:
        host.call("execute", prompts=[""], completions=[""])
    except RewardError as error:
        return "PermissionError" not in error.message
    return True
