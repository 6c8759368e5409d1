"""The figures of the Attention page: a capture and a selection in, a `Figure` or arrays out.

A layer or head may be MEAN ("mean"): the plain mean over all of them. Of P prompt tokens, the one
at position p has step p - P + 1 (<= 0); generated token t = 1, 2, ... has position P + t - 1.
"""

from __future__ import annotations

import math

import numpy as np

from analysis.errors import AnalysisError, NeedsJob
from analysis.figure import Axis, ColourScale, Figure, Marker, Note
from analysis.matrix import head_matrix, mark_step
from analysis.rows import (
    MEAN,
    MEASURES,
    UNITS,
    Selection,
    check_step,
    layer_statistics,
    recomputable_layers,
    step_range,
    window_rows,
)
from analysis.statistics import received_attention, step_statistics
from analysis.text import TokenView, text_rows, text_steps, text_view, top_tokens
from analysis.words import (
    number,
    provenance,
    source_words,
    step_words,
)
from cache_store.reader import Capture

OVERVIEW_NOTE = Note(
    "Each cell is one query head. Low entropy or a high top-1 mass means that the head looks at "
    "few tokens; a high sink mass that it rests on the first ones; a high recent mass that it "
    "looks just behind itself; a high far top-1 mass that it picks one token from the text between "
    "the two, as a head does that copies an answer.",
    "entropy H = −Σᵢ pᵢ ln pᵢ (nats); effective tokens = exp H; sink mass = Σ p over the first "
    "positions; recent mass = Σ p over the newest; top-1 mass = maxᵢ pᵢ; far top-1 mass = maxᵢ pᵢ "
    "over the positions between",
)


def overview(
    capture: Capture,
    measure: str = "entropy",
    step: int | None = None,
    *,
    selected: tuple[int, int] | None = None,
) -> Figure:
    """Heatmap layer (y) x query head (x) of a measure: at a step, or its mean over generated steps.

    Layers whose rows were not stored are recomputed when that is quick, and left out (NaN)
    otherwise; the caption says so. `selected` (layer, head) is outlined.
    """
    if measure not in MEASURES:
        raise AnalysisError(f"There is no measure {measure!r}; choose {', '.join(MEASURES)}.")
    info = capture.info
    if step is not None:
        first, last = step_range(capture)
        if not first <= step <= last:
            raise AnalysisError(
                f"Statistics exist for steps {first} to {last}, not for step {step}."
            )
    if step is None and info.response_length == 0:
        step = 0  # nothing was generated: the last prompt token speaks for the run
    grid, missing = _grid(capture, measure, step)
    when = "mean over the generated steps" if step is None else step_words(capture, step)
    label = MEASURES[measure]
    markers = () if selected is None else (Marker("cell", selected[1], selected[0], selected=True),)
    caption = f"{label} of every query head, {when}; {source_words(capture)}."
    if missing:
        caption += (
            f" Layers without stored rows are left empty: {', '.join(map(str, missing))}; choose "
            "one of their heads to see it recomputed."
        )
    return Figure(
        "heatmap",
        f"{label[0].upper()}{label[1:]} by layer and head",
        Axis("head", np.arange(info.query_heads)),
        Axis("layer", np.arange(info.layers), reversed=True),
        {"z": grid},
        colour=_measure_scale(measure, info.length),
        markers=markers,
        caption=caption[0].upper() + caption[1:],
        alt=_grid_alt(grid, label, when),
        note=OVERVIEW_NOTE,
        provenance=provenance(capture, figure="overview", measure=measure, step=step),
    )


def first_look(capture: Capture) -> tuple[int, int]:
    """The layer and head to show first: the one whose generated tokens look hardest at one far
    token (highest mean `far_top1_mass`), which in retrieval is a head that copies the answer."""
    grid, _ = _grid(capture, "far_top1_mass", None if capture.info.response_length else 0)
    if np.isnan(grid).all():
        return 0, 0
    layer, head = np.unravel_index(np.nanargmax(grid), grid.shape)
    return int(layer), int(head)


def _grid(capture: Capture, measure: str, step: int | None) -> tuple[np.ndarray, list[int]]:
    """The measure as float32 (layers, query_heads), and the layers it could not be had for."""
    grid = np.array(capture.step_stat_grid(measure, step), np.float32)
    recomputed, missing = recomputable_layers(capture)
    for layer in recomputed:
        steps, statistics = layer_statistics(capture, layer)
        taken = steps > 0 if step is None else steps == step
        grid[layer] = statistics[measure][:, taken].mean(axis=1)
    return grid, missing


def _measure_scale(measure: str, length: int) -> ColourScale:
    """The colour range of a measure: the same for every step, head and layer of a run."""
    label = f"{MEASURES[measure]} ({UNITS[measure]})"
    if measure == "entropy":
        return ColourScale(label, (0.0, math.log(max(2, length))))
    if measure == "effective_tokens":
        return ColourScale(label, (1.0, float(max(2, length))), log=True)
    return ColourScale(label, (0.0, 1.0))


def _grid_alt(grid: np.ndarray, label: str, when: str) -> str:
    if np.isnan(grid).all():
        return f"Empty grid of {label}: no rows are stored."
    high = np.unravel_index(np.nanargmax(grid), grid.shape)
    low = np.unravel_index(np.nanargmin(grid), grid.shape)
    return (
        f"Grid of {grid.shape[0]} layers by {grid.shape[1]} heads, {label}, {when}: highest "
        f"{number(float(grid[high]))} in layer {high[0]}, head {high[1]}; lowest "
        f"{number(float(grid[low]))} in layer {low[0]}, head {low[1]}."
    )


def step_row(capture: Capture, layer: Selection, head: Selection, step: int) -> np.ndarray:
    """One query's attention over all positions, float32 (P + T,), 0 for what it cannot see."""
    check_step(capture, step)
    return window_rows(capture, layer, head, step, step)[0]


__all__ = [
    "MEAN",
    "MEASURES",
    "AnalysisError",
    "NeedsJob",
    "TokenView",
    "first_look",
    "head_matrix",
    "mark_step",
    "overview",
    "received_attention",
    "step_range",
    "step_row",
    "step_statistics",
    "text_rows",
    "text_steps",
    "text_view",
    "top_tokens",
]
