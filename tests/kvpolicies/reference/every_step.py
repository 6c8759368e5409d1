"""Policies that may evict after every step."""

import numpy as np

from .attention import group_row
from .common import Outcome, Trace, best_newest, budget_over, outcome, whole
from .statistics import Cumulative, Last, Position, TimeStamp
from .walk import note, walk, walk_heads, walk_layers


def always(step: int) -> bool:
    return True


def never(kept: list[int], step: int) -> list[int]:
    return []


def full(trace: Trace) -> Outcome:
    """METHODS 5: keeps everything."""
    return outcome(trace)


def streaming_llm(
    trace: Trace, *, sink: int = 4, recent: int | None = None, positions: str = "absolute"
) -> Outcome:
    """METHODS 5: position, every_step, sink 4. METHODS 1: a sink larger than the budget shrinks
    to `B − 1`. `positions` changes the rotary angles, not what is kept."""
    if positions not in ("absolute", "cache"):
        raise ValueError(f"positions is 'absolute' or 'cache', not {positions!r}")
    if recent is not None and trace.budget is None and trace.compression_ratio is None:
        budget = sink + recent
    else:
        budget = budget_over(trace, trace.total)
    sink = min(sink, budget - 1)

    def sinks(kept: list[int], step: int) -> list[int]:
        return [p for p in kept if p < sink]

    return walk_heads(trace, lambda layer, head: Position(), budget, always, sinks)


def h2o(trace: Trace, *, recent: int | None = None, group_reduce: str = "mean") -> Outcome:
    """METHODS 5: cumulative_attention, recent = B // 2, the rest heavy hitters."""
    budget = budget_over(trace, trace.total)
    recent = min(budget // 2 if recent is None else recent, budget)

    def last(kept: list[int], step: int) -> list[int]:
        return kept[len(kept) - recent :]

    return walk_heads(trace, lambda layer, head: Cumulative(), budget, always, last, group_reduce)


def tova(trace: Trace) -> Outcome:
    """METHODS 5: last_attention, one set per layer; newest entry not forced; a fresh entry
    competes with its own first attention."""
    budget = budget_over(trace, trace.total)
    return walk_layers(trace, Last, budget, always, never)


def raas(trace: Trace, *, alpha: float | str = 1e-4, group_reduce: str = "mean") -> Outcome:
    """METHODS 5: timestamp, prompt pinned (with P ≥ B generated entries shrink to the newest
    one), ties evict the oldest."""
    budget = max(budget_over(trace, trace.total), trace.prompt_length + 1)

    def prompt(kept: list[int], step: int) -> list[int]:
        return [p for p in kept if p < trace.prompt_length]

    return walk_heads(
        trace,
        lambda layer, head: TimeStamp(alpha),
        budget,
        always,
        prompt,
        group_reduce,
        best_newest,
    )


def streaming_heads(
    trace: Trace, sink: int, recent: int, share: float, group_reduce: str = "mean"
) -> np.ndarray:
    """METHODS 5: heads with the least attention outside sink and recent stream; share 0.5.

    Attention mass of every prompt query outside the sinks and its own last `recent` entries,
    summed; the lowest ⌊share·layers·heads⌋ of all layers together stream.
    """
    outside = np.zeros((trace.layers, trace.heads))
    for layer in range(trace.layers):
        for head in range(trace.heads):
            for at in range(trace.prompt_length):
                weights = group_row(trace, layer, head, at, range(at + 1), group_reduce)
                for position in range(sink, at + 1 - recent):
                    outside[layer, head] += weights[position]
    order = sorted(
        ((layer, head) for layer in range(trace.layers) for head in range(trace.heads)),
        key=lambda lh: (outside[lh], lh),
    )
    streams = np.zeros((trace.layers, trace.heads), dtype=bool)
    for layer, head in order[: whole(share * len(order))]:
        streams[layer, head] = True
    return streams


def duo_attention(
    trace: Trace,
    *,
    sink: int = 128,
    recent: int = 256,
    share: float = 0.5,
    pattern: np.ndarray | None = None,
) -> Outcome:
    """METHODS 5: position on streaming heads, per-head binary, every_step; others whole.

    `pattern` (layers, heads) is True where a head streams. A budget is the streaming heads' size.
    """
    if trace.budget is not None or trace.compression_ratio is not None:
        budget = budget_over(trace, trace.total)
        sink = min(sink, budget - 1)
        recent = budget - sink
    streams = streaming_heads(trace, sink, recent, share) if pattern is None else pattern
    result = outcome(trace)

    def sinks(kept: list[int], step: int) -> list[int]:
        return [p for p in kept if p < sink]

    for layer in range(trace.layers):
        for head in range(trace.heads):
            if streams[layer, head]:
                gone, decisions = walk(
                    trace,
                    lambda at, visible: np.zeros(len(visible)),
                    Position(),
                    sink + recent,
                    always,
                    sinks,
                )
                note(result, layer, [head], gone, decisions)
    return result
