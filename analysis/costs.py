"""What eviction cost in replay (METHODS.md 7): figures over steps and layers.

With it comes, under one name, everything that the panels on cost and on live runs show.

Every function takes the capture and the policies replayed over it; the oracle and random at the
same budget are policies like the others. `layer` is a layer or MEAN; `head` a KV head or MEAN, of
numbers by query head all of its group count. A mean leaves out layers that a policy does not touch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis.comparison import (
    compared,
    head_words,
    layer_axis,
    lines_of,
    mean_over,
    pooled,
    step_axis,
    step_marker,
)
from analysis.cost_summary import SUMMARY_COLUMNS, Column, cost_summary
from analysis.decisions import most_regretted, score_distribution
from analysis.distances import (
    distance_over_steps,
    distance_to,
    oracle_choice,
    random_choice,
    reference_of,
)
from analysis.errors import AnalysisError
from analysis.figure import Axis, Figure, Note
from analysis.live import (
    LIVE_COLUMNS,
    cache_bytes_over_steps,
    kl_over_steps,
    latency_by_stage,
    latency_over_steps,
    live_summary,
)
from analysis.responses import ResponseDiff, response_diff
from analysis.rows import MEAN, Selection
from cache_store.reader import Capture

if TYPE_CHECKING:
    from analysis.replays import Replayed

MASS_NOTE = Note(
    "The higher a line, the more of what the full cache attends to is still cached when the step "
    "asks for it; 1 means that nothing it looks at is gone. Read a policy between random and the "
    "oracle at the same budget: the one is the floor, the other a strong reference.",
    "Σᵢ∈cached Aᵢ with the full cache's attention A of the step, per query head",
    "METHODS.md 7, replay: attention mass kept",
)
REGRET_NOTE = Note(
    "Attention that the full cache would have given to entries already evicted: a step where a "
    "line jumps is one that came back to something gone. Summed over the steps it says what the "
    "evictions cost so far; of a single step it is 1 minus the attention mass kept.",
    "regret(t) = Σᵢ gone Aᵢ(t), A the group's mean attention under the full cache; a recurrence is "
    "missed where Aᵢ(t) ≥ α = 5·10⁻⁴",
    "METHODS.md 7, replay: regret; LazyEviction, Figure 1: recurring tokens evicted too early",
)
ERROR_NOTE = Note(
    "How far each layer's attention output moves when it can only use what is cached; 0 is the "
    "full cache's output. A layer with a high error is where this policy hurts most.",
    "‖o_full − o_policy‖₂ / ‖o_full‖₂ per query head and step, attention renormalised over what "
    "is cached",
    "LazyEviction, Eq. 4: the attention output error",
)
RECALL_NOTE = Note(
    "The share of the entries that a policy should hold which it does hold; 1 is the best choice "
    "of as many entries. Gold by step is what that step attends to most, gold by layer what the "
    "whole response does.",
    "recall = |kept ∩ gold| / |gold|, gold = the entries with the largest full-cache attention, "
    "as many as are cached",
    "LAQ, Eqs. 1–3 and Figure 2",
)
ACTIVE = 5e-4  # the attention from which a recurrence counts, LazyEviction's α
UNIFORM = (
    "α = 5·10⁻⁴ lies below uniform attention over {length:,} entries, so nearly everything counts."
)
REGRETS = {
    "cumulative": ("regret so far", "attention mass"),
    "regret": ("regret of the step", "attention mass"),
    "missed": ("recurrences missed", "so far"),
}


def mass_kept(
    capture: Capture,
    replayeds: Sequence[Replayed],
    layer: Selection,
    head: Selection,
    *,
    step: int | None = None,
) -> Figure:
    """Lines: share of the full cache's attention that falls on what is cached, over steps 1 … T.

    A mean over heads or layers has a 10-90 % band around each policy; `step` is marked.
    """
    rows = [pooled(capture, policy, policy.mass_kept, layer, head) for policy in replayeds]
    steps = capture.info.response_length
    arrays = lines_of(replayeds, rows, steps)
    return compared(
        capture,
        replayeds,
        arrays,
        title="Attention mass kept over the steps",
        x=step_axis(steps),
        y=Axis("attention mass kept", unit="share", range=_upper_range(arrays)),
        what=head_words(layer, head),
        note=MASS_NOTE,
        spread="query heads",
        markers=step_marker(step, steps),
        figure="mass_kept",
        layer=layer,
        head=head,
    )


def regret_over_steps(
    capture: Capture,
    replayeds: Sequence[Replayed],
    layer: Selection,
    head: Selection,
    *,
    measure: str = "cumulative",
    step: int | None = None,
) -> Figure:
    """Lines: regret over steps 1 … T, the mean over the heads of a selection.

    measure: "cumulative" (summed up to the step), "regret" (of the step alone) or "missed"
    (recurrences missed so far). Raises AnalysisError for another measure.
    """
    if measure not in REGRETS:
        raise AnalysisError(f"There is no measure {measure!r}; choose {', '.join(REGRETS)}.")
    steps = capture.info.response_length
    rows = []
    for policy in replayeds:
        values = policy.missed_step if measure == "missed" else policy.regret_step
        part = pooled(capture, policy, values, layer, head).astype(np.float64)
        rows.append(part if measure == "regret" else np.nancumsum(part, axis=1))
    label, unit = REGRETS[measure]
    below = measure == "missed" and ACTIVE * capture.info.length < 1
    return compared(
        capture,
        replayeds,
        lines_of(replayeds, rows, steps),
        title=f"{label[0].upper()}{label[1:]}",
        x=step_axis(steps),
        y=Axis(label, unit=unit),
        what=head_words(layer, head),
        note=REGRET_NOTE,
        spread="KV heads",
        more=UNIFORM.format(length=capture.info.length) if below else "",
        markers=step_marker(step, steps),
        figure="regret_over_steps",
        layer=layer,
        head=head,
        measure=measure,
    )


def output_error_by_layer(
    capture: Capture,
    replayeds: Sequence[Replayed],
    head: Selection = MEAN,
    *,
    step: int | None = None,
) -> Figure:
    """Lines over layers: relative L2 error of the attention output, the mean over query heads.

    Of one step, or each head's mean over steps 1 … T; the band is over query heads. An exempt
    layer has no point.
    """
    steps = capture.info.response_length
    one = step is not None and 1 <= step <= steps
    rows = []
    for policy in replayeds:
        errors = policy.output_error
        values = errors[:, :, step - 1] if one and step else _mean_over_steps(errors)
        rows.append(_by_layer(capture, policy, values, head))
    when = f"step {step}" if one else "mean over the steps"
    heads = "all query heads" if head == MEAN else f"KV head {head}"
    return compared(
        capture,
        replayeds,
        lines_of(replayeds, rows, capture.info.layers),
        title="Error of the attention output by layer",
        x=layer_axis(capture.info.layers),
        y=Axis("relative output error"),
        what=f"{heads}, {when}",
        note=ERROR_NOTE,
        spread="query heads",
        figure="output_error_by_layer",
        head=head,
        step=step,
    )


def recall(
    capture: Capture,
    replayeds: Sequence[Replayed],
    layer: Selection,
    head: Selection,
    *,
    step: int | None = None,
) -> Figure:
    """Lines: share of each step's gold entries that is cached, over steps 1 … T.

    Gold are as many entries as are cached, with the largest full-cache attention of the step.
    """
    steps = capture.info.response_length
    rows = [pooled(capture, policy, policy.recall, layer, head) for policy in replayeds]
    arrays = lines_of(replayeds, rows, steps)
    return compared(
        capture,
        replayeds,
        arrays,
        title="Recall of what each step needs",
        x=step_axis(steps),
        y=Axis("recall", unit="share", range=_upper_range(arrays)),
        what=head_words(layer, head),
        note=RECALL_NOTE,
        spread="KV heads",
        markers=step_marker(step, steps),
        figure="recall",
        layer=layer,
        head=head,
    )


def recall_by_layer(
    capture: Capture, replayeds: Sequence[Replayed], head: Selection = MEAN
) -> Figure:
    """Lines over layers: recall of the prompt entries that the whole response attends to most."""
    rows = [_by_layer(capture, policy, policy.recall_response, head) for policy in replayeds]
    arrays = lines_of(replayeds, rows, capture.info.layers)
    return compared(
        capture,
        replayeds,
        arrays,
        title="Recall of what the response needs, by layer",
        x=layer_axis(capture.info.layers),
        y=Axis("recall", unit="share", range=_upper_range(arrays)),
        what="all KV heads" if head == MEAN else f"KV head {head}",
        note=RECALL_NOTE,
        spread="KV heads",
        figure="recall_by_layer",
        head=head,
    )


def _by_layer(
    capture: Capture, policy: Replayed, values: np.ndarray, head: Selection
) -> np.ndarray:
    """Values (layers, heads) as one column per layer, one row per head; NaN where exempt."""
    layers = [
        pooled(capture, policy, values, layer, head).astype(np.float32)
        for layer in range(capture.info.layers)
    ]
    rows = np.stack(layers, axis=1)
    rows[:, np.asarray(policy.exempt, bool)] = np.nan
    return rows


def _mean_over_steps(values: np.ndarray) -> np.ndarray:
    return mean_over(np.moveaxis(values, -1, 0))


def _upper_range(arrays: dict[str, np.ndarray]) -> tuple[float, float]:
    """From the tenth below the lowest point to 1, so that good policies can be told apart."""
    finite = np.concatenate([part[np.isfinite(part)] for part in arrays.values()])
    lowest = math.floor(float(finite.min()) * 10) / 10 if len(finite) else 0.0
    low = min(0.9, max(0.0, lowest))
    return low, 1 + 0.02 * (1 - low)


__all__ = [
    "LIVE_COLUMNS",
    "MEAN",
    "REGRETS",
    "SUMMARY_COLUMNS",
    "Column",
    "ResponseDiff",
    "cache_bytes_over_steps",
    "cost_summary",
    "distance_over_steps",
    "distance_to",
    "kl_over_steps",
    "latency_by_stage",
    "latency_over_steps",
    "live_summary",
    "mass_kept",
    "most_regretted",
    "oracle_choice",
    "output_error_by_layer",
    "random_choice",
    "recall",
    "recall_by_layer",
    "reference_of",
    "regret_over_steps",
    "response_diff",
    "score_distribution",
]
