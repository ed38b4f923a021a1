"""Curves of a run as Plotly figures: the page, the notebooks and the report draw the same ones.

One table says which curves there are, how each is named and how it is smoothed; `curve_layout` is the frame of one curve,
`curve_traces` its lines, `training_figure` all curves in one figure with the live changes marked; `evaluation_parts` is base
against tuned. Leaves out reading the store and anything about HTML.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go

WINDOW = 5  # the most steps any smoothing looks back


@dataclass(frozen=True)
class Curve:
    """One curve: `metric` is TRL's name where TRL has it. `digits` are the decimals of its newest value."""

    metric: str
    title: str
    unit: str
    digits: int
    smoothing: str = "mean of 4"  # or "median of 5": k3's single points jump
    top: float = 0.0  # the value axis reaches at least this far


CURVES = (
    Curve("reward", "reward, and its parts", "mean of 4 steps", 3, top=1.0),
    Curve("kl", "KL to the reference", "nats per token", 3, smoothing="median of 5"),
    Curve("groups/live", "groups with signal", "groups", 0, top=4.0),
    Curve("entropy", "entropy", "nats per token", 3),
    Curve("completions/mean_length", "completion length", "tokens, mean", 1),
    Curve("grad_norm", "gradient norm", "before clipping", 2),
    Curve("loss", "loss", "≈ 0 is normal", 4),
)
CRITIC_CURVES = (  # only a run with a critic has them
    Curve("critic/loss", "critic's loss", "half a squared gap", 4),
    Curve("critic/explained_variance", "explained variance", "1 is all", 2, top=1.0),
    Curve("critic/value_mean", "critic's mean value", "in rewards", 3),
    Curve("critic/value_std", "spread of its values", "in rewards", 3),
    Curve("critic/seconds", "critic's time", "s per step", 2),
    Curve("critic/bytes", "critic's memory", "bytes", 0),
)
OTHER_COLUMNS = ("groups/total", "step_time", "learning_rate")
DASHES = ("dash", "dot", "dashdot", "longdash")


@dataclass(frozen=True)
class Theme:
    """Colours of one theme; the same tokens stand in assets/css/lab.css."""

    ink: str
    ink_2: str
    ink_3: str
    raw: str
    grid: str
    surface: str
    parts: tuple[str, ...]


LIGHT = Theme("#14191E", "#46515B", "#5F6A74", "#7F8A94", "#E4E8EB", "#FFFFFF", ("#00795A", "#8A3E96", "#7A6200", "#46515B"))
DARK = Theme("#E9EDF0", "#B2BCC5", "#93A0AB", "#73808C", "#252B31", "#161A1E", ("#3DBE95", "#CC8BD8", "#CDB04C", "#B2BCC5"))
THEMES = {"light": LIGHT, "dark": DARK}


def curve_columns(columns: Iterable[str]) -> list[str]:
    """The columns, out of all a run has, that the curves need: the metrics above and each reward function's mean."""
    columns = list(columns)
    wanted = [curve.metric for curve in (*CURVES, *CRITIC_CURVES)] + part_columns(columns) + list(OTHER_COLUMNS)
    return [name for name in wanted if name in columns]


def part_columns(columns: Iterable[str]) -> list[str]:
    """`rewards/{func}/mean` of each reward function, in the order they were given."""
    return [name for name in columns if name.startswith("rewards/") and name.endswith("/mean")]


def part_name(column: str) -> str:
    """The reward function's name in the name of its column: `rewards/format/mean` → `format`."""
    return column.removeprefix("rewards/").removesuffix("/mean")


def smooth(values: Sequence[float | None], smoothing: str) -> list[float | None]:
    """Each value with the ones before it: "mean of 4" or "median of 5". None (not applicable) is left out, never 0."""
    kind, _, window = smoothing.partition(" of ")
    middle = {"mean": statistics.fmean, "median": statistics.median}[kind]
    found = ([v for v in values[max(0, i - int(window) + 1):i + 1] if v is not None] for i in range(len(values)))
    return [middle(near) if near else None for near in found]


