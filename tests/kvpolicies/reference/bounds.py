"""The floor and the ceiling: random, the oracle, and Belady's rule."""

import math
from collections.abc import Callable

import numpy as np

from .attention import group_row
from .common import Array, Outcome, Trace, budget_over
from .every_step import always, never
from .statistics import Position, threshold
from .walk import walk_heads


def full_rows(trace: Trace, layer: int, head: int, group_reduce: str) -> list[Array]:
    """The full cache's attention of every step 1 … T, over all P + T columns."""
    rows = []
    for at in range(trace.prompt_length, trace.total):
        weights = np.zeros(trace.total)
        weights[: at + 1] = group_row(trace, layer, head, at, range(at + 1), group_reduce)
        rows.append(weights)
    return rows


class Future(Position):
    """METHODS 2: the oracle: attention the entry will receive in the rest of the capture."""

    def __init__(self, trace: Trace, layer: int, head: int, group_reduce: str) -> None:
        self.rows = full_rows(trace, layer, head, group_reduce)

    def scores(self, candidates: list[int], kept: list[int], step: int) -> list[float]:
        return [sum(float(row[p]) for row in self.rows[step:]) for p in candidates]


class NextUse(Position):
    """METHODS 2: `next_use` is Belady's rule on the next step with attention ≥ `alpha`: the sooner
    the better, never is worst."""

    def __init__(
        self, trace: Trace, layer: int, head: int, alpha: float | str, group_reduce: str
    ) -> None:
        self.rows = full_rows(trace, layer, head, group_reduce)
        self.prompt, self.alpha, self.alpha_gap = trace.prompt_length, alpha, math.inf
        for index, row in enumerate(self.rows):
            visible = self.prompt + index + 1
            for weight in row[:visible]:
                gap = abs(float(weight) - threshold(alpha, visible))
                self.alpha_gap = min(self.alpha_gap, gap)

    def scores(self, candidates: list[int], kept: list[int], step: int) -> list[float]:
        scores = []
        for position in candidates:
            score = -math.inf
            for later in range(len(self.rows), step, -1):
                if self.rows[later - 1][position] >= threshold(self.alpha, self.prompt + later):
                    score = float(-later)
            scores.append(score)
        return scores


class Random(Position):
    """METHODS 2: seeded. Assumed protocol: one generator per (seed, layer, head), one number per
    position of the capture, drawn at once and kept."""

    def __init__(self, trace: Trace, layer: int, head: int, seed: int) -> None:
        self.numbers = np.random.default_rng([seed, layer, head]).random(trace.total)

    def scores(self, candidates: list[int], kept: list[int], step: int) -> list[float]:
        return [float(self.numbers[p]) for p in candidates]


def bound(
    trace: Trace, statistic: Callable[[int, int], Position], schedule: str, scope: str
) -> Outcome:
    """METHODS 5: after_prefill or every_step. Only the former has a scope: with "context" the
    question stays, besides the budget."""
    if schedule not in ("after_prefill", "every_step"):
        raise ValueError(f"schedule is 'after_prefill' or 'every_step', not {schedule!r}")
    if schedule == "every_step":
        budget = budget_over(trace, trace.total)
        return walk_heads(trace, statistic, budget, always, never)
    span = trace.span(scope)
    question = list(range(span, trace.prompt_length))
    return walk_heads(
        trace,
        statistic,
        budget_over(trace, span) + len(question),
        lambda step: step == 0,
        lambda kept, step: question,
    )


def oracle(
    trace: Trace,
    *,
    schedule: str = "after_prefill",
    group_reduce: str = "mean",
    scope: str = "prompt",
) -> Outcome:
    """METHODS 5: what the rest of the capture will attend to, known in advance."""
    return bound(
        trace, lambda layer, head: Future(trace, layer, head, group_reduce), schedule, scope
    )


def belady(
    trace: Trace,
    *,
    schedule: str = "after_prefill",
    alpha: float | str = 5e-4,
    group_reduce: str = "mean",
    scope: str = "prompt",
) -> Outcome:
    """METHODS 5: what will be used again soonest stays."""
    return bound(
        trace, lambda layer, head: NextUse(trace, layer, head, alpha, group_reduce), schedule, scope
    )


def random(
    trace: Trace, *, schedule: str = "after_prefill", seed: int = 0, scope: str = "prompt"
) -> Outcome:
    """METHODS 5: the floor."""
    return bound(trace, lambda layer, head: Random(trace, layer, head, seed), schedule, scope)
