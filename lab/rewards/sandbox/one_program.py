"""One program in one process: finish the lock, read the job, run the program, evaluate its tests' calls, write the values down.

The values go out one by one, so that a program that hangs in its third test has still passed the first two. Nothing else
that the program does counts: not what it prints, not how it exits. What comes out is only a claim about values; the
lab, which alone knows the expected ones, compares.
"""

import sys
import time
import types

import lockdown
import plain_values
import protocol

JOB, REPLY = 0, 3


def run(setup, files_are_shut):
    """In the child: lock what is left open, say so, then read one job, run it and write the result."""
    kind = lockdown.shut_the_rest(files_are_shut, memory_bytes=setup["memory_bytes"], cpu_seconds=setup["cpu_seconds"],
                                  threads=False, strongest=setup["strongest"])
    protocol.write_frame(REPLY, {"lock": kind, "cpu_seconds": time.process_time()})
    job = protocol.read_frame(JOB, 1 << 26)
    if job is None:
        return
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    _, error = attempt(execute, job["source"], "solution.py", module.__dict__)
    if error:
        protocol.write_frame(REPLY, {"broken": error})
        return
    for number, (setup_source, call) in job["calls"]:
        value, error = attempt(evaluate, setup_source, call, module.__dict__)
        protocol.write_frame(REPLY, {"call": number, "error": error} if error else {"call": number, "value": value})
    protocol.write_frame(REPLY, {"done": True})


def execute(source, filename, namespace):
    """Run source as a module's top level in `namespace`; tracebacks name `filename`."""
    exec(compile(source, filename, "exec", dont_inherit=True), namespace)


def evaluate(setup_source, call, namespace):
    """The value of one call of a test, tagged as a plain value, in a copy of the program's namespace."""
    namespace = dict(namespace)
    execute(setup_source, "test.py", namespace)
    return plain_values.tagged(eval(compile(call, "test.py", "eval", dont_inherit=True), namespace))


def attempt(action, *arguments):
    """(result, None) or (None, what was raised, in words)."""
    try:
        return action(*arguments), None
    except BaseException as error:
        try:
            return None, f"{type(error).__name__}: {error}"[:300].rstrip(": ")
        except BaseException:
            return None, type(error).__name__[:300]
