"""What eviction cost each layer in replay: the error of its output, and what it should hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis.comparison import (
    compared,
    from_zero,
    layer_axis,
    lines_of,
    mean_over,
    pooled,
    share_range,
)
from analysis.figure import Axis, Figure, Note
from analysis.rows import MEAN, Selection
from cache_store.reader import Capture

if TYPE_CHECKING:
    from analysis.replays import Replayed

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
    arrays = lines_of(replayeds, rows, capture.info.layers)
    return compared(
        capture,
        replayeds,
        arrays,
        title="Error of the attention output by layer",
        x=layer_axis(capture.info.layers),
        y=Axis("relative output error", range=from_zero(arrays)),
        what=f"{heads}, {when}",
        note=ERROR_NOTE,
        spread="query heads",
        figure="output_error_by_layer",
        head=head,
        step=step,
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
        y=Axis("recall", unit="share", range=share_range(arrays)),
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