def smoothing_of(metric: str) -> str:
    """How a column is smoothed. A reward function's mean is smoothed as the reward is."""
    return next((curve.smoothing for curve in (*CURVES, *CRITIC_CURVES) if curve.metric == metric), "mean of 4")


def curve_layout(curve: Curve, theme: Theme = LIGHT, *, last_step: int | None = None) -> dict[str, Any]:
    """Plotly layout of one curve. The x axis runs to the planned end of the run, where there is one."""
    axis = dict(showgrid=False, zeroline=False, color=theme.ink_3, tickfont=dict(size=11), fixedrange=False, nticks=6)
    return dict(
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", showlegend=False, dragmode="zoom", hovermode="x",
        font=dict(family="IBM Plex Sans, sans-serif", size=11, color=theme.ink_3), margin=dict(l=38, r=12, t=6, b=22),
        hoverlabel=dict(bgcolor=theme.surface, bordercolor=theme.ink_3, font=dict(color=theme.ink, size=12)),
        xaxis=axis | dict(range=[0.5, last_step + 0.5] if last_step else None, tickformat="d"),
        yaxis=axis | dict(showgrid=True, gridcolor=theme.grid, range=[0, curve.top] if curve.top else None, tickformat="~g"),
    )


def curve_traces(curve: Curve, steps: Sequence[int], columns: dict[str, Sequence[float | None]], theme: Theme = LIGHT,
                 smoothed: dict[str, Sequence[float | None]] | None = None) -> list[dict[str, Any]]:
    """Plotly traces of one curve: raw points behind, smoothed line in front; for the reward a line per function as well.

    `columns` holds one value per step; `smoothed` likewise, and is computed where it is not given.
    """
    def line_of(metric: str) -> Sequence[float | None]:
        return smoothed[metric] if smoothed else smooth(columns[metric], curve.smoothing)

    raw = columns.get(curve.metric, [])
    traces = [_points(steps, raw, theme, curve)]
    parts = part_columns(columns) if curve.metric == "reward" else []
    for place, part in enumerate(parts):
        line = dict(color=theme.parts[place % len(theme.parts)], width=1.6, dash=DASHES[place % len(DASHES)])
        traces.append(_line(steps, line_of(part), line, part_name(part)))
    main = line_of(curve.metric) if curve.metric in columns else []
    return [*traces, _line(steps, main, dict(color=theme.ink, width=2.2), curve.metric)]


