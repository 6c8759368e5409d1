"""What every reference policy shares: the trace, budgets, choosing the best, and the outcome."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray
Pair = tuple[list[Array], list[Array]]


@dataclass
class Trace:
    """States of a capture: queries (query_heads, P + T, d), keys, values (kv_heads, P + T, d)."""

    queries: list[Array]
    keys: list[Array]
    values: list[Array]
    prompt_length: int
    context_length: int
    scaling: float
    softcap: float | None = None
    lookahead: list[Array] | None = None  # (query_heads, n, d) per layer
    second_reading: Pair | None = None  # (queries per layer, keys per layer) of the second copy
    output_norms: list[Array] | None = None  # (kv or query heads, P + T) per layer
    rotary: tuple[Array, Array] | None = None  # cos, sin: (positions, d)
    budget: int | None = None
    compression_ratio: float | None = None
    kv_group: int = 1  # query heads per KV head of the model, also under granularity="query_head"

    @property
    def layers(self) -> int:
        return len(self.keys)

    @property
    def query_heads(self) -> int:
        return int(self.queries[0].shape[0])

    @property
    def heads(self) -> int:
        return int(self.keys[0].shape[0])

    @property
    def group(self) -> int:
        return self.query_heads // self.heads

    @property
    def total(self) -> int:
        return int(self.keys[0].shape[1])

    @property
    def steps(self) -> int:
        return self.total - self.prompt_length

    def group_of(self, head: int) -> range:
        """The query heads that share KV head `head`."""
        return range(head * self.group, (head + 1) * self.group)

    def span(self, scope: str) -> int:
        """METHODS 1: `scope` "prompt" (default) or "context" (the question is then never ranked
        or evicted, as in tools that compress before seeing it)."""
        if scope == "context":
            return self.context_length
        if scope == "prompt":
            return self.prompt_length
        raise ValueError(f"scope is 'prompt' or 'context', not {scope!r}")


@dataclass
class Decision:
    """One choice: `positions` are the candidates (protected entries are not among them)."""

    layer: int
    head: (
        int  # KV head; the query head for SAGE-KV, Quest, and granularity="query_head"; 0 for TOVA
    )
    step: int
    positions: list[int]
    scores: list[float]
    kept: list[int]
    margin: float  # lowest kept minus highest evicted score; shared thresholds count as well
    alpha_gap: float = math.inf  # smallest |attention - alpha| so far, where the score has an alpha


@dataclass
class Outcome:
    """What left the cache and when."""

    evicted_at: Array
    visible: Array | None = None
    decisions: list[Decision] = field(default_factory=list)

    def keep(self, prompt_length: int) -> Array:
        """METHODS 1: `[.., t, :]` what is cached after step t."""
        layers, heads, total = self.evicted_at.shape
        keep = np.zeros((layers, heads, total - prompt_length + 1, total), dtype=bool)
        for step in range(keep.shape[2]):
            for position in range(prompt_length + step):
                keep[:, :, step, position] = self.evicted_at[:, :, position] > step
        return keep


def outcome(trace: Trace) -> Outcome:
    """Nothing evicted: "T + 1 if never"."""
    shape = (trace.layers, trace.heads, trace.total)
    return Outcome(np.full(shape, trace.steps + 1, dtype=np.int32))


def whole(number: float) -> int:
    """METHODS 1: budgets use `floor(x + 1e-9)`."""
    return math.floor(number + 1e-9)


def budget_over(trace: Trace, entries: int) -> int:
    """METHODS 1: `budget` B; `compression_ratio` instead of it (for after-prefill policies of the
    compressed span, for the others of the full cache's `P + T` entries). At least one entry is
    always visible."""
    if trace.budget is not None:
        if trace.budget < 1:
            raise ValueError(f"a budget is at least 1, not {trace.budget}")
        return trace.budget
    if trace.compression_ratio is None:
        raise ValueError("this policy needs a budget or a compression_ratio")
    return max(1, whole((1 - trace.compression_ratio) * entries))


def best(positions: Sequence[int], scores: Sequence[float], count: int) -> list[int]:
    """METHODS 1: ties go to the lower original position (stable sort). Kept indices are sorted by
    position."""
    order = sorted(range(len(positions)), key=lambda i: (-scores[i], positions[i]))
    return sorted(positions[i] for i in order[: max(0, count)])


def best_newest(positions: Sequence[int], scores: Sequence[float], count: int) -> list[int]:
    """METHODS 5, RaaS: ties evict the oldest."""
    order = sorted(range(len(positions)), key=lambda i: (-scores[i], -positions[i]))
    return sorted(positions[i] for i in order[: max(0, count)])


def margin(positions: Sequence[int], scores: Sequence[float], kept: Sequence[int]) -> float:
    """How far the nearest other choice is: lowest kept minus highest evicted score."""
    chosen = set(kept)
    inside = [s for p, s in zip(positions, scores, strict=True) if p in chosen]
    outside = [s for p, s in zip(positions, scores, strict=True) if p not in chosen]
    if not inside or not outside or min(inside) == max(outside) == -math.inf:
        return math.inf
    return min(inside) - max(outside)


def evict_after_prefill(
    result: Outcome,
    layer: int,
    head: int,
    span: int,
    protected: Sequence[int],
    positions: list[int],
    scores: list[float],
    kept: list[int],
    shared_margin: float = math.inf,
) -> None:
    """Everything in the span that is neither protected nor kept leaves at step 0."""
    stays = set(protected) | set(kept)
    for position in range(span):
        if position not in stays:
            result.evicted_at[layer, head, position] = 0
    gap = min(margin(positions, scores, kept), shared_margin)
    result.decisions.append(Decision(layer, head, 0, positions, scores, kept, gap))
