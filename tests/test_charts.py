"""Curves: the table, the smoothing by hand, and figures that hold what the records said."""

from __future__ import annotations

import pandas as pd
import pytest

from lab import charts, glossary
from tests.browser.made_runs import metrics


def test_the_mean_of_four_looks_back_and_leaves_out_what_does_not_apply():
    # [1], [1 2], [1 2 3], [1 2 3 6] = 3, [2 3 6 –] = 11/3
    assert charts.smooth([1, 2, 3, 6, None], "mean of 4") == pytest.approx([1, 1.5, 2, 3, 11 / 3])
    assert charts.smooth([None, None], "mean of 4") == [None, None]


def test_the_median_of_five_ignores_one_spike():
    assert charts.smooth([0.1, 0.1, 9.0, 0.2, 0.2], "median of 5")[-1] == 0.2


def test_no_smoothing_looks_back_further_than_the_window_that_readers_fetch():
    assert max(int(curve.smoothing.partition(" of ")[2]) for curve in charts.CURVES) <= charts.WINDOW


def test_every_curve_is_in_the_glossary_and_loss_comes_last():
    assert [glossary.metric(curve.metric).name for curve in charts.CURVES] == [curve.metric for curve in charts.CURVES]
    assert charts.CURVES[0].metric == "reward" and charts.CURVES[-1].metric == "loss" and "≈ 0 is normal" in charts.CURVES[-1].unit


def test_the_reward_curve_has_a_line_for_each_function():
    columns = {name: [0.1, 0.2] for name in ("reward", "rewards/accuracy/mean", "rewards/accuracy/std", "rewards/format/mean")}
    traces = charts.curve_traces(charts.CURVES[0], [1, 2], columns)
    assert [trace["name"] for trace in traces] == ["reward, one step", "accuracy", "format", "reward"]
    assert len({trace["line"]["dash"] for trace in traces[1:3]}) == 2  # told apart without colour


def test_the_training_figure_holds_raw_points_and_smoothed_lines():
    frame = pd.DataFrame([metrics(step) for step in range(1, 9)], index=range(1, 9))
    figure = charts.training_figure(frame, last_step=40)
    assert len(figure.layout.annotations) == len(charts.CURVES)
    raw, line = figure.data[0], figure.data[3]  # points, accuracy, format, reward
    assert list(raw.y) == pytest.approx(list(frame["reward"]))
    assert line.y[-1] == pytest.approx(frame["reward"].iloc[-4:].mean())
    assert tuple(figure.layout.xaxis.range) == (0.5, 40.5)
    figure.to_json()


def test_missing_values_are_gaps_and_not_zeros():
    frame = pd.DataFrame({"step": [1, 2], "reward": [0.5, float("nan")]})
    assert charts.training_figure(frame).data[0].y == (0.5, None)


def test_a_run_without_steps_draws_an_empty_figure():
    assert len(charts.training_figure(pd.DataFrame({"step": [], "reward": []})).data) == 2
