"""The base's number format is chosen for a reason that a person can read."""

from __future__ import annotations

import pytest
import torch

from lab.forward import precision

CPU = torch.device("cpu")


@pytest.fixture
def speed(monkeypatch):
    """Set how many seconds a matrix product takes in each format."""
    def set_seconds(float32: float, bfloat16: float):
        seconds = {torch.float32: float32, torch.bfloat16: bfloat16}
        monkeypatch.setattr(precision, "_product_seconds", lambda dtype, width: seconds[dtype])
    return set_seconds


def test_a_small_model_stays_in_float32_even_where_bfloat16_is_fast(speed):
    speed(4.0, 1.0)
    assert precision.choose(CPU, 2_000_000, 192).dtype == torch.float32


def test_bfloat16_only_where_it_is_clearly_faster(speed):
    speed(4.0, 1.0)
    chosen = precision.choose(CPU, 135_000_000, 576)
    assert chosen.dtype == torch.bfloat16 and "4.0 times" in chosen.reason
    speed(1.2, 1.0)
    chosen = precision.choose(CPU, 135_000_000, 576)
    assert chosen.dtype == torch.float32 and "1.2 times" in chosen.reason


def test_a_model_too_large_for_float32_is_loaded_in_half(speed):
    speed(0.1, 1.0)
    assert precision.choose(CPU, 10**13, 576).dtype == torch.bfloat16


def test_the_real_probe_takes_about_a_second_and_gives_a_sentence():
    chosen = precision.choose(CPU, 135_000_000, 576)
    assert chosen.dtype in (torch.float32, torch.bfloat16)
    assert chosen.reason.endswith(".")
