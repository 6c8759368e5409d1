"""KVCompose, its unstructured variant, and KVzip: global budgets over a scored context."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .allocate import global_top
from .attention import logits_of, reduce_rows, row, softmax
from .common import (
    Array,
    Outcome,
    Trace,
    budget_over,
    evict_after_prefill,
    outcome,
    whole,
)


@dataclass
class Composite:
    counts: Array  # (layers,)
    slots: Array  # (layers, kv_heads, context): original positions, best first
    slot_scores: Array  # (layers, context)
    margin: float  # between the last slot taken and the first left, over all layers


def compose(
    scores: Array,
    compression_ratio: float,
    min_per_layer: int = 1,
    agg_head: str = "mean",
    match: str | None = None,
) -> Composite:
    """METHODS 6: plus the mean over KV heads (Eq. 16). Per head sort descending; composite slot
    `k` takes each head's `k`-th; slot score = mean over heads. `B_total = ⌊(1 − r)·L·N⌋` best
    slots over all layers, ties by (layer, slot). `min_per_layer`: those first slots of every layer
    are taken first, the total stays `B_total`, and a total below `L·min_per_layer` is refused.
    `match="kvpress"`: layer 0's slots are raised to the maximum over layers before that."""
    scores = np.asarray(scores, dtype=np.float64)
    layers, heads, context = scores.shape
    total = whole((1 - compression_ratio) * layers * context)
    least = min(min_per_layer, context)
    if total < layers * least:
        raise ValueError(f"{total} slots are too few for {least} in each of {layers} layers")
    slots = np.zeros((layers, heads, context), dtype=int)
    slot_scores = np.zeros((layers, context))
    for layer in range(layers):
        mean = sum(scores[layer, head] for head in range(heads)) / heads
        ranked = []
        for head in range(heads):
            importance = scores[layer, head] + mean
            order = sorted((-float(importance[c]), c) for c in range(context))
            slots[layer, head] = [c for _, c in order]
            ranked.append(importance[slots[layer, head]])
        slot_scores[layer] = reduce_rows(ranked, agg_head)
    counts = np.full(layers, least)
    contest = [[float(s) for s in slot_scores[layer]] for layer in range(layers)]
    if match == "kvpress":
        contest[0] = [max(float(s) for s in slot_scores[:, k]) for k in range(context)]
    rest = [contest[layer][least:] for layer in range(layers)]
    picked, gap = global_top(rest, total - layers * least)
    for layer in range(layers):
        counts[layer] += len(picked[layer])
    return Composite(counts, slots, slot_scores, gap)


def second_reading_row(
    trace: Trace, layer: int, query_head: int, index: int, chunk: int | None = None
) -> Array:
    """METHODS 6: the context read a second time right after itself; softmax over the first copy
    and, causally, the second; only the attention to the first copy counts. With a chunk, the
    second copy's earlier chunks are not there to be seen."""
    if trace.second_reading is None:
        raise ValueError("this policy needs the second reading of the context")
    queries, keys = trace.second_reading
    context = trace.context_length
    head = query_head // trace.group
    begin = 0 if chunk is None else index // chunk * chunk
    seen = np.concatenate([trace.keys[layer][head, :context], keys[layer][head, begin : index + 1]])
    return softmax(logits_of(trace, queries[layer][query_head, index], seen))[:context]


def task_rows(trace: Trace, layer: int, query_head: int, source: str) -> Iterable[Array]:
    """METHODS 6: `source="context"` (the second reading), `source="question"` (the prompt's
    question), `source="self"` (the prefill's own causal rows, here those of the context)."""
    context = trace.context_length
    if source == "context":
        for index in range(context):
            yield second_reading_row(trace, layer, query_head, index)
        return
    if source == "question":
        if context == trace.prompt_length:
            raise ValueError("there is no question after the context")
        rows = range(context, trace.prompt_length)
    elif source == "self":
        rows = range(context)
    else:
        raise ValueError(f"source is 'context', 'question' or 'self', not {source!r}")
    for at in rows:
        full = np.zeros(context)
        weights = row(trace, layer, query_head, at, range(at + 1))
        full[: at + 1] = weights[:context]
        yield full


def value_weights(trace: Trace, layer: int, query_head: int, value_norm: str | None) -> Array:
    """METHODS 6: the value-norm weights (‖v‖, ‖vW_O‖) of Figures 2–4 are options; every attention
    weight is multiplied by its entry's norm."""
    context = trace.context_length
    head = query_head // trace.group
    if value_norm is None:
        return np.ones(context)
    if value_norm == "v":
        return np.linalg.norm(trace.values[layer][head, :context], axis=1)
    if value_norm != "vo" or trace.output_norms is None:
        raise ValueError("value_norm is None, 'v', or 'vo' with output_norms given")
    norms = trace.output_norms[layer]
    return norms[query_head if len(norms) == trace.query_heads else head, :context]


