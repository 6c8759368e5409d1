"""What a policy kept of a run, when, and why: what a replay and a live run both leave."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvpolicies.decisions import Decision, Reason

if TYPE_CHECKING:
    from kvpolicies.policy import Policy


class Explanations:
    """Score, rank and reason of each entry at the last eviction that considered it.

    An entry that an eviction keeps without ranking it keeps its earlier explanation.
    """

    def __init__(self, shape: torch.Size) -> None:
        self._arrays = (
            torch.full(shape, math.nan),
            torch.zeros(shape, dtype=torch.int32),
            torch.full(shape, Reason.NONE, dtype=torch.uint8),
        )
        self._last: dict[int, Decision] = {}  # by layer

    def add(self, decision: Decision) -> None:
        """Take note of a layer's next eviction.

        It explains anew what the one before it kept, so of that only what left is written down.
        """
        before = self._last.get(decision.layer)
        if before is not None:
            if bool(decision.scores.isnan().any()):
                self._write_all(before)
            else:
                self._write_gone(before)
        self._last[decision.layer] = decision

    def arrays(self) -> tuple[Tensor, Tensor, Tensor]:
        """Scores (NaN: not ranked), ranks and reason codes; each (layers, heads, P + T)."""
        with torch.inference_mode():  # as during the replay, which began these arrays
            for decision in self._last.values():
                self._write_all(decision)
        self._last = {}
        return self._arrays

    def _write_all(self, decision: Decision) -> None:
        there = decision.classes > 0
        unranked = decision.keep & (decision.classes == 2)
        if bool(unranked.any()):
            before = self._arrays[2][decision.layer].gather(1, decision.positions.cpu())
            there = there & ~(unranked & (before.to(there.device) != Reason.NONE))
        heads, columns = there.nonzero(as_tuple=True)
        parts = (decision.scores, decision.ranks, decision.reasons)
        self._write(decision, heads, columns, *(part[heads, columns] for part in parts))

    def _write_gone(self, decision: Decision) -> None:
        heads, columns = decision.gone_columns()
        ranks = decision.ranks_of(heads, columns)
        reasons = torch.full_like(ranks, Reason.EVICTED)
        self._write(decision, heads, columns, decision.scores[heads, columns], ranks, reasons)

    def _write(
        self, decision: Decision, heads: Tensor, columns: Tensor, *explanation: Tensor
    ) -> None:
        place = (decision.layer, heads.cpu(), decision.positions[heads, columns].cpu())
        for array, part in zip(self._arrays, explanation, strict=True):
            array[place] = part.cpu().to(array.dtype)


@dataclass
class Result:
    """What a policy kept of a run, and why (`policy` is None for masks of another tool).

    evicted_at: int32 (layers, heads, P + T), the step after which an entry is gone: 0 at the end
    of prefill, T + 1 if never. Heads are KV heads, or query heads for
    `granularity="query_head"`. exempt: bool (layers,), layers that the policy does not touch
    because a sliding window rules there. `decisions` are all evictions in order of layer and step,
    unless `detail` is off.
    `visible` is None, or bool (layers, query_heads, T + 1, P + T) where the query heads of one KV
    head attend to different entries: [.., t, :] is what the query of step t attends to, its own
    entry included; [.., 0, :] what the end of prefill leaves it.
    """

    policy: Policy | None
    evicted_at: Tensor
    exempt: Tensor
    decisions: list[Decision]
    budget: int | None
    prompt_length: int
    visible: Tensor | None = None
    label: str = ""
    detail: bool = True

    @property
    def title(self) -> str:
        """What to call it: the policy with its budget, or the label of masks from elsewhere."""
        return self.label or str(self.policy)

    @property
    def response_length(self) -> int:
        return self.evicted_at.shape[2] - self.prompt_length

    def record(self, decision: Decision | None) -> None:
        """Write down one eviction."""
        if decision is None:
            return
        heads, positions = decision.gone()
        self.evicted_at[decision.layer, heads, positions] = decision.step
        if self.detail:
            self.decisions.append(decision)
        else:
            self._explained.add(decision)

    def kept_after(self, step: int) -> Tensor:
        """What is cached after one step; bool (layers, heads, P + T)."""
        positions = torch.arange(self.evicted_at.shape[2])
        return (self.evicted_at > step) & (positions < self.prompt_length + step)

    @cached_property
    def keep(self) -> Tensor:
        """What is cached after each step; bool (layers, heads, T + 1, P + T)."""
        steps = range(self.response_length + 1)
        return torch.stack([self.kept_after(step) for step in steps], 2)

    def counts(self, step: int | None = None) -> Tensor:
        """Entries cached after one step (default: the last); int64 (layers, heads)."""
        return self.kept_after(self.response_length if step is None else step).sum(2)

    @property
    def realised_budget(self) -> float:
        """Mean entries per layer and head after the first eviction (the last step, if none)."""
        touched = self.evicted_at[~self.exempt]
        if not touched.numel():
            return float(self.evicted_at.shape[2])
        first = min(int(touched.min()), self.response_length)
        return float(self.counts(first)[~self.exempt].float().mean())

    def decision(self, layer: int, step: int) -> Decision | None:
        """The eviction of one layer after one step, if there was one."""
        for decision in self.decisions:
            if decision.layer == layer and decision.step == step:
                return decision
        return None

    @cached_property
    def _explained(self) -> Explanations:
        explained = Explanations(self.evicted_at.shape)
        for decision in self.decisions:
            explained.add(decision)
        return explained

    @property
    def scores(self) -> Tensor:
        """Each entry's score at the last eviction that considered it; NaN if not ranked."""
        return self._explained.arrays()[0]

    @property
    def ranks(self) -> Tensor:
        """Its rank there, 1 the best; 0 if not ranked. int32 (layers, heads, P + T)."""
        return self._explained.arrays()[1]

    @property
    def reasons(self) -> Tensor:
        """Codes of `kvpolicies.decisions.Reason` there; uint8 (layers, heads, P + T)."""
        return self._explained.arrays()[2]
