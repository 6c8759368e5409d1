"""What the papers' own views work on: the trace of a capture, or of a few of its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.errors import AnalysisError
from cache_store.reader import Capture

if TYPE_CHECKING:
    from torch import Tensor

    from kvpolicies.trace import Trace

    Source = Capture | Trace

CELLS = 8_000_000  # attention weights of one block: 32 MB of float32


def trace_from(
    source: Source,
    layers: Sequence[int] | None = None,
    *,
    lookahead: Mapping[str, Any] | None = None,
    second_reading: bool = False,
) -> Trace:
    """The chosen layers (default: all) of a capture or trace, numbered from 0 in the result.

    lookahead: the specification of a derived lookahead, taken along with its queries. Raises
    AnalysisError for a layer that does not exist.
    """
    from kvpolicies.trace import Trace

    count = source.layers if isinstance(source, Trace) else source.info.layers
    chosen = list(range(count)) if layers is None else [int(layer) for layer in layers]
    for layer in chosen:
        if not 0 <= layer < count:
            raise AnalysisError(f"This run has no layer {layer}; it has layers 0 to {count - 1}.")
    if not isinstance(source, Trace):
        return source.trace(layers=chosen, lookahead=lookahead, second_reading=second_reading)
    if chosen == list(range(count)):
        return source  # with what earlier replays worked out

    def some(values: Sequence[Any] | None) -> list[Any] | None:
        return None if values is None else [values[layer] for layer in chosen]

    second = source.second_reading
    return Trace(
        some(source.queries) or [],
        some(source.keys) or [],
        some(source.values) or [],
        source.prompt_length,
        source.context_length,
        [source.scaling_of(layer) for layer in chosen],
        source.softcap,
        [source.window_of(layer) for layer in chosen],
        source.rotary,
        some(source.lookahead),
        None if second is None else (some(second[0]) or [], some(second[1]) or []),
        some(source.output_norms),
        some(source.prompt_attention),
    )


def full_rows(trace: Trace, layer: int, first: int, stop: int) -> Tensor:
    """The full cache's attention of query positions first ... stop - 1 over all visible keys.

    float32 (query_heads, stop - first, stop), 0 where a query cannot see.
    """
    import torch

    from kvpolicies.attention import attention_rows

    states = trace.states(layer, first, stop)
    return attention_rows(
        states.queries,
        states.keys,
        torch.arange(first, stop),
        scaling=states.scaling,
        softcap=states.softcap,
        sliding_window=states.sliding_window,
    )


def grouped_rows(
    trace: Trace, layer: int, first: int, stop: int, *, reduce: str = "mean", columns: int
) -> np.ndarray:
    """`full_rows` reduced over each KV head's query heads; float32 (kv_heads, m, columns).

    Columns beyond what a query can see are 0. reduce: "mean", "max" or "sum".
    """
    import torch

    result = np.zeros((trace.kv_heads, stop - first, columns), np.float32)
    block = max(1, CELLS // (trace.query_heads * max(1, stop)))
    with torch.inference_mode():
        for start in range(first, stop, block):
            end = min(stop, start + block)
            rows = full_rows(trace, layer, start, end).unflatten(0, (trace.kv_heads, trace.group))
            part = rows.amax(1) if reduce == "max" else getattr(rows, reduce)(1)
            width = min(columns, end)
            result[:, start - first : end - first, :width] = part[:, :, :width].numpy()
    return result


def layers_within(source: Source, cells: int) -> list[int]:
    """All layers, or as many evenly spread ones as keep the response's attention within `cells`.

    cells: (KV head, step, position) of all chosen layers; at least one layer is chosen.
    """
    from kvpolicies.trace import Trace

    facts = source if isinstance(source, Trace) else source.info
    steps = max(1, facts.response_length)
    each = facts.kv_heads * steps * facts.length
    count = max(1, min(facts.layers, cells // each))
    places = np.linspace(0, facts.layers - 1, count) if count > 1 else np.zeros(1)
    return sorted({round(float(place)) for place in places})


def check_head(source: Source, kv_head: int) -> int:
    """The KV head, if there is one of this number; AnalysisError otherwise."""
    from kvpolicies.trace import Trace

    heads = source.kv_heads if isinstance(source, Trace) else source.info.kv_heads
    if not 0 <= kv_head < heads:
        raise AnalysisError(f"This run has no KV head {kv_head}; it has 0 to {heads - 1}.")
    return int(kv_head)
