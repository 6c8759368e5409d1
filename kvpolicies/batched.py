"""Several evicting caches that stand at the same position, fed in one forward of the model.

Projections and feed-forward layers see one batch; attention and eviction go cache by cache, through
the very code that runs a single one, so that every policy may be among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from kvpolicies.attention import steer
from kvpolicies.cache import EvictingCache
from kvpolicies.cache_layer import EvictingLayer
from kvpolicies.errors import PolicyError


def batchable(cache: EvictingCache) -> bool:
    """Whether all layers are ours: those with sliding windows keep transformers' own caches."""
    return len(cache.own_layers) == len(cache.layers)


def feed_together(
    model: PreTrainedModel, caches: Sequence[EvictingCache], tokens: Sequence[int]
) -> Tensor:
    """One token into each cache; float32 (caches, vocabulary). Raises `PolicyError` where the
    caches have seen different numbers of tokens."""
    seen = {cache.seen for cache in caches}
    if len(seen) != 1 or not all(map(batchable, caches)):
        raise PolicyError(
            "caches can be fed together only at one position and without sliding windows"
        )
    ids = torch.tensor(tokens, device=model.device)[:, None]
    output = model(
        input_ids=ids,
        past_key_values=_Together(caches),
        use_cache=True,
        position_ids=torch.full_like(ids, seen.pop()),
        logits_to_keep=1,
    )
    logits: Tensor = output.logits[:, -1].float()
    return logits


class _Together(Cache):
    def __init__(self, caches: Sequence[EvictingCache]) -> None:
        for cache in caches:
            cache.check_model()
        layers: list[Any] = [
            _LayersTogether(index, [cache.own_layers[index] for cache in caches])
            for index in range(len(caches[0].layers))
        ]
        super().__init__(layers=layers)


class _LayersTogether(DynamicLayer):
    """One layer of all caches: row b of the batch belongs to the b-th of them."""

    is_croppable = False

    def __init__(self, index: int, members: list[EvictingLayer]) -> None:
        super().__init__()
        self.index, self.members = index, members
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        steer(self.index, self.attend)
        return key_states, value_states

    def get_seq_length(self) -> int:
        return self.members[0].seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, self.members[0].seen  # each member makes its own mask

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        scaling: float,
        softcap: float | None,
        compute: Callable[..., Tensor],
    ) -> Tensor:
        rows = (slice(row, row + 1) for row in range(len(self.members)))
        outputs = [
            member.attend(
                query[row],
                key[row],
                value[row],
                None,
                scaling=scaling,
                softcap=softcap,
                compute=compute,
            )
            for member, row in zip(self.members, rows, strict=True)
        ]
        return torch.cat(outputs)
