"""What eviction cost in replay (docs/methods.md, section 7), step by step.

With it comes, under one name, everything that the panels on cost and on live runs show.

Every function takes the capture and the policies replayed over it; the oracle and random at the
same budget are policies like the others. `layer` is a layer or MEAN; `head` a KV head or MEAN, of
numbers by query head all of its group count. A mean leaves out layers that a policy does not touch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis.comparison import (
    compared,
    from_zero,
    head_words,
    lines_of,
    pooled,
    share_range,
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
from analysis.layer_costs import RECALL_NOTE, output_error_by_layer, recall_by_layer
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
    "the oracle is provably best here only with a single eviction after prefill",
)
REGRET_NOTE = Note(
    "Attention that the full cache would have given to entries already evicted: a step where a "
    "line jumps is one that came back to something gone. Summed over the steps it says what the "
    "evictions cost so far; of a single step it is 1 minus the attention mass kept.",
    "regret(t) = Σᵢ gone Aᵢ(t), A the group's mean attention under the full cache; a recurrence is "
    "missed where Aᵢ(t) ≥ α = 5·10⁻⁴",
    "LazyEviction, Figures 1 and 2b: tokens evicted before they matter again",
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
        y=Axis("attention mass kept", unit="share", range=share_range(arrays)),
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
    arrays = lines_of(replayeds, rows, steps)
    return compared(
        capture,
        replayeds,
        arrays,
        title=f"{label[0].upper()}{label[1:]}",
        x=step_axis(steps),
        y=Axis(label, unit=unit, range=from_zero(arrays)),
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
        y=Axis("recall", unit="share", range=share_range(arrays)),
        what=head_words(layer, head),
        note=RECALL_NOTE,
        spread="KV heads",
        markers=step_marker(step, steps),
        figure="recall",
        layer=layer,
        head=head,
    )


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
