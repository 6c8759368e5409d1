"""LAQ and LAQ++: pseudo queries of a short lookahead decide."""

import numpy as np

from .attention import logits_of, pool, reduce_rows, softmax
from .common import Array, Outcome, Trace, best, budget_over, evict_after_prefill, outcome


def lookahead_scores(
    trace: Trace,
    layer: int,
    head: int,
    span: int,
    steps: int,
    window: int,
    kernel: int,
    how: str,
    group_reduce: str,
    mask: str,
) -> Array:
    """METHODS 6: attention of those queries (LAQ), or of the last `W = 8` prompt queries and those
    (LAQ++), over the prompt keys only, causal for the prompt rows; summed over rows,
    group-reduced, max-pooled (kernel 7). `mask="released"` masks the observation rows as if they
    sat inside the prompt, hiding up to `n` keys from them."""
    if trace.lookahead is None:
        raise ValueError("this policy needs lookahead queries")
    keys = trace.keys[layer][head, :span]
    pseudo = trace.lookahead[layer][:, :steps]
    rows = window + pseudo.shape[1]
    summed = np.zeros(span)
    for index in range(rows):
        weights = []
        for query_head in trace.group_of(head):
            if index < window:
                query = trace.queries[layer][query_head, span - window + index]
                visible = span - window + index + 1
            else:
                query = pseudo[query_head, index - window]
                visible = span
            if mask == "released":
                visible = max(1, span - rows + index + 1)
            seen = np.zeros(span)
            seen[:visible] = softmax(logits_of(trace, query, keys[:visible]))
            weights.append(seen)
        summed += reduce_rows(weights, group_reduce)
    return pool(summed, kernel, how)


def by_lookahead(
    trace: Trace,
    window: int,
    lookahead_steps: int,
    kernel: int,
    how: str,
    group_reduce: str,
    mask: str,
    scope: str,
) -> Outcome:
    """METHODS 6: LAQ keeps the top `B`; LAQ++ keeps the last `W` and the top `B − W` of the
    rest."""
    if mask not in ("correct", "released"):
        raise ValueError(f"mask is 'correct' or 'released', not {mask!r}")
    span = trace.span(scope)
    budget = budget_over(trace, span)
    result = outcome(trace)
    if span <= budget:
        return result
    kept_window = min(window, budget)
    before = list(range(span - kept_window))
    for layer in range(trace.layers):
        for head in range(trace.heads):
            everything = lookahead_scores(
                trace,
                layer,
                head,
                span,
                lookahead_steps,
                kept_window,
                kernel,
                how,
                group_reduce,
                mask,
            )
            scores = [float(x) for x in everything[: len(before)]]
            kept = best(before, scores, budget - kept_window)
            evict_after_prefill(
                result, layer, head, span, range(len(before), span), before, scores, kept
            )
    return result


def laq(
    trace: Trace,
    *,
    lookahead_steps: int = 8,
    kernel: int = 7,
    pool: str = "max",
    group_reduce: str = "mean",
    mask: str = "correct",
    scope: str = "prompt",
) -> Outcome:
    """METHODS 5: lookahead_attention, n 8, W 0."""
    return by_lookahead(trace, 0, lookahead_steps, kernel, pool, group_reduce, mask, scope)


def laq_pp(
    trace: Trace,
    *,
    window: int = 8,
    lookahead_steps: int = 8,
    kernel: int = 7,
    pool: str = "max",
    group_reduce: str = "mean",
    mask: str = "correct",
    scope: str = "prompt",
) -> Outcome:
    """METHODS 5: lookahead_attention, n 8, W 8."""
    return by_lookahead(trace, window, lookahead_steps, kernel, pool, group_reduce, mask, scope)
