"""A function of tensors that stay where they are, as a CUDA graph: one launch instead of one for each kernel.

Leaves out what the function is (`static_decode`) and whether its replay gives the right numbers, which is checked there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WARM_UPS = 2  # calls before a capture, in which libraries set up what they need


class Graph:
    """A step on tensors that stay where they are: captured at its first call and replayed from then on.

    If the capture fails, `failure` says why and the step is called as it is. What it returns is overwritten by the next call.
    """

    def __init__(self, step: Callable[[], Tensor], device: torch.device):
        self._step, self._device = step, device
        self._replay: Callable[[], Tensor] | None = None
        self.failure: str | None = None

    def __call__(self) -> Tensor:
        if self._replay is None:
            try:
                self._replay = captured(self._step, self._device)
            except Exception as error:  # too little memory, or anything in the step that a capture does not allow
                self._replay, self.failure = self._step, f"the capture failed ({type(error).__name__}: {error})"
        return self._replay()


def captured(step: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """A function that does what `step` does. On CUDA it replays a graph, made in a memory pool of its own."""
    if device.type != "cuda":
        return step
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):  # also sets the stream back when a capture fails
        for _ in range(WARM_UPS):
            step()
        # Only this thread's calls may spoil the capture: the page's engine has others.
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            logits = step()
    torch.cuda.current_stream(device).wait_stream(side)

    def replay() -> Tensor:
        graph.replay()
        return logits

    return replay
