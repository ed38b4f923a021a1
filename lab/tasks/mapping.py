"""From the columns of a table to rows a run can use: which column is the prompt, the answer, the choices, the system message.

Other columns are kept for reward functions, under their own names. Multiple choice becomes a prompt with lettered
choices and a letter as the answer (`exam`). Every row is checked; the first that cannot be used is named, and then there
are no rows at all. Leaves out how files are read (`tables`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lab.tasks.errors import TaskError
from lab.tasks.exam import LETTERS, lettered
from lab.tasks.tables import Table

KNOWN_NAMES = {
    "prompt": ("prompt", "question", "problem", "query", "instruction", "input", "soalan", "text", "messages"),
    "answer": ("answer", "solution", "ground_truth", "target", "label", "answerkey", "answer_key", "correct", "jawapan", "output",
               "final_answer"),
    "choices": ("choices", "options", "pilihan"),
    "system": ("system", "system_prompt", "system_message"),
}
RESERVED = ("prompt", "completion", "completion_ids", "prompts", "completions", "trainer_state", "log_extra", "log_metric", "environment",
            "held_out")


@dataclass(frozen=True)
class Mapping:
    """Names of columns. `choices` is one column with a list, or several with a choice each; `keep` None keeps all others."""

    prompt: str
    answer: str | None = None
    choices: tuple[str, ...] = ()
    system: str | None = None
    keep: tuple[str, ...] | None = None


def guess(table: Table) -> Mapping | None:
    """What the names of the columns suggest; None where none of them sounds like a prompt."""
    by_name = {column.lower().strip(): column for column in table.columns}
    found = {role: next((by_name[name] for name in names if name in by_name), None) for role, names in KNOWN_NAMES.items()}
    if found["prompt"] is None:
        return None
    letters = [by_name[letter] for letter in "abcdefghij" if letter in by_name]
    choices = (found["choices"],) if found["choices"] else tuple(letters) if letters[:2] == [by_name.get("a"), by_name.get("b")] else ()
    return Mapping(found["prompt"], found["answer"], choices, found["system"])


def apply(table: Table, mapping: Mapping) -> list[dict[str, Any]]:
    """The table's rows with `prompt`, and `answer`, `choices` and kept columns where there are any. Raises TaskError."""
    _check(table, mapping)
    keep = _kept(table, mapping)
    hashes = mapping.answer is not None and not mapping.choices and all(_after_hashes(row[mapping.answer]) for row in table.rows)
    first_is_zero = _counts_from_zero(table, mapping)
    return [_row(row, number, mapping, keep, hashes, first_is_zero) for number, row in enumerate(table.rows, start=1)]


def _check(table: Table, mapping: Mapping) -> None:
    named = [mapping.prompt, mapping.answer, *mapping.choices, mapping.system, *(mapping.keep or ())]
    missing = [column for column in named if column is not None and column not in table.columns]
    if missing:
        raise TaskError(f"There is no column {missing[0]!r} (columns: {', '.join(table.columns)}). Choose one of these.")
    roles = [column for column in named[:3 + len(mapping.choices)] if column is not None]
    twice = next((column for column in roles if roles.count(column) > 1), None)
    if twice:
        raise TaskError(f"Column {twice!r} was given two roles. Give each column one.")


def _kept(table: Table, mapping: Mapping) -> dict[str, str]:
    """Column → name under which reward functions get it."""
    used = {mapping.prompt, mapping.answer, *mapping.choices, mapping.system}
    columns = [column for column in (table.columns if mapping.keep is None else mapping.keep) if column not in used]
    taken = {"answer"} if mapping.answer else set()
    return {column: f"{column}_column" if column in taken or column in (*RESERVED, "choices") else column for column in columns}


def _row(row: dict[str, Any], number: int, mapping: Mapping, keep: dict[str, str], hashes: bool, first_is_zero: bool) -> dict[str, Any]:
    prompt = row[mapping.prompt]
    if not _is_prompt(prompt):
        raise TaskError(f"Row {number}: the prompt (column {mapping.prompt!r}) is {_kind(prompt)}; expected a text, or a list of "
                        f"messages with role and content.")
    answer = row[mapping.answer] if mapping.answer else None
    made: dict[str, Any] = {"prompt": prompt}
    if mapping.choices:
        choices, labels = _choices(row, number, mapping)
        if not isinstance(prompt, str):
            raise TaskError(f"Row {number}: choices need a prompt that is text, not messages.")
        made = {"prompt": lettered(prompt, choices), "answer": _letter(answer, choices, labels, number, first_is_zero), "question": prompt,
                "choices": choices}
    elif mapping.answer:
        made["answer"] = _after_hashes(answer) if hashes else _as_text(answer, number, mapping.answer)
    system = row[mapping.system] if mapping.system else None
    if isinstance(system, str) and system.strip():
        messages = [{"role": "user", "content": made["prompt"]}] if isinstance(made["prompt"], str) else made["prompt"]
        made["prompt"] = [{"role": "system", "content": system}, *(m for m in messages if m["role"] != "system")]
    return made | {name: row[column] for column, name in keep.items() if row[column] is not None}


