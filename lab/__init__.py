"""GRPO Lab: see Group Relative Policy Optimization happen. Names are imported when first used; `import lab` costs nothing."""

import logging
from importlib import import_module

# bitsandbytes says at import that an optional CPU kernel is missing; its built-in one does the work, so nobody need worry.
logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(lambda record: "gemm_4bit_forward" not in str(record.msg))

_HOMES = {
    "RunConfig": "config", "ConfigError": "config",
    "Trainer": "trainer", "TrainingError": "trainer",
    "Policy": "policy", "ModelError": "policy",
    "sample_group": "training.sampling", "preflight": "training.preflight", "scan": "training.difficulty",
    "RewardError": "rewards",
    "Completion": "records", "Group": "records", "StepRecord": "records",
    "open_run": "storage.recorder", "record": "storage.recorder", "recording": "storage.recorder",
    "resuming": "storage.recorder", "watch": "storage.recorder",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'lab' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value  # a submodule of the same name must not take the name's place
    return value


def __dir__() -> list[str]:
    return __all__
