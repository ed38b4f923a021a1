"""Reward functions that go wrong or attack, for the sandbox's tests: one name, one body, one expected outcome each.

Faults may run behind any lock. Attacks may only run behind the full filter: `attack` first makes sure that this very
process cannot fork and cannot signal its parent, because some of them would end every process of the machine.
"""

# ruff: noqa: E501  (tables of source text)

import textwrap

# name: (body of a reward function, expected kind of RewardError or "ok", a piece of its message)
# A line marked "# here" must be the line of the error.
FAULTS = {
    # errors of the author
    "key_error": ("return [{'a': 1.0}[c] for c in completions]  # here", "exception", "KeyError: 'one'"),
    "zero_division": ("x = 0\nreturn [1 / x for c in completions]  # here", "exception", "ZeroDivisionError"),
    "assertion": ("assert False, 'no'  # here", "exception", "AssertionError: no"),
    "unprintable": ("class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd()  # here", "exception", "Odd: <unprintable>"),
    "huge_message": ("raise ValueError('x' * 10**7)  # here", "exception", "ValueError: xxx"),
    "exception_group": ("raise ExceptionGroup('many', [ValueError(1), KeyError(2)])  # here", "exception", "ExceptionGroup"),
    "hostile_notes": ("e = ValueError('plain')\ne.__notes__ = object()\nraise e  # here", "exception", "ValueError: plain"),
    "endless_cause": ("e = ValueError('plain')\ne.__cause__ = e\nraise e  # here", "exception", "ValueError: plain"),
    "keyboard_interrupt": ("raise KeyboardInterrupt  # here", "exception", "KeyboardInterrupt"),
    "generator_exit": ("raise GeneratorExit  # here", "exception", "GeneratorExit"),
    "stop_iteration": ("return [next(iter([]))]  # here", "exception", "StopIteration"),
    "sys_exit": ("import sys\nsys.exit(0)  # here", "exception", "SystemExit: 0"),
    "recursion": ("def f(n): return f(n + 1)  # here\nf(0)", "exception", "RecursionError"),
    "input": ("input()  # here", "exception", "EOFError"),
    "missing_module": ("import no_such_module_at_all  # here", "exception", "No module named"),
    "torch": ("import torch  # here", "exception", "torch isn't available in rewards"),
    "torch_submodule": ("from torch import nn  # here", "exception", "torch isn't available in rewards"),
    "closed_stdout": ("import sys\nsys.stdout.close()\nprint('x')  # here", "exception", "ValueError"),
    "trainer_state_unknown": ("return [trainer_state.no_such for c in completions]  # here", "exception", "trainer_state has no 'no_such' here; it has global_step"),
    # what it returns
    "nan": ("return [1.0, float('nan'), 0.0]", "value", "the score is nan; scores must be finite"),
    "inf": ("return [1.0, 0.0, float('inf')]", "value", "the score is inf"),
    "minus_inf": ("return [float('-inf'), 0.0, 1.0]", "value", "the score is -inf"),
    "numpy_nan": ("import numpy\nreturn numpy.array([0.0, 1.0, numpy.nan])", "value", "the score is nan"),
    "too_few": ("return [1.0]", "value", "returned 1 scores for 3 completions"),
    "too_many": ("return [1.0] * 4", "value", "returned 4 scores for 3 completions"),
    "scalar": ("return 1.0", "value", "returned float 1.0"),
    "none": ("return None", "value", "returned None"),
    "dict": ("return {c: 1.0 for c in completions}", "value", "returned a dict of 3"),
    "set": ("return {1.0, 2.0, 3.0}", "value", "returned a set of 3"),
    "generator": ("return (1.0 for c in completions)", "value", "returned a generator"),
    "text": ("return 'abc'", "value", "returned str 'abc'"),
    "array_of_wrong_shape": ("import numpy\nreturn numpy.ones((3, 2))", "value", "expected a number, but the score is a list of 2"),
    "scalar_array": ("import numpy\nreturn numpy.array(1.0)", "value", "returned float 1.0"),
    "number_as_text": ("return [1.0, '1.0', 0.0]", "value", "expected a number, but the score is str '1.0'"),
    "bytes": ("return [b'1', 0, 0]", "value", "expected a number, but the score is bytes"),
    "nested": ("return [[1.0]] * 3", "value", "expected a number, but the score is a list of 1"),
    "complex": ("return [0, 0, 1j]", "value", "expected a number, but the score is complex"),
    "too_large": ("return [0, 10**400, 0]", "value", "too large"),
    "function_as_score": ("return [len] * 3", "value", "expected a number"),
    "float_gives_text": ("class N:\n    def __float__(self): return 'x'\nreturn [N()] * 3", "value", "expected a number"),
    "float_raises": ("class N:\n    def __float__(self): raise RuntimeError('no')  # here\nreturn [N()] * 3", "exception", "RuntimeError: no"),
    "extra_of_wrong_length": ("log_extra('x', [1])  # here\nreturn [0.0] * 3", "value", "log_extra('x') needs a list with one value per completion"),
    "extra_not_a_list": ("log_extra('x', 5)  # here\nreturn [0.0] * 3", "value", "log_extra('x') needs a list"),
    "metric_not_a_number": ("log_metric('x', 'high')  # here\nreturn [0.0] * 3", "value", "expected a number, but log_metric('x') got str 'high'"),
    "metric_nan": ("log_metric('x', float('nan'))  # here\nreturn [0.0] * 3", "value", "log_metric('x') got nan"),
    # time: the lab stops it and names the line
    "endless_loop": ("while True: pass  # here", "timeout", "s of computing"),
    "swallows_everything": ("while True:\n    try:\n        while True: 1 + 1  # here\n    except BaseException:\n        pass", "timeout", ""),
    "catastrophic_regex": ("import re\nreturn [re.match('(a+)+$', 'a' * 40 + 'b')]  # here", "timeout", ""),
    "power_in_c": ("return [3 ** (10 ** 8)]  # here", "timeout", ""),
    "digits_in_c": ("import sys\nsys.set_int_max_str_digits(0)\nx = 1 << 30000000\nreturn [len(str(x))]  # here", "timeout", ""),
    "sum_in_c": ("return [sum(iter(int, 1))]  # here", "timeout", ""),
    "endless_print": ("while True: print('spam')  # here", "timeout", ""),
    "endless_generator_list": ("return [x for x in iter(int, 1) if x]  # here", "timeout", ""),
    "endless_float": ("class N:\n    def __float__(self):\n        while True: pass  # here\nreturn [N()] * 3", "timeout", ""),
    "endless_str_of_error": ("class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E()", "timeout", ""),
    "blocks_signals": ("import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass", "timeout", ""),
    "ignores_signals": ("import signal\nfor s in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)\nwhile True: pass", "timeout", ""),
    "takes_the_handler_away": ("import faulthandler\nfaulthandler.unregister(10)\nwhile True:\n    try:\n        while True: pass\n    except BaseException: pass", "timeout", ""),
    "cancels_timers": ("import signal\nsignal.alarm(0); signal.setitimer(signal.ITIMER_REAL, 0)\nwhile True: pass  # here", "timeout", ""),
    "late_coroutine": ("import asyncio\nasync def f():\n    while True: await asyncio.sleep(0)\nreturn f()", "timeout", ""),
    "hopeless_coroutine": ("import asyncio\nasync def f(): await asyncio.get_running_loop().create_future()\nreturn f()", "exception", "can never happen here"),
    "sleep": ("import time\ntime.sleep(600)  # here", "timeout", ""),
    "waits_for_requests": ("import os\nos.read(0, 1)  # here\nreturn [0.0] * 3", "timeout", ""),
    "stops_itself": ("import signal\nsignal.raise_signal(signal.SIGSTOP)", "timeout", ""),
    # memory
    "giant_bytes": ("return [len(bytearray(20 << 30))]  # here", "memory", "MemoryError"),
    "giant_text": ("return [len('a' * (50 << 30))]  # here", "memory", "MemoryError"),
    "giant_list": ("return [len([0] * (1 << 32))]  # here", "memory", "MemoryError"),
    "growing_list": ("x = []\nwhile True: x.append(bytes(1 << 24))  # here", "memory|timeout", ""),
    "compression_bomb": ("import zlib\nreturn [len(zlib.decompress(zlib.compress(bytes(1 << 24)))) * 2 for x in [bytes(1 << 28)] * 9 if zlib.compress(x * 5)]", "memory|timeout", ""),
    # the process ends
    "os_exit": ("import os\nos._exit(0)", "crashed", "ended itself with exit code 0"),
    "os_exit_3": ("import os\nos._exit(3)", "crashed", "exit code 3"),
    "abort": ("import os\nos.abort()  # here", "crashed", "SIGABRT"),
    "segfault": ("import ctypes\nctypes.string_at(0)  # here", "crashed", "SIGSEGV"),
    "kills_itself": ("import signal\nsignal.raise_signal(signal.SIGKILL)", "crashed", "SIGKILL"),
    "alarm_clock": ("import signal, time\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\ntime.sleep(100)", "crashed", "SIGALRM"),
    "unlimited_recursion": ("import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1) + 1\nf(0)", "crashed|timeout|memory", ""),
    "closes_everything": ("import os\nos.closerange(0, 256)\nreturn [0.0] * 3", "crashed", ""),
    "closes_the_reply": ("import os\nos.close(3)\nwhile True: pass", "crashed|timeout", "closed its connection|exit code 1|s of computing"),
    "no_builtins_left": ("import builtins\nbuiltins.__dict__.clear()\nreturn [0.0] * 3", "crashed|exception|value|protocol", ""),
    "no_modules_left": ("import sys\nsys.modules.clear()\nimport os\nos._exit(1)", "crashed|exception", ""),
    # the connection
    "garbage_reply": ("import os\nos.write(3, b'garbage' * 1000)\nreturn [0.0] * 3", "protocol", "wrote over the connection"),
    "huge_reply": ("import os\nos.write(3, b'\\x7f\\xff\\xff\\xff')\nreturn [0.0] * 3", "protocol", "claims 2,147,483,647 bytes"),
    "nested_reply": ("import os, struct\nb = b'[' * 1000000\nos.write(3, struct.pack('>I', len(b)) + b)\nreturn [0.0] * 3", "protocol", "not plain JSON"),
    "nan_reply": ("import os, struct\nb = b'{\"scores\":[NaN]}'\nos.write(3, struct.pack('>I', len(b)) + b)\nreturn [0.0] * 3", "protocol", "not plain JSON"),
    "foreign_reply": ("import os, struct\nb = b'{\"id\":\"guessed\",\"scores\":[9,9,9]}'\nos.write(3, struct.pack('>I', len(b)) + b)\nreturn [0.0] * 3", "protocol", "answers another request"),
    "forged_reply": (
        "import os, struct, sys, json\nf = sys._getframe()\nwhile 'request' not in f.f_locals: f = f.f_back\n"
        "b = json.dumps({'id': f.f_locals['request']['id'], 'scores': ['a', {}, None], 'extra': 3, 'metrics': []}).encode()\n"
        "os.write(3, struct.pack('>I', len(b)) + b)\nreturn [0.0] * 3", "protocol", "did not hold a list of scores|did not hold finite numbers"),
    "forged_report": (
        "import os, struct, sys, json\nf = sys._getframe()\nwhile 'request' not in f.f_locals: f = f.f_back\n"
        "b = json.dumps({'id': f.f_locals['request']['id'], 'error': {'kind': ['x'], 'line': {}, 'text': 5}}).encode()\n"
        "os.write(3, struct.pack('>I', len(b)) + b)\nreturn [0.0] * 3", "protocol", "nobody can read"),
    "drips_a_reply": ("import os, struct, time\nos.write(3, struct.pack('>I', 4000000))\nwhile True:\n    os.write(3, b' ')\n    time.sleep(0.001)", "timeout", ""),
    "floods_with_old_replies": (
        "import os, struct, sys, json\nf = sys._getframe()\nwhile 'request' not in f.f_locals: f = f.f_back\n"
        "b = json.dumps({'id': f.f_locals['request']['id'], 'scores': [7, 7, 7], 'extra': {}, 'metrics': {}}).encode()\n"
        "while True: os.write(3, (struct.pack('>I', len(b)) + b) * 100)", "ok", [7.0] * 3),
    # fine after all
    "answers_twice": (
        "import os, struct, sys, json\nf = sys._getframe()\nwhile 'request' not in f.f_locals: f = f.f_back\n"
        "b = json.dumps({'id': f.f_locals['request']['id'], 'scores': [7, 7, 7], 'extra': {}, 'metrics': {}}).encode()\n"
        "os.write(3, struct.pack('>I', len(b)) + b)\nreturn [0.0] * 3", "ok", [7.0] * 3),
    "mixed_numbers": ("import numpy\nreturn [True, None, numpy.float32(0.5)]", "ok", [1.0, None, 0.5]),
    "numpy_array": ("import numpy\nreturn numpy.arange(3)", "ok", [0.0, 1.0, 2.0]),
    "zero_dimensional": ("import numpy\nreturn [numpy.array(0.25), numpy.int64(2), 3]", "ok", [0.25, 2.0, 3.0]),
    "tuple": ("return (1, 2, 3)", "ok", [1.0, 2.0, 3.0]),
    "fraction_and_decimal": ("import fractions, decimal\nreturn [fractions.Fraction(1, 4), decimal.Decimal('0.5'), 1]", "ok", [0.25, 0.5, 1.0]),
    "much_raw_output": ("import os\nfor _ in range(800): os.write(1, b'x' * 65536)\nreturn [0.0] * 3", "ok", [0.0] * 3),
    "much_extra": ("log_extra('x', ['y' * 10**7] * 3)\nreturn [0.0] * 3", "ok", [0.0] * 3),
    "coroutine": ("import asyncio\nasync def f():\n    await asyncio.gather(asyncio.sleep(0.01), asyncio.sleep(0.02))\n    return [0.5] * 3\nreturn f()", "ok", [0.5] * 3),
    "sympy": ("import sympy\nreturn [float(sympy.sqrt(4))] * 3", "ok", [2.0] * 3),
    "math_verify": ("from math_verify import parse, verify\np = parse('$\\\\frac{1}{2}$', parsing_timeout=None)\nreturn [float(verify(p, parse('$0.5$', parsing_timeout=None), timeout_seconds=None))] * 3", "ok", [1.0] * 3),
}
SLOW_FAULTS = ("sleep", "waits_for_requests", "stops_itself")  # wait for the clock, not for CPU time


