"""What a policy cost, in replay (METHODS 7): per layer, head and step 1 … T."""

from dataclasses import dataclass

import numpy as np

from .attention import row
from .common import Array, Outcome, Trace, best
from .statistics import threshold


@dataclass
class Costs:
    mass_kept: Array  # (layers, query_heads, T): full-cache attention on what the step could see
    recall: Array  # (layers, sets, T): share of the step's gold set that could be seen
    recall_response: Array  # (layers, sets): the same for the prompt and the whole response
    output_error: Array  # (layers, query_heads, T): relative L2 error of the attention output
    regret_by_step: Array  # (layers, sets, T): full-cache attention on entries already gone
    regret_by_entry: Array  # (layers, sets, P + T): the same, summed over later steps
    missed_by_step: Array  # (layers, sets, T): entries gone whose lost attention is ≥ alpha
    recurrences_missed: Array  # (layers, sets, P + T): the same, counted over later steps
    margin: float  # smallest gap between a chosen and a rejected gold entry
    alpha_gap: float  # smallest |lost attention - alpha|


def seen(trace: Trace, result: Outcome, layer: int, query_head: int, at: int) -> list[int]:
    """What the query at `at` attends to: all that is not gone before its step, and itself."""
    step = at - trace.prompt_length + 1
    if result.visible is not None:
        return [p for p in range(at + 1) if result.visible[layer, query_head, step, p]]
    # evicted_at holds KV heads, or query heads under granularity="query_head"
    head = query_head * result.evicted_at.shape[1] // trace.query_heads
    return [p for p in range(at + 1) if result.evicted_at[layer, head, p] >= step]


def gold_share(out: Costs, weights: list[float], left: list[int]) -> float:
    """METHODS 7, recall against the gold set: as many entries as are left, those with the largest
    full-cache attention, ties to the lower position."""
    gold = best(range(len(weights)), weights, len(left))
    rest = [weight for position, weight in enumerate(weights) if position not in gold]
    if gold and rest:
        out.margin = min(out.margin, min(weights[p] for p in gold) - max(rest))
    return len(set(gold) & set(left)) / len(left) if left else 0.0


def costs(trace: Trace, result: Outcome, alpha: float | str = 5e-4) -> Costs:
    """METHODS 7: attention mass kept; recall against the gold set; relative L2 error of the
    attention output (LazyEviction Eq. 4); regret: full-cache attention that later steps would have
    given to entries already gone, by entry and by step, with the recurrences missed. Query heads
    that share a keep-set share their mean row."""
    layers, steps, total = trace.layers, trace.steps, trace.total
    sets = result.evicted_at.shape[1]
    share = trace.query_heads // sets
    out = Costs(
        mass_kept=np.zeros((layers, trace.query_heads, steps)),
        recall=np.zeros((layers, sets, steps)),
        recall_response=np.ones((layers, sets)),
        output_error=np.zeros((layers, trace.query_heads, steps)),
        regret_by_step=np.zeros((layers, sets, steps)),
        regret_by_entry=np.zeros((layers, sets, total)),
        missed_by_step=np.zeros((layers, sets, steps), dtype=int),
        recurrences_missed=np.zeros((layers, sets, total), dtype=int),
        margin=np.inf,
        alpha_gap=np.inf,
    )
    for layer in range(layers):
        for one_set in range(sets):
            heads = range(one_set * share, (one_set + 1) * share)
            received = [0.0] * trace.prompt_length
            for index in range(steps):
                at = trace.prompt_length + index
                mean, lost = [0.0] * (at + 1), [0.0] * (at + 1)
                by_any: set[int] = set()
                for query_head in heads:
                    full = row(trace, layer, query_head, at, range(at + 1))
                    kept = seen(trace, result, layer, query_head, at)
                    by_any |= set(kept)
                    part = row(trace, layer, query_head, at, kept)
                    values = trace.values[layer][query_head // trace.group]
                    whole = full @ values[: at + 1]
                    error = np.linalg.norm(part @ values[kept] - whole)
                    out.output_error[layer, query_head, index] = error / np.linalg.norm(whole)
                    for position in range(at + 1):
                        mean[position] += full[position] / share
                        if position in kept:
                            out.mass_kept[layer, query_head, index] += full[position]
                        else:
                            lost[position] += full[position] / share
                out.recall[layer, one_set, index] = gold_share(out, mean, sorted(by_any))
                for position in range(at + 1):
                    out.regret_by_step[layer, one_set, index] += lost[position]
                    out.regret_by_entry[layer, one_set, position] += lost[position]
                    limit = threshold(alpha, at + 1)
                    out.alpha_gap = min(out.alpha_gap, abs(lost[position] - limit))
                    if lost[position] >= limit:
                        out.missed_by_step[layer, one_set, index] += 1
                        out.recurrences_missed[layer, one_set, position] += 1
                    if position < trace.prompt_length:
                        received[position] += mean[position]
            if steps:
                first = min(steps, int(result.evicted_at.min()))
                left = [
                    position
                    for position in range(trace.prompt_length)
                    if result.evicted_at[layer, one_set, position] > first
                ]
                out.recall_response[layer, one_set] = gold_share(out, received, left)
    return out
