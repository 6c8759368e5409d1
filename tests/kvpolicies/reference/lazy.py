"""Policies that evict after every W-th step: LazyEviction, R-KV, and LazyEviction's Table 3."""

import math
from collections.abc import Callable

import numpy as np

from .attention import logits_of, pool, softmax
from .common import Array, Outcome, Trace, best_newest, budget_over
from .statistics import Cumulative, Last, Position, Recurrence, TimeStamp
from .walk import walk_heads, walk_layers


def every(window: int) -> Callable[[int], bool]:
    """METHODS 1: `every(W)` never evicts at prefill, even with `P > B`; it evicts after steps with
    `t ≥ 1`, `t mod W == 0` and more than `B` entries cached (the walk counts those)."""
    return lambda step: step >= 1 and step % window == 0


def last(window: int, budget: int) -> Callable[[list[int], int], list[int]]:
    """METHODS 6: keep the last `W` (with `B ≤ W` keep the last `B`)."""
    number = min(window, budget)
    return lambda kept, step: kept[len(kept) - number :]


def lazyeviction(
    trace: Trace,
    *,
    window: int = 25,
    alpha: float | str = 5e-4,
    form: str = "released",
    h1: bool = True,
    h2: bool = True,
    h1_function: str = "sigmoid",
    h2_function: str = "sigmoid",
    group_reduce: str = "mean",
) -> Outcome:
    """METHODS 6: when `t mod W == 0` and more than `B` entries are cached: keep the last `W`, and
    the top `B − W` of the rest by `I = H1 + H2`. No sink or prompt protection."""
    budget = budget_over(trace, trace.total)
    return walk_heads(
        trace,
        lambda layer, head: Recurrence(alpha, form, h1, h2, h1_function, h2_function),
        budget,
        every(window),
        last(window, budget),
        group_reduce,
    )


def h2o_window(trace: Trace, *, window: int = 25, group_reduce: str = "mean") -> Outcome:
    """METHODS 5: LazyEviction's Table 3: the last W kept, the top B − W of the rest by the
    method's own score."""
    budget = budget_over(trace, trace.total)
    return walk_heads(
        trace,
        lambda layer, head: Cumulative(),
        budget,
        every(window),
        last(window, budget),
        group_reduce,
    )


def tova_window(trace: Trace, *, window: int = 25) -> Outcome:
    """METHODS 5: as `h2o_window` by TOVA's score, one set per layer."""
    budget = budget_over(trace, trace.total)
    return walk_layers(trace, Last, budget, every(window), last(window, budget))


def raas_window(
    trace: Trace, *, window: int = 25, alpha: float | str = 1e-4, group_reduce: str = "mean"
) -> Outcome:
    """METHODS 5: as `h2o_window` by RaaS's time stamp; RaaS's own ties, no pinned prompt."""
    budget = budget_over(trace, trace.total)
    return walk_heads(
        trace,
        lambda layer, head: TimeStamp(alpha),
        budget,
        every(window),
        last(window, budget),
        group_reduce,
        best_newest,
    )


class Redundancy(Position):
    """METHODS 2: R-KV: λ·A − (1−λ)·R."""

    def __init__(
        self, trace: Trace, layer: int, head: int, window: int, lam: float, similarity: float
    ) -> None:
        self.trace, self.layer, self.head = trace, layer, head
        self.window, self.lam, self.similarity = window, lam, similarity
        self.alpha_gap = math.inf

    def attention(self, candidates: list[int], at: int) -> Array:
        """METHODS 2: A: logits of the last `window` queries, maximum over the group, softmax over
        the entries outside the window, mean over the window, max-pooled (7)."""
        trace = self.trace
        keys = trace.keys[self.layer][self.head][candidates]
        rows = []
        for position in range(at - self.window + 1, at + 1):
            logits = [
                logits_of(trace, trace.queries[self.layer][q, position], keys)
                for q in trace.group_of(self.head)
            ]
            rows.append(softmax(np.max(logits, axis=0)))
        return pool(np.sum(rows, axis=0) / len(rows), 7, "max")

    def redundancy(self, kept: list[int]) -> Array:
        """METHODS 2: R: cosine between keys, diagonal 0, in each row the latest entry above
        `similarity` set to 0 (the newest copy is not redundant), column mean, softmax."""
        keys = self.trace.keys[self.layer][self.head][kept]
        cosine = np.zeros((len(kept), len(kept)))
        for i, a in enumerate(keys):
            for j, b in enumerate(keys):
                if i != j:
                    cosine[i, j] = a @ b / (np.linalg.norm(a) * np.linalg.norm(b))
        for i in range(len(kept)):
            for j in range(len(kept)):
                self.alpha_gap = min(self.alpha_gap, abs(float(cosine[i, j]) - self.similarity))
            above = [j for j in range(len(kept)) if cosine[i, j] > self.similarity]
            if above:
                cosine[i, above[-1]] = 0.0
        return softmax(cosine.sum(axis=0) / len(kept))

    def scores(self, candidates: list[int], kept: list[int], step: int) -> list[float]:
        if not candidates or candidates[-1] > kept[len(kept) - self.window - 1]:
            raise ValueError("the observation window is protected, it is never a candidate")
        attention = self.attention(candidates, kept[-1])
        redundancy = self.redundancy(kept)[[kept.index(p) for p in candidates]]
        return list(self.lam * attention - (1 - self.lam) * redundancy)


def r_kv(
    trace: Trace,
    *,
    interval: int = 128,
    window: int = 8,
    lam: float = 0.1,
    similarity: float = 0.5,
) -> Outcome:
    """METHODS 5: redundancy_attention, every(W), W 128, λ 0.1, window 8, similarity 0.5. The
    observation window is kept (it has no scores)."""
    budget = budget_over(trace, trace.total)
    watched = min(window, budget)
    return walk_heads(
        trace,
        lambda layer, head: Redundancy(trace, layer, head, watched, lam, similarity),
        budget,
        every(interval),
        last(watched, budget),
    )
