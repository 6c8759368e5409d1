"""Composite slots (KVCompose): slot k of a layer takes each head's k-th best entry."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvpolicies.errors import PolicyError


def slot_scores(ordered: Tensor, agg_head: str = "mean") -> Tensor:
    """Eq. 19: score of composite slot k from each head's k-th best; (heads, m) -> (m,)."""
    return ordered.amax(0) if agg_head == "max" else ordered.mean(0)


def raise_first(slots: Sequence[Tensor]) -> list[Tensor]:
    """Slots whose layer 0 scores as the best layer does at every place, as in kvpress: the total
    stays, and no layer takes more of it than layer 0."""
    first = slots[0].clone()
    for layer in slots[1:]:
        length = min(len(first), len(layer))
        first[:length] = torch.maximum(first[:length], layer[:length])
    return [first, *slots[1:]]


def slot_counts(slots: Sequence[Tensor], total: int, min_per_layer: int = 1) -> list[int]:
    """Eqs. 20-22: how many of each layer's slots are among the `total` best of all layers.

    `slots` are per layer, best first. Every layer first takes `min_per_layer`; ties go to the
    lower (layer, slot). Raises `PolicyError` when the total does not reach for that.
    """
    floors = [min(min_per_layer, len(layer)) for layer in slots]
    if total < sum(floors):
        raise PolicyError(
            f"a composite budget of {total} slots cannot give each of {len(slots)} layers "
            f"min_per_layer={min_per_layer}; raise the budget or set min_per_layer=0"
        )
    won = torch.bincount(slot_order(slots, min_per_layer)[:total], minlength=len(slots))
    return [int(count) for count in won]


def slot_order(slots: Sequence[Tensor], min_per_layer: int = 1) -> Tensor:
    """Whose slot is taken first, second, ... as a total grows; int64 layers, one per slot.

    Each layer's first `min_per_layer` come first, then all others by score.
    """
    lows = [min(min_per_layer, len(layer)) for layer in slots]
    numbers = torch.arange(len(slots), device=slots[0].device)
    owner = numbers.repeat_interleave(
        torch.tensor(
            [len(layer) - low for layer, low in zip(slots, lows, strict=True)],
            device=numbers.device,
        )
    )
    pool = torch.cat([layer[low:] for layer, low in zip(slots, lows, strict=True)])
    first = numbers.repeat_interleave(torch.tensor(lows, device=numbers.device))
    return torch.cat([first, owner[torch.sort(pool, descending=True, stable=True)[1]]])
