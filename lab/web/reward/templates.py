"""Reward functions to begin with, written for the columns that the completions were stored with.

Each runs as it is, here and under TRL: completions are read whether they arrive as text or as messages.
"""

from __future__ import annotations

from collections.abc import Sequence

READ = 'text = completion if isinstance(completion, str) else completion[0]["content"]'

CLOSENESS = f'''import re

NUMBER = r"\\s*(-?\\d{{1,9}})\\s*"


def closeness(completions, answer, **kwargs):
    """1.0 for the exact number in the last answer tag, less the further off. None without a whole number to aim at."""
    scores = []
    for completion, right in zip(completions, answer):
        {READ}
        aim = re.fullmatch(NUMBER, str(right))
        found = re.findall(f"<answer>{{NUMBER}}</answer>", text)
        if aim is None:
            scores.append(None)
        elif not found:
            scores.append(0.0)
        else:
            off = abs(int(found[-1]) - int(aim[1]))
            scores.append(max(0.0, 1.0 - off / 10))
    return scores
'''

RIGHT = f'''import re


def right_answer(completions, answer, **kwargs):
    """1.0 if the only answer tag holds the right answer, else 0.0. None where no answer is known."""
    scores = []
    for completion, right in zip(completions, answer):
        {READ}
        found = re.findall(r"<answer>(.*?)</answer>", text, flags=re.DOTALL)
        if right is None:
            scores.append(None)
        else:
            scores.append(float(len(found) == 1 and found[0].strip() == str(right).strip()))
    return scores
'''

LENGTH = f'''def near_length(completions, **kwargs):
    """1.0 at 20 words, less the further away, 0.0 from 40 on."""
    scores = []
    for completion in completions:
        {READ}
        words = len(text.split())
        scores.append(max(0.0, 1.0 - abs(words - 20) / 20))
    return scores
'''

FORM = f'''import re


def reasons_first(completions, **kwargs):
    """1.0 for thoughts, then an answer, neither empty; half for an answer alone."""
    scores = []
    for completion in completions:
        {READ}
        whole = re.fullmatch(r"\\s*<think>(.+?)</think>\\s*<answer>(.+?)</answer>\\s*", text, flags=re.DOTALL)
        alone = re.fullmatch(r"\\s*<answer>(.+?)</answer>\\s*", text, flags=re.DOTALL)
        scores.append(1.0 if whole else 0.5 if alone else 0.0)
    return scores
'''


def templates(columns: Sequence[str]) -> list[dict[str, str]]:
    """Those that need no column that is not there; the first one is what an empty editor begins with."""
    of_answer = [("closeness", "How near the number is", CLOSENESS), ("right_answer", "The right answer", RIGHT)]
    others = [("near_length", "A length in words", LENGTH), ("reasons_first", "Thoughts, then an answer", FORM)]
    chosen = [*(of_answer if "answer" in columns else []), *others]
    return [{"name": name, "title": title, "source": source} for name, title, source in chosen] + [_empty(columns)]


def _empty(columns: Sequence[str]) -> dict[str, str]:
    named = ", ".join(["completions", *(c for c in columns if c.isidentifier())])
    looped = "completion" if len(columns) == 0 else ", ".join(["completion", *(f"{c}_" for c in columns if c.isidentifier())])
    source = f'''def my_reward({named}, **kwargs):
    """What it pays for, in one line."""
    scores = []
    for {looped} in {f"zip({named})" if columns else "completions"}:
        {READ}
        scores.append(0.0)
    return scores
'''
    return {"name": "my_reward", "title": "An empty one with every column", "source": source}
