"""Records as DataFrames: TRL's columns, the two smoothings, what follows from token arrays. Values by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from lab.frames import completions_frame, log_history, metrics_frame, token_values
from lab.records import Completion, Group, StepRecord
from lab.store import Steps

STEPS = Steps(attempt=1, columns=["reward", "kl"], rows=[[1, 0.5, None], [2, 0.75, 0.125]], cursor=2, stride=1)


def test_metrics_have_a_row_per_step_and_nan_for_what_a_step_lacks():
    frame = metrics_frame(STEPS)
    assert list(frame.columns) == ["step", "reward", "kl"] and frame["step"].tolist() == [1, 2]
    assert math.isnan(frame["kl"][0]) and frame["kl"][1] == 0.125


def test_a_run_without_steps_is_an_empty_frame():
    assert metrics_frame(Steps(1, [], [], 0, 1)).empty and completions_frame([]).empty


def test_the_log_history_is_trls_and_leaves_out_what_a_step_lacks():
    assert log_history(STEPS) == [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.75, "kl": 0.125}]


def make_record(step):
    completions = [Completion(0, "a", [1], True, {"accuracy": 1.0, "judge": None}, 1.0, 0.5, {"seen": "42"}),
                   Completion(1, "b", [1], False, {"accuracy": 0.0, "judge": 0.25}, 0.0, -0.5)]
    return StepRecord(step, {}, [Group(0, "What is 1 + 1?", [5], {"answer": "2"}, completions)])


def test_completions_have_trls_columns_in_trls_order():
    frame = completions_frame([make_record(1), make_record(2)])
    assert list(frame.columns) == ["step", "prompt", "completion", "accuracy", "judge", "seen", "advantage"]
    assert frame["step"].tolist() == [1, 1, 2, 2] and frame["completion"].tolist() == ["a", "b"] * 2
    assert math.isnan(frame["judge"][0]) and frame["judge"][1] == 0.25  # not applicable is NaN, as in TRL, never 0
    assert frame["advantage"].tolist() == [0.5, -0.5] * 2 and frame["seen"][0] == "42" and pd.isna(frame["seen"][1])


def make_completion(advantage):
    arrays = {"logps": [-1.0, -2.0, -1.0], "old_logps": [-1.0, -2.0 - math.log(1.5), -1.0 + math.log(2)], "ref_logps": [-1.0, -1.0, -1.0]}
    return Completion(0, "x", [1, 2, 3], True, advantage=advantage, arrays={k: np.array(v, "f4") for k, v in arrays.items()})


GRPO = {"loss_type": "grpo", "epsilon": 0.2}


def test_ratio_kl_and_clip_follow_from_the_stored_log_probabilities():
    values = token_values(make_completion(1.0), GRPO | {"epsilon_high": None})
    assert values["ratio"] == pytest.approx([1, 1.5, 0.5])
    assert values["kl"] == pytest.approx([0, math.e - 2, 0], abs=1e-6)  # d = 0, 1, 0 and e^d - d - 1
    assert values["clipped"].tolist() == [0, 1, 0]  # only 1.5 > 1.2, pushed further up
    assert token_values(make_completion(-1.0), GRPO)["clipped"].tolist() == [0, 0, 1]  # only 0.5 < 0.8, pushed down
    assert token_values(make_completion(0.0), GRPO)["clipped"].tolist() == [0, 0, 0]
    assert token_values(make_completion(1.0), GRPO | {"epsilon_high": 0.6})["clipped"].tolist() == [0, 0, 0]


def test_at_sequence_level_all_tokens_share_the_ratio_and_the_clip():
    # exp of the mean of log 1, log 1.5 and log 0.5 is 0.75 ** (1/3) = 0.9086, so at ε = 0.05 a bad completion is clipped as a whole
    config = GRPO | {"importance_sampling_level": "sequence", "epsilon": 0.05}
    values = token_values(make_completion(-1.0), config)
    assert values["ratio"] == pytest.approx([0.75 ** (1 / 3)] * 3) and values["clipped"].tolist() == [1, 1, 1]
    assert token_values(make_completion(1.0), config)["clipped"].tolist() == [0, 0, 0]


def test_a_loss_without_a_clip_has_no_clipped_tokens_and_one_with_token_advantages_takes_theirs():
    assert "clipped" not in token_values(make_completion(1.0), GRPO | {"loss_type": "sapo"})
    completion = make_completion(1.0)  # pushed up in the mean, but the second token is pushed down and the third too
    completion.arrays["advantages"] = np.array([4.0, -0.5, -0.5], "f4")
    assert token_values(completion, GRPO)["clipped"].tolist() == [0, 0, 1]


def test_what_was_not_stored_is_not_made_up():
    completion = make_completion(1.0)
    del completion.arrays["ref_logps"], completion.arrays["old_logps"]
    assert token_values(completion, GRPO).keys() == {"logps"}
