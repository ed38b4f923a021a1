"""Run code that nobody has vouched for: rewards that people type, and programs that a model writes.

    with RewardHost() as host:                          # one worker process, locked before it sees any code
        host.load(source)                               # which reward functions are in it, and what they take
        result = host.call("my_reward", prompts=[...], completions=[...], columns={"answer": [...]})
        result.scores                                   # one finite number or None per completion

    with CodeHost() as host:                            # one locked process per completion
        host.grade(programs, ["assert add(1, 2) == 3"]) # the 3 stays here and is compared here

    probe().sentence                                    # what this machine's kernel really gives, in words

The pieces, from the outside in: `host` (rewards) and `code_host` (programs) keep the deadlines; `process` is one
worker process; `protocol` is the only thing that crosses; `worker` and `forkserver` run on the other side, and lock
themselves with `lockdown` before the first line of foreign code; `probe` tries whether that lock holds.

What the lock leaves: the same kernel, so a flaw in it reached by plain calls; Python and its packages can be read, so keep
no secret among them; that a file exists, and its size, can be seen (not inside bubblewrap, `outer_box`); one core and
memory up to the limits; and a file may lie about its own scores, so never share a host between people.

Everything but the lock works on any platform. Where the kernel gives no lock, this protects against mistakes (endless
loops, memory, crashes), not against malice; `probe` says so, and `CodeHost` refuses to start unless told otherwise.
"""

from .code_host import CodeHost, CodeLimits, Grade
from .file_reward import SandboxedReward, file_reward
from .host import RewardHost
from .probe import Probe, probe
from .results import CallResult, Limits, LoadedFile, RewardError, RewardFunction

__all__ = ["CallResult", "CodeHost", "CodeLimits", "Grade", "Limits", "LoadedFile", "Probe", "RewardError", "RewardFunction",
           "RewardHost", "SandboxedReward", "file_reward", "probe"]
