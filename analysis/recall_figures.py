"""LAQ's recall over window start, and by layer and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from analysis.comparison import mean_over
from analysis.curves import (
    BAND_WORDS,
    banded,
    captures_provenance,
    captures_words,
    same_model,
)
from analysis.errors import AnalysisError
from analysis.figure import Axis, ColourScale, Figure, Marker, Note, Series
from analysis.recall import RankedWindows
from analysis.words import number
from cache_store.reader import Capture

RECALL_NOTE = Note(
    "A window of queries keeps the B prompt entries it attends to most; recall is how many of them "
    "the whole response would have chosen too. It jumps at offset 0, where the first generated "
    "token enters: even a draft's queries (dashed) know better than the prompt's.",
    "recall = |top_B(Σ_{q∈window} A(q, ·)) ∩ top_B(Σ_{q∈response} A(q, ·))| / B, A the mean over "
    "the query heads of a KV head",
    "LAQ, Eqs. 1–3 and Figure 2",
)
GRID_NOTE = Note(
    "Each cell is one KV head: how much of what the response needs a window at this offset finds. "
    "Dark heads change their mind between prompt and response.",
    RECALL_NOTE.formula,
    "LAQ, Figure 2, by layer and head",
)
DASHES = ("dash", "dot", "dashdot", "longdash")


def recall_lines(
    captures: Sequence[Capture],
    full: Sequence[RankedWindows],
    budgets: Sequence[int],
    *,
    lookaheads: Mapping[str, Sequence[RankedWindows]] | None = None,
    width: int,
    weighting: str = "softmax",
    layer: int | None = None,
    kv_head: int | None = None,
) -> Figure:
    """Lines over window start, one per budget; dashed for each recorded lookahead response.

    full: `ranked_windows` of each capture; lookaheads: the same with `pseudo=True`, by title. The
    band is over the layers and KV heads of all captures; a layer or head restricts both.
    """
    same_model(captures)
    if not budgets:
        raise AnalysisError("No budget is chosen; choose at least one.")
    sources = {"": full, **(lookaheads or {})}
    lines, series = [], []
    for index, budget in enumerate(budgets):
        for dash, (name, ranked) in zip(
            ("solid", *DASHES * len(sources)), sources.items(), strict=False
        ):
            lines.append(recall_of_heads(ranked, budget, layer, kv_head))
            told = f"B = {budget:,}" + (f", {name}" if name else "")
            series.append(Series(told, COLOURS[index % len(COLOURS)], dash))
    arrays = banded(lines)
    offsets = full[0].labels
    short = sorted(
        {
            int(label)
            for ranked in full
            for label, size in zip(ranked.labels, ranked.queries, strict=True)
            if 0 < size < width
        }
    )
    empty = [int(n) for n in offsets[np.max([r.queries for r in full], axis=0) == 0]]
    return Figure(
        "lines",
        "Recall of what the response needs, by window start",
        Axis("window start (0: first generated token)", offsets),
        Axis("recall", range=(0.0, 1.02)),
        arrays,
        series=tuple(series),
        markers=(Marker("x", x=0, label="first generated token", selected=True),),
        caption=(
            f"Windows of {width} queries, {weighting} weighting, {_where(layer, kv_head)}"
            f"{f'; band: {BAND_WORDS} of the heads' if 'low' in arrays else ''}."
            f"{_short_words(short, empty)} {captures_words(captures)}."
        ),
        alt=recall_alt(offsets, [entry.name for entry in series], arrays["y"]),
        note=RECALL_NOTE,
        provenance=captures_provenance(
            captures,
            figure="recall_lines",
            budgets=list(budgets),
            width=width,
            weighting=weighting,
            layer=layer,
            kv_head=kv_head,
        ),
    )


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def recall_of_heads(
    ranked: Sequence[RankedWindows], budget: int, layer: int | None, kv_head: int | None
) -> np.ndarray:
    """Recall of every head behind a line; float32 (heads, windows)."""
    parts = []
    for windows in ranked:
        recall = windows.recall(budget)
        if layer is not None:
            recall = recall[:, layer : layer + 1]
        if kv_head is not None:
            recall = recall[:, :, kv_head : kv_head + 1]
        parts.append(recall.reshape(len(recall), -1).T)
    return np.concatenate(parts).astype(np.float32)


def _where(layer: int | None, kv_head: int | None) -> str:
    if layer is None:
        heads = "all KV heads" if kv_head is None else f"KV head {kv_head}"
        return f"{heads} of all layers"
    return f"layer {layer}, " + ("all KV heads" if kv_head is None else f"KV head {kv_head}")


def _short_words(short: Sequence[int], empty: Sequence[int]) -> str:
    told = ""
    if short:
        told += f" Windows from {', '.join(map(str, short))} hold fewer queries."
    if empty:
        told += f" From {empty[0]} on there is none."
    return told


def recall_alt(places: np.ndarray, names: Sequence[str], lines: np.ndarray) -> str:
    told = []
    for name, line in list(zip(names, lines, strict=True))[:6]:
        if not np.isfinite(line).any():
            told.append(f"{name} has no window")
            continue
        best = int(np.nanargmax(line))
        told.append(f"{name} highest, {number(float(line[best]))}, at {int(places[best])}")
    return f"Recall: {'; '.join(told)}."


def recall_by_head(
    captures: Sequence[Capture],
    ranked: Sequence[RankedWindows],
    budget: int,
    label: int,
    *,
    what: str = "the full cache's response",
    selected: tuple[int, int] | None = None,
) -> Figure:
    """Heatmap layer (y) by KV head (x): recall of the window at one start, the mean over captures.

    label: an offset (or length) of `ranked`; `selected` (layer, KV head) is outlined. Raises
    AnalysisError when there is no such window.
    """
    places = np.flatnonzero(ranked[0].labels == label)
    if not len(places):
        raise AnalysisError(
            f"There is no window at {label}; choose {ranked[0].labels.min()} to "
            f"{ranked[0].labels.max()}."
        )
    grids = [windows.recall(budget)[places[0]] for windows in ranked]
    z = mean_over(np.stack(grids))
    if not np.isfinite(z).any():
        raise AnalysisError(f"The window at {label} holds no query of this run.")
    markers = () if selected is None else (Marker("cell", selected[1], selected[0], selected=True),)
    return Figure(
        "heatmap",
        "Recall by layer and KV head",
        Axis("KV head", np.arange(z.shape[1])),
        Axis("layer", np.arange(z.shape[0]), reversed=True),
        {"z": z},
        colour=ColourScale("recall", (0.0, 1.0)),
        markers=markers,
        caption=(
            f"B = {budget:,}, window from {label}, of {what}; mean {number(float(np.nanmean(z)))}"
            f"{'' if len(ranked) == 1 else ' over the runs'}. "
            f"{captures_words(same_model(captures))}."
        ),
        alt=(
            f"Grid of {z.shape[0]} layers by {z.shape[1]} KV heads, recall from "
            f"{number(float(np.nanmin(z)))} to {number(float(np.nanmax(z)))}."
        ),
        note=GRID_NOTE,
        provenance=captures_provenance(
            captures, figure="recall_by_head", budget=budget, window=label
        ),
    )
