"""KVCompose's view in numbers: composite slots, ranked over all layers, and what each layer keeps.

Slots are ordered once per choice of operators; a ratio then only says how many of them are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.errors import AnalysisError


@dataclass(frozen=True)
class Composed:
    """Composite slots of a context (KVCompose, Section 3).

    counts: int64 (layers,), N_ℓ, how many of its slots each layer keeps; slots: int32 (layers,
    kv_heads, context), original positions, each head's best first; slot_scores: float32 (layers,
    context), largest first; compression_ratio: what was asked for.
    """

    counts: np.ndarray
    slots: np.ndarray
    slot_scores: np.ndarray
    compression_ratio: float

    @property
    def context(self) -> int:
        return self.slots.shape[2]

    @property
    def realised_ratio(self) -> float:
        """Share of the entries that is really evicted."""
        return 1 - float(self.counts.sum()) / (len(self.counts) * max(1, self.context))

    def keep(self) -> np.ndarray:
        """Which context entries each head keeps; bool (layers, kv_heads, context)."""
        kept = np.arange(self.context) < self.counts[:, None, None]
        mask = np.zeros(self.slots.shape, bool)
        np.put_along_axis(mask, self.slots.astype(np.int64), np.broadcast_to(kept, mask.shape), -1)
        return mask


def compose(
    scores: Any,
    compression_ratio: float = 0.75,
    min_per_layer: int = 1,
    *,
    agg_head: str = "mean",
    head_mean: bool = True,
    match: str = "paper",
) -> Composed:
    """Composite tokens and layer budgets (KVCompose, Eqs. 16-22).

    scores: (layers, kv_heads, context), before the mean term of Eq. 16. The B_total =
    ⌊(1 − r)·L·N⌋ best slots over all layers are kept, each layer's first `min_per_layer` before
    all others. `match="kvpress"` raises layer 0's slot scores to the best layer's. Raises
    AnalysisError where the total does not reach for the floor.
    """
    ordered = compose_slots(scores, agg_head=agg_head, head_mean=head_mean)
    return at_ratio(ordered, compression_ratio, min_per_layer, match=match)


def compose_slots(scores: Any, *, agg_head: str = "mean", head_mean: bool = True) -> Composed:
    """The part of `compose` that no ratio changes: slots and their scores, with nothing evicted."""
    import torch

    from kvpolicies.scores.attention import with_head_mean
    from kvpolicies.slots import slot_scores

    values = torch.as_tensor(np.asarray(scores, np.float32))
    if head_mean:
        values = with_head_mean(values)
    ordered, slots = torch.sort(values, dim=-1, descending=True, stable=True)
    own = torch.stack([slot_scores(layer, agg_head) for layer in ordered])
    counts = np.full(values.shape[0], values.shape[2], np.int64)
    return Composed(counts, slots.to(torch.int32).numpy(), own.numpy(), 0.0)


def at_ratio(
    composed: Composed, compression_ratio: float, min_per_layer: int = 1, *, match: str = "paper"
) -> Composed:
    """The same slots at another ratio: what a slider asks for."""
    import torch

    from kvpolicies import PolicyError
    from kvpolicies.slots import raise_first, slot_counts

    if match not in ("paper", "kvpress"):
        raise AnalysisError(f"Layer 0 matches the paper or kvpress, not {match!r}.")
    layers, context = composed.slot_scores.shape
    total = budget_total(layers, context, compression_ratio)
    slots = list(torch.from_numpy(composed.slot_scores))
    if match == "kvpress":
        slots = raise_first(slots)
    try:
        counts = slot_counts(slots, total, min_per_layer)
    except PolicyError as error:
        raise AnalysisError(
            f"{total:,} composite slots cannot give each of {layers:,} layers at least "
            f"{min_per_layer} (min_per_layer); choose a smaller compression ratio or no least."
        ) from error
    taken = np.array(counts, np.int64)
    return Composed(taken, composed.slots, composed.slot_scores, compression_ratio)


def counts_over_ratios(
    composed: Composed, ratios: Sequence[float], min_per_layer: int = 1
) -> np.ndarray:
    """N_ℓ at every ratio; int64 (ratios, layers). Ratios too high for the floor keep the floor."""
    import torch

    from kvpolicies.slots import slot_order

    layers, context = composed.slot_scores.shape
    order = slot_order(list(torch.from_numpy(composed.slot_scores)), min_per_layer).numpy()
    totals = np.array([budget_total(layers, context, ratio) for ratio in ratios])
    totals = np.maximum(totals, layers * min(min_per_layer, context))
    counts = np.zeros((len(totals), layers), np.int64)
    for layer in range(layers):
        places = np.flatnonzero(order == layer)
        counts[:, layer] = np.searchsorted(places, totals)
    return counts


def budget_total(layers: int, context: int, compression_ratio: float) -> int:
    """B_total = ⌊(1 − r)·L·N⌋. Raises AnalysisError for a ratio outside 0 to 1."""
    if not 0 <= compression_ratio <= 1:
        raise AnalysisError(f"The compression ratio is {compression_ratio}; use 0 to 1.")
    return math.floor((1 - compression_ratio) * layers * context + 1e-9)


ALLOCATIONS = {
    "composite": "KVCompose",
    "uniform": "uniform",
    "pyramid": "pyramid",
    "head_adaptive": "head-adaptive",
    "global": "unstructured",
}


def allocated(
    scores: Any,
    compression_ratio: float,
    allocate: str,
    *,
    min_per_layer: int = 1,
    agg_head: str = "mean",
    beta: int = 20,
    alpha_floor: float = 0.2,
    head_mean: bool = True,
) -> np.ndarray:
    """Entries that each KV head keeps when the same scores and total are split another way.

    scores: (layers, kv_heads, context), before Eq. 16. allocate: a key of ALLOCATIONS. Returns
    int64 (layers, kv_heads); a pyramid's integer steps may overshoot the total by a few per cent.
    Raises AnalysisError for an allocation or total that cannot be.
    """
    import torch

    from kvpolicies import PolicyError
    from kvpolicies import allocations as kinds
    from kvpolicies.scores.attention import with_head_mean

    values = torch.as_tensor(np.asarray(scores, np.float32))
    layers, heads, context = values.shape
    total = budget_total(layers, context, compression_ratio)
    if allocate in ("composite", "uniform"):
        if allocate == "composite":
            made = compose(
                scores, compression_ratio, min_per_layer, agg_head=agg_head, head_mean=head_mean
            )
            counts = made.counts
        else:
            counts = np.full(layers, total // layers, np.int64)
            counts[: total % layers] += 1
        return np.repeat(counts[:, None], heads, axis=1)
    budget = total // layers
    if allocate == "pyramid":
        pyramid = kinds.Pyramid(beta)
        rows = [pyramid.layer_budget(budget, n, layers, context, 0) for n in range(layers)]
        return np.repeat(np.array(rows, np.int64)[:, None], heads, axis=1)
    if allocate not in ALLOCATIONS:
        raise AnalysisError(f"Budgets are split {', '.join(ALLOCATIONS)}, not {allocate!r}.")
    if head_mean:
        values = with_head_mean(values)
    unprotected = torch.zeros(heads, context, dtype=torch.bool)
    candidates = [kinds.Candidates(layer, unprotected) for layer in values]
    try:
        if allocate == "head_adaptive":
            adaptive = kinds.HeadAdaptive(alpha_floor)
            keeps = [adaptive.keep(layer, budget) for layer in candidates]
        else:
            keeps = kinds.Global().keep_all(candidates, [context] * layers, 1 - compression_ratio)
    except PolicyError as error:
        raise AnalysisError(error.sentence) from error
    return np.stack([keep.sum(1).numpy() for keep in keeps]).astype(np.int64)


def overlap(first: Composed, second: Composed) -> np.ndarray:
    """Share of entries that both keep, of those that either keeps; float64 (layers, kv_heads)."""
    one, other = first.keep(), second.keep()
    union = (one | other).sum(axis=-1)
    both = (one & other).sum(axis=-1)
    return np.where(union > 0, both / np.maximum(union, 1), 1.0)
