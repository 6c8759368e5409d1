"""The one attention function that KVScope registers with transformers, and the one definition of
an attention row.

transformers hands every registered attention function the queries, keys and values after rotary
embedding, for each architecture that uses its attention interface. Ours computes the output with
transformers' own SDPA path and lets an observer look at the states, so nothing is slowed down and
no N x N matrix is ever held. Only a single query whose weights the observer asks for is computed
explicitly, and once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "kvscope"
BLOCK_CELLS = 1 << 20  # attention weights computed at once: 4 MB of float32 stay in the cache


class Observer(Protocol):
    """Sees one layer's attention call: states are (1, heads, tokens, head_dim), after rotary.

    `plain` says that the call is one float32 query over all its keys and nothing else. Its weights
    need not be computed twice: what the observer then returns, float32 (query heads, keys), is
    filled with them.
    """

    def __call__(
        self,
        layer: int,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float,
        softcap: float | None,
        sliding_window: int | None,
        plain: bool,
    ) -> torch.Tensor | None: ...


class UnsupportedAttention(ValueError):
    """The model's attention has a term that attention rows do not describe."""


class Steering(Protocol):
    """Takes over one attention call of one layer; `compute(query, key, value, mask)` is the
    model's own attention over whatever keys and values it is given."""

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        *,
        scaling: float,
        softcap: float | None,
        compute: Callable[..., torch.Tensor],
    ) -> torch.Tensor: ...


_observer: ContextVar[Observer | None] = ContextVar("kvscope_observer", default=None)
_steering: ContextVar[tuple[int, Steering] | None] = ContextVar("kvscope_steering", default=None)


def register() -> None:
    """Make `attn_implementation="kvscope"` known to transformers. Repeating it changes nothing."""
    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def use_our_attention(model: PreTrainedModel) -> None:
    """Switch `model` to our attention for good; without an observer or an evicting cache it
    computes what SDPA does. Raises `UnsupportedAttention` where it computes attention itself."""
    register()
    model.set_attn_implementation(ATTENTION)
    if model.config._attn_implementation != ATTENTION:
        raise UnsupportedAttention(
            f"{type(model).__name__} computes attention itself instead of through transformers' "
            "attention interface, so its states cannot be observed"
        )


def steer(layer: int, steering: Steering) -> None:
    """Hand the next attention call of `layer` to `steering`; a cache does so in its update."""
    _steering.set((layer, steering))


