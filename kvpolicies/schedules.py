"""When a policy evicts, and the three rules that choose within the schedule itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kvpolicies.candidates import top_marked
from kvpolicies.errors import PolicyError


class Schedule:
    """`at_prefill`: evicts once the prompt is cached. `due` says whether it evicts after a forward
    of generated (or follow-up) tokens, steps `first` to `last`."""

    name: ClassVar[str]
    idea: ClassVar[str]
    at_prefill: ClassVar[bool] = True
    decodes: ClassVar[bool] = False  # acts after the prompt as well

    def due(self, first: int, last: int) -> bool:
        return False


SCHEDULES: dict[str, type[Schedule]] = {}


def schedule(kind: type[Schedule]) -> type[Schedule]:
    """Class decorator: make a schedule known under its name."""
    SCHEDULES[kind.name] = kind
    return kind


@schedule
@dataclass(frozen=True)
class AfterPrefill(Schedule):
    """Once, when the prompt is cached; the cache grows while decoding."""

    name = "after_prefill"
    idea = "Compress the prompt once, then keep every new entry."


@schedule
@dataclass(frozen=True)
class EveryStep(Schedule):
    """At the end of prefill and after every generated token."""

    name = "every_step"
    idea = "Hold the cache at its budget after every token."
    decodes = True

    def due(self, first: int, last: int) -> bool:
        return True


@schedule
@dataclass(frozen=True)
class Every(Schedule):
    """After each `interval`-th step, never at prefill; the cache may reach B + W in between."""

    name = "every"
    idea = "Let the cache grow for W steps, then cut it back to its budget."
    at_prefill = False
    decodes = True

    interval: int = 25

    def due(self, first: int, last: int) -> bool:
        return last // self.interval > max(0, first - 1) // self.interval


@schedule
@dataclass(frozen=True)
class PerPartition(Schedule):
    """LagKV's recursion: a complete partition is compressed once the next one is complete."""

    name = "per_partition"
    idea = "Compress each partition once, as soon as the one after it is complete."
    decodes = True

    lag: int = 128
    keep_ratio: float | None = None
    once: bool = False

    def due(self, first: int, last: int) -> bool:
        return not self.once  # whether a partition became complete is asked of the run

    def partitions(self, seen: int, sink: int) -> int:
        """How many complete partitions there are."""
        return max(0, seen - sink) // self.lag

    def kept_per_partition(self, length: int, sink: int, budget: int | None) -> int:
        """⌊rL⌋: from `keep_ratio`, or the most whose length (Eq. 10) does not exceed the budget.

        Raises `PolicyError` with the attainable range when no r reaches the budget.
        """
        if budget is None:
            ratio = 0.25 if self.keep_ratio is None else self.keep_ratio
            return math.floor(ratio * self.lag + 1e-9)
        shortest = lag_length(length, sink, self.lag, 0)
        if budget < shortest:
            raise PolicyError(
                f"budget {budget} cannot be reached over {length} entries with {sink} sinks and "
                f"partitions of {self.lag}: the attainable range is {shortest} to {length}"
            )
        compressed = self.partitions(length, sink) - 1
        if compressed < 1:
            return self.lag
        return min(self.lag, (budget - shortest) // compressed)

    def keep(self, scores: Tensor, kept: int, first: int) -> Tensor:
        """Top `kept` of each ranked partition, everything else; bool like `scores` (heads, n).

        Ranked partitions are those with scores, the first one starting at column `first`.
        """
        heads, length = scores.shape
        count = (length - first) // self.lag - 1
        keep = torch.ones_like(scores, dtype=torch.bool)
        if count < 1:
            return keep
        ranked = slice(first, first + count * self.lag)
        parts = scores[:, ranked].reshape(heads, count, self.lag)
        rows = parts.flatten(0, 1)
        wanted = torch.tensor([kept], device=rows.device)
        best = top_marked(rows, torch.ones_like(rows, dtype=torch.bool), wanted)
        keep[:, ranked] = best.view(heads, -1)
        return keep


def lag_length(length: int, sink: int, lag: int, kept: int) -> int:
    """Cache length after LagKV's recursion over `length` entries (Eq. 10, bracket corrected)."""
    if length < sink + 2 * lag:
        return length
    partitions = (length - sink) // lag
    return sink + kept * (partitions - 1) + lag + (length - sink) % lag


@schedule
@dataclass(frozen=True)
class Sliding(Schedule):
    """SAGE-KV: one selection after prefill; afterwards the recent window slides."""

    name = "after_prefill_sliding"
    idea = "Select once with the last prompt token, then let only the recent window move."
    decodes = True

    view: str = "query_head"

    def due(self, first: int, last: int) -> bool:
        return True


def sage_partition(budget: int, group: int) -> tuple[int, int, int]:
    """SAGE-KV's sinks S = B/4, picks per query head k and recent window R from a budget.

    k = B / (2G) rounded down to a power of two (0 below 1), R = B − S − G·k.
    """
    sink = budget // 4
    share = budget / (2 * group)
    picks = 2 ** math.floor(math.log2(share)) if share >= 1 else 0
    return sink, picks, budget - sink - group * picks


def sage_picks(rows: torch.Tensor, sink: int, recent: int, picks: int) -> torch.Tensor:
    """The entries that each query head takes for itself between sinks and recent window.

    rows: attention of the last prompt token, (query_heads, P); ties go to the lower position.
    Returns bool (query_heads, P).
    """
    between = slice(sink, rows.shape[1] - 1 - recent)
    best = torch.sort(rows[:, between], dim=1, descending=True, stable=True)[1][:, :picks]
    picked = torch.zeros_like(rows, dtype=torch.bool)
    picked[:, between] = picked[:, between].scatter(1, best, True)
    return picked


@schedule
@dataclass(frozen=True)
class Select(Schedule):
    """Nothing is evicted; each step attends to a chosen subset."""

    name = "select"
    idea = "Keep everything and read a part of it at each step."
    at_prefill = False
