"""Tests of a program, taken apart: what the program must compute goes to its process, what must come out stays here.

`assert f(3) == 9` becomes the call `f(3)`, the comparison `==` and the expected `9`. A program that never sees the 9
cannot pass by printing "passed", by overriding `==`, or by looking for it in memory. An assert that cannot be split
(`assert is_sorted(f(x))`) would have to take the program's word for it, so it is not used; `unused` says which.
Left out: running anything. Tests are the owner's data; they are parsed, never executed, on this side.
"""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass

from .plain_values import TOLERANCE, same

MAX_TEST_CHARACTERS = 200_000
COMPARISONS = {ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
               ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True)
class Check:
    """One test: `setup` and `call` are run with the program; `expected`, evaluated after `expected_setup`, never is."""

    setup: str
    call: str
    comparison: str
    expected: str
    expected_setup: str = ""
    relative: float = TOLERANCE
    absolute: float = TOLERANCE

    def holds(self, value, expected) -> bool:
        """Whether the program's value passes. No exception: values that cannot be compared do not pass."""
        equal = same(value, expected, relative=self.relative, absolute=self.absolute) if "in" not in self.comparison else None
        if self.comparison in ("==", "is"):
            return equal
        if self.comparison in ("!=", "is not"):
            return not equal
        if self.comparison == "truth":
            return bool(value) is expected
        try:
            if self.comparison in ("in", "not in"):
                return any(same(value, item) for item in expected) is (self.comparison == "in")
            return bool({"<": value < expected, "<=": value <= expected, ">": value > expected, ">=": value >= expected}[self.comparison])
        except TypeError:
            return False

    def literal(self):
        """(True, the expected value) if it is written out; (False, None) if it must be computed, in a process of its own."""
        if self.expected_setup:
            return False, None
        try:
            return True, ast.literal_eval(self.expected)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return False, None


@dataclass(frozen=True)
class SplitTests:
    """Asserts as calls and expected values, so that what is right stays outside the program's process."""

    checks: tuple[Check, ...]
    unused: tuple[str, ...]  # asserts that cannot be split


def split_tests(tests: str | list[str], entry_point: str | None = None) -> SplitTests:
    """Checks of a block of Python or a list of asserts. ValueError, with the reason, if it is not Python.

    Statements between the asserts are setup: each side gets those that bind a name it uses. A function
    `check(candidate)` is opened, with `entry_point` for its parameter, as HumanEval's tests are.
    """
    source = tests if isinstance(tests, str) else "\n".join(tests)
    if len(source) > MAX_TEST_CHARACTERS:
        raise ValueError(f"the tests have {len(source):,} characters; at most {MAX_TEST_CHARACTERS:,} are read")
    try:
        statements = _opened(ast.parse(source).body, entry_point)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the tests are not Python: {error}") from None
    setup, checks, unused = [], [], []
    for statement in statements:
        if isinstance(statement, ast.Assert):
            check = _split(statement.test, setup)
            checks.append(check) if check else unused.append(ast.unparse(statement))
        elif any(isinstance(node, ast.Assert) for node in ast.walk(statement)):
            unused.append(ast.unparse(statement))
        else:
            setup.append(statement)
    return SplitTests(tuple(checks), tuple(unused))


def _opened(statements, entry_point):
    """The body of `check(candidate)` in its place; calls of `check` itself left out."""
    opened = []
    for statement in statements:
        if isinstance(statement, ast.FunctionDef) and statement.name == "check" and len(statement.args.args) == 1 and entry_point:
            candidate = statement.args.args[0].arg
            opened += [_Renamed(candidate, entry_point).visit(inner) for inner in statement.body]
        elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
                  and getattr(statement.value.func, "id", None) == "check"):
            opened.append(statement)
    return opened


class _Renamed(ast.NodeTransformer):
    def __init__(self, old, new):
        self.old, self.new = old, new

    def visit_Name(self, node):
        return ast.copy_location(ast.Name(self.new, node.ctx), node) if node.id == self.old else node


def _split(test, setup) -> Check | None:
    known = {name for statement in setup for name in _bound(statement)} | set(dir(builtins))

    def is_programs(node):
        return bool(_used(node) - known)

    def check(call, comparison, expected, relative=TOLERANCE, absolute=TOLERANCE):
        return Check(_setup_for(call, setup), ast.unparse(call), comparison, ast.unparse(expected), _setup_for(expected, setup),
                     relative, absolute)

    def sides(left, right):
        """(the program's side, ours, whether they were turned round), or None."""
        if is_programs(left) != is_programs(right):
            return (left, right, False) if is_programs(left) else (right, left, True)
        return None

    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and _calls_program(test.operand, known):
        return check(test.operand, "truth", ast.Constant(False))
    if (close := _closeness(test)) is not None:
        left, right, relative, absolute = close
        found = sides(left, right)
        return check(found[0], "==", found[1], relative, absolute) if found else None
    if _calls_program(test, known):
        return check(test, "truth", ast.Constant(True))
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        comparison, found = COMPARISONS[type(test.ops[0])], sides(test.left, test.comparators[0])
        if found is None or found[2] and comparison in ("in", "not in"):
            return None
        return check(found[0], MIRRORED.get(comparison, comparison) if found[2] else comparison, found[1])
    return None


def _closeness(test):
    """(left, right, relative, absolute) of `isclose(a, b)`, `abs(a - b) < tolerance` and `a == approx(b)`, or None."""
    if isinstance(test, ast.Call) and _last_name(test.func) == "isclose" and len(test.args) == 2:
        given = {keyword.arg: _number(keyword.value) for keyword in test.keywords}
        return (*test.args, given.get("rel_tol", 1e-9), given.get("abs_tol", 0.0))
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1):
        return None
    left, right = test.left, test.comparators[0]
    if isinstance(test.ops[0], (ast.Lt, ast.LtE)) and isinstance(left, ast.Call) and _last_name(left.func) == "abs" and len(left.args) == 1:
        difference, tolerance = left.args[0], _number(right)
        if isinstance(difference, ast.BinOp) and isinstance(difference.op, ast.Sub) and tolerance is not None:
            return difference.left, difference.right, 0.0, tolerance
    if isinstance(test.ops[0], ast.Eq) and isinstance(right, ast.Call) and _last_name(right.func) == "approx" and right.args:
        given = {keyword.arg: _number(keyword.value) for keyword in right.keywords}
        return left, right.args[0], given.get("rel") or 1e-6, given.get("abs") or 1e-12
    return None


def _calls_program(node, known):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in known


def _setup_for(node, setup):
    """The statements that bind what this expression uses, directly or through each other, in their order."""
    needed, chosen = _used(node), set()
    for position in range(len(setup) - 1, -1, -1):
        if _bound(setup[position]) & needed:
            chosen.add(position)
            needed |= _used(setup[position])
    return "\n".join(ast.unparse(setup[position]) for position in sorted(chosen))


def _used(node):
    """Names that an expression or statement takes from outside (comprehension variables and parameters are its own)."""
    own = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    own |= {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - own


def _bound(statement):
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    names = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):  # random.seed(0), items.sort()
        names |= {n.id for n in ast.walk(statement.value.func) if isinstance(n, ast.Name)}
    return names


def _last_name(function):
    return getattr(function, "attr", getattr(function, "id", None))


def _number(node):
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    return float(value) if isinstance(value, (int, float)) else None
