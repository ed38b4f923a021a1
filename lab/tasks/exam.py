"""Examination-style multiple choice: a question with lettered choices, answered with a letter. A small set comes with the lab.

`assets/data/exam_en.jsonl` and `exam_ms.jsonl` hold questions written for this lab (question, choices, answer as a
letter, subject). A part is held out, chosen by the question's text.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

from lab.assets import asset

LETTERS = "ABCDEFGHIJ"
LANGUAGES = {"exam_en": ("Examination, English", "Answer with one letter."), "exam_ms": ("Examination, Malay", "Jawab dengan satu huruf.")}
REWARD = "accuracy(source='choice')"


def lettered(question: str, choices: Sequence[str], instruction: str = "") -> str:
    """The question, a line per choice, and what to do.

    >>> print(lettered("2 + 2?", ["3", "4"], "Answer with one letter."))
    2 + 2?
    A. 3
    B. 4
    Answer with one letter.
    """
    lines = [question.strip(), *(f"{letter}. {choice.strip()}" for letter, choice in zip(LETTERS, choices, strict=False))]
    return "\n".join([*lines, instruction] if instruction else lines)


@functools.cache
def questions(name: str) -> tuple[dict[str, Any], ...]:
    """The bundled set as rows: prompt, answer, question, choices, subject."""
    text = asset(f"data/{name}.jsonl").read_text(encoding="utf-8")
    entries = [json.loads(line) for line in text.split("\n") if line.strip()]
    return tuple({"prompt": lettered(entry["question"], entry["choices"], LANGUAGES[name][1]), "answer": entry["answer"],
                  "question": entry["question"], "choices": entry["choices"], "subject": entry["subject"]} for entry in entries)