def context_scores(
    trace: Trace, source: str, agg_task: str, agg_group: str, value_norm: str | None
) -> Array:
    """METHODS 6: max over task tokens, mean over the group: (layers, kv_heads, context)."""
    scores = np.zeros((trace.layers, trace.heads, trace.context_length))
    for layer in range(trace.layers):
        for head in range(trace.heads):
            group = []
            for query_head in trace.group_of(head):
                weights = value_weights(trace, layer, query_head, value_norm)
                rows = [r * weights for r in task_rows(trace, layer, query_head, source)]
                group.append(reduce_rows(rows, agg_task))
            scores[layer, head] = reduce_rows(group, agg_group)
    return scores


def context_of(trace: Trace, scope: str) -> int:
    """METHODS 6: `N` is the context: question entries are never ranked or evicted."""
    if trace.span(scope) != trace.context_length:
        raise ValueError("scope 'prompt' would rank the question, which no task row scores")
    return trace.context_length


def ratio_over(trace: Trace) -> float:
    """METHODS 6: `budget` means entries per layer on average, `r = 1 − B/N`."""
    if trace.budget is not None:
        return 1 - trace.budget / trace.context_length
    if trace.compression_ratio is None:
        raise ValueError("this policy needs a budget or a compression_ratio")
    return trace.compression_ratio


def kvcompose(
    trace: Trace,
    *,
    source: str = "context",
    agg_task: str = "max",
    agg_group: str = "mean",
    agg_head: str = "mean",
    min_per_layer: int = 1,
    match: str | None = None,
    value_norm: str | None = None,
    scope: str = "context",
) -> Outcome:
    """METHODS 6: each head keeps its own first `N_ℓ`. Question entries are never ranked or
    evicted."""
    context = context_of(trace, scope)
    result = outcome(trace)
    ratio = ratio_over(trace)
    if ratio <= 0:
        return result
    scores = context_scores(trace, source, agg_task, agg_group, value_norm)
    chosen = compose(scores, ratio, min_per_layer, agg_head, match)
    counts = [int(n) for n in chosen.counts]
    positions = list(range(context))
    for layer in range(trace.layers):
        mean = scores[layer].sum(axis=0) / trace.heads
        for head in range(trace.heads):
            importance = [float(s) for s in scores[layer, head] + mean]
            kept = sorted(int(c) for c in chosen.slots[layer, head, : counts[layer]])
            evict_after_prefill(
                result, layer, head, context, [], positions, importance, kept, chosen.margin
            )
    return result


def keep_globally(
    trace: Trace, scores: list[list[list[float]]], protected: int, total: int
) -> Outcome:
    """METHODS 3: `global` (unstructured: over layers, heads and tokens). The first `protected`
    entries of every head stay and count."""
    result = outcome(trace)
    context = trace.context_length
    positions = list(range(protected, context))
    pairs = [(layer, head) for layer in range(trace.layers) for head in range(trace.heads)]
    lists = [scores[layer][head][protected:] for layer, head in pairs]
    picked, gap = global_top(lists, total - protected * len(pairs))
    for (layer, head), values, chosen in zip(pairs, lists, picked, strict=True):
        kept = [positions[i] for i in chosen]
        evict_after_prefill(
            result, layer, head, context, range(protected), positions, values, kept, gap
        )
    return result


def kvcompose_unstructured(
    trace: Trace,
    *,
    source: str = "context",
    agg_task: str = "max",
    agg_group: str = "mean",
    value_norm: str | None = None,
    scope: str = "context",
) -> Outcome:
    """METHODS 5: context_attention, global: every head selects its own, Eq. 16's scores."""
    context = context_of(trace, scope)
    ratio = ratio_over(trace)
    if ratio <= 0:
        return outcome(trace)
    scores = context_scores(trace, source, agg_task, agg_group, value_norm)
    final = [
        [
            [float(s) for s in per_head + per_layer.sum(axis=0) / trace.heads]
            for per_head in per_layer
        ]
        for per_layer in scores
    ]
    total = whole((1 - ratio) * trace.layers * trace.heads * context)
    return keep_globally(trace, final, 0, total)


def kvzip(
    trace: Trace,
    *,
    chunk: int = 2000,
    sink: int = 4,
    group_reduce: str = "mean",
    scope: str = "context",
) -> Outcome:
    """METHODS 2: reconstruction: max attention received while the model repeats the context.
    METHODS 5: global, after_prefill, chunk 2000, sink 4 (kept)."""
    context = context_of(trace, scope)
    budget = budget_over(trace, context)
    if context <= budget:
        return outcome(trace)
    scores: list[list[list[float]]] = []
    for layer in range(trace.layers):
        scores.append([])
        for head in range(trace.heads):
            rows = [
                reduce_rows(
                    [
                        second_reading_row(trace, layer, query_head, index, chunk)
                        for query_head in trace.group_of(head)
                    ],
                    group_reduce,
                )
                for index in range(context)
            ]
            scores[layer].append([float(s) for s in reduce_rows(rows, "max")])
    total = budget * trace.layers * trace.heads
    return keep_globally(trace, scores, min(sink, budget - 1), total)
