"""The two import rules of the architecture, each proven in a fresh process."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import lab

WORKER_SIDE = ("lab.rewards.sandbox.user_code",)  # runs only in the reward worker, which finds its neighbours by a path of its own
HEAVY = ("torch", "transformers", "peft", "bitsandbytes")
PAGE_SIDE = ("lab.web", "lab.store", "lab.storage", "lab.frames", "lab.charts", "lab.diagnose", "lab.jobs", "lab.presets", "lab.config",
             "lab.records", "lab.glossary", "lab.rewards", "lab.tasks", "lab.models.registry", "lab.models.chat", "lab.cli")
ENGINE_SIDE = ("lab.grpo", "lab.rules", "lab.policy", "lab.forward", "lab.rollout", "lab.trainer", "lab.training", "lab.engine")


def loaded_after_importing(module: str) -> set[str]:
    """Top-level packages in sys.modules of a fresh interpreter after importing `module` and all below it."""
    code = ("import importlib, pkgutil, sys\n"
            f"m = importlib.import_module({module!r})\n"
            "for found in pkgutil.walk_packages(getattr(m, '__path__', []), m.__name__ + '.'):\n"
            f"    found.name in {WORKER_SIDE!r} or importlib.import_module(found.name)\n"
            "print('\\n'.join({name.partition('.')[0] for name in sys.modules}))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def existing(modules: tuple[str, ...]) -> list[str]:
    here = {found.name for found in pkgutil.walk_packages(lab.__path__, "lab.")}
    return [module for module in modules if module in here]


@pytest.mark.parametrize("module", [m for m in existing(PAGE_SIDE) if m not in ("lab.models",)])
def test_page_side_never_loads_torch(module):
    assert not loaded_after_importing(module) & set(HEAVY)


@pytest.mark.parametrize("module", existing(ENGINE_SIDE))
def test_engine_side_never_loads_gradio(module):
    assert "gradio" not in loaded_after_importing(module)


def test_importing_lab_costs_nothing():
    ours_and_standard = loaded_after_importing_only_top()
    assert not ours_and_standard & {*HEAVY, "numpy", "pandas", "gradio", "plotly"}


def loaded_after_importing_only_top() -> set[str]:
    done = subprocess.run([sys.executable, "-c", "import lab, sys; print('\\n'.join({n.partition('.')[0] for n in sys.modules}))"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())
