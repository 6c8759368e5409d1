"""What a policy cost, in replay (METHODS 7): per layer, query head and step 1 … T."""

from dataclasses import dataclass

import numpy as np

from .attention import row
from .common import Array, Outcome, Trace
from .statistics import threshold


@dataclass
class Costs:
    mass_kept: Array  # (layers, heads, T): full-cache attention on what the step could see
    output_error: Array  # (layers, query_heads, T): relative L2 error of the attention output
    regret_by_step: Array  # (layers, heads, T): full-cache attention on entries already gone
    regret_by_entry: Array  # (layers, heads, P + T): the same, summed over later steps
    recurrences_missed: Array  # (layers, heads, P + T): later steps with attention ≥ alpha


def seen(trace: Trace, result: Outcome, layer: int, query_head: int, at: int) -> list[int]:
    """What the query at `at` attends to: all that is not gone before its step, and itself."""
    step = at - trace.prompt_length + 1
    if result.visible is not None:
        return [p for p in range(at + 1) if result.visible[layer, query_head, step, p]]
    # evicted_at holds KV heads, or query heads under granularity="query_head"
    head = query_head * result.evicted_at.shape[1] // trace.query_heads
    return [p for p in range(at + 1) if result.evicted_at[layer, head, p] >= step]


def costs(trace: Trace, result: Outcome, alpha: float | str = 5e-4) -> Costs:
    """METHODS 7: attention mass kept; relative L2 error of the attention output (LazyEviction
    Eq. 4); regret: full-cache attention that later steps would have given to entries already gone,
    by entry and by step, with the recurrences missed. Heads share their group's mean row."""
    layers, heads, steps, total = trace.layers, trace.heads, trace.steps, trace.total
    out = Costs(
        np.zeros((layers, heads, steps)),
        np.zeros((layers, trace.query_heads, steps)),
        np.zeros((layers, heads, steps)),
        np.zeros((layers, heads, total)),
        np.zeros((layers, heads, total), dtype=int),
    )
    for layer in range(layers):
        for head in range(heads):
            values = trace.values[layer][head]
            for index in range(steps):
                at = trace.prompt_length + index
                mean = np.zeros(at + 1)
                lost = np.zeros(at + 1)
                for query_head in trace.group_of(head):
                    full = row(trace, layer, query_head, at, range(at + 1))
                    kept = seen(trace, result, layer, query_head, at)
                    part = row(trace, layer, query_head, at, kept)
                    whole = full @ values[: at + 1]
                    error = np.linalg.norm(part @ values[kept] - whole)
                    out.output_error[layer, query_head, index] = error / np.linalg.norm(whole)
                    mean += full / trace.group
                    for position in range(at + 1):
                        if position in kept:
                            continue
                        lost[position] += full[position] / trace.group
                out.mass_kept[layer, head, index] = mean.sum() - lost.sum()
                out.regret_by_step[layer, head, index] = lost.sum()
                out.regret_by_entry[layer, head, : at + 1] += lost
                for position in range(at + 1):
                    if lost[position] > 0 and mean[position] >= threshold(alpha, at + 1):
                        out.recurrences_missed[layer, head, position] += 1
    return out
