"""Nothing is evicted: each step attends to a chosen subset (Quest, InfLLM)."""

import numpy as np

from .attention import group_row
from .common import Array, Decision, Outcome, Trace, best, budget_over, margin, outcome, whole


def everything(trace: Trace) -> Array:
    """What the full cache shows; at t = 0 the prefill itself, which is dense."""
    shape = (trace.layers, trace.query_heads, trace.steps + 1, trace.total)
    visible = np.zeros(shape, dtype=bool)
    for step in range(trace.steps + 1):
        visible[:, :, step, : trace.prompt_length + step] = True
    return visible


def page_bound(query: Array, keys: Array) -> float:
    """METHODS 2: Σ_c max(q_c·min_c, q_c·max_c) per page."""
    total = 0.0
    for channel in range(len(query)):
        low, high = min(keys[:, channel]), max(keys[:, channel])
        total += max(query[channel] * low, query[channel] * high)
    return float(total)


def quest(trace: Trace, *, page: int = 16, dense_layers: int = 2) -> Outcome:
    """METHODS 5: pages of 16, max(3, B // 16) of them, first 2 layers dense. Pages are counted
    from position 0, the last one holds the new entry; every query head chooses its own."""
    budget = budget_over(trace, trace.total)
    result = outcome(trace)
    visible = everything(trace)
    result.visible = visible
    for layer in range(dense_layers, trace.layers):
        for query_head in range(trace.query_heads):
            keys = trace.keys[layer][query_head // trace.group]
            for step in range(1, trace.steps + 1):
                cached = trace.prompt_length + step
                query = trace.queries[layer][query_head, cached - 1]
                starts = list(range(0, cached, page))
                bounds = [page_bound(query, keys[s : min(s + page, cached)]) for s in starts]
                chosen = best(starts, bounds, max(3, budget // page))
                visible[layer, query_head, step] = False
                for start in chosen:
                    visible[layer, query_head, step, start : min(start + page, cached)] = True
                gap = margin(starts, bounds, chosen)
                result.decisions.append(
                    Decision(layer, query_head, step, starts, bounds, chosen, gap)
                )
    return result


def infllm(
    trace: Trace,
    *,
    init: int = 128,
    local: int = 4096,
    block: int = 128,
    representatives: int = 4,
    group_reduce: str = "mean",
) -> Outcome:
    """METHODS 5: init 128, local 4096, blocks of 128, the best ⌊(B − init − local)/128⌋ of them, 4
    representatives (init and local shrink together on short prompts). METHODS 2: mean of a block's
    most attended keys, against the mean query."""
    budget = budget_over(trace, trace.total)
    if init + local > budget:
        init, local = (
            whole(init * budget / (init + local)),
            whole(local * budget / (init + local)),
        )
    number = max(0, (budget - init - local) // block)
    result = outcome(trace)
    visible = everything(trace)
    result.visible = visible
    for layer in range(trace.layers):
        for head in range(trace.heads):
            keys = trace.keys[layer][head]
            received = np.zeros(trace.total)
            for at in range(trace.total):
                received[: at + 1] += group_row(trace, layer, head, at, range(at + 1), group_reduce)
                step, cached = at - trace.prompt_length + 1, at + 1
                if step < 1 or cached <= init + local:
                    continue
                group = trace.group_of(head)
                query = sum(trace.queries[layer][q, at] for q in group) / len(group)
                starts = list(range(init, cached - local, block))
                scores = []
                for start in starts:
                    inside = list(range(start, min(start + block, cached - local)))
                    most = best(inside, [float(received[p]) for p in inside], representatives)
                    scores.append(float(query @ (keys[most].sum(axis=0) / len(most))))
                chosen = best(starts, scores, number)
                shown = [*range(init), *range(cached - local, cached)]
                for start in chosen:
                    shown += range(start, min(start + block, cached - local))
                for query_head in group:
                    visible[layer, query_head, step] = False
                    visible[layer, query_head, step, shown] = True
                gap = margin(starts, scores, chosen)
                result.decisions.append(Decision(layer, head, step, starts, scores, chosen, gap))
    return result
