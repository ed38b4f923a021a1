"""Where a run came from and where one can go on from it: its parent, its checkpoints, its branches.

Leaves out branching and going on, which is the engine's (`lab.training.branch`).
"""

from __future__ import annotations

from typing import Any

from lab.storage.run_folder import RunFolder
from lab.store import Run, Store
from lab.web.actions import Lab


def lineage(lab: Lab, owner: str, store: Store, run: Run) -> dict[str, Any]:
    """`parent` is {"id", "name", "step"} or null (its name null where it is gone); `checkpoints` are steps, the last first."""
    others = {other.id: other for other in lab.runs(owner)}
    parent = run.parent and {"id": run.parent, "name": others[run.parent].name if run.parent in others else None, "step": run.parent_step}
    branches = [{"id": other.id, "name": other.name, "step": other.parent_step, "status": other.status}
                for other in others.values() if other.parent == run.id]
    return {"run": run.id, "name": run.name, "status": run.status, "step": run.step, "max_steps": run.config.get("max_steps"),
            "parent": parent, "checkpoints": [step for step, _ in reversed(RunFolder(store, run.id).checkpoints())], "branches": branches}
