"""Policies that evict once, after prefill, by a score per entry: SnapKV and its relatives."""

import numpy as np

from .allocate import head_adaptive, head_adaptive_kvpress, pyramid
from .attention import group_row, pool
from .common import Array, Outcome, Trace, best, budget_over, evict_after_prefill, outcome, whole
from .expected import expected_attention_scores


def window_attention(
    trace: Trace, layer: int, head: int, span: int, window: int, kernel: int, how: str, group: str
) -> Array:
    """METHODS 2: attention of the last `w` prompt queries, softmax over all visible keys, summed
    over the window, group-reduced, the last `w` columns dropped, then pooled along positions."""
    summed = np.zeros(span)
    for at in range(span - window, span):
        summed[: at + 1] += group_row(trace, layer, head, at, range(at + 1), group)
    return pool(summed[: span - window], kernel, how)


def windowed(
    trace: Trace, counts: list[int], span: int, window: int, kernel: int, how: str, group: str
) -> Outcome:
    """The window and, in each layer, `counts[layer]` of the entries before it."""
    result = outcome(trace)
    before = list(range(span - window))
    for layer in range(trace.layers):
        for head in range(trace.heads):
            scores = list(window_attention(trace, layer, head, span, window, kernel, how, group))
            kept = best(before, scores, counts[layer])
            protected = range(span - window, span)
            evict_after_prefill(result, layer, head, span, protected, before, scores, kept)
    return result


def snapkv(
    trace: Trace,
    *,
    window: int = 32,
    kernel: int = 7,
    pool: str = "max",
    group_reduce: str = "mean",
    scope: str = "prompt",
) -> Outcome:
    """METHODS 5: w 32, kernel 7, max pool, window kept. METHODS 1: with `P ≤ B` an after-prefill
    policy evicts nothing; a window larger than the budget shrinks to it."""
    span = trace.span(scope)
    budget = budget_over(trace, span)
    if span <= budget:
        return outcome(trace)
    window = min(window, budget)
    counts = [budget - window] * trace.layers
    return windowed(trace, counts, span, window, kernel, pool, group_reduce)


def pyramidkv(
    trace: Trace,
    *,
    window: int = 8,
    kernel: int = 7,
    pool: str = "max",
    beta: int = 20,
    group_reduce: str = "mean",
    scope: str = "prompt",
) -> Outcome:
    """METHODS 5: w 8, kernel 7, max pool; METHODS 3's integers decide each layer's share."""
    span = trace.span(scope)
    budget = budget_over(trace, span)
    if span <= budget:
        return outcome(trace)
    window = min(window, budget)
    counts = pyramid(budget, window, span, trace.layers, beta)
    return windowed(trace, counts, span, window, kernel, pool, group_reduce)


def ada_snapkv(
    trace: Trace,
    *,
    window: int = 32,
    kernel: int = 7,
    pool: str = "max",
    alpha_floor: float = 0.2,
    group_reduce: str = "mean",
    preset: str = "paper",
    scope: str = "prompt",
) -> Outcome:
    """METHODS 5: window_attention, head_adaptive, w 32, alpha_floor 0.2."""
    span = trace.span(scope)
    budget = budget_over(trace, span)
    if span <= budget:
        return outcome(trace)
    window = min(window, budget)
    scores = [
        [
            window_attention(trace, layer, head, span, window, kernel, pool, group_reduce)
            for head in range(trace.heads)
        ]
        for layer in range(trace.layers)
    ]
    protected = list(range(span - window, span))
    return adaptive(trace, scores, protected, span, budget, alpha_floor, preset)


def adaptive(
    trace: Trace,
    scores: list[list[Array]],
    protected: list[int],
    span: int,
    budget: int,
    alpha_floor: float,
    preset: str,
) -> Outcome:
    """METHODS 3, Ada: within a layer, heads share the layer's total by the global top scores."""
    result = outcome(trace)
    candidates = [p for p in range(span) if p not in protected]
    c = budget - len(protected)
    for layer in range(trace.layers):
        lists = [[float(x) for x in s] for s in scores[layer]]
        if preset == "kvpress":
            kept, gap = head_adaptive_kvpress(lists, c, whole(alpha_floor * budget))
        else:
            kept, gap = head_adaptive(lists, c, alpha_floor)
        for head in range(trace.heads):
            chosen = [candidates[i] for i in kept[head]]
            evict_after_prefill(
                result, layer, head, span, protected, candidates, lists[head], chosen, gap
            )
    return result


def expected_attention(
    trace: Trace, *, n_future: int = 512, sink: int = 4, scope: str = "prompt"
) -> Outcome:
    """METHODS 5: expected_attention, uniform, n_future 512, sink 4 (kept)."""
    span = trace.span(scope)
    budget = budget_over(trace, span)
    if span <= budget:
        return outcome(trace)
    sink = min(sink, budget - 1)
    result = outcome(trace)
    candidates = list(range(sink, span))
    for layer in range(trace.layers):
        for head in range(trace.heads):
            all_scores = expected_attention_scores(trace, layer, head, span, n_future, sink)
            scores = [float(x) for x in all_scores[sink:]]
            kept = best(candidates, scores, budget - sink)
            evict_after_prefill(result, layer, head, span, range(sink), candidates, scores, kept)
    return result


def ada_expected_attention(
    trace: Trace,
    *,
    n_future: int = 512,
    sink: int = 4,
    alpha_floor: float = 0.2,
    preset: str = "paper",
    scope: str = "prompt",
) -> Outcome:
    """METHODS 5: expected_attention, head_adaptive; the kept sinks stand where a window would."""
    span = trace.span(scope)
    budget = budget_over(trace, span)
    if span <= budget:
        return outcome(trace)
    sink = min(sink, budget - 1)
    scores = [
        [
            expected_attention_scores(trace, layer, head, span, n_future, sink)[sink:]
            for head in range(trace.heads)
        ]
        for layer in range(trace.layers)
    ]
    return adaptive(trace, scores, list(range(sink)), span, budget, alpha_floor, preset)


def knorm(trace: Trace, *, preset: str = "paper", scope: str = "prompt") -> Outcome:
    """METHODS 2: `key_norm` (−‖k‖₂). METHODS 5: layers 0 and 1 kept whole (`preset="kvpress"`:
    none)."""
    span = trace.span(scope)
    budget = budget_over(trace, span)
    result = outcome(trace)
    if span <= budget:
        return result
    positions = list(range(span))
    for layer in range(0 if preset == "kvpress" else 2, trace.layers):
        for head in range(trace.heads):
            scores = [-float(np.linalg.norm(trace.keys[layer][head, p])) for p in positions]
            kept = best(positions, scores, budget)
            evict_after_prefill(result, layer, head, span, [], positions, scores, kept)
    return result
