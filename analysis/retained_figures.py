"""SAGE-KV over budgets, and the position schemes of what it is compared with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from analysis.curves import BAND_WORDS, banded
from analysis.errors import AnalysisError
from analysis.figure import Axis, Figure, Marker, Note, Series
from analysis.picks import STREAMING_SINK, Retained
from analysis.picks_figures import check_step
from analysis.words import number, provenance, source_words
from cache_store.reader import Capture

MEASURES = {
    "mass": ("attention mass kept", "share"),
    "error": ("relative error of the attention output", ""),
}

RETAINED_NOTE = Note(
    "How much of the full cache's attention the response still finds at each budget, and how far "
    "the attention output moves without the rest. It is the paper's score over budget, with "
    "measures that one prompt has.",
    "mass = Σ_{i visible} A(t, i); error = ‖o_full − o_kept‖₂ / ‖o_full‖₂, attention renormalised",
    "SAGE-KV, Figure 2; error after LazyEviction, Eq. 4",
)
SCHEME_NOTE = Note(
    "Where the lines part, the schemes disagree how far away an entry is: with absolute positions "
    "the gaps of what was evicted stay. Numbered anew inside the cache, nothing is farther away "
    "than the cache is long; only the sinks come nearer, so the drift of both schemes can be "
    "nearly the same.",
    "absolute: position i; inside the cache: i's place among the cached entries",
    "SAGE-KV, Figure 3: StreamingLLM's position schemes",
)


def retained_over_budget(
    capture: Capture,
    measured: Mapping[str, Retained],
    measure: str,
    layer: int,
    *,
    budget: int | None = None,
) -> Figure:
    """Lines over budgets: attention mass kept ("mass") or output error ("error"), mean over steps.

    measured: by title, all over the same budgets; the band is over query heads. `budget`, where
    the budgets reach so far, is marked.
    """
    if measure not in MEASURES or not measured:
        raise AnalysisError(f"The measures are {', '.join(MEASURES)}, not {measure!r}.")
    label, unit = MEASURES[measure]
    arrays = banded([getattr(made, measure).mean(axis=-1).T for made in measured.values()])
    budgets = next(iter(measured.values())).budgets
    return Figure(
        "lines",
        f"{label[0].upper()}{label[1:]} over the budget, layer {layer}",
        Axis("budget", np.array(budgets), unit="entries"),
        Axis(label, unit=unit, range=(0.0, 1.02) if measure == "mass" else None),
        arrays,
        series=tuple(Series(name) for name in measured),
        markers=(
            (Marker("x", x=budget, label=f"B = {budget:,}", selected=True),)
            if budget is not None and budgets[0] <= budget <= budgets[-1]
            else ()
        ),
        caption=(
            f"Mean over {capture.info.response_length:,} steps under the full cache's queries, "
            f"layer {layer}{f'; band: {BAND_WORDS} of the query heads' if 'low' in arrays else ''}"
            f". {source_words(capture)}."
        ),
        alt="; ".join(
            f"{name} {number(float(line[0]))} at {budgets[0]:,} to {number(float(line[-1]))} at "
            f"{budgets[-1]:,}"
            for name, line in zip(measured, arrays["y"], strict=True)
        ),
        note=RETAINED_NOTE,
        provenance=provenance(capture, figure="retained_over_budget", measure=measure, layer=layer),
    )


def position_schemes(
    capture: Capture, budget: int, step: int, *, sink: int = STREAMING_SINK
) -> Figure:
    """Lines over cached entries after a step of StreamingLLM: the distance each scheme gives them.

    Distance is from the newest token, in positions. Raises AnalysisError for an impossible step.
    """
    check_step(capture, step)
    seen = capture.info.prompt_length + step
    kept = min(budget, seen)
    first = min(sink, max(0, kept - 1))
    cached = np.concatenate([np.arange(first), np.arange(seen - (kept - first), seen)])
    lines = np.stack([seen - 1 - cached, kept - 1 - np.arange(kept)]).astype(np.float32)
    return Figure(
        "lines",
        "StreamingLLM's position schemes",
        Axis("cached entry", np.arange(kept)),
        Axis("distance from the newest token", unit="positions"),
        {"y": lines},
        series=(Series("absolute positions"), Series("positions inside the cache", dash="dash")),
        caption=(
            f"{first} sinks and {kept - first:,} recent entries after step {step:,}; the farthest "
            f"entry is {int(lines[0].max()):,} or {int(lines[1].max()):,} positions away. "
            f"{source_words(capture)}."
        ),
        alt=f"Distances of {kept:,} cached entries under two position schemes.",
        note=SCHEME_NOTE,
        provenance=provenance(capture, figure="position_schemes", budget=budget, step=step),
    )