def training_figure(metrics: pandas.DataFrame, *, dark: bool = False, last_step: int | None = None,
                    marks: Sequence[tuple[int, str]] = ()) -> go.Figure:
    """All curves of a run in one figure, for notebooks and the report.

    `metrics` has TRL's metric names as columns and the step as index or as a column `step`. `marks` are live changes,
    (step from which they hold, words), as `open_run(…).marks` gives them: a dotted line in every curve, the words on the reward's.
    """
    from plotly.subplots import make_subplots

    theme = DARK if dark else LIGHT
    steps = list(metrics["step"] if "step" in metrics else metrics.index)
    columns = {name: _numbers(metrics[name]) for name in curve_columns(metrics.columns)}
    shown = [curve for curve in (*CURVES, *CRITIC_CURVES) if curve.metric in columns]
    width = min(3, max(1, len(shown)))
    height = -(-len(shown) // width) or 1
    figure = make_subplots(rows=height, cols=width, subplot_titles=[f"{curve.title} ({curve.unit})" for curve in shown],
                           horizontal_spacing=0.07, vertical_spacing=0.14)
    for place, curve in enumerate(shown):
        row, col = place // width + 1, place % width + 1
        for trace in curve_traces(curve, steps, columns, theme):
            figure.add_trace(trace, row=row, col=col)
        frame = curve_layout(curve, theme, last_step=last_step)
        figure.update_xaxes(frame["xaxis"], row=row, col=col)
        figure.update_yaxes(frame["yaxis"] | dict(range=None, rangemode="tozero"), row=row, col=col)
        _mark(figure, marks, theme, row, col, worded=curve.metric == shown[0].metric)
    figure.update_layout(template=None, height=230 * height, showlegend=False, hovermode="x", font=curve_layout(CURVES[0], theme)["font"],
                         paper_bgcolor=theme.surface, plot_bgcolor=theme.surface, margin=dict(l=44, r=16, t=34, b=28))
    figure.update_annotations(font=dict(size=12, color=theme.ink_2))
    return figure


def evaluation_parts(evaluations: Sequence[dict[str, Any]], theme: Theme = LIGHT, *,
                     last_step: int | None = None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Plotly traces and layout of a run's evaluations: greedy accuracy and pass@k of the tuned model over steps, the base dotted.

    Each evaluation is {"step", "adapter": "base" or "tuned", "metrics"}. Of pass@k the largest k is drawn.
    """
    traces = []
    for place, (metric, name) in enumerate(_evaluation_lines(evaluations)):
        colour = theme.ink if place == 0 else theme.parts[0]
        points = {adapter: [(e["step"], e["metrics"][metric]) for e in evaluations
                            if e["adapter"] == adapter and e["metrics"].get(metric) is not None] for adapter in ("base", "tuned")}
        tuned = dict(color=colour, width=2.2, dash=None if place == 0 else DASHES[0])
        traces.append(_line([x for x, _ in points["tuned"]], [y for _, y in points["tuned"]], tuned, f"{name}, tuned")
                      | dict(mode="lines+markers", marker=dict(color=colour, size=7, symbol="circle" if place == 0 else "square")))
        if points["base"]:  # the base does not change: its newest value, along the whole axis
            level = points["base"][-1][1]
            end = max(last_step or 0, *(e["step"] for e in evaluations), 1)
            line = dict(color=colour, width=1.2, dash=DASHES[1])
            traces.append(_line([0, end], [level, level], line, f"{name}, base") | dict(showlegend=False))
    layout = curve_layout(Curve("eval_accuracy", "held-out prompts", "share right", 3, top=1.02), theme, last_step=last_step)
    legend = dict(orientation="h", x=0, y=1, yanchor="bottom", font=dict(color=theme.ink_2, size=11))
    layout |= dict(showlegend=len(traces) > 0, legend=legend, margin=dict(l=38, r=12, t=30, b=22))
    layout["xaxis"] |= dict(rangemode="tozero") if last_step is None else dict(range=[-0.02 * last_step, 1.02 * last_step])
    return traces, layout


def _evaluation_lines(evaluations: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    names = {name for e in evaluations for name in e["metrics"]}
    largest = max((int(name.rpartition("@")[2]) for name in names if name.startswith("eval_pass@")), default=None)
    lines = [("eval_accuracy", "greedy")] if "eval_accuracy" in names else []
    return lines + ([(f"eval_pass@{largest}", f"pass@{largest}")] if largest else [])


def _mark(figure: go.Figure, marks: Sequence[tuple[int, str]], theme: Theme, row: int, col: int, *, worded: bool) -> None:
    """A dotted line where live changes hold from; their words at different heights, so that neighbours can be read."""
    for place, (step, words) in enumerate(marks):
        figure.add_vline(step, line=dict(color=theme.ink_3, width=1.2, dash="dot"), row=row, col=col)
        if worded:
            figure.add_annotation(x=step, y=0.02 + 0.09 * (place % 4), yref="y domain", text=words.replace("<", " "), showarrow=False,
                                  xanchor="left", yanchor="bottom", bgcolor=theme.surface, row=row, col=col)


def _points(steps: Sequence[int], values: Sequence[float | None], theme: Theme, curve: Curve) -> dict[str, Any]:
    return dict(type="scatter", mode="markers", x=list(steps), y=list(values), name=f"{curve.metric}, one step",
                marker=dict(color=theme.raw, size=4), hovertemplate=f"%{{y:.{curve.digits}f}}<extra>one step</extra>")


def _line(steps: Sequence[int], values: Sequence[float | None], line: dict[str, Any], name: str) -> dict[str, Any]:
    return dict(type="scatter", mode="lines", x=list(steps), y=list(values), name=name, line=line,
                hovertemplate="%{y:.3f}<extra>" + name + "</extra>")


def _numbers(column: Any) -> list[float | None]:
    return [None if value is None or value != value else float(value) for value in column]
