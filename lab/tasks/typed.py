"""Prompts typed by a person: one per line, with the right answer behind `=>` where there is one."""

from __future__ import annotations

from lab.errors import with_plain_ends
from lab.tasks.errors import TaskError
from lab.tasks.tables import UPLOAD, Table, check_cell

ARROW = "=>"


def typed_table(text: str) -> Table:
    """A table with prompt, and answer where any line has one. Raises TaskError.

    >>> typed_table("What is 2 + 3? => 5\\n\\nName a fruit.").rows
    [{'prompt': 'What is 2 + 3?', 'answer': '5'}, {'prompt': 'Name a fruit.', 'answer': None}]
    """
    rows = []
    for number, line in enumerate(with_plain_ends(text).split("\n"), start=1):
        if not line.strip():
            continue
        prompt, arrow, answer = line.rpartition(ARROW) if ARROW in line else (line, "", "")
        if not prompt.strip():
            raise TaskError(f"Line {number} has an answer but no prompt: write the prompt, then {ARROW}, then the answer.")
        if arrow and not answer.strip():
            raise TaskError(f"Line {number} ends with {ARROW}: write the answer behind it, or take it away.")
        check_cell(line, f"Line {number}", UPLOAD)
        rows.append({"prompt": prompt.strip(), "answer": answer.strip() or None})
    if not rows:
        raise TaskError("No prompts were typed: write one per line.")
    if len(rows) > UPLOAD.rows:
        raise TaskError(f"{len(rows):,} prompts were typed; at most {UPLOAD.rows:,} are taken.")
    if not any(row["answer"] for row in rows):
        rows = [{"prompt": row["prompt"]} for row in rows]
    return Table(list(rows[0]), rows)
