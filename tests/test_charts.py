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


def test_live_changes_are_marked_in_every_curve_and_in_words_on_the_reward():
    frame = pd.DataFrame([metrics(step) for step in range(1, 9)], index=range(1, 9))
    figure = charts.training_figure(frame, marks=[(3, "β 0.04 to 0.02"), (6, "temperature 1.0 to 0.9")])
    assert sorted({(shape.x0, shape.xref) for shape in figure.layout.shapes}) == sorted(
        (step, f"x{place or ''}") for step in (3, 6) for place in ("", *range(2, len(charts.CURVES) + 1)))
    words = [(note.x, note.xref, note.text) for note in figure.layout.annotations if "to" in note.text.split()]
    assert (3, "x", "β 0.04 to 0.02") in words and (6, "x", "temperature 1.0 to 0.9") in words


def test_a_stored_run_marks_its_own_changes(tmp_path):
    from lab import open_run
    from lab.store import open_store
    from tests.browser.made_runs import write_run

    store = open_store(tmp_path)
    run = write_run(store, steps=3, with_groups=False)
    store.add_event(run, 2, "change", {"beta": 0.02, "temperature": 0.9})
    assert open_run(run, tmp_path).marks == [(2, "β 0.04 to 0.02, temperature 1.0 to 0.9")]


def test_a_critic_has_curves_only_where_there_is_one():
    frame = pd.DataFrame({"step": [1, 2], "reward": [0.1, 0.2], "critic/seconds": [0.5, 0.6]})
    assert [note.text for note in charts.training_figure(frame).layout.annotations] == [
        "reward, and its parts (mean of 4 steps)", "critic's time (s per step)"]
    assert "critic/seconds" not in charts.curve_columns(["reward"])
    assert all(glossary.metric(curve.metric).name == curve.metric for curve in charts.CRITIC_CURVES)


def test_evaluations_are_drawn_with_the_base_as_a_level():
    evaluations = [{"step": 0, "adapter": "base", "metrics": {"eval_accuracy": 0.2, "eval_pass@1": 0.1, "eval_pass@8": 0.5}},
                   {"step": 10, "adapter": "tuned", "metrics": {"eval_accuracy": 0.6, "eval_pass@1": 0.5, "eval_pass@8": 0.8}}]
    traces, layout = charts.evaluation_parts(evaluations, last_step=40)
    assert [(t["name"], t["x"], t["y"]) for t in traces] == [
        ("greedy, tuned", [10], [0.6]), ("greedy, base", [0, 40], [0.2, 0.2]),
        ("pass@8, tuned", [10], [0.8]), ("pass@8, base", [0, 40], [0.5, 0.5])]
    assert layout["yaxis"]["range"] == [0, 1.02]
    assert charts.evaluation_parts([])[0] == []
