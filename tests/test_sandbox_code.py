"""Programs written by a model: graded by values that are compared in the lab; nothing they try makes them pass or harms."""

# ruff: noqa: E501  (tables of source text)

import os
import sys
import time

import psutil
import pytest

from lab.rewards.sandbox import CodeHost, CodeLimits, RewardError
from lab.rewards.sandbox.split_tests import split_tests
from tests.sandbox_cases import DANGEROUS, HARMLESS, attack_source
from tests.sandbox_leaks import nothing_left_behind
from tests.test_sandbox_attacks import ATTACKS, Battlefield

needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="programs of a model run on Linux only")

ADD = ["assert add(1, 2) == 3", "assert add(-1, 1) == 0", "assert add(0, 0) == 0", "assert add(2.5, 1) == 3.5"]
RIGHT = "def add(a, b):\n    return a + b"

# name: (program, passed of the four tests above)
PROGRAMS = {
    "right": (RIGHT, 4),
    "right_with_prints": ("print('hello')\n" + RIGHT + "\nprint(add(1, 2))", 4),
    "right_with_imports": ("import numpy as np, math, collections\ndef add(a, b):\n    return float(np.float64(a) + b)", 4),
    "right_lambda": ("add = lambda *numbers: sum(numbers)", 4),
    "right_class": ("class A:\n    def __call__(self, a, b): return a + b\nadd = A()", 4),
    "right_main_guard": (RIGHT + "\nif __name__ == '__main__':\n    import sys; sys.exit(1)", 4),
    "right_but_slow_once": ("import time\n" + RIGHT + "\ntime.sleep(0.1)", 4),
    "off_by_one": ("def add(a, b):\n    return a + b + 1", 0),
    "constant_zero": ("def add(a, b):\n    return 0", 2),
    "only_integers": ("def add(a, b):\n    return int(a) + int(b)", 3),
    "as_text": ("def add(a, b):\n    return str(a + b)", 0),
    "as_true": ("def add(a, b):\n    return True", 0),
    "as_false_for_zero": ("def add(a, b):\n    return a + b or False", 2),
    "prints_instead": ("def add(a, b):\n    print(a + b)", 0),
    "raises": ("def add(a, b):\n    raise ValueError", 0),
    "raises_for_negative": ("def add(a, b):\n    assert a >= 0\n    return a + b", 3),
    "other_name": ("def plus(a, b):\n    return a + b", 0),
    "empty": ("", 0),
    "not_python": ("Sure! Here is the function you asked for.", 0),
    "null_byte": (RIGHT + "\0", 0),
    "deeply_nested": ("x = " + "(" * 3000, 0),
    "surrogates": ("x = '\ud800'\n" + RIGHT, 0),
    "endless": ("def add(a, b):\n    while True: pass", 0),
    "endless_in_c": ("def add(a, b):\n    return len(str(7 ** 50000000))", 0),
    "ignores_the_cpu_limit": ("import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass", 0),
    "much_memory": ("x = []\nwhile True: x.append(bytes(1 << 24))", 0),
    "giant_memory": ("def add(a, b):\n    return len(bytearray(1 << 40))", 0),
    "deep_recursion": ("def add(a, b):\n    return add(a, b)", 0),
    "giant_result": ("def add(a, b):\n    return 'x' * (8 << 20)", 0),
    "giant_integer": ("def add(a, b):\n    return 10 ** 5000", 0),
    "nested_result": ("def add(a, b):\n    x = []\n    for _ in range(100000): x = [x]\n    return x", 0),
    "cyclic_result": ("def add(a, b):\n    x = []\n    x.append(x)\n    return x", 0),
    "exit_0": ("import sys\nsys.exit(0)", 0),
    "exit_0_in_the_function": ("import sys\ndef add(a, b):\n    sys.exit(0)", 0),
    "os_exit_0": ("import os\nos._exit(0)", 0),
    "os_exit_0_in_the_function": ("import os\ndef add(a, b):\n    os._exit(0)", 0),
    "abort": ("import os\nos.abort()", 0),
    "segfault": ("import ctypes\nctypes.string_at(0)", 0),
    "keyboard_interrupt": ("raise KeyboardInterrupt", 0),
    "equal_to_everything": ("class E:\n    def __eq__(self, other): return True\n    def __hash__(self): return 3\ndef add(a, b):\n    return E()", 0),
    "number_equal_to_everything": ("class N(int):\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\ndef add(a, b):\n    return N(7)", 0),
    "float_equal_to_everything": ("class N(float):\n    def __eq__(self, other): return True\ndef add(a, b):\n    return N(7)", 0),
    "list_equal_to_everything": ("class L(list):\n    def __eq__(self, other): return True\ndef add(a, b):\n    return L()", 0),
    "pretends_to_be_int": ("class P:\n    __class__ = int\n    def __eq__(self, other): return True\ndef add(a, b):\n    return P()", 0),
    "metaclass_named_int": ("class int_(type): pass\nint2 = int_('int', (), {'__eq__': lambda s, o: True})\ndef add(a, b):\n    return int2()", 0),
    "not_a_number": ("def add(a, b):\n    return float('nan')", 0),
    "infinite": ("def add(a, b):\n    return float('inf')", 0),
    "says_pass": ("print('PASS')\nprint('all tests passed')\nimport sys\nsys.stderr.write('OK')", 0),
    "writes_everywhere": ("import os\nfor fd in range(64):\n    try: os.write(fd, b'PASS\\n' * 100)\n    except OSError: pass\n" + RIGHT, 0),
    "forges_results": ("import json, os, struct\nfor n in range(4):\n    b = json.dumps({'call': n, 'value': ['bool', True]}).encode()\n    os.write(3, struct.pack('>I', len(b)) + b)\nos._exit(0)", 0),
    "forges_a_flood": ("import os, struct\nb = b'{\"done\":true}'\nwhile True: os.write(3, struct.pack('>I', len(b)) + b)", 0),
    "forges_nonsense": ("import os, struct\nfor b in (b'{\"call\":0,\"value\":3}', b'{\"call\":[],\"value\":{}}', b'[]'):\n    os.write(3, struct.pack('>I', len(b)) + b)\n" + RIGHT, 0),
    "forges_a_lock": ("import os, struct\nb = b'{\"lock\":\"full\",\"cpu_seconds\":1e9}'\nos.write(3, struct.pack('>I', len(b)) + b)\n" + RIGHT, 4),
    "replaces_builtins": ("import builtins\nbuiltins.type = lambda x: int\nbuiltins.str = lambda x: '3'\nbuiltins.eval = lambda *a: 3\ndef add(a, b):\n    return 3", 0),
    "replaces_the_tester": ("import sys\nsys.modules['plain_values'].tagged = lambda v, d=0: ['int', '0']\ndef add(a, b):\n    return 9", 2),
    "overrides_assert": ("import builtins\nclass AssertionError(Exception): pass\nbuiltins.AssertionError = AssertionError\ndef add(a, b):\n    return 9", 0),
    "defines_the_tests": ("def check(f): pass\ndef test(): return True\ndef add(a, b):\n    return None", 0),
    "trace_function": ("import sys\nsys.settrace(lambda *a: None)\n" + RIGHT, 4),
    "atexit": ("import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b):\n    return 1", 0),
    "forks": ("import os\nos.fork()\n" + RIGHT, 0),
    "subprocess": ("import subprocess\nsubprocess.run(['true'])\n" + RIGHT, 0),
    "reads_a_file": ("open('/etc/passwd')\n" + RIGHT, 0),
    "asks_the_network": ("import urllib.request\nurllib.request.urlopen('http://127.0.0.1:1')\n" + RIGHT, 0),
    "threads": ("import threading\nt = threading.Thread(target=print); t.start()\n" + RIGHT, 0),
}
EXPENSIVE = ("endless", "endless_in_c", "ignores_the_cpu_limit", "much_memory", "forges_a_flood")


