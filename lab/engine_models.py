"""What the engine has loaded: base models, one or as many as live runs need, and how fast this machine is with them.

Leaves out loading itself (`lab.policy`) and what is done with a model (`lab.engine_work`).
"""

from __future__ import annotations

import dataclasses
import gc
from typing import TYPE_CHECKING, Any

import psutil

from lab.config import RunConfig

if TYPE_CHECKING:
    from lab.engine import Engine
    from lab.policy import Policy


class Models:
    """The loaded base models: one, or as many as live runs need."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._loaded: dict[tuple, Policy] = {}
        self._info: dict[str, Any] = {}

    def get(self, config: RunConfig, way: str | None = None) -> Policy:
        """The policy of this config; loads it, and lets go of those that no live run uses. Raises ModelError.

        `way` is the way of computing that a run goes on in (`fast_path.choose`); None is any.
        """
        from lab.policy import Policy

        key = next((key for key, policy in self._loaded.items() if _serves(key, policy, config, way)), None)
        if key is None:
            key = (config.model, config.dtype, config.load_in_4bit, config.device, way)
            self._unload_unused()
            self._engine.phase, self._engine.loading = "loading", {"model": config.model, "share": None, "text": ""}
            try:
                self._loaded[key] = Policy.load(config.model, dtype=config.dtype, load_in_4bit=config.load_in_4bit, device=config.device,
                                                way=way, progress=self._progress)
            finally:
                self._engine.loading = None
            self._info = {name: value for name, value in self._loaded[key].info.items() if name != "adapters"}
        return self._loaded[key]

    def info(self) -> dict[str, Any]:
        """The model loaded last; on a GPU its memory too."""
        if not str(self._info.get("device", "")).startswith("cuda"):
            return self._info
        import torch

        free, total = torch.cuda.mem_get_info()
        return {**self._info, "device_memory": total - free, "device_memory_total": total}

    def _progress(self, share: float | None, text: str) -> None:
        self._engine.loading = {**(self._engine.loading or {}), "share": share, "text": text}

    def _unload_unused(self) -> None:
        used = [work.trainer.policy for work in self._engine.runs.values()]
        unused = [key for key, policy in self._loaded.items() if policy not in used]
        for key in unused:
            del self._loaded[key]
        if unused:
            import torch

            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def measured_machine() -> dict[str, Any]:
    """What plans on the page go by: device, its memory (on a CPU what this process holds), threads, and speeds by number
    format and threads. Takes about a second."""
    from lab.forward import speed
    from lab.memory import within_reach
    from lab.models.loading import pick_4bit, pick_device
    from lab.policy import MACHINE_THREADS, SMALL_MODEL

    device = pick_device("auto")
    memory = within_reach(device) if device.type == "cuda" else psutil.Process().memory_info().rss
    speeds = {dtype: {str(threads): dataclasses.asdict(speed.measured(device.type, dtype, threads)) for threads in {1, MACHINE_THREADS}}
              for dtype in ("float32", "bfloat16")}
    return {"device": device.type, "memory": memory, "threads": MACHINE_THREADS, "speeds": speeds, "four_bit": pick_4bit(None, device),
            "small_model": SMALL_MODEL}


def _serves(key: tuple, policy: Policy, config: RunConfig, way: str | None) -> bool:
    """Whether a loaded policy is what a config asks for; what the config leaves open must have been left open to it."""
    model, dtype, load_in_4bit, device, _ = key
    return (model == config.model and device == config.device and config.dtype in (dtype, policy.info["dtype"])
            and config.load_in_4bit in (load_in_4bit, policy.load_in_4bit) and way in (None, policy.fast.way))