def fault_source():
    """(source of one file with all faults as reward functions `fault_…`, {name: line marked "# here", or None})."""
    lines, marked = [], {}
    for name, (body, _, _) in FAULTS.items():
        lines.append(f"def fault_{name}(completions, log_extra, log_metric, trainer_state, **kwargs):")
        marked[name] = None
        for line in body.splitlines():
            lines.append("    " + line)
            if line.endswith("# here"):
                marked[name] = len(lines)
    return "\n".join(["def good(completions, **kwargs):\n    return [float(len(c)) for c in completions]"] + lines) + "\n", \
        {name: line + 2 if line else None for name, line in marked.items()}


# name: code that must fail. It is refused if it raises; "got through" if it runs to its end.
# HARMLESS ones are also run without any lock, where they must get through: proof that they test something.
HARMLESS = {
    "read_passwd": "open('/etc/passwd').read()",
    "read_secret": "open(env['secret']).read()",
    "read_project": "open(env['project']).read()",
    "read_worker_itself": "open(env['worker']).read()",
    "list_root": "os.listdir('/')",
    "list_tmp": "os.listdir(env['folder'])",
    "scan_root": "list(os.scandir('/'))",
    "read_through_a_path_handle": "fd = os.open(env['folder'], os.O_PATH)\ntry: os.close(os.open('secret', os.O_RDONLY, dir_fd=fd))\nfinally: os.close(fd)",
    "read_relative": "open(os.path.relpath('/etc/passwd')).read()",
    "read_own_environ": "open('/proc/self/environ').read()",
    "read_own_maps": "open('/proc/self/maps').read()",
    "read_parent_cmdline": "open('/proc/%d/cmdline' % os.getppid()).read()",
    "read_proc_1": "open('/proc/1/status').read()",
    "list_parent_fds": "os.listdir('/proc/%d/fd' % os.getppid())",
    "read_sys": "os.listdir('/sys')",
    "read_tty_list": "os.listdir('/dev')",
    "tcp_connect": "socket.create_connection(('127.0.0.1', env['tcp']), 1).close()",
    "tcp_bind": "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()",
    "udp_send": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
    "unix_connect": "s = socket.socket(socket.AF_UNIX); s.connect(env['unix'])",
    "abstract_connect": "s = socket.socket(socket.AF_UNIX); s.connect(env['abstract'])",
    "socketpair": "socket.socketpair()",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "fork": "os.fork() or os._exit(0)\nos.wait()",
    "subprocess": "subprocess.run(['/bin/true'], check=True)",
    "system": "assert os.system('/bin/true') == 0",
    "posix_spawn": "os.posix_spawn('/bin/true', ['true'], {}); os.wait()",
    "memfd": "os.close(os.memfd_create('x'))",
    "pipe": "os.pipe()",
    "epoll": "select.epoll()",
    "thread": "t = threading.Thread(target=print); t.start(); t.join()",
    "signal_parent": "os.kill(os.getppid(), 0)",
    "nice": "os.nice(1)",
    "affinity": "os.sched_setaffinity(0, {0})",
    "umask": "os.umask(0o77)",
    "chdir": "os.chdir('/')",
    "scheduler": "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
    "get_priority_of_parent": "os.sched_getparam(os.getppid())",
    "pidfd": "os.close(os.pidfd_open(os.getpid()))",
    "non_blocking": "os.set_blocking(0, True)",
    "lower_limits": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "prctl_forget_parent": "raw(157, 1, 0)",
    "inotify": "raw(253)",
    "timerfd": "raw(283, 0, 0)",
    "eventfd": "raw(284, 0)",
    "personality": "raw(135, 0xffffffff)",
}
DANGEROUS = {
    "read_shadow": "open('/etc/shadow').read()",
    "read_parent_environ": "open('/proc/%d/environ' % os.getppid()).read()",
    "read_parent_memory": "open('/proc/%d/mem' % os.getppid(), 'rb').read(1)",
    "write_own_memory": "open('/proc/self/mem', 'r+b')",
    "block_device": "open('/dev/vda', 'rb').read(1)",
    "physical_memory": "open('/dev/mem', 'rb').read(1)",
    "write_cwd": "open('here', 'w').write('x')",
    "write_folder": "open(env['folder'] + '/marker', 'w').write('x')",
    "write_shared_memory": "open('/dev/shm/grpo-lab-marker', 'w').write('x')",
    "write_stdlib": "open(os.path.dirname(os.__file__) + '/grpo_lab_marker.py', 'w').write('x')",
    "write_dev_null": "open('/dev/null', 'w')",
    "append_victim": "open(env['victim'], 'a').write('x')",
    "truncating_open": "os.open(env['victim'], os.O_RDONLY | os.O_TRUNC)",
    "creating_open": "os.open(env['folder'] + '/marker', os.O_RDONLY | os.O_CREAT)",
    "nameless_file": "os.open(env['folder'], os.O_TMPFILE | os.O_RDWR)",
    "unlink": "os.unlink(env['victim'])",
    "rename": "os.rename(env['victim'], env['folder'] + '/marker')",
    "link": "os.link(env['victim'], env['folder'] + '/marker')",
    "symlink": "os.symlink('/etc/passwd', env['folder'] + '/marker')",
    "chmod": "os.chmod(env['victim'], 0)",
    "chown": "os.chown(env['victim'], os.getuid(), os.getgid())",
    "utime": "os.utime(env['victim'], (0, 0))",
    "truncate": "os.truncate(env['victim'], 0)",
    "mkfifo": "os.mkfifo(env['folder'] + '/marker')",
    "mkdir": "os.mkdir(env['folder'] + '/marker')",
    "rmdir": "os.rmdir(env['empty'])",
    "setxattr": "os.setxattr(env['victim'], 'user.x', b'1')",
    "rmtree": "import shutil\nshutil.rmtree(env['empty'])",
    "execv": "os.execv('/bin/touch', ['touch', env['folder'] + '/marker'])",
    "execveat": "raw(322, -100, b'/bin/true', 0, 0, 0)",
    "multiprocessing": "import multiprocessing\np = multiprocessing.get_context('fork').Process(target=print); p.start(); p.join(); assert p.exitcode == 0",
    "pty": "import pty\npty.fork()",
    "vfork": "raw(58)",
    "clone": "raw(56, 17, 0, 0, 0, 0)",
    "clone_thread_without_memory": "raw(56, 0x10000, 0, 0, 0, 0)",
    "clone3": "raw(435, bytes(88), 88)",
    "fifty_forks": "forked = 0\nfor _ in range(50):\n    try:\n        os.fork() or os._exit(0)\n        forked += 1\n    except PermissionError: pass\nassert forked",
    "thread_bomb": "started = 0\nfor _ in range(200):\n    try:\n        threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n        started += 1\n    except RuntimeError: pass\nassert started",
    "kill_parent": "os.kill(os.getppid(), signal.SIGTERM)",
    "kill_everyone": "os.kill(-1, signal.SIGKILL)",
    "kill_group": "os.killpg(os.getpgrp(), signal.SIGKILL)",
    "kill_init": "os.kill(1, signal.SIGTERM)",
    "tgkill_parent": "raw(234, os.getppid(), os.getppid(), 0)",
    "tkill_parent": "raw(200, os.getppid(), 0)",
    "queue_signal": "raw(129, os.getppid(), 0, bytes(128))",
    "pidfd_signal": "raw(424, 3, 0, 0, 0)",
    "pidfd_getfd": "raw(438, 3, 0, 0)",
    "ptrace_parent": "raw(101, 16, os.getppid(), 0, 0)",
    "ptrace_me": "raw(101, 0, 0, 0, 0)",
    "read_other_memory": "raw(310, os.getppid(), 0, 0, 0, 0, 0)",
    "write_other_memory": "raw(311, os.getppid(), 0, 0, 0, 0, 0)",
    "kcmp": "raw(312, os.getpid(), os.getppid(), 0, 0, 0)",
    "io_uring": "raw(425, 8, bytes(120))",
    "aio": "raw(206, 8, bytes(8))",
    "bpf": "raw(321, 0, bytes(64), 64)",
    "perf": "raw(298, bytes(128), 0, -1, -1, 0)",
    "keyctl": "raw(250, 0, -3, 1)",
    "add_key": "raw(248, b'user', b'x', b'y', 1, -3)",
    "userfaultfd": "raw(323, 0)",
    "unshare": "raw(272, 0x10000000)",
    "setns": "raw(308, 0, 0)",
    "mount": "raw(165, b'none', b'/mnt', b'tmpfs', 0, 0)",
    "umount": "raw(166, b'/no/such/mount', 0)",
    "new_mount": "raw(430, b'tmpfs', 0)",
    "pivot_root": "raw(155, b'/no/such', b'/no/such')",
    "chroot": "os.chroot('/')",
    "sysv_memory": "raw(29, 0, 4096, 0o1600)",
    "sysv_semaphore": "raw(64, 0, 1, 0o1600)",
    "sysv_queue": "raw(68, 0, 0o1600)",
    "posix_queue": "raw(240, b'grpo-lab-marker', 0o102, 0o600, 0)",
    "handle": "raw(303, -100, b'/etc/passwd', bytes(136), bytes(8), 0)",
    "fanotify": "raw(300, 0, 0)",
    "seccomp_again": "raw(317, 1, 0, 0)",
    "modify_ldt": "raw(154, 1, bytes(16), 16)",
    "iopl": "raw(172, 3)",
    "vmsplice": "raw(278, 1, 0, 0, 0)",
    "sendfile": "raw(40, 1, 0, 0, 1)",
    "swap": "raw(167, b'/no/such', 0)",
    "hostname": "raw(170, b'x', 1)",
    "quota": "raw(179, 0, 0, 0, 0)",
    "reboot_with_wrong_magic": "raw(169, 0, 0, 0, 0)",
    "kernel_module": "raw(175, 0, 0, b'')",
    "set_clock": "raw(227, 99, 0)",
    "syslog": "raw(103, 10, 0, 0)",
    "acct": "raw(163, b'/no/such')",
    "setuid": "os.setuid(0)",
    "setgid": "os.setgid(0)",
    "setgroups": "os.setgroups([0])",
    "setsid": "raw(112)",
    "capset": "raw(126, (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[2**32 - 1] * 6))",
    "dumpable_again": "raw(157, 4, 1)",
    "raise_limits": "resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))",
    "raise_memory": "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "limits_of_parent": "resource.prlimit(os.getppid(), resource.RLIMIT_CPU)",
    "open_many": "fds = []\ntry:\n    while len(fds) < 100: fds.append(os.dup(0))\nfinally:\n    for fd in fds: os.close(fd)",
    "async_signals": "import fcntl\nfcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())",
    "async_flag": "import fcntl\nfcntl.fcntl(0, fcntl.F_SETFL, os.O_ASYNC)",
    "lease": "import fcntl\nfcntl.fcntl(0, 1024, 0)",
    "pipe_size": "import fcntl\nfcntl.fcntl(0, 1031, 1 << 20)",
    "type_into_terminal": "import fcntl\nfcntl.ioctl(0, 0x5412, b'x')",
    "ioctl_async": "import fcntl\nfcntl.ioctl(0, 0x5452, b'\\1\\0\\0\\0')",
    "raw_socket_call": "raw(41, 1, 1, 0)",
    "raw_socketpair": "raw(53, 1, 1, 0, (ctypes.c_int * 2)())",
    "af_alg": "raw(41, 38, 5, 0)",
    "vsock": "raw(41, 40, 1, 0)",
    "secret_in_environment": "assert env['token'] in repr(dict(os.environ))",
    "home_in_environment": "os.environ['HOME']",
    "many_descriptors": "n = 0\nfor fd in range(256):\n    try:\n        os.fstat(fd)\n        n += 1\n    except OSError: pass\nassert n > 4, n",
    "readable_descriptors_but_requests": "import fcntl\nassert any(fcntl.fcntl(fd, fcntl.F_GETFL) & 3 != 1 for fd in (1, 2, 3))",
}
X86_ONLY_MARK = "raw("  # numbers of system calls are those of x86-64

_ATTACK_FILE = '''
import ctypes, os, select, signal, socket, subprocess, threading, time, traceback
try:
    import resource
except ImportError:
    pass
libc = ctypes.CDLL(None, use_errno=True)

def raw(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

def must_be_locked():
    """Stop everything if this process could do harm: some attacks are aimed at every process of the machine."""
    try:
        pid = os.fork()
    except PermissionError:
        pass
    else:
        if pid == 0:
            os._exit(0)
        os._exit(66)
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return
    os._exit(66)

def attack(completions, env, code, dangerous, log_extra, **kwargs):
    outcomes = []
    for env, code, dangerous in zip(env, code, dangerous):
        if dangerous:
            must_be_locked()
        try:
            exec(code, dict(globals(), env=env))
            outcomes.append("got through")
        except BaseException as error:
            outcomes.append(f"{type(error).__name__}: {error}"[:200])
    log_extra("outcome", outcomes)
    return [float(outcome == "got through") for outcome in outcomes]
'''


def attack_source():
    return textwrap.dedent(_ATTACK_FILE)
