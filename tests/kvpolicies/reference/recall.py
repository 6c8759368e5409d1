"""LAQ's recall of the response's own choice through a window of consecutive queries."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from .attention import logits_of, reduce_rows, softmax
from .common import Array, Trace, best
from .entry import trace_of


def prompt_row(trace: Trace, layer: int, query_head: int, query: Array, at: int, how: str) -> Array:
    """METHODS 6: softmax over all keys visible to that query, prompt columns kept; `logits`: the
    raw dot products as printed."""
    keys = trace.keys[layer][query_head // trace.group]
    prompt = trace.prompt_length
    if how == "logits":
        return keys[:prompt] @ query
    weights = np.zeros(prompt)
    seen = softmax(logits_of(trace, query, keys[: at + 1]))[:prompt]
    weights[: len(seen)] = seen
    return weights


def recall_curve(
    trace: Any,
    budget: int,
    offsets: Iterable[int] = range(-16, 9),
    width: int = 8,
    weighting: str = "softmax",
    group_reduce: str = "mean",
) -> Array:
    """METHODS 6: gold = top-`B` prompt entries by the sum over all queries of the full cache's
    response; predicted = the same through a window of 8 consecutive queries starting at offset `o`
    (0 is the first generated token, negative offsets lie in the prompt; windows may straddle);
    recall = |intersection| / |gold|: (offsets, layers, kv_heads). NaN where a window is empty."""
    trace = trace if isinstance(trace, Trace) else trace_of(trace)
    offsets = list(offsets)
    prompt, total = trace.prompt_length, trace.total
    curve = np.full((len(offsets), trace.layers, trace.heads), math.nan)
    for layer in range(trace.layers):
        for head in range(trace.heads):
            rows = [
                reduce_rows(
                    [
                        prompt_row(trace, layer, q, trace.queries[layer][q, at], at, weighting)
                        for q in trace.group_of(head)
                    ],
                    group_reduce,
                )
                for at in range(total)
            ]
            gold = set(best(range(prompt), list(np.sum(rows[prompt:], axis=0)), budget))
            for index, offset in enumerate(offsets):
                start = prompt + offset
                window = rows[max(0, start) : max(0, start + width)]
                if window and gold:
                    predicted = best(range(prompt), list(np.sum(window, axis=0)), budget)
                    curve[index, layer, head] = len(gold & set(predicted)) / len(gold)
    return curve
