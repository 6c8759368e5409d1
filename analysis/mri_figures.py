"""How long tokens stay silent, over all heads of one or several runs, and which W covers that."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.curves import (
    BAND_WORDS,
    banded,
    captures_provenance,
    captures_words,
    edges_within,
    same_model,
)
from analysis.errors import AnalysisError
from analysis.figure import Axis, ColourScale, Figure, Marker, Note, Series
from analysis.recurrence import SHARE, Distribution, pooled_distribution
from analysis.words import number
from cache_store.reader import Capture

DISTRIBUTION_NOTE = Note(
    "Most tokens return soon, a few only after long pauses; W, the steps between two evictions, "
    "should cover most of them. The rule takes the MRI that the chosen share of the tokens, 80 % "
    "in the paper, does not exceed.",
    "F(m) = share of (layer, KV head, token) with MRI ≤ m among those ever active; "
    "W = min {m : F(m) ≥ 0.8}, 0.8 the chosen share",
    "LazyEviction, Figure 3(c) and Section 4.3, the choice of W",
)


def mri_histogram(
    captures: Sequence[Capture],
    parts: Sequence[Distribution],
    *,
    alpha: float | str,
    share: float = SHARE,
    bins: int = 64,
) -> Figure:
    """Bars: how many tokens have each MRI, pooled over the runs; the proposed W is marked."""
    whole = pooled_distribution(parts)
    edges = edges_within(len(whole.counts), bins)
    counts = np.add.reduceat(whole.counts, edges[:-1])
    return Figure(
        "bars",
        "How long tokens stay silent",
        Axis("MRI", edges=edges, unit="steps"),
        Axis("tokens"),
        {"y": counts[None].astype(np.float32)},
        series=(Series("tokens"),),
        markers=_window_marker(whole, share),
        caption=_distribution_caption(captures, whole, alpha, share),
        alt=_distribution_alt(whole, share),
        note=DISTRIBUTION_NOTE,
        provenance=captures_provenance(captures, figure="mri_histogram", alpha=alpha),
    )


def mri_cdf(
    captures: Sequence[Capture],
    parts: Sequence[Distribution],
    *,
    alpha: float | str,
    share: float = SHARE,
) -> Figure:
    """Line: share of ever active tokens with at most each MRI, the mean of the runs with a band."""
    whole = pooled_distribution(parts)
    longest = len(whole.counts)
    curves = np.stack(
        [np.pad(part.cdf, (0, longest - len(part.cdf)), mode="edge") for part in parts]
    ).astype(np.float32)
    arrays = banded([curves])
    band = f"; band: {BAND_WORDS} of the runs" if "low" in arrays else ""
    return Figure(
        "lines",
        "Share of tokens that a window covers",
        Axis("MRI", np.arange(longest), unit="steps"),
        Axis("share of tokens with at most this MRI", range=(0.0, 1.02)),
        arrays,
        series=(Series("cumulative share"),),
        markers=(*_window_marker(whole, share), Marker("y", y=share, label=f"{100 * share:.0f} %")),
        caption=_distribution_caption(captures, whole, alpha, share, band),
        alt=_distribution_alt(whole, share),
        note=DISTRIBUTION_NOTE,
        provenance=captures_provenance(captures, figure="mri_cdf", alpha=alpha),
    )


def _window_marker(whole: Distribution, share: float) -> tuple[Marker, ...]:
    window = whole.window(share)
    return () if window is None else (Marker("x", x=window, label=f"W = {window}", selected=True),)


def _distribution_caption(
    captures: Sequence[Capture],
    whole: Distribution,
    alpha: float | str,
    share: float,
    more: str = "",
) -> str:
    if not whole.tokens:
        return f"No token reached α = {alpha}. {captures_words(same_model(captures))}."
    return (
        f"α = {alpha}; {number(whole.share_above_one * 100)} % of the {whole.tokens:,} (layer, KV "
        f"head, token) that were ever active have MRI > 1, of {whole.considered:,} in all; "
        f"{100 * share:.0f} % have an MRI of at most W = {whole.window(share)} steps{more}. "
        f"{captures_words(same_model(captures))}."
    )


def _distribution_alt(whole: Distribution, share: float) -> str:
    if not whole.tokens:
        return "No token was ever active."
    return (
        f"Distribution of the maximum recurrence interval: {100 * share:.0f} % of "
        f"{whole.tokens:,} tokens stay at or below {whole.window(share)} steps, the longest is "
        f"{len(whole.counts) - 1}."
    )


GRID_NOTE = Note(
    "Each cell is one KV head; where many tokens recur, or after long pauses, a small window would "
    "evict what the head needs again. One W serves all heads, so bright heads are those it fits "
    "least.",
    "share = |{i : MRIᵢ > 1}| / |{i ever active}|; W of one head = min {m : F(m) ≥ 0.8}, 0.8 the "
    "chosen share",
    "LazyEviction, Section 4.3, by layer and head",
)
MEASURES = {
    "share": ("tokens with MRI > 1", "share of the tokens that were ever active"),
    "window": ("window that covers {percent:.0f} % of the tokens", "steps"),
}


def mri_by_head(
    captures: Sequence[Capture],
    values: Sequence[np.ndarray],
    measure: str = "share",
    *,
    layers: Sequence[int],
    share: float = SHARE,
    selected: tuple[int, int] | None = None,
) -> Figure:
    """Heatmap layer (y) by KV head (x) of what `head_distributions` gives, the mean over runs.

    values: one (len(layers), kv_heads) per run, made with the same `share`; `selected` (layer, KV
    head) is outlined.
    """
    if measure not in MEASURES:
        raise AnalysisError(f"There is no measure {measure!r}; choose {', '.join(MEASURES)}.")
    label, unit = MEASURES[measure]
    label = label.format(percent=100 * share)
    counts = np.sum([~np.isnan(part) for part in values], axis=0)
    z = np.nansum(values, axis=0) / np.where(counts > 0, counts, np.nan)
    top = 1.0 if measure == "share" else max(2.0, float(np.nanmax(z, initial=1.0)))
    markers = () if selected is None else (Marker("cell", selected[1], selected[0], selected=True),)
    return Figure(
        "heatmap",
        f"{label[0].upper()}{label[1:]}, by layer and KV head",
        Axis("KV head", np.arange(z.shape[1])),
        Axis("layer", np.array(layers), reversed=True),
        {"z": z.astype(np.float32)},
        colour=ColourScale(unit, (0.0 if measure == "share" else 1.0, top)),
        markers=markers,
        caption=(
            f"{label[0].upper()}{label[1:]}{'' if len(values) == 1 else ', the mean of the runs'}. "
            f"{captures_words(same_model(captures))}."
        ),
        alt=f"Grid of {z.shape[0]} layers by {z.shape[1]} KV heads: {label}.",
        note=GRID_NOTE,
        provenance=captures_provenance(captures, figure="mri_by_head", measure=measure),
    )
