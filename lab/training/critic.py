"""PPO's critic: a value head on an adapter of its own, on the same frozen base that the policy uses.

It predicts, before each completion token, the reward still to come. A second model is never loaded; what the critic
costs beside GRPO, in seconds and bytes, is counted here. Leaves out the loss (`ppo`) and when it learns (`ppo_trainer`).

    N completions · T tokens · M = all completion tokens · D hidden
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lab.config import RunConfig
from lab.policy import Policy
from lab.rollout import Rollout
from lab.rules import ppo

HEAD_FILE = "critic.safetensors"


class Critic:
    """`seconds` is what it has taken so far; the caller may set it back."""

    def __init__(self, policy: Policy, adapter: str, config: RunConfig):
        self.policy, self.adapter, self.seconds = policy, adapter, 0.0
        policy.add_adapter(adapter, r=config.lora_r, alpha=config.lora_alpha, seed=config.seed + 1)
        self.head = nn.Linear(policy.hidden_size, 1, device=policy.device)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)  # every value begins at 0
        self.parameters = [*policy.adapters.parameters(adapter).values(), *self.head.parameters()]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.learning_rate, betas=(config.adam_beta1, config.adam_beta2), weight_decay=config.weight_decay,
            foreach=True,
        )

    @property
    def bytes(self) -> int:
        """Weights and their gradients, and the optimizer's state: what a run without a critic does not hold."""
        weights = sum(p.numel() * p.element_size() for p in self.parameters)
        moments = sum(v.numel() * v.element_size() for state in self.optimizer.state.values() for v in state.values())
        return 2 * weights + moments

    @torch.no_grad()
    def values(self, rollout: Rollout, *, max_tokens: int) -> Tensor:
        """(N, T), 0 at padding."""
        started = time.perf_counter()
        values = torch.zeros(rollout.completion_mask.shape, device=self.policy.device)
        for rows in self.policy.micro_batches(rollout, max_tokens):
            part = self._values(rollout.rows(rows))
            values[rows, : part.shape[1]] = part
        self.seconds += time.perf_counter() - started
        return values

    def backward(self, rollout: Rollout, old_values: Tensor, returns: Tensor, mask: Tensor, *, cliprange_value: float,
                 max_grad_norm: float, max_tokens: int) -> dict[str, float]:
        """Gradients towards `returns` (N, T) on the tokens of `mask`, which `step` applies; the metrics of the value loss."""
        started = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        num_tokens, loss, clipped = mask.sum().clamp(min=1), 0.0, 0.0
        for rows in self.policy.micro_batches(rollout, max_tokens):
            values = self._values(rollout.rows(rows))
            width = values.shape[1]
            part, stats = ppo.value_loss(values, old_values[rows, :width], returns[rows, :width], mask[rows, :width],
                                         cliprange_value=cliprange_value, num_tokens=num_tokens)
            part.backward()
            loss += float(part.detach())
            clipped += float(stats["value_clipped"].sum() / num_tokens)
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, max_grad_norm or math.inf))
        self.seconds += time.perf_counter() - started
        return {"critic/loss": loss, "critic/clip_ratio": clipped, "critic/grad_norm": norm}

    def step(self, learning_rate: float) -> None:
        """Apply the gradients."""
        started = time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.seconds += time.perf_counter() - started

    def save(self, folder: Path) -> None:
        """Adapter in PEFT's layout, head and optimizer beside it, into a new folder."""
        folder.mkdir()
        self.policy.adapters.save(self.adapter, folder)
        tensors = {f"head.{name}": p for name, p in self.head.named_parameters()}
        for index, parameter in enumerate(self.parameters):
            tensors |= {f"{index}|{moment}": value for moment, value in self.optimizer.state.get(parameter, {}).items()}
        save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, folder / HEAD_FILE)

    def load(self, folder: Path) -> None:
        """Go on from a folder written by `save`."""
        self.policy.adapters.load(self.adapter, folder)
        tensors = load_file(folder / HEAD_FILE)
        with torch.no_grad():
            for name, parameter in self.head.named_parameters():
                parameter.copy_(tensors.pop(f"head.{name}"))
        for key, value in tensors.items():
            index, moment = key.split("|")
            parameter = self.parameters[int(index)]
            # A file's tensors lie anywhere in memory; a copy lies where vector instructions give the same bits as before.
            self.optimizer.state[parameter][moment] = value.clone().to("cpu" if moment == "step" else parameter.device)

    def close(self) -> None:
        """Take the critic's adapter off the policy."""
        self.policy.remove_adapter(self.adapter)

    def _values(self, rollout: Rollout) -> Tensor:
        hidden = self.policy.states(rollout, self.adapter)  # (M, D)
        counted = rollout.completion_mask.bool()
        return torch.zeros(counted.shape, device=hidden.device).masked_scatter(counted, self.head(hidden.float()).squeeze(1))
