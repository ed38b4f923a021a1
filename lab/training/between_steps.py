"""What a trainer does besides its steps: the cold start before the first one, evaluations between them.

`between_steps` puts both into the trainer's stream of events. Neither draws from the random numbers of training, so a
run with evaluations has bit-equal steps to one without. Leaves out how either is done (`Trainer.imitate`, `evaluation`).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from lab.records import ColdStartStep, EvaluationFailed, Event, StepRecord
from lab.rewards import RewardError
from lab.tasks.worked import load_examples
from lab.training.evaluation import evaluate

if TYPE_CHECKING:
    from lab.trainer import Trainer


def between_steps(trainer: Trainer, steps: Generator[Event, None, None]) -> Generator[Event, None, None]:
    """The events of `steps`, with the cold start before them and an evaluation wherever one is due."""
    if trainer.step == 0:
        yield from _evaluate_if_due(trainer, base=True)
        yield from _cold_start(trainer)
    yield from _evaluate_if_due(trainer)  # also of a run resumed from a checkpoint of a step that was still to be evaluated
    for event in steps:
        yield event
        if isinstance(event, StepRecord):
            yield from _evaluate_if_due(trainer)


def evaluation_is_due(trainer: Trainer) -> bool:
    """Every `eval_steps` steps, the start among them, and after the last."""
    config = trainer.config
    if not config.eval_steps or trainer.evaluated_at == trainer.step:
        return False
    return trainer.step % config.eval_steps == 0 or trainer.step >= config.max_steps or trainer.stopped is not None


def _evaluate_if_due(trainer: Trainer, *, base: bool = False) -> Generator[Event, None, None]:
    """The base counts as the start of a fresh adapter, which changes nothing yet: then it is answered once, not twice."""
    config = trainer.config
    if not evaluation_is_due(trainer):
        return
    adapter = None if base else trainer.adapter
    try:
        outcome = yield from evaluate(trainer.policy, config, adapter, step=trainer.step, task=trainer.task)
    except RewardError as error:  # training has rewards of its own and need not stop for this
        outcome = EvaluationFailed(trainer.step, f"This evaluation is left out, the run goes on. {error}")
    if not base or not (config.cold_start_steps or config.adapter):
        trainer.evaluated_at = trainer.step
    yield outcome


def _cold_start(trainer: Trainer) -> Generator[Event, None, None]:
    """Supervised steps with the run's own optimizer, which then starts afresh; the result becomes the start of the run."""
    config = trainer.config
    if trainer.cold_start_steps >= config.cold_start_steps:
        return
    examples = load_examples(config.cold_start, config.task, config.seed)
    while trainer.cold_start_steps < config.cold_start_steps:
        loss = trainer.imitate(examples.rows(trainer.cold_start_steps * config.prompts_per_step, config.prompts_per_step))
        trainer.cold_start_steps += 1
        if trainer.cold_start_steps == config.cold_start_steps:
            trainer.begin_from_here()
        yield ColdStartStep(trainer.cold_start_steps, config.cold_start_steps, loss)
