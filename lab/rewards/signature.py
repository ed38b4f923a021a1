"""What a reward's source promises, read without running it: syntax, signature, the columns it needs.

Works on text alone (`ast`), so the page may ask at every pause in typing. Leaves out what only running shows (`bench`).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

MAX_SOURCE = 100_000  # characters; a reward function needs a few thousand
GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")  # besides the rows' columns
_MAKES_IT_A_REWARD = {"prompts", "completions", "completion_ids"}
Definition = ast.FunctionDef | ast.AsyncFunctionDef
_HIDDEN = ("torch", "tensorflow", "jax")


@dataclass(frozen=True)
class Problem:
    """`severity`: "error" (it cannot run as it is) or "note" (it runs; worth knowing)."""

    message: str
    line: int | None = None
    column: int | None = None
    severity: str = "error"


@dataclass(frozen=True)
class Found:
    """A function that could be a reward."""

    name: str
    line: int
    doc: str
    parameters: list[str]
    required: list[str]  # without a default
    takes_any: bool  # has **kwargs
    wants_text: bool  # says completions: list[str]


@dataclass(frozen=True)
class Check:
    """What `check_source` found in a file, without running it."""

    problems: list[Problem] = field(default_factory=list)
    functions: list[Found] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing found would keep it from being a reward; warnings do not."""
        return not any(problem.severity == "error" for problem in self.problems)

    @property
    def main(self) -> Found | None:
        """The function that is meant: the last one defined, as helpers stand above it."""
        return self.functions[-1] if self.functions else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values for the page, with the name of the function that is meant."""
        return {"ok": self.ok, "name": self.main.name if self.main else None, **asdict(self)}


def check_source(source: str, columns: Sequence[str] | None = None) -> Check:
    """Problems and functions of a reward file. `columns`: those the completions were stored with; None asks nothing of them."""
    if len(source) > MAX_SOURCE:
        return Check([Problem(f"The source has {len(source):,} characters; at most {MAX_SOURCE:,} are accepted.")])
    if not source.strip():
        return Check([Problem("There is nothing here yet: choose a template, or define a function that takes completions.")])
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return Check([Problem(f"SyntaxError: {error.msg}", error.lineno, error.offset)])
    except (ValueError, RecursionError, MemoryError) as error:
        return Check([Problem(f"The source cannot be read as Python: {error or 'it is nested too deeply'}.")])
    definitions = [node for node in tree.body if isinstance(node, Definition) and not node.name.startswith("_")]
    functions = [_described(node) for node in definitions if _is_reward(node)]
    problems = [*_none_found(definitions, functions), *_imports(tree)]
    if functions:
        problems += _of_signature(functions[-1], next(n for n in reversed(definitions) if n.name == functions[-1].name), columns)
    return Check(problems, functions)


def _is_reward(node: Definition) -> bool:
    return bool(_MAKES_IT_A_REWARD & {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)})


def _described(node: Definition) -> Found:
    positional = [*node.args.posonlyargs, *node.args.args]
    arguments = [*positional, *node.args.kwonlyargs]
    optional = len(node.args.defaults)
    required = [a.arg for a in (positional[:-optional] if optional else positional)]
    required += [a.arg for a, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if default is None]
    annotation = next((ast.unparse(a.annotation) for a in arguments if a.arg == "completions" and a.annotation), "")
    return Found(node.name, node.lineno, (ast.get_docstring(node) or "").partition("\n")[0], [a.arg for a in arguments], required,
                 node.args.kwarg is not None, annotation in ("list[str]", "List[str]", "typing.List[str]"))


def _none_found(definitions: list, functions: list[Found]) -> list[Problem]:
    if functions:
        return []
    if definitions:
        node = definitions[-1]
        return [Problem(f"{node.name} does not take `completions`: write def {node.name}(completions, **kwargs).", node.lineno)]
    return [Problem("No reward function yet: define one like def my_reward(completions, **kwargs).")]


def _of_signature(function: Found, node: Definition, columns: Sequence[str] | None) -> list[Problem]:
    problems = []
    if node.args.posonlyargs:
        problems.append(Problem(f"{function.name} takes {node.args.posonlyargs[0].arg} by position only, but everything is passed by name: "
                                f"remove the '/'.", function.line))
    for missing in [] if columns is None else [name for name in function.required if name not in {*GIVEN, *columns}]:
        problems.append(Problem(f"{function.name} needs the column {missing}, which was not stored with these completions; "
                                f"stored are {', '.join(columns) or 'only the prompts'}.", function.line))
    if not function.takes_any:
        problems.append(Problem(f"Without **kwargs TRL's own trainer refuses {function.name}; the lab passes only what it names.",
                                function.line, severity="note"))
    if not any(isinstance(inner, (ast.Return, ast.Yield)) and inner.value is not None for inner in ast.walk(node)):
        problems.append(Problem(f"{function.name} returns nothing: return a list with one number or None per completion.", function.line))
    return problems


def _imports(tree: ast.Module) -> list[Problem]:
    names = [(alias.name, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [(node.module or "", node.lineno) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return [Problem(f"{name.partition('.')[0]} is not available in rewards: they run in a locked process, on text and numbers.", line)
            for name, line in names if name.partition(".")[0] in _HIDDEN]
