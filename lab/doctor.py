"""`grpo-lab doctor`: what this machine has, tried and not guessed; what is missing and how to get it.

Each check returns one `Line`. A check that fails says so in its line; it never ends the report.
"""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from lab.ram import ram

PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "gradio", "pandas", "plotly", "trl", "math-verify")


@dataclass
class Line:
    """One finding: `ok` is True, False (missing, `advice` says how to get it) or None (for information)."""

    name: str
    finding: str
    ok: bool | None = True
    advice: str = ""

    def __str__(self) -> str:
        mark = {True: "ok  ", False: "NO  ", None: "    "}[self.ok]
        return f"{mark} {self.name:<18} {self.finding}" + (f"\n     {'':<18} → {self.advice}" if self.advice else "")


def report() -> str:
    """All checks as text, one line each."""
    return "\n".join(str(line) for check in CHECKS for line in _run(check))


def _run(check: Callable[[], list[Line]]) -> list[Line]:
    try:
        return check()
    except Exception as error:  # a check must never hide the others; the finding is the error itself
        return [Line(check.__name__.strip("_"), f"check failed: {type(error).__name__}: {error}", False)]


def versions() -> list[Line]:
    lines = [Line("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}", sys.version_info >= (3, 11))]
    for package in PACKAGES:
        try:
            lines.append(Line(package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            lines.append(_missing(package))
    return lines


def _missing(package: str) -> Line:
    advice = {"trl": "only for `grpo-lab bench` and the tests: pip install 'grpo-lab[bench]'",
              "math-verify": "only for the maths reward: pip install 'grpo-lab[math]'",
              "bitsandbytes": "only for a 4-bit base: pip install bitsandbytes"}
    return Line(package, "not installed", None if package in advice else False, advice.get(package, f"pip install {package}"))


def machine() -> list[Line]:
    import torch

    memory = ram()
    lines = [Line("memory", f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GB free", None),
             Line("cpu", f"{psutil.cpu_count()} logical cores, torch uses {torch.get_num_threads()} threads", None)]
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        lines.append(Line("cuda", f"{properties.name}, {properties.total_memory / 2**30:.1f} GB"))
    else:
        lines.append(Line("cuda", "no CUDA device: everything runs on the CPU", None))
    if torch.backends.mps.is_available():
        lines.append(Line("mps", "Apple GPU found"))
    return lines


def precision() -> list[Line]:
    """Multiply two matrices in each dtype and say how fast each is beside float32."""
    import time

    import torch

    def seconds(dtype: torch.dtype) -> float:
        a, b = torch.randn(512, 512, dtype=dtype), torch.randn(512, 512, dtype=dtype)
        a @ b
        start = time.process_time()
        for _ in range(10):
            a @ b
        return time.process_time() - start

    ratio = seconds(torch.float32) / max(seconds(torch.bfloat16), 1e-9)
    faster = "quicker" if ratio > 1 else "slower"
    return [Line("bfloat16 on CPU", f"works, {max(ratio, 1 / ratio):.1f} times {faster} than float32 here", None)]


def four_bit() -> list[Line]:
    """Send a gradient through a 4-bit layer after a sampling pass and compare it with the dequantised weight's own."""
    import bitsandbytes
    import torch

    from lab.models.loading import keep_4bit_weights_differentiable

    device = "cuda" if torch.cuda.is_available() else "cpu"
    layer = bitsandbytes.nn.Linear4bit(128, 128, bias=False, compute_dtype=torch.float32, quant_type="nf4").to(device).eval()
    keep_4bit_weights_differentiable(layer)
    with torch.no_grad():
        layer(torch.randn(4, 128, device=device))
    x = torch.randn(4, 128, device=device, requires_grad=True)
    pushed = torch.randn(4, 128, device=device)
    layer(x).backward(pushed)
    weight = bitsandbytes.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state).float()
    cosine = torch.nn.functional.cosine_similarity(x.grad.flatten(), (pushed @ weight).flatten(), dim=0).item()
    good = cosine > 0.999
    return [Line("4-bit (NF4)", f"gradient cosine {cosine:.5f} with the dequantised weight after sampling", good,
                 "" if good else "train with load_in_4bit off on this machine, and tell us")]


def sandbox() -> list[Line]:
    from lab.rewards.sandbox import probe

    found = probe()
    return [Line("reward sandbox", f"{found.level}: {found.sentence}", None)]


def disk() -> list[Line]:
    free = shutil.disk_usage(".").free / 2**30
    return [Line("disk", f"{free:.1f} GB free here", free > 1, "" if free > 1 else "checkpoints need room: free at least 1 GB")]


CHECKS = (versions, machine, precision, four_bit, sandbox, disk)