@pytest.fixture(scope="module")
def host():
    with CodeHost(CodeLimits(cpu_seconds=1, wall_seconds=30.0)) as host:
        yield host


@pytest.fixture(scope="module")
def grades(host):
    """{name: Grade} of all programs in one batch."""
    programs = [program for program, _ in PROGRAMS.values()]
    return dict(zip(PROGRAMS, host.grade(programs, ADD, seed=3), strict=True))


@needs_linux
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gets_the_tests_it_passes_and_no_more(grades, name):
    passed = PROGRAMS[name][1]
    grade = grades[name]
    assert (grade.passed, grade.total) == (passed, 4), grade.failures
    assert grade.score == passed / 4
    assert len(grade.failures) == 4 - passed


@needs_linux
def test_failures_say_what_was_wrong(grades):
    assert grades["off_by_one"].failures[0] == "add(1, 2) == 3: got 4"
    assert grades["as_text"].failures[0] == "add(1, 2) == 3: got '3'"
    assert grades["raises"].failures[0] == "add(1, 2) == 3: ValueError"
    assert grades["other_name"].failures[0] == "add(1, 2) == 3: NameError: name 'add' is not defined"
    assert "SyntaxError" in grades["not_python"].failures[0]
    assert grades["endless"].failures[0] == "add(1, 2) == 3: more than 1 s of computing"
    assert grades["os_exit_0"].failures[0] == "add(1, 2) == 3: ended before this test (exit code 0)"
    assert grades["segfault"].failures[0] == "add(1, 2) == 3: crashed (SIGSEGV)"
    assert grades["forks"].failures[0] == "add(1, 2) == 3: PermissionError: [Errno 1] Operation not permitted"
    assert grades["number_equal_to_everything"].failures[0] == "add(1, 2) == 3: got <N>"


