"""Runs in the locked worker: the marks reasoning-gym gives to answers that a model wrote."""

import functools
import warnings

LONGEST = 2000  # characters; what is longer is an attack, not an answer


def check(completions, tasks, answers, metadata, **kwargs):
    """reasoning-gym's own mark for each answer, from 0 to 1. It may run the answer as Python, hence only in a locked worker."""
    return [_marks(given, task, answer, extra) for given, task, answer, extra in zip(completions, tasks, answers, metadata, strict=True)]


def _marks(given, task, answer, metadata):
    if len(given) > LONGEST or "__" in given:
        return 0.0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            marks = float(_scorer(task)(given, {"question": "", "answer": answer, "metadata": metadata}))
    except Exception:  # a scorer that trips over an answer: no marks for it
        return 0.0
    return min(1.0, max(0.0, marks)) if marks == marks else 0.0


@functools.cache
def _scorer(task):
    from reasoning_gym import get_score_answer_fn

    return get_score_answer_fn(task)
