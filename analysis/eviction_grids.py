"""Layer x head grids: how much each head keeps, and two policies compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.comparison import budget_words
from analysis.errors import AnalysisError
from analysis.eviction_codes import (
    check_eviction_step,
    check_head,
    counts_over_steps,
    head_name,
    held,
)
from analysis.figure import Axis, ColourScale, Figure, Marker, Note
from analysis.words import number, provenance, source_words
from cache_store.reader import Capture

if TYPE_CHECKING:
    from analysis.replays import Replayed

GRID_NOTE = Note(
    "Each cell is one head: the share of all entries so far that it still holds after the step. "
    "Equal cells mean that the budget is split evenly; a click on a cell shows that head.",
    "share = |{ i < P + t : evicted_at(i) > t }| / (P + t)",
    "KVCompose, Figure 1: composite tokens share one budget over the layers",
)
GRID_DIFFERENCE_NOTE = Note(
    "Each cell is one head: how many more entries the first policy holds there than the second; "
    "white means equally many. Rows of one colour show that the two split the budget differently "
    "over the layers.",
    "difference = |cached₁| − |cached₂| after the step",
    "KVCompose, Figure 1: composite tokens share one budget over the layers",
)


def kept_grid(
    capture: Capture,
    replayed: Replayed,
    step: int,
    *,
    selected: tuple[int, int] | None = None,
) -> Figure:
    """Heatmap layer (y) x head (x): share of the entries so far that is cached after `step`.

    Of policies that choose at every step, the share that the step attends to. Exempt layers are
    left empty. Clickable; `selected` (layer, head) is outlined. The colours go from 0 to 1.
    """
    check_eviction_step(replayed, step)
    shares = held(replayed, step).sum(2) / (replayed.prompt_length + step)
    shares = np.where(replayed.exempt[:, None], np.nan, shares).astype(np.float32)
    verb = "kept" if replayed.visible is None else "attended to"
    return layer_head_grid(
        capture,
        (replayed,),
        shares,
        ColourScale(f"share {verb}", (0.0, 1.0)),
        step,
        selected,
        title=f"{replayed.title}: share {verb} by layer and head",
        what=f"share of all {replayed.prompt_length + step:,} entries that is {verb}",
        note=GRID_NOTE,
        figure="kept_grid",
    )


def kept_difference(
    capture: Capture,
    first: Replayed,
    second: Replayed,
    step: int,
    *,
    selected: tuple[int, int] | None = None,
) -> Figure:
    """Heatmap layer x head: entries `first` keeps less those `second` keeps, centred on 0.

    The colour range is that of the largest difference over all steps.
    """
    check_same_heads(first, second)
    check_eviction_step(first, step)
    over_steps = counts_over_steps(first) - counts_over_steps(second)
    counts = over_steps[:, :, step].astype(np.float32)
    counts[first.exempt & second.exempt] = np.nan
    return layer_head_grid(
        capture,
        (first, second),
        counts,
        ColourScale.centred("entries, A less B", max(1, np.abs(over_steps).max())),
        step,
        selected,
        title=f"Entries kept, A less B · A: {first.title} · B: {second.title}",
        what="entries that A keeps less those that B keeps",
        note=GRID_DIFFERENCE_NOTE,
        figure="kept_difference",
    )


def layer_head_grid(
    capture: Capture,
    policies: Sequence[Replayed],
    values: np.ndarray,
    colour: ColourScale,
    step: int,
    selected: tuple[int, int] | None,
    *,
    title: str,
    what: str,
    note: Note,
    **selection: Any,
) -> Figure:
    """A clickable grid of layers and heads; values float32 (layers, heads), NaN: exempt."""
    if selected is not None:
        check_head(policies[0], *selected)
    exempt = np.flatnonzero(np.isnan(values).all(1)).tolist()
    left_out = f" Exempt (sliding window): layers {', '.join(map(str, exempt))}." if exempt else ""
    high, low = (np.unravel_index(pick(values), values.shape) for pick in (_largest, _smallest))
    return Figure(
        "heatmap",
        title,
        Axis(head_name(capture, policies[0]), np.arange(values.shape[1])),
        Axis("layer", np.arange(values.shape[0]), reversed=True),
        {"z": values},
        colour=colour,
        markers=()
        if selected is None
        else (Marker("cell", selected[1], selected[0], selected=True),),
        caption=(
            f"{what[0].upper()}{what[1:]} after step {step:,}.{left_out} "
            f"{budget_words(policies)}; {source_words(capture)}."
        ),
        alt=(
            f"Grid of {values.shape[0]} layers by {values.shape[1]} heads, {what} after step "
            f"{step:,}: highest {number(float(values[high]))} in layer {high[0]}, head {high[1]}; "
            f"lowest {number(float(values[low]))} in layer {low[0]}, head {low[1]}."
        ),
        note=note,
        provenance=provenance(
            capture, policies=[policy.choice for policy in policies], step=step, **selection
        ),
    )


def _largest(values: np.ndarray) -> int:
    return int(np.argmax(np.nan_to_num(values, nan=-np.inf)))


def _smallest(values: np.ndarray) -> int:
    return int(np.argmin(np.nan_to_num(values, nan=np.inf)))


def check_same_heads(first: Replayed, second: Replayed) -> None:
    """Raises AnalysisError for two policies that cannot be compared head by head."""
    if first.evicted_at.shape != second.evicted_at.shape:
        raise AnalysisError(
            f"{first.title} and {second.title} keep sets for different heads "
            f"({first.evicted_at.shape[1]} and {second.evicted_at.shape[1]} per layer): choose the "
            "same granularity for both."
        )
