"""Parts of the store: rows, groups, evaluations, migrations, the run folder, and the loop that records a trainer."""

from __future__ import annotations

import os
from pathlib import Path


def default_runs_dir() -> Path:
    """$GRPO_LAB_RUNS, or the folder `runs` in the current one: where page, command line and Python keep runs if nobody says."""
    return Path(os.environ.get("GRPO_LAB_RUNS") or "runs")