@contextmanager
def observing(model: PreTrainedModel, observer: Observer) -> Iterator[None]:
    """Run `model` through our attention function and show every layer's states to `observer`.

    The model's own attention implementation is restored on leaving. Raises `UnsupportedAttention`
    when the architecture does not use transformers' attention interface.
    """
    before = model.config._attn_implementation
    use_our_attention(model)
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)
        _steering.set(None)  # an observer that raised left a cache's claim on the next call
        model.set_attn_implementation(before)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    for term, meaning in (("s_aux", "learned attention sinks"), ("position_bias", "position bias")):
        if kwargs.get(term) is not None:
            raise UnsupportedAttention(
                f"{type(module).__name__} adds {meaning} to its attention, which attention rows "
                "over the cached tokens do not describe"
            )
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    softcap = kwargs.pop("softcap", None)
    sliding_window = kwargs.get("sliding_window")
    observer, steering = _observer.get(), _steering.get()
    if observer is not None:
        more = (attention_mask, softcap, sliding_window, steering)
        plain = query.shape[0] == query.shape[2] == 1 and all(term is None for term in more)
        plain = plain and query.dtype == torch.float32 and not dropout
        weights = observer(
            _layer_index(module),
            module,
            query,
            key,
            value,
            scaling=scaling,
            softcap=softcap,
            sliding_window=sliding_window,
            plain=plain,
        )
        if plain and weights is not None:
            return _one_query(query, key, value, scaling, weights), None

    def compute(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        if softcap is not None:  # SDPA has no soft-capping
            return _softcapped(query, key, value, mask, scaling, softcap)
        if key.shape[1] == query.shape[1]:  # keys already repeated, one per query head
            output = torch.nn.functional.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=mask,
                dropout_p=dropout,
                scale=scaling,
                is_causal=mask is None and query.shape[2] > 1,
            )
            return output.transpose(1, 2).contiguous()
        output, _ = sdpa_attention_forward(
            module, query, key, value, mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return output

    if steering is not None:
        _steering.set(None)
        if steering[0] == _layer_index(module):
            output = steering[1](
                query,
                key,
                value,
                attention_mask,
                scaling=scaling,
                softcap=softcap,
                compute=compute,
            )
            return output, None
    if softcap is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    return compute(query, key, value, attention_mask), None


def _layer_index(module: torch.nn.Module) -> int:
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise UnsupportedAttention(
            f"{type(module).__name__} does not say which layer it belongs to (no layer_idx)"
        )
    return layer


def _one_query(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Explicit attention of one query, (1, H, 1, d) -> (1, 1, H, d); its weights go into
    `weights` (H, n)."""
    rows = scaled_logits(query[0], key[0], scaling)  # (H, 1, n)
    torch.softmax(rows, -1, out=rows)
    weights.copy_(rows[:, 0])
    output = rows.view(key.shape[1], -1, key.shape[2]) @ value[0]
    return output.view(1, 1, query.shape[1], value.shape[-1])


def _softcapped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    softcap: float,
) -> torch.Tensor:
    """Explicit attention in blocks of queries; (1, H, q, d) -> (1, q, H, d)."""
    heads, q_length, kv_length = query.shape[1], query.shape[2], key.shape[2]
    group = heads // key.shape[1]
    keys = key.repeat_interleave(group, dim=1).transpose(2, 3)
    values = value.repeat_interleave(group, dim=1)
    output = query.new_empty((query.shape[0], heads, q_length, value.shape[-1]))
    block = max(1, BLOCK_CELLS // (heads * kv_length))
    columns = torch.arange(kv_length, device=query.device)
    for start in range(0, q_length, block):
        rows = slice(start, min(start + block, q_length))
        logits = softcap * torch.tanh(query[:, :, rows] @ keys * (scaling / softcap))
        if mask is not None:
            visible = mask[:, :, rows, :kv_length]
        else:
            last = torch.arange(rows.start, rows.stop, device=query.device) + kv_length - q_length
            visible = columns <= last[:, None]
        if visible.dtype == torch.bool:
            logits = logits.masked_fill(~visible, -math.inf)
        else:
            logits = logits + visible
        weights = logits.softmax(-1, dtype=torch.float32).to(query.dtype)
        output[:, :, rows] = weights @ values
    return output.transpose(1, 2).contiguous()


class LayerStates(NamedTuple):
    """What attention rows of one layer are computed from.

    queries: (query_heads, m, d) of consecutive positions; keys: (kv_heads, n, d) of positions
    0 ... n-1, both after rotary embedding. A subset of heads is passed as a subset of both.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    scaling: float
    softcap: float | None = None
    sliding_window: int | None = None


def attention_rows(
    queries: torch.Tensor,
    keys: torch.Tensor,
    positions: torch.Tensor,
    *,
    scaling: float,
    softcap: float | None = None,
    sliding_window: int | None = None,
) -> torch.Tensor:
    """Attention of some queries over all keys, as the model's own softmax gives it.

    queries: (H, m, d), keys: (G, n, d) with G dividing H, positions: (m,) absolute positions of
    the queries. Returns float32 (H, m, n): rows sum to 1, invisible keys (later than the query, or
    `sliding_window` or more positions before it) are 0.
    """
    length = keys.shape[1]
    logits = scaled_logits(queries, keys, scaling, softcap)
    rows = positions.to(keys.device)[:, None]
    if sliding_window is None:  # only keys after the first of the queries can be hidden
        first = min(int(positions.min()) + 1, length)
        later = torch.arange(first, length, device=keys.device) > rows  # (m, n - first)
        logits[:, :, first:].masked_fill_(later, -math.inf)
    else:
        columns = torch.arange(length, device=keys.device)
        hidden = (columns > rows) | (columns <= rows - sliding_window)  # (m, n)
        logits.masked_fill_(hidden, -math.inf)
    return torch.softmax(logits, -1, out=logits)  # a second block of this size costs more than it


def scaled_logits(
    queries: torch.Tensor, keys: torch.Tensor, scaling: float, softcap: float | None = None
) -> torch.Tensor:
    """q·k with the model's scaling, soft-capped where the model does that.

    queries (query_heads, m, d), keys (kv_heads, n, d) -> float32 (query_heads, m, n).
    """
    heads, count, dim = queries.shape
    grouped = queries.float().reshape(keys.shape[0], -1, dim)
    nothing = grouped.new_empty(1)
    logits = torch.baddbmm(nothing, grouped, keys.float().transpose(1, 2), beta=0, alpha=scaling)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return logits.view(heads, count, keys.shape[1])


def row_blocks(
    layers: Sequence[LayerStates], query_start: int, multiple: int = 1
) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Walk attention rows in blocks that fit in memory.

    Yields (first position, layer number in `layers`, rows (H, block, last position + 1)); blocks
    hold a multiple of `multiple` queries, and all layers of a block come before the next block.
    """
    count = layers[0].queries.shape[1]
    heads = max(layer.queries.shape[0] for layer in layers)
    first = 0
    while first < count:
        widest = query_start + min(count, first + 512)
        block = max(1, min(512, BLOCK_CELLS // (heads * widest)) // multiple) * multiple
        last = min(count, first + block)
        visible = query_start + last
        positions = torch.arange(query_start + first, visible)
        for number, layer in enumerate(layers):
            yield (
                query_start + first,
                number,
                attention_rows(
                    layer.queries[:, first:last],
                    layer.keys[:, :visible],
                    positions,
                    scaling=layer.scaling,
                    softcap=layer.softcap,
                    sliding_window=layer.sliding_window,
                ),
            )
        first = last