def _is_prompt(prompt: Any) -> bool:
    if isinstance(prompt, str):
        return bool(prompt.strip())
    return (isinstance(prompt, list) and bool(prompt) and all(isinstance(m, dict) and isinstance(m.get("content"), str)
                                                              and m.get("role") in ("system", "user", "assistant") for m in prompt)
            and any(m["role"] == "user" and m["content"].strip() for m in prompt))


def _as_text(answer: Any, number: int, column: str) -> str | None:
    """The right answer as text; an empty cell is no answer."""
    if isinstance(answer, bool):
        return str(answer).lower()
    if isinstance(answer, (int, float)):
        return repr(answer)
    if isinstance(answer, str):
        return answer.strip() or None
    if answer is None:
        return None
    raise TaskError(f"Row {number}: the answer (column {column!r}) is {_kind(answer)}; expected a text or a number.")


def _after_hashes(answer: Any) -> str | None:
    """GSM8K writes the whole solution and the answer after ####."""
    return answer.rpartition("####")[2].strip() or None if isinstance(answer, str) and "####" in answer else None


def _choices(row: dict[str, Any], number: int, mapping: Mapping) -> tuple[list[str], list[str]]:
    """The choices as text and their labels: A, B, … or those that the column itself gives."""
    if len(mapping.choices) > 1:
        given = [row[column] for column in mapping.choices if row[column] not in (None, "")]
        labels = [column for column in mapping.choices if row[column] not in (None, "")]
    else:
        given, labels = _listed(row[mapping.choices[0]])
    texts = [text if isinstance(text, str) else json.dumps(text, ensure_ascii=False) for text in given]
    if not 2 <= len(texts) <= len(LETTERS) or not all(text.strip() for text in texts):
        raise TaskError(f"Row {number}: {len(texts)} choices in column {mapping.choices[0]!r}; expected a list of 2 to {len(LETTERS)} "
                        f"texts.")
    return texts, labels or list(LETTERS[:len(texts)])


def _listed(cell: Any) -> tuple[list[Any], list[str]]:
    """A cell with choices: a list, {"text": […], "label": […]}, JSON of either, or text with | between them."""
    if isinstance(cell, str):
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            return [part.strip() for part in cell.split("|")], []
    if isinstance(cell, dict) and isinstance(cell.get("text"), list):
        return cell["text"], [str(label) for label in cell.get("label") or []]
    return (cell, []) if isinstance(cell, list) else ([], [])


def _letter(answer: Any, choices: Sequence[str], labels: Sequence[str], number: int, first_is_zero: bool) -> str | None:
    """The letter of the right choice from a letter, a label, a number, or the choice's own text."""
    if answer is None or answer == "":
        return None
    text = str(answer).strip()
    for place, (choice, label) in enumerate(zip(choices, labels, strict=False)):
        if text.upper() == str(label).strip().upper() or (text == choice.strip() and list(choices).count(choice) == 1):
            return LETTERS[place]
    if re.fullmatch(r"\d{1,2}", text):
        place = int(text) - (0 if first_is_zero else 1)
    else:
        place = LETTERS.find(text.upper().strip("().")) if len(text.strip("().")) == 1 else -1
    if not 0 <= place < len(choices):
        raise TaskError(f"Row {number}: the answer {text[:40]!r} is none of its {len(choices)} choices. Write the letter, the number or "
                        f"the text of the right choice.")
    return LETTERS[place]


def _counts_from_zero(table: Table, mapping: Mapping) -> bool:
    """Whether numbers as answers to multiple choice begin with 0: so, unless no answer is 0 and one is as large as there are choices."""
    if not mapping.choices or mapping.answer is None:
        return True
    numbers = [(int(row[mapping.answer]), len(_choices(row, number, mapping)[0])) for number, row in enumerate(table.rows, start=1)
               if re.fullmatch(r"\d{1,2}", str(row[mapping.answer]))]
    return any(answer == 0 for answer, _ in numbers) or not any(answer >= count for answer, count in numbers)


def _kind(value: Any) -> str:
    return "empty" if value is None or value == "" or value == [] else f"the {type(value).__name__} {str(value)[:40]!r}"
