"""Further passes over a held prompt: LAQ's lookahead and the second reading of the context.

Both start from an `EvictingCache` made with `hold=True` and fed the prompt, and leave it as it was.
What they return is per model layer, empty for layers that no policy may touch: exactly what
`Trace` takes as `lookahead` and `second_reading`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvpolicies.cache import EvictingCache
from kvpolicies.errors import PolicyError
from kvpolicies.policy import Policy


def feed(model: PreTrainedModel, cache: EvictingCache, ids: Tensor) -> Tensor:
    """One forward of some tokens; the newest token's logits, float32 (vocabulary,)."""
    output = model(
        input_ids=ids,
        past_key_values=cache,
        use_cache=True,
        position_ids=torch.arange(cache.seen, cache.seen + ids.shape[1], device=ids.device)[None],
        logits_to_keep=1,
    )
    logits: Tensor = output.logits[0, -1].float()
    return logits


def look_ahead(
    model: PreTrainedModel,
    cache: EvictingCache,
    logits: Tensor,
    policy: Policy,
    steps: int,
    ends: set[int],
) -> tuple[list[int], list[Tensor]]:
    """LAQ's pseudo response: greedy tokens on a cache compressed by `policy`, which is dropped.

    `logits` are the prefill's. Stops before an end token, after one forward at least. Returns
    the tokens and, per model layer, their queries (query_heads, n, d).
    """
    if {"lookahead", "second_reading"} & set(policy.needs):
        raise PolicyError(f"{policy.title} cannot be a lookahead policy: it needs a further pass")
    scratch = cache.fork()
    scratch.adopt(policy)
    scratch.compress()
    _log(scratch)
    tokens: list[int] = []
    token = int(logits.argmax())
    while len(tokens) < steps:
        tokens.append(token)
        logits = feed(model, scratch, torch.tensor([[token]], device=model.device))
        ended, token = token in ends, int(logits.argmax())
        if ended or token in ends:
            break
    return tokens, _logged(scratch)


def read_again(
    model: PreTrainedModel,
    cache: EvictingCache,
    context: Tensor,
    *,
    chunk_length: int | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Feed the context (1, C) once more, right after what the cache has seen.

    `chunk_length` tokens go through the model at once (default: all of them). Returns, per model
    layer, queries (query_heads, C, d) and keys (kv_heads, C, d) of the copy.
    """
    scratch = cache.fork()
    _log(scratch)
    for part in context.split(chunk_length or context.shape[1], dim=1):
        feed(model, scratch, part)
    length = context.shape[1]
    keys = [torch.empty(0) for _ in scratch.layers]
    for layer in scratch.own_layers:
        assert layer.entries is not None
        keys[layer.index] = layer.entries.keys[:, -length:]
    return _logged(scratch), keys


def _log(cache: EvictingCache) -> None:
    for layer in cache.own_layers:
        layer.log = []


def _logged(cache: EvictingCache) -> list[Tensor]:
    queries = [torch.empty(0) for _ in cache.layers]
    for layer in cache.own_layers:
        queries[layer.index] = torch.cat(layer.log or [], 1)
    return queries
