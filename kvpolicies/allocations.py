"""How a budget is split over layers and heads: scores in, keep masks out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from kvpolicies.candidates import Candidates, keep_best, top_marked
from kvpolicies.errors import PolicyError
from kvpolicies.slots import raise_first, slot_counts, slot_scores


class Allocation:
    """Splits a layer's budget over its heads, or (`over_layers`) a model's over its layers."""

    name: ClassVar[str]
    idea: ClassVar[str]
    structured: ClassVar[bool] = True  # heads of a layer keep equally many
    over_layers: ClassVar[bool] = False

    def layer_budget(self, budget: int, layer: int, layers: int, length: int, windows: int) -> int:
        """The budget of one layer, windows included."""
        return budget

    def keep(self, candidates: Candidates, budget: int) -> Tensor:
        """The keep mask of one layer; bool (heads, n)."""
        return keep_best(candidates, budget)

    def keep_all(
        self, candidates: Sequence[Candidates], budgets: Sequence[int], share: float | None
    ) -> list[Tensor]:
        """The keep masks of all layers, drawn up together."""
        raise NotImplementedError


ALLOCATIONS: dict[str, type[Allocation]] = {}


def allocation(kind: type[Allocation]) -> type[Allocation]:
    """Class decorator: make an allocation known under its name."""
    ALLOCATIONS[kind.name] = kind
    return kind


@allocation
@dataclass(frozen=True)
class Uniform(Allocation):
    """The same number everywhere."""

    name = "uniform"
    idea = "Every layer and KV head keeps equally many entries."


@allocation
@dataclass(frozen=True)
class Pyramid(Allocation):
    """PyramidKV: lower layers keep more, in integer steps (docs/methods.md, section 3)."""

    name = "pyramid"
    idea = "Attention narrows with depth, so lower layers keep more entries than higher ones."

    beta: int = 20

    def layer_budget(self, budget: int, layer: int, layers: int, length: int, windows: int) -> int:
        c = budget - windows
        if layers == 1 or length < 2 * c:
            return budget
        low = c // self.beta
        high = 2 * c - low
        if high > length - windows:
            high = length - windows
            low = 2 * c - high
        step = (high - low) // (layers - 1)
        return high - layer * step + windows


@allocation
@dataclass(frozen=True)
class HeadAdaptive(Allocation):
    """Ada-KV: heads share their layer's total by its top scores, with a guaranteed floor."""

    name = "head_adaptive"
    idea = "Heads whose entries score high among all of the layer get more of its budget."
    structured = False

    alpha_floor: float = 0.2
    floor: str = "count"

    def keep(self, candidates: Candidates, budget: int) -> Tensor:
        if self.floor == "pin":
            return self._pinned(candidates, budget)
        windows = candidates.first(budget)  # (heads,)
        ranked = candidates.ranked
        total = int((budget - windows).clamp(min=0).sum())
        if total >= int(ranked.sum()):
            return keep_best(candidates, windows + ranked.sum(1))
        wins = _top_of_layer(candidates.scores, ranked, total).sum(1).tolist()
        ordered = [
            torch.sort(row[there], descending=True)[0]
            for row, there in zip(candidates.scores, ranked, strict=True)
        ]
        base = math.floor(self.alpha_floor * total / len(wins) + 1e-9)
        shares = [count * (1 - self.alpha_floor) + base for count in wins]
        counts = apportion(shares, ordered, total)
        return keep_best(candidates, windows + torch.tensor(counts, device=windows.device))

    def _pinned(self, candidates: Candidates, budget: int) -> Tensor:
        """As kvpress: pin each head's top, prune the rest globally."""
        classes = candidates.classes
        counted = (classes > 0) & (classes < 4)
        total = min(budget * len(classes), int(counted.sum()))
        pin = max(math.floor(self.alpha_floor * budget + 1e-9), 0)
        counts = candidates.first(budget).clamp(min=pin)
        pinned = counted & keep_best(candidates, counts)
        room = max(0, total - int(pinned.sum()))
        return pinned | _top_of_layer(candidates.scores, counted & ~pinned, room) | (classes == 4)


def _top_of_layer(scores: Tensor, among: Tensor, count: int) -> Tensor:
    """The `count` highest scores among the marked entries of all heads; bool like `scores`.

    Ties go to the lower position, then to the lower head.
    """
    flat, marked = (part.T.reshape(1, -1) for part in (scores, among))
    wanted = torch.tensor([count], device=scores.device)
    return top_marked(flat, marked, wanted).view(scores.shape[1], scores.shape[0]).T


