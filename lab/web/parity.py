"""What the comparison with TRL found, for the page. The numbers are those `python -m tests.make_parity` stored; none is made here."""

from __future__ import annotations

import functools
import json
from typing import Any

from lab.assets import asset

DIFFERENCES = ("loss_diff", "grad_diff", "metric_diff")


@functools.cache
def parity_view() -> dict[str, Any]:
    """How many combinations agree within the tolerance, the largest differences, one row per loss, and what differs on purpose."""
    stored = json.loads(asset("trl_parity.json").read_text(encoding="utf-8"))
    places = [stored["columns"].index(name) for name in DIFFERENCES]
    worst = [[row[place] for place in places] for row in stored["rows"]]
    return {"trl": stored["trl"], "torch": stored["torch"], "tolerance": stored["tolerance"], "cases": len(worst),
            "equal": sum(max(differences) <= stored["tolerance"] for differences in worst),
            **{name: max(column) for name, column in zip(DIFFERENCES, zip(*worst, strict=True), strict=True)},
            "losses": stored["summary"], "differences": stored["differences"]}
