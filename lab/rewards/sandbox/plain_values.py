"""Values of a stranger's program as plain JSON, and their comparison with what was expected.

The program's process writes values down with `tagged`; the lab reads them back with `untagged` and compares with `same`.
Only exact built-in types cross: an int subclass that is equal to everything is "something else", and equal to nothing.
Loaded on both sides, so it imports nothing of the project.
"""

import math

MAX_DEPTH, MAX_DIGITS = 60, 4000
TOLERANCE = 1e-9  # relative and absolute, between floats


class SomethingElse:
    """A value that cannot cross; equal to nothing, itself included."""

    def __init__(self, kind):
        self.kind = kind

    def __repr__(self):
        return f"<{self.kind}>"


def tagged(value, depth=0):
    """[type name, content] for exact built-in types, in depth; ["else", type name] for anything else."""
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return [kind.__name__, value]
    if kind is int and value.bit_length() < MAX_DIGITS * 3.3:
        return ["int", str(value)]
    if kind is float:
        return ["float", repr(value)]
    if kind is complex:
        return ["complex", [repr(value.real), repr(value.imag)]]
    if kind is bytes:
        return ["bytes", value.hex()]
    if kind in (list, tuple, set, frozenset) and depth < MAX_DEPTH:
        return [kind.__name__, [tagged(item, depth + 1) for item in value]]
    if kind is dict and depth < MAX_DEPTH:
        return ["dict", [[tagged(key, depth + 1), tagged(item, depth + 1)] for key, item in value.items()]]
    return ["else", str(kind.__name__)[:100]]


def untagged(pair, depth=0):
    """The value again. ValueError if the pair is not one that `tagged` writes."""
    try:
        tag, content = pair
        if depth > MAX_DEPTH + 1:
            raise ValueError("nested too deeply")
        if tag == "NoneType" and content is None or tag == "bool" and type(content) is bool or tag == "str" and type(content) is str:
            return content
        if tag in ("int", "float") and type(content) is str and len(content) <= MAX_DIGITS + 10:
            return int(content) if tag == "int" else float(content)
        if tag == "complex":
            return complex(float(content[0]), float(content[1]))
        if tag == "bytes":
            return bytes.fromhex(content)
        if tag in ("list", "tuple", "set", "frozenset"):
            return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[tag](untagged(item, depth + 1) for item in content)
        if tag == "dict":
            return {untagged(key, depth + 1): untagged(item, depth + 1) for key, item in content}
        if tag == "else":
            return SomethingElse(str(content)[:100])
    except (TypeError, KeyError, IndexError) as error:
        raise ValueError(f"not a value: {error}") from None
    raise ValueError("not a value")


def same(value, expected, *, relative=TOLERANCE, absolute=TOLERANCE):
    """Python's equality, but floats within the tolerance, True is not 1, NaN is NaN, and SomethingElse is never the same."""
    if isinstance(value, (int, float)) and isinstance(expected, (int, float)):
        if isinstance(value, bool) or isinstance(expected, bool):
            return value is expected
        if type(value) is type(expected) is int:
            return value == expected
        return _close(value, expected, relative, absolute)
    if type(value) is not type(expected) and not {type(value), type(expected)} <= {set, frozenset}:
        return False
    if isinstance(value, (list, tuple)):
        return len(value) == len(expected) and all(
            same(v, e, relative=relative, absolute=absolute) for v, e in zip(value, expected, strict=True))
    if isinstance(value, dict):
        theirs = {_key(key): item for key, item in value.items()}
        ours = {_key(key): item for key, item in expected.items()}
        return theirs.keys() == ours.keys() and all(
            same(theirs[key], ours[key], relative=relative, absolute=absolute) for key in ours)
    if isinstance(value, (set, frozenset)):
        return {_key(item) for item in value} == {_key(item) for item in expected}
    return not isinstance(value, SomethingElse) and value == expected


def _close(value, expected, relative, absolute):
    try:
        value, expected = float(value), float(expected)
    except OverflowError:
        return value == expected
    return math.isclose(value, expected, rel_tol=relative, abs_tol=absolute) or math.isnan(value) and math.isnan(expected)


def _key(value):
    """A stand-in for a set member or dictionary key that keeps True and 1 apart."""
    if isinstance(value, (tuple, frozenset)):
        return type(value).__name__, type(value)(map(_key, value))
    if isinstance(value, SomethingElse):
        return "else", id(value)
    return isinstance(value, bool), value