def apportion(
    shares: Sequence[float], ordered: Sequence[Sequence[float] | Tensor], total: int
) -> list[int]:
    """Whole numbers near `shares` that sum to `total`, by largest remainders.

    `ordered` are each head's ranked scores, best first: no head gets more than it ranks, and of
    two heads with equal remainders the one whose next entry scores higher gets it.
    """
    counts = [
        min(math.floor(share + 1e-9), len(scores))
        for share, scores in zip(shares, ordered, strict=True)
    ]

    def claim(head: int, step: int) -> tuple[float, float, int]:
        count = counts[head]
        remainder = round(step * (shares[head] - count), 9)
        following = ordered[head][count] if step > 0 else -ordered[head][count - 1]
        return remainder, float(following), -head

    while sum(counts) != total:
        step = 1 if sum(counts) < total else -1
        able = [
            head
            for head, count in enumerate(counts)
            if (count < len(ordered[head]) if step > 0 else count > 0)
        ]
        if not able:
            break
        counts[max(able, key=lambda head: claim(head, step))] += step
    return counts


@allocation
@dataclass(frozen=True)
class Composite(Allocation):
    """KVCompose: composite slots ranked over all layers, equally many in every head of a layer."""

    name = "composite"
    idea = "Rank composite slots (every head's k-th best) over all layers and keep the best."
    over_layers = True

    agg_head: str = "mean"
    min_per_layer: int = 1
    match: str = "paper"

    def keep_all(
        self, candidates: Sequence[Candidates], budgets: Sequence[int], share: float | None
    ) -> list[Tensor]:
        windows, slots = [], []
        for layer, budget in zip(candidates, budgets, strict=True):
            windows.append(int(layer.first(budget).max()))
            slots.append(slot_scores(_ranked_sorted(layer), self.agg_head))
        entries = sum(int(layer.counted().max()) for layer in candidates)
        total = sum(budgets) if share is None else math.floor(share * entries + 1e-9)
        total = max(0, min(total, entries) - sum(windows))
        if self.match == "kvpress":
            slots = raise_first(slots)
        counts = slot_counts(slots, total, self.min_per_layer)
        return [
            keep_best(layer, window + count)
            for layer, window, count in zip(candidates, windows, counts, strict=True)
        ]


def _ranked_sorted(layer: Candidates) -> Tensor:
    """Each head's ranked scores, best first, cut to the head that ranks fewest; (heads, m)."""
    shortest = int(layer.ranked.sum(1).min())
    scores = layer.scores.masked_fill(~layer.ranked, -math.inf)
    return torch.sort(scores, dim=1, descending=True)[0][:, :shortest]


@allocation
@dataclass(frozen=True)
class Global(Allocation):
    """Unstructured: one ranking over layers, heads and tokens."""

    name = "global"
    idea = "One ranking over all layers, heads and tokens; heads keep different numbers."
    structured = False
    over_layers = True

    def keep_all(
        self, candidates: Sequence[Candidates], budgets: Sequence[int], share: float | None
    ) -> list[Tensor]:
        first = [layer.first(budget) for layer, budget in zip(candidates, budgets, strict=True)]
        kept = [keep_best(layer, counts) for layer, counts in zip(candidates, first, strict=True)]
        counted = sum(int(layer.counted().sum()) for layer in candidates)
        heads = len(first[0])
        total = sum(budgets) * heads if share is None else math.floor(share * counted + 1e-9)
        room = total - sum(int(counts.sum()) for counts in first)
        flat, marked = (
            torch.cat([part.flatten() for part in parts])[None]
            for parts in (
                [layer.scores for layer in candidates],
                [layer.ranked for layer in candidates],
            )
        )
        best = top_marked(flat, marked, torch.tensor([room], device=flat.device))[0]
        sizes = [layer.scores.numel() for layer in candidates]
        for keep, part in zip(kept, best.split(sizes), strict=True):
            keep |= part.view_as(keep)
        return kept


@allocation
@dataclass(frozen=True)
class PerHead(Allocation):
    """DuoAttention: streaming heads keep their windows, the others everything."""

    name = "per_head"
    idea = "Only some heads retrieve from afar; the others need their sinks and recent entries."
    structured = False
    over_layers = True

    streaming: float = 0.5
    head_pattern: Any = None

    def pattern(self, layer: int, heads: int) -> tuple[Tensor | None, Tensor | None]:
        """Which heads of one of the model's layers stream, or the weights that rank them.

        A nested list of true and false says which (layers, heads) stream. A file (.npy, or text
        as DuoAttention publishes it) holds retrieval weights: the heads with the least stream.
        Raises `PolicyError` where either does not fit the model.
        """
        given = self.head_pattern
        if given is None:
            return None, None
        try:
            matrix = np.asarray(_read_matrix(given) if isinstance(given, str) else given)
            row = torch.as_tensor(matrix[layer])
        except (OSError, ValueError, IndexError, TypeError) as error:
            raise PolicyError(f"head_pattern cannot be read for layer {layer}: {error}") from error
        if row.shape != (heads,):
            raise PolicyError(
                f"head_pattern has {tuple(row.shape)} entries in layer {layer}, but the model has "
                f"{heads} KV heads"
            )
        return (row, None) if row.dtype == torch.bool else (None, row.float())


def _read_matrix(path: str) -> np.ndarray:
    matrix: np.ndarray = (
        np.load(path, allow_pickle=False) if path.endswith(".npy") else np.loadtxt(path, ndmin=2)
    )
    return matrix
