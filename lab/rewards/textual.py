"""Rewards for the form of a text: patterns, keywords, JSON, repetition, rank within the group."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from typing import Any

from lab.rewards.common import RewardFunction, answers_of, builtin, check_choice, groups_of, texts_of
from lab.rewards.extract import tagged
from lab.rewards.locked import LockedCheck


@builtin
def regex(pattern: str, whole: bool = False, ignore_case: bool = False) -> RewardFunction:
    r"""1 if the pattern is found in the completion (`whole`: matches all of it, outer white space aside), else 0.

    The search runs in a locked worker: a pattern that takes for ever on some text gives that text 0.

    >>> regex(r"\bkerana\b")(completions=["Saya pulang kerana hujan.", "Saya pulang."])
    [1.0, 0.0]

    Source: Python's re module; the search itself is the lab's own.
    """
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ValueError(f"the pattern {pattern!r} is not a regular expression: {error}.") from error
    search = LockedCheck("check_regex.py")

    def regex(completions: Sequence[Any], log_extra: Any = None, **columns: Any) -> list[float | None]:
        texts = answers_of(completions, columns)
        count = len(texts)
        return search(texts, pattern=[pattern] * count, whole=[whole] * count, ignore_case=[ignore_case] * count, log_extra=log_extra)

    return regex


@builtin
def keywords(words: tuple[str, ...], mode: str = "share", forbidden: tuple[str, ...] = ()) -> RewardFunction:
    """Share of the words that occur, as whole words in any case; 0 as soon as one of `forbidden` occurs.

    `mode`: "share", or "any" for 1 if at least one occurs, or "all" for 1 only if every one does.

    >>> keywords(("because", "therefore"))(completions=["Because it rains.", "It rains."])
    [0.5, 0.0]

    Source: the lab's own, after the keyword constraints of IFEval (arXiv 2311.07911).
    """
    check_choice("mode", mode, ("share", "any", "all"))
    wanted, unwanted = ([given] if isinstance(given, str) else list(given) for given in (words, forbidden))
    if not wanted and not unwanted:
        raise ValueError("words is empty: name at least one word.")

    def value(text: str) -> float:
        if any(_occurs(word, text) for word in unwanted):
            return 0.0
        found = sum(_occurs(word, text) for word in wanted)
        if mode == "any" and wanted:
            return float(found > 0)
        return float(found == len(wanted)) if mode == "all" or not wanted else found / len(wanted)

    def keywords(completions: Sequence[Any], **columns: Any) -> list[float]:
        return [value(text) for text in texts_of(completions)]

    return keywords


@builtin
def json_schema(schema: dict | str | None = None, tag: str | None = None, partial: float = 0.2) -> RewardFunction:
    """1 if the completion is JSON that fits the schema, `partial` if it is JSON that does not, else 0.

    A fence of three backticks around the JSON is allowed; with `tag` only what stands between `<tag>` and `</tag>`
    counts. `schema` is a JSON Schema as a dict or as JSON text (checked by the package jsonschema, no reference to
    another document is followed); None accepts any JSON object or list.

    >>> json_schema()(completions=['{"a": 1}', "[1]", "a: 1", "7"])
    [1.0, 1.0, 0.0, 0.2]

    Source: JSON Schema, draft 2020-12.
    """
    wanted = json.loads(schema) if isinstance(schema, str) else schema
    check = None
    if wanted is not None:
        check = LockedCheck("check_json.py", preload=("jsonschema", "referencing"), needs="jsonschema")

    def json_schema(completions: Sequence[Any], log_extra: Any = None, **columns: Any) -> list[float | None]:
        pieces = [tagged(text, tag) if tag else text for text in texts_of(completions)]
        values = [_parsed(piece) for piece in pieces]
        rewards = [0.0 if value is _NOT_JSON else partial for value in values]
        if check is None:
            return [1.0 if isinstance(value, (dict, list)) else reward for value, reward in zip(values, rewards, strict=True)]
        rows = [row for row, value in enumerate(values) if value is not _NOT_JSON]
        verdicts = check([json.dumps(values[row]) for row in rows], schema=[json.dumps(wanted)] * len(rows), at=rows, of=len(values),
                         log_extra=log_extra)
        for row, verdict in zip(rows, verdicts, strict=True):
            rewards[row] = None if verdict is None else max(partial, verdict)
        return rewards

    return json_schema


@builtin
def repetition(ngram: int = 3, max_penalty: float = -1.0) -> RewardFunction:
    """A penalty for repeating oneself: `max_penalty` × (1 − different n-grams / all n-grams) of the token ids.

    >>> repetition(ngram=2)(completions=["", ""], completion_ids=[[1, 2, 3, 4], [5, 5, 5, 5, 5]])
    [0.0, -0.75]

    Source: Demystifying Long Chain-of-Thought Reasoning (arXiv 2502.03373), appendix C.2.
    """
    if not isinstance(ngram, int) or ngram < 1:
        raise ValueError(f"ngram is {ngram!r}: a whole number from 1 is needed.")
    if max_penalty > 0:
        raise ValueError(f"max_penalty is {max_penalty}: a penalty is 0 or negative.")

    def value(ids: Sequence[int]) -> float:
        grams = [tuple(ids[start:start + ngram]) for start in range(len(ids) - ngram + 1)]
        repeated = len(grams) - len(set(grams))
        return max_penalty * repeated / len(grams) if repeated else 0.0

    def repetition(completions: Sequence[Any], completion_ids: Sequence[Any], **columns: Any) -> list[float]:
        return [value(ids) for ids in completion_ids]

    return repetition


@builtin
def rank(of: str = "length_target") -> RewardFunction:
    """Another reward turned into its rank within the group: 1 for the best, 0 for the worst, ties share their mean.

    Only the order counts, so one extreme value cannot drown the others. `of` is a built-in reward, with parameters if it
    has any. Completions for which it says None get None. Groups are told by `group_ids`, which the lab passes and TRL's
    trainer does not.

    >>> rank("brevity")(prompts=["p"] * 3, completions=["one", "one two", "one two three"], group_ids=[0, 0, 0])
    [1.0, 0.5, 0.0]

    Source: Wilcoxon's mid-ranks (Biometrics Bulletin 1, 1945), scaled to 0…1.
    """
    from lab.rewards.resolve import resolve

    inner = resolve(of)[0].function
    if hasattr(inner, "criteria"):
        raise ValueError("it cannot rank by_hand, which waits for a person: use by_hand beside it.")
    passes_groups = "group_ids" in inspect.signature(inner).parameters

    def rank(prompts: Sequence[Any], completions: Sequence[Any], group_ids: Sequence[int], **columns: Any) -> list[float | None]:
        if passes_groups:
            columns["group_ids"] = group_ids
        values = inner(prompts=prompts, completions=completions, **columns)
        ranks: list[float | None] = [None] * len(values)
        for rows in groups_of(group_ids):
            for row, rank in zip(rows, _ranks([values[row] for row in rows]), strict=True):
                ranks[row] = rank
        return ranks

    return rank


_NOT_JSON = object()


def _parsed(text: str | None) -> Any:
    if text is None:
        return _NOT_JSON
    fenced = re.fullmatch(r"\s*```(?:json)?\n(.*)\n```\s*", text, re.DOTALL)
    try:
        return json.loads(fenced[1] if fenced else text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _occurs(word: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def _ranks(values: Sequence[float | None]) -> list[float | None]:
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return [None if value is None else 0.5 for value in values]
    return [None if value is None else (sum(other < value for other in known) + (known.count(value) - 1) / 2) / (len(known) - 1)
            for value in values]
