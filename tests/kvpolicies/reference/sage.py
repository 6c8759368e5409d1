"""SAGE-KV: one selection at the end of prefill, then a sliding window."""

import numpy as np

from .attention import row
from .common import Decision, Outcome, Trace, best, budget_over, margin, outcome, whole


def sizes(budget: int, group: int) -> tuple[int, int, int]:
    """METHODS 5: S = B/4, k = B/(2G) rounded down to a power of two, R = the rest."""
    sink = whole(budget / 4)
    quota = budget / (2 * group)
    picks = 0
    if quota >= 1:
        picks = 1
        while picks * 2 <= quota:
            picks *= 2
    return sink, picks, budget - sink - group * picks


def sage_kv(trace: Trace, *, view: str = "query_head") -> Outcome:
    """METHODS 6: sinks `[0, S)`, last prompt token, `R` recent before it, candidates between. The
    last prompt token's query of every query head takes its own top-`k` candidates.
    `view="query_head"`: a query head attends to sinks, its own `k`, recent, last. `view="union"`:
    the group's picks are united, without duplicates, and shared. Storage per KV head is the union.
    While decoding, new entries join the recent window and its oldest leaves, sinks and picks stay;
    the sliding window holds R + 1. Nothing is selected at prefill when `P ≤ S + k + R + 1`, and
    then nothing ever is."""
    if view not in ("query_head", "union"):
        raise ValueError(f"view is 'query_head' or 'union', not {view!r}")
    prompt = trace.prompt_length
    budget = budget_over(trace, prompt)
    sink, picks, recent = sizes(budget, trace.kv_group)
    result = outcome(trace)
    shape = (trace.layers, trace.query_heads, trace.steps + 1, trace.total)
    visible = np.zeros(shape, dtype=bool)
    result.visible = visible
    selects = prompt > max(budget, sink + picks + recent + 1)
    for step in range(trace.steps + 1):
        if not selects:
            visible[:, :, step, : prompt + step] = True
    if not selects:
        return result
    candidates = list(range(sink, prompt - 1 - recent))
    for layer in range(trace.layers):
        for head in range(trace.heads):
            own: dict[int, list[int]] = {}
            for query_head in trace.group_of(head):
                weights = row(trace, layer, query_head, prompt - 1, range(prompt))
                scores = [float(weights[p]) for p in candidates]
                own[query_head] = best(candidates, scores, picks)
                gap = margin(candidates, scores, own[query_head])
                result.decisions.append(
                    Decision(layer, query_head, 0, candidates, scores, own[query_head], gap)
                )
            union = sorted(set().union(*own.values()))
            stays = [*range(sink), *union]
            for position in range(trace.total):
                if position in stays:
                    continue
                # it slides out once R + 1 entries have come after it
                leaves = max(0, position + recent + 1 - (prompt - 1))
                if leaves <= trace.steps:
                    result.evicted_at[layer, head, position] = leaves
            for query_head in trace.group_of(head):
                mine = own[query_head] if view == "query_head" else union
                for step in range(trace.steps + 1):
                    newest = prompt + step - 1
                    first = prompt - 1 - recent if step == 0 else newest - recent - 1
                    visible[layer, query_head, step, :sink] = True
                    visible[layer, query_head, step, mine] = True
                    visible[layer, query_head, step, first : newest + 1] = True
    return result
