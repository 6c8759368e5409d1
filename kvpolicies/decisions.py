"""What was decided at one eviction: score, rank and reason of every entry."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from kvpolicies.candidates import Candidates


class Reason(IntEnum):
    """Why an entry was kept or not at one decision."""

    NONE = 0
    SINK = 1
    RECENT = 2
    SELECTED = 3
    EVICTED = 4
    NEVER_SCORED = 5

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True)
class Decision:
    """One eviction in one layer, over the entries cached just before it.

    `layer` counts the model's layers; step 0 is the end of prefill. keep: bool (heads, n); below
    `sink` a protected entry is a sink. The other arrays are those of the candidates: positions
    int64, scores float32 (NaN: not ranked), classes uint8, all (heads, n).
    """

    layer: int
    step: int
    candidates: Candidates
    keep: Tensor
    sink: int

    @property
    def positions(self) -> Tensor:
        return self.candidates.positions

    @property
    def scores(self) -> Tensor:
        return self.candidates.scores

    @property
    def classes(self) -> Tensor:
        return self.candidates.classes

    def gone(self) -> tuple[Tensor, Tensor]:
        """Heads and positions of the entries that left, each int64 (m,), on the CPU."""
        heads, columns = self.gone_columns()
        return heads.cpu(), self.positions[heads, columns].cpu()

    def gone_columns(self) -> tuple[Tensor, Tensor]:
        """Heads and columns of the entries that left; each int64 (m,)."""
        alive = self.candidates.alive
        gone = ~self.keep if alive is None else alive & ~self.keep
        heads, columns = gone.nonzero(as_tuple=True)
        return heads, columns

    def ranks_of(self, heads: Tensor, columns: Tensor) -> Tensor:
        """`ranks` of some entries, int64 (m,); counted instead of sorted where they are few."""
        if len(heads) > 4 * len(self.keep):
            return self.ranks[heads, columns]
        ranked = self.candidates.ranked
        rows = self.scores.masked_fill(~ranked, -math.inf)[heads]  # (m, n)
        own = self.scores[heads, columns][:, None]
        places = torch.arange(rows.shape[1], device=rows.device)
        better = (rows > own) | ((rows == own) & (places < columns[:, None]))
        return (better & ranked[heads]).sum(1).add_(1) * ranked[heads, columns]

    @property
    def ranks(self) -> Tensor:
        """1 for the best ranked entry of each head, 0 where an entry is not ranked."""
        ranked = (self.classes == 1) & ~self.scores.isnan()
        values = self.scores.masked_fill(~ranked, -math.inf)
        order = torch.sort(values, dim=1, descending=True, stable=True)[1]
        places = torch.arange(1, values.shape[1] + 1, device=order.device).expand_as(order)
        return torch.zeros_like(order).scatter_(1, order, places) * ranked

    @property
    def reasons(self) -> Tensor:
        """uint8 codes of `Reason`; (heads, n)."""
        reasons = torch.full_like(self.classes, Reason.EVICTED)
        reasons[self.keep] = Reason.SELECTED
        window = self.keep & (self.classes == 3)
        reasons[window] = Reason.RECENT
        reasons[window & (self.positions < self.sink)] = Reason.SINK
        reasons[self.keep & ((self.classes == 2) | (self.classes == 4))] = Reason.NEVER_SCORED
        reasons[self.classes == 0] = Reason.NONE
        return reasons
