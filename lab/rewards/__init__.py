"""Reward functions: where they come from, what they get, how a group is scored. Nothing here imports torch.

The built-ins register themselves when their modules are imported, in the order in which pickers show them.
"""

from lab.rewards import builtin, length, language, textual, steps, code, reward_model, judge, by_hand, gym  # noqa: F401, I001
from lab.rewards.common import BUILTINS
from lab.rewards.contract import Batch, Outcome, RewardError, TrainerState, call, checked_values, text_of
from lab.rewards.resolve import Reward, RewardNotFound, resolve
from lab.rewards.scoring import group_totals, score, scoring, summarise

__all__ = ["BUILTINS", "Batch", "Outcome", "Reward", "RewardError", "RewardNotFound", "TrainerState", "call",
           "checked_values", "group_totals", "resolve", "score", "scoring", "summarise", "text_of"]
