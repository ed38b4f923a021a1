"""Keys and values while decoding: a prompt's exist once for its whole group, whatever the group's size.

A batch is a grid of lanes (prompts) × seats (completions). A decoding forward is one packed row of the live rows' newest
tokens through any body (see `bodies`), with `SharedCache.attend` as its attention. Which rows live is up to `decode`.

    L lanes · G seats · K key heads · g query heads of each · d head size · P prompt slots · T slots of written tokens · n live rows
"""

from __future__ import annotations

import torch
from torch import Tensor

from lab.forward.packing import PackedRow

SLOTS = 64  # slots for written tokens are added in this step


class SharedCache:
    """Keys and values of a grid of rows. Call `attend` as the attention of a forward over the live rows' newest tokens."""

    def __init__(self, seats: int, device: torch.device):
        self.device, self.seats = device, seats
        self.prompt_lengths: list[int] = []  # of each lane
        self.born: list[int] = []  # first slot that is a lane's own
        self.used = 0  # slots written
        self._live: Tensor | None = None  # (n,) grid places lane · G + seat of the rows in the forward; None: all
        self._heads = 0  # K
        self._prompt: list[list[Tensor]] = []  # per layer: keys and values (L·K, P, d)
        self._own: list[list[Tensor]] = []  # per layer: keys and values (L·K·G, T, d)
        self._mask: Tensor | None = None

    @property
    def lanes(self) -> int:
        return len(self.born)

    def admit(self, row: PackedRow, lengths: list[int], keys_values: list[tuple[Tensor, Tensor]]) -> None:
        """Add a lane for each prompt of a packed row of prompts, from that forward's keys and values (S, K, d) by layer."""
        width = max(lengths)
        ends = torch.tensor(lengths, device=self.device)
        slots = (ends.cumsum(0) - ends)[:, None] + torch.arange(width, device=self.device)
        slots = slots.clamp(max=len(row) - 1)  # beyond a prompt's end anything may lie: it is masked
        self._heads = keys_values[0][0].shape[1]
        for layer, pair in enumerate(keys_values):
            new = [attention_type(x)[slots].transpose(1, 2).flatten(0, 1) for x in pair]  # (L·K, width, d)
            own = [x.new_zeros(len(x) * self.seats, self._capacity(), x.shape[-1]) for x in new]
            if layer == len(self._prompt):
                self._prompt.append(new)
                self._own.append(own)
            else:
                self._prompt[layer] = [_stack(old, x) for old, x in zip(self._prompt[layer], new, strict=True)]
                self._own[layer] = [torch.cat([old, x]) for old, x in zip(self._own[layer], own, strict=True)]
        self.prompt_lengths += lengths
        self.born += [self.used] * len(lengths)

    def begin(self, live: Tensor) -> None:
        """Make room for one more token of the rows at the grid places `live` (n,)."""
        if self.used == self._capacity():
            for layer in self._own:
                layer[:] = [torch.nn.functional.pad(x, (0, 0, 0, SLOTS)) for x in layer]
        self._live = None if len(live) == self.lanes * self.seats else live
        self.used += 1
        self._mask = self._hidden_slots()

    def keep(self, places: Tensor) -> None:
        """Keep only the lanes and seats `places` (L', G'), indices lane · G + seat; slots older than every lane go too."""
        lanes = places[:, 0] // self.seats
        self.prompt_lengths = [self.prompt_lengths[lane] for lane in lanes.tolist()]
        self.born = [self.born[lane] for lane in lanes.tolist()]
        first = min(self.born)
        heads = torch.arange(self._heads, device=self.device)[:, None]
        by_lane = lanes[:, None, None] * self._heads + heads  # (L', K, 1)
        by_seat = (by_lane * self.seats + places[:, None] % self.seats).flatten()  # (L'·K·G')
        for prompt, own in zip(self._prompt, self._own, strict=True):
            prompt[:] = [x[by_lane.flatten()] for x in prompt]
            own[:] = [x[by_seat, first:] for x in own]
        self.born = [slot - first for slot in self.born]
        self.used -= first
        self.seats = places.shape[1]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """One new token per live row: (n, H, d), (n, K, d), (n, K, d) → (n, H, d). Writes the new keys and values."""
        lanes, seats, heads, size = self.lanes, self.seats, self._heads, key.shape[2]
        own_k, own_v = (self._write(own, new) for own, new in zip(self._own[layer], (key, value), strict=True))
        prompt_k, prompt_v = self._prompt[layer]

        # All lies as (L, K, G, g, d): to its prompt a lane's rows are one matrix, to themselves each is one of a batch.
        q = attention_type(self._on_grid(query)).view(lanes, seats, heads, -1, size).transpose(1, 2).contiguous()
        on_prompt = _scaled_product(q.view(lanes * heads, -1, size), prompt_k, scale)
        on_own = _scaled_product(q.view(lanes * heads * seats, -1, size), own_k, scale)
        scores = torch.cat([on_prompt.view(*on_own.shape[:2], -1), on_own], dim=-1)  # (L·K·G, g, P + T)
        if self._mask is not None:
            scores.view(lanes, -1, scores.shape[-1]).add_(self._mask)
        on_prompt, on_own = scores.softmax(-1).split([prompt_k.shape[1], self.used], dim=-1)
        out = torch.bmm(on_prompt.flatten(0, 1).unflatten(0, (lanes * heads, -1)), prompt_v).view(*on_own.shape[:2], size)
        out = torch.baddbmm(out, on_own, own_v).view_as(q).transpose(1, 2).reshape(lanes * seats, -1, size).to(query.dtype)
        return out if self._live is None else out[self._live]

    def _write(self, own: Tensor, new: Tensor) -> Tensor:
        """Put the rows' newest keys or values (n, K, d) into their slot; returns all that is written, (L·K·G, T, d)."""
        rows = self._on_grid(new).view(self.lanes, self.seats, self._heads, -1).transpose(1, 2)
        own[:, self.used - 1].view_as(rows).copy_(rows)
        return own[:, : self.used]

    def _on_grid(self, x: Tensor) -> Tensor:
        """(n, …) → (L·G, …), zeros where no row is live."""
        if self._live is None:
            return x
        return x.new_zeros(self.lanes * self.seats, *x.shape[1:]).index_copy_(0, self._live, x)

    def _capacity(self) -> int:
        return self._own[0][0].shape[1] if self._own else SLOTS

    def _hidden_slots(self) -> Tensor | None:
        """(L, 1, P + T) to add to scores: −inf past a prompt's end and before a lane was born. None if nothing is hidden."""
        width = self._prompt[0][0].shape[1]
        if min(self.prompt_lengths) == width and not any(self.born):
            return None
        past = torch.arange(width, device=self.device) >= torch.tensor(self.prompt_lengths, device=self.device)[:, None]
        unborn = torch.arange(self.used, device=self.device) < torch.tensor(self.born, device=self.device)[:, None]
        hidden = torch.cat([past, unborn], dim=1)
        mask = torch.zeros(hidden.shape, dtype=self._prompt[0][0].dtype, device=self.device).masked_fill(hidden, float("-inf"))
        return mask[:, None]


def attention_type(x: Tensor) -> Tensor:
    """The format in which few rows attend: on a CPU small products are faster in float32, and closer to the truth."""
    return x.float() if x.device.type == "cpu" else x


def _scaled_product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    return torch.baddbmm(a.new_empty(()), a, b.mT, beta=0.0, alpha=scale)


def _stack(old: Tensor, new: Tensor) -> Tensor:
    """Prompts (L·K, P, d) after each other, the narrower ones padded."""
    width = max(old.shape[1], new.shape[1])
    return torch.cat([torch.nn.functional.pad(x, (0, 0, 0, width - x.shape[1])) for x in (old, new)])
