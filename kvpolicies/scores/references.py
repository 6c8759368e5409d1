"""Scores that know the future: the strong references that every other row is read against."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvpolicies.scores.base import Score, score
from kvpolicies.view import View

HINT = "the oracle needs the rest of the capture: it exists in replay only"


@score
@dataclass(frozen=True)
class FutureAttention(Score):
    """Attention the entry will receive in the rest of the capture, under the full cache."""

    name = "future_attention"
    idea = "A strong reference: keep what the rest of the response will attend to."
    needs = ("queries", "future")

    def score(self, view: View) -> Tensor:
        future = view.need("future", HINT)  # (kv_heads, T, P + T)
        if view.step == 0:
            return future.double().sum(1).gather(1, view.entries.positions).float()
        remaining = view.entries.memory.get("remaining")
        if remaining is None:
            remaining = future.double().flip(1).cumsum(1).flip(1)
            view.entries.memory["remaining"] = remaining
        if view.step >= remaining.shape[1]:
            return torch.zeros_like(view.entries.positions, dtype=torch.float32)
        return remaining[:, view.step].gather(1, view.entries.positions).float()


@score
@dataclass(frozen=True)
class NextUse(Score):
    """Belady's rule: the sooner the next step with attention of at least α, the better."""

    name = "next_use"
    idea = "Belady's rule: evict what will be needed again last."
    needs = ("queries", "future")

    alpha: float | str = 5e-4

    def score(self, view: View) -> Tensor:
        future = view.need("future", HINT)
        steps = future.shape[1]
        nexts = view.entries.memory.get("next_use")
        if nexts is None:
            from kvpolicies.parameters import multiple_of_uniform

            alpha: float | Tensor
            numbers = torch.arange(1, steps + 1, device=future.device)
            if isinstance(self.alpha, str):
                seen = (view.prompt_length + numbers).float()
                alpha = (multiple_of_uniform(self.alpha) / seen)[None, :, None]
            else:
                alpha = self.alpha
            uses = torch.where(future >= alpha, numbers[None, :, None], steps + 1)
            nexts = uses.flip(1).cummin(1).values.flip(1)  # [t - 1]: first use at step t or later
            view.entries.memory["next_use"] = nexts
        if view.step >= steps:
            return torch.zeros_like(view.entries.positions, dtype=torch.float32)
        return -nexts[:, view.step].gather(1, view.entries.positions).float()
