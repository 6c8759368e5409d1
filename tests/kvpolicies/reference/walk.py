"""Walking a capture step by step: the loop of every policy that evicts while decoding."""

from collections.abc import Callable
from typing import Protocol

from .attention import group_row, layer_row
from .common import Array, Decision, Outcome, Trace, best, margin, outcome

Row = Callable[[int, list[int]], Array]
Choose = Callable[[list[int], list[float], int], list[int]]


class Statistic(Protocol):
    """What a policy remembers about each entry of one head."""

    alpha_gap: float

    def born(self, position: int, step: int) -> None: ...

    def update(self, step: int, visible: list[int], weights: Array) -> None: ...

    def scores(self, candidates: list[int], kept: list[int], step: int) -> list[float]: ...


def walk(
    trace: Trace,
    row: Row,
    statistic: Statistic,
    budget: int,
    evicts: Callable[[int], bool],
    protected: Callable[[list[int], int], list[int]],
    choose: Choose = best,
) -> tuple[dict[int, int], list[Decision]]:
    """Steps at which entries leave, and why. `row(at, visible)` is the query's attention.

    METHODS 1: the new entry is appended, attention is taken over everything retained and the new
    entry, statistics are updated, then the schedule may evict. Rows of prompt tokens carry steps
    ≤ 0 (`position − P + 1`). Step 0 is the end of prefill, with statistics gathered from all
    prompt queries.
    """
    prompt = trace.prompt_length
    gone: dict[int, int] = {}
    decisions: list[Decision] = []
    kept: list[int] = []
    for at in range(trace.total):
        step = at - prompt + 1
        statistic.born(at, step)
        kept = [*kept, at]
        statistic.update(step, kept, row(at, kept))
        if step < 0 or len(kept) <= budget or not evicts(step):
            continue
        fixed = protected(kept, step)
        candidates = [p for p in kept if p not in fixed]
        scores = statistic.scores(candidates, kept, step)
        chosen = choose(candidates, scores, budget - len(fixed))
        gap = margin(candidates, scores, chosen)
        decisions.append(Decision(0, 0, step, candidates, scores, chosen, gap, statistic.alpha_gap))
        for position in candidates:
            if position not in chosen:
                gone[position] = step
        kept = sorted(fixed + chosen)
    return gone, decisions


def walk_heads(
    trace: Trace,
    statistic: Callable[[int, int], Statistic],
    budget: int,
    evicts: Callable[[int], bool],
    protected: Callable[[list[int], int], list[int]],
    group_reduce: str = "mean",
    choose: Choose = best,
) -> Outcome:
    """METHODS 1: the default granularity is one keep-set per KV head."""
    result = outcome(trace)
    for layer in range(trace.layers):
        for head in range(trace.heads):

            def row(at: int, visible: list[int], layer: int = layer, head: int = head) -> Array:
                return group_row(trace, layer, head, at, visible, group_reduce)

            gone, decisions = walk(
                trace, row, statistic(layer, head), budget, evicts, protected, choose
            )
            note(result, layer, [head], gone, decisions)
    return result


def walk_layers(
    trace: Trace,
    statistic: Callable[[], Statistic],
    budget: int,
    evicts: Callable[[int], bool],
    protected: Callable[[list[int], int], list[int]],
) -> Outcome:
    """METHODS 2, TOVA: mean over all query heads, one set per layer (repeated over KV heads)."""
    result = outcome(trace)
    for layer in range(trace.layers):

        def row(at: int, visible: list[int], layer: int = layer) -> Array:
            return layer_row(trace, layer, at, visible)

        gone, decisions = walk(trace, row, statistic(), budget, evicts, protected)
        note(result, layer, list(range(trace.heads)), gone, decisions)
    return result


def note(
    result: Outcome, layer: int, heads: list[int], gone: dict[int, int], decisions: list[Decision]
) -> None:
    for head in heads:
        for position, step in gone.items():
            result.evicted_at[layer, head, position] = step
    for decision in decisions:
        decision.layer, decision.head = layer, heads[0]
        result.decisions.append(decision)