@needs_linux
def test_what_tries_to_cheat_is_counted(grades):
    assert grades["exit_0"].suspicious == ("sys.exit",) and grades["equal_to_everything"].suspicious == ("__eq__",)
    assert grades["right"].suspicious == () and grades["replaces_builtins"].suspicious == ("builtins",)


@needs_linux
def test_a_sleeping_program_is_ended_by_the_clock():
    with CodeHost(CodeLimits(wall_seconds=2.0)) as host:
        sleeping, right = host.grade(["import time\ntime.sleep(1000)", RIGHT], ADD)
    assert sleeping.score == 0 and sleeping.failures[0] == "add(1, 2) == 3: not finished after 2 s"
    assert right.score == 1


@needs_linux
def test_a_program_that_hangs_in_a_later_test_keeps_the_earlier_ones(host):
    program = "def f(x):\n    while x == 3: pass\n    return x"
    split = split_tests([f"assert f({x}) == {x}" for x in range(4)])
    calls = [(number, (check.setup, check.call)) for number, check in enumerate(split.checks)]
    [child] = host.run([{"source": program, "calls": calls}])
    assert child.values == {0: 0, 1: 1, 2: 2}


@needs_linux
def test_each_program_gets_its_tests_in_an_order_of_its_own(host):
    remember = "order = []\ndef f(x):\n    order.append(x)\n    return list(order)"
    tests = [f"assert f({x}) == 0" for x in range(6)]

    def orders(seed):
        grades = host.grade([remember] * 4, tests, seed=seed)
        return [max((failure.rpartition("got ")[2] for failure in grade.failures), key=len) for grade in grades]

    assert len(set(orders(1))) > 1
    assert orders(1) == orders(1) and orders(1) != orders(2)


@needs_linux
def test_programs_cannot_find_each_other_or_what_is_expected(host):
    """The search goes through every object and every frame; the words it looks for are put together afterwards."""
    search = """
import gc, sys
def look():
    texts, seen = [], 0
    frame = sys._getframe().f_back
    while frame:
        texts.append(repr(frame.f_locals)); texts.append(repr(frame.f_globals)); frame = frame.f_back
    for thing in gc.get_objects():
        seen += 1
        try: texts.append(repr(thing))
        except Exception: pass
    words = ["kool"[::-1], "GNILBIS"[::-1], "REWSNA"[::-1]]  # its own name is found, so the search works
    return [seen > 1000] + [any(word in text for text in texts) for word in words]
"""
    sibling = "SIBLING = 'SIBLING'\ndef look(): return SIBLING"
    grades = host.grade([sibling, search, sibling, search, search], ["assert look() == [True, True, False, False, 'ANSWER']"])
    for grade in (grades[1], grades[3], grades[4]):
        assert grade.failures[0].endswith("got [True, True, False, False]")


@needs_linux
def test_expected_values_that_must_be_computed_are_computed_without_the_program(host):
    tests = """
import math
numbers = [3, 1, 2]
wanted = sorted(numbers)
def double(x): return x * 2
assert ordered(numbers) == wanted
assert ordered([2, 1]) == [double(x) for x in (0.5, 1)]
assert root(2) == math.sqrt(2)
"""
    program = "def ordered(xs):\n    assert 'wanted' not in globals() and 'double' not in globals()\n    return sorted(xs)\nroot = lambda x: x ** 0.5"
    cheat = "def ordered(xs): return wanted\ndef root(x): return math.sqrt(x)"
    right, wrong = host.grade([program, cheat], tests)
    assert (right.score, right.total) == (1.0, 3)
    assert wrong.passed == 0, wrong.failures  # neither the answers nor the imports of our side are in its process


@needs_linux
def test_a_test_whose_expected_value_cannot_be_computed_does_not_count(host):
    [grade] = host.grade(["def f(): return 1"], ["assert f() == 1", "assert f() == int('one')"])
    assert (grade.score, grade.total) == (1.0, 1)
    [grade] = host.grade(["def f(): return 1"], ["assert f() == int('one')"])
    assert grade.score is None and grade.failures == ("no test could be used",)


