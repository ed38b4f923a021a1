"""A bench result as lines of text, for a terminal. Leaves out every number's making (`bench`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lab.rewards.bench import BenchResult

SHOWN_ROWS = 16
WIDTH = 44


def report(result: BenchResult, rows: int = SHOWN_ROWS) -> str:
    """Summary, failures, the hostile set, and the first `rows` completions."""
    return "\n\n".join(part for part in (_summary(result), _failures(result), _hostile(result), _completions(result, rows)) if part)


def every_rule(result: BenchResult) -> str:
    """The group whose rewards differ most, with each completion's advantage under every rule. By training's own code: loads torch."""
    import torch

    from lab.rules.advantages import ADVANTAGE_RULES, advantages_of

    scored = [(group, totals) for group, totals in zip(result.groups, result.totals, strict=True) if None not in totals]
    if not scored:
        return "No group has a total for each of its completions: there is nothing to compare rules on."
    group, totals = max(scored, key=lambda pair: max(pair[1]) - min(pair[1]))
    rewards = torch.tensor(totals, dtype=torch.float64)
    lengths = torch.tensor([len(c.token_ids) or 1 for c in group.completions])

    def column(rule: str, scale: str) -> list[str]:
        try:
            given = advantages_of(rewards[:, None], torch.ones(1, dtype=torch.float64), group_ids=torch.zeros_like(lengths),
                                  advantage_rule=rule, scale_rewards=scale, lengths=lengths,
                                  multi_objective_aggregation="sum_then_normalize")
        except ValueError:  # such as maxrl with a reward below 0
            return ["–"] * len(totals)
        return [_signed(value) for value in given[1].tolist()]

    columns = {"grpo": column("grpo", "group"), "dr_grpo": column("grpo", "none")}
    columns |= {rule: column(rule, "none") for rule in ADVANTAGE_RULES if rule != "grpo"}
    lines = [[_cut(c.text), str(len(c.token_ids)), _number(total, 2), *(values[i] for values in columns.values())]
             for i, (c, total) in enumerate(zip(group.completions, totals, strict=True))]
    return f"Every advantage rule on {_cut(group.prompt)!r}:\n\n{_table(['completion', 'tokens', 'reward', *columns], lines)}"


def _summary(result: BenchResult) -> str:
    table = result.summary
    head = ["", "weight", "mean", "std", "within groups", "no signal", "with length", "of variance", "failed", "ms"]
    lines = [[name, _number(row["weight"], 2), _number(row["mean"], 3), _number(row["std"], 3), _number(row["within"], 3),
              f"{row['dead']:.0f} of {row['groups']:.0f}", _signed(row["length"]), _share(row["share"]), _number(row["failed"], 0),
              _number(row["ms"], 1)] for name, row in table.iterrows()]
    count = sum(len(group.completions) for group in result.groups)
    total = result.statistics["reward"]
    words = (f"{count} completions in {len(result.groups)} groups. Groups with signal: {total.groups - total.dead} of {total.groups}"
             f" (all at the lowest: {total.dead_low}, all at the highest: {total.dead_high}).")
    return f"{words}\n\n{_table(head, lines)}"


def _failures(result: BenchResult) -> str:
    lines = []
    for column in result.columns:
        for line, message in dict.fromkeys((f.line, f.message) for f in column.failures):
            same = [f.row for f in column.failures if (f.line, f.message) == (line, message)]
            where = "every row" if None in same else f"row{'s' if len(same) > 1 else ''} {_listed(same)}"
            lines.append(f"{column.name}, {f'line {line}, ' if line else ''}{where}: {message}")
    return "\n".join(lines)


def _listed(rows: list[int]) -> str:
    shown = ", ".join(map(str, rows[:8]))
    return shown if len(rows) <= 8 else f"{shown} and {len(rows) - 8} more"


def _hostile(result: BenchResult) -> str:
    if not result.hostile_rows:
        return ""
    earning = sum(row.earns for row in result.hostile_rows)
    honest = "" if result.honest_total is None else f" The right answer in its place gets {result.honest_total:.2f}."
    lines = [[h.attempt.kind, _cut(h.attempt.text), _number(h.total, 2), "no score" if h.total is None else ", ".join(h.paid_by) or "none"]
             for h in result.hostile_rows]
    return f"Hostile set: {earning} of {len(result.hostile_rows)} earn.{honest}\n\n{_table(['kind', 'text', 'reward', 'paid by'], lines)}"


def _completions(result: BenchResult, rows: int) -> str:
    table = result.completions
    head = ["group", "completion", *result.names, "reward", "adv.", "rank"]
    lines = [[str(row["group"]), _cut(row["completion"]), *(_number(row[name], 2) for name in result.names), _number(row["reward"], 2),
              _signed(row["advantage"]), _number(row["rank"], 0)] for _, row in table.head(rows).iterrows()]
    more = f"\n… and {len(table) - rows} more" if len(table) > rows else ""
    return _table(head, lines) + more


def _table(head: list[str], lines: list[list[str]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(head, *lines, strict=True)]
    left = [all(not cell or not (cell[0].isdigit() or cell[0] in "+−–") for cell in column) for column in zip(*lines, strict=True)]

    def line(row: list[str]) -> str:
        cells = zip(row, widths, left, strict=True)
        return "  ".join(cell.ljust(width) if is_text else cell.rjust(width) for cell, width, is_text in cells).rstrip()

    return "\n".join(map(line, [head, *lines]))


def _cut(text: str) -> str:
    line = " ".join(text.split()) or "(nothing)"
    return line if len(line) <= WIDTH else line[:WIDTH - 1] + "…"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None or value != value else f"{value:.{digits}f}".replace("-", "−")


def _signed(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:+.2f}".replace("-", "−")


def _share(value: float | None) -> str:
    return "–" if value is None or value != value else f"{100 * value:.0f} %".replace("-", "−")
