"""Attention rows, one query at a time, and the two reductions applied to them."""

import math
from collections.abc import Sequence

import numpy as np

from .common import Array, Trace


def softmax(logits: Array) -> Array:
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()


def logits_of(trace: Trace, query: Array, keys: Array) -> Array:
    """METHODS 1: keys attended with the model's own scaling (and softcap, where it has one)."""
    logits = (keys @ query) * trace.scaling
    if trace.softcap is not None:
        logits = trace.softcap * np.tanh(logits / trace.softcap)
    return logits


def row(trace: Trace, layer: int, query_head: int, at: int, visible: Sequence[int]) -> Array:
    """Attention of the query at position `at` over the visible entries and nothing else.

    METHODS 1: the policy sees the stored states of the entries it still keeps; attention is
    renormalised over them.
    """
    keys = trace.keys[layer][query_head // trace.group][list(visible)]
    return softmax(logits_of(trace, trace.queries[layer][query_head, at], keys))


def reduce_rows(rows: list[Array], how: str) -> Array:
    """METHODS 1: query heads of a group are reduced by `group_reduce` (mean default, max, sum)."""
    if how == "mean":
        return np.sum(rows, axis=0) / len(rows)
    if how == "max":
        return np.max(rows, axis=0)
    if how == "sum":
        return np.sum(rows, axis=0)
    if how == "min":
        return np.min(rows, axis=0)
    raise ValueError(f"cannot reduce by {how!r}")


def group_row(
    trace: Trace, layer: int, head: int, at: int, visible: Sequence[int], how: str
) -> Array:
    """One attention row of a KV head: its group's rows, reduced on attention weights."""
    return reduce_rows([row(trace, layer, q, at, visible) for q in trace.group_of(head)], how)


def layer_row(trace: Trace, layer: int, at: int, visible: Sequence[int]) -> Array:
    """METHODS 2, TOVA: mean over all query heads, one set per layer."""
    rows = [row(trace, layer, q, at, visible) for q in range(trace.query_heads)]
    return reduce_rows(rows, "mean")


def pool(scores: Array, kernel: int, how: str) -> Array:
    """METHODS 2: pooled along positions (`kernel`, max or average, stride 1, same length; edges
    of an average pool divide by the real count)."""
    pooled = np.empty(len(scores))
    for centre in range(len(scores)):
        low = max(0, centre - kernel // 2)
        high = min(len(scores), centre - kernel // 2 + kernel)
        near = [float(score) for score in scores[low:high]]
        if how == "max":
            pooled[centre] = max(near)
        elif how == "mean":
            pooled[centre] = math.fsum(near) / len(near)
        else:
            raise ValueError(f"cannot pool by {how!r}")
    return pooled