@needs_linux
def test_each_program_can_have_tests_of_its_own(host):
    grades = host.grade(["def f(): return 1", "def g(): return 2"], [["assert f() == 1"], ["assert g() == 1"]])
    assert [grade.score for grade in grades] == [1.0, 0.0]
    with pytest.raises(ValueError, match="1 sets of tests for 2 programs"):
        host.grade(["", ""], [["assert f() == 1"]])
    with pytest.raises(ValueError, match="the tests are not Python"):
        host.grade([""], ["assert f( == 1"])


@needs_linux
def test_humaneval_style_tests_are_opened(host):
    tests = "METADATA = {}\ndef check(candidate):\n    assert candidate(2) == 4\n    assert candidate(3) == 9, 'squares'\ncheck(square)\n"
    grades = host.grade(["def square(x): return x * x", "def square(x): return 4", "def check(c): pass"], tests, entry_point="square")
    assert [grade.score for grade in grades] == [1.0, 0.5, 0.0]


@needs_linux
def test_cpu_time_is_that_of_the_program(host):
    loop = "def add(a, b):\n    t = 0\n    for i in range(3000000): t += i\n    return a + b"
    fast, slow = host.grade([RIGHT, loop], ADD[:1])
    assert fast.score == slow.score == 1.0
    assert slow.cpu_seconds > 3 * fast.cpu_seconds  # three million additions against the reading of one job


@needs_linux
@pytest.mark.parametrize("lock", ["auto", "abi1", "nofiles"])
def test_attacks_are_refused_in_a_programs_process_as_well(monkeypatch, lock):
    monkeypatch.setenv("GRPO_LAB_TEST_TOKEN", "hf_of_the_parent")
    program = attack_source() + """
def one(env, code):
    must_be_locked()
    try:
        exec(code, dict(globals(), env=env))
        return "got through"
    except BaseException as error:
        return type(error).__name__
"""
    field = Battlefield()
    calls = [(number, ("", f"one({field.env()!r}, {code!r})")) for number, code in enumerate(ATTACKS.values())]
    try:
        with CodeHost(CodeLimits(cpu_seconds=20, wall_seconds=100.0), lock=lock,
                      preload=("ctypes", "select", "signal", "socket", "subprocess", "threading", "time", "traceback", "resource", "fcntl",
                               "multiprocessing", "pty", "shutil", "multiprocessing.popen_fork", "concurrent.futures")) as host:
            [child] = host.run([{"source": program, "calls": calls}])
            server = psutil.Process(host.server_pid)
            assert server.children() == [] or all(c.status() != psutil.STATUS_STOPPED for c in server.children())
        assert field.state() == field.before
    finally:
        field.close()
    assert child.broken is None and len(child.values) == len(ATTACKS) == len(calls), (child.broken, child.errors)
    through = [name for name, outcome in zip(ATTACKS, map(child.values.get, range(len(calls))), strict=True) if outcome == "got through"]
    assert through == []
    assert set(HARMLESS) | set(DANGEROUS) >= set(ATTACKS)


@needs_linux
def test_without_a_lock_programs_are_refused_unless_the_owner_allows_it():
    with CodeHost(lock="off") as host, pytest.raises(RewardError, match="protection against mistakes") as caught:
        host.grade([RIGHT], ADD)
    assert caught.value.kind == "unavailable"
    with CodeHost(lock="off", allow_unlocked=True) as host:
        assert host.grade([RIGHT], ADD)[0].score == 1.0


@needs_linux
def test_a_code_host_leaves_nothing_behind_and_survives_its_servers_death(tmp_path, monkeypatch, host):
    host.prefork(1)
    with nothing_left_behind(tmp_path, monkeypatch):
        own = CodeHost()
        own.prefork(4)
        assert [grade.score for grade in own.grade([RIGHT] * 6, ADD)] == [1.0] * 6
        os.kill(own.server_pid, 9)
        patience = time.monotonic() + 10
        while own.server_pid is not None and time.monotonic() < patience:
            time.sleep(0.01)
        assert own.grade([RIGHT], ADD)[0].score == 1.0
        own.close()
        assert own.grade([RIGHT], ADD)[0].score == 1.0
        del own


@needs_linux
@pytest.mark.soak
def test_a_thousand_programs_leave_nothing_behind(tmp_path, monkeypatch, host):
    host.prefork(1)
    cheap = [program for name, (program, _) in PROGRAMS.items() if name not in EXPENSIVE]
    with nothing_left_behind(tmp_path, monkeypatch), CodeHost() as own:
        for _ in range(20):
            grades = own.grade(cheap, ADD)
            assert [grade.passed for grade in grades] == [passed for name, (_, passed) in PROGRAMS.items() if name not in EXPENSIVE]
