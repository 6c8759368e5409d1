"""KVCompose's figures: what each layer keeps, at one ratio and at all, and its composite tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from analysis.budgets import ALLOCATIONS, Composed, overlap
from analysis.comparison import layer_axis
from analysis.curves import (
    BAND_WORDS,
    banded,
    captures_provenance,
    captures_words,
    same_model,
)
from analysis.errors import AnalysisError
from analysis.figure import Axis, ColourScale, Figure, Marker, Note, Series
from analysis.text import token_pieces
from analysis.words import number, provenance, source_words, visible
from cache_store.reader import Capture

BUDGET_NOTE = Note(
    "Layers whose composite slots score high keep more of the context. All heads of a layer keep "
    "equally many entries, so that the cache stays a plain tensor.",
    "N_ℓ = |{k : slot (ℓ, k) among the ⌊(1 − r)·L·N⌋ best}|, slot score = mean over heads of their "
    "k-th best",
    "KVCompose, Section 3.3, Eqs. 19–22",
)
MATRIX_NOTE = Note(
    "Row k is the k-th composite token: every head brings its own k-th best entry, so one row may "
    "hold different original tokens. Colours are original positions; only kept slots are drawn.",
    "slot (ℓ, k) of head h = the entry with the k-th largest score of head h",
    "KVCompose, Figure 1",
)
OPERATOR_NOTE = Note(
    "How many entries each layer gains or loses when one choice differs from the default. A "
    "change that moves budgets little may still keep other tokens: the overlap says how many stay.",
    "ΔN_ℓ = N_ℓ(variant) − N_ℓ(default); overlap = |both| / |either|",
    "KVCompose, Figures 2–4: operators, mean term and value norms",
)
SPLIT_NOTE = Note(
    "The same scores and the same total, split by other rules. Uniform and pyramid do not look at "
    "the scores; head-adaptive moves budget within a layer only; unstructured moves it anywhere.",
    "uniform: B; pyramid: linear in the layer; head-adaptive: the layer's top H·B; unstructured: "
    "the model's top L·H·B",
    "KVCompose, Section 2 and Table 4",
)


def layer_budgets(
    captures: Sequence[Capture], composed: Sequence[Composed], *, layers: Sequence[int]
) -> Figure:
    """N_ℓ by layer: bars for one capture; for several, the mean share of the context with a band.

    composed: one per capture, at the same ratio.
    """
    same_model(captures)
    ratio = composed[0].compression_ratio
    one = len(captures) == 1
    shares = np.stack([made.counts / max(1, made.context) for made in composed])
    arrays = (
        {"y": composed[0].counts[None].astype(np.float32)}
        if one
        else banded([shares.astype(np.float32)])
    )
    kept = "; ".join(f"{int(made.counts.sum()):,} slots" for made in composed[:4])
    realised = composed[0].realised_ratio
    note = "" if abs(realised - ratio) < 0.005 else f" ({number(realised * 100)} % realised)"
    return Figure(
        "bars" if one else "lines",
        "What each layer keeps",
        Axis("layer", np.array(layers), ticks=layer_axis(len(layers)).ticks if one else ()),
        Axis("entries per KV head" if one else "share of the context kept"),
        arrays,
        series=(Series("KVCompose"),),
        markers=() if not one else (Marker("y", y=float(composed[0].counts.mean()), label="mean"),),
        caption=(
            f"{number(ratio * 100)} % evicted{note}: {kept} of {composed[0].context:,} per layer"
            f"{f'; band: {BAND_WORDS} of the runs' if 'low' in arrays else ''}. "
            f"{captures_words(captures)}."
        ),
        alt=(
            f"Entries kept by layer, from {int(composed[0].counts.min()):,} to "
            f"{int(composed[0].counts.max()):,}."
        ),
        note=BUDGET_NOTE,
        provenance=captures_provenance(captures, figure="layer_budgets", ratio=ratio),
    )


def budgets_over_ratios(
    capture: Capture,
    ratios: Sequence[float],
    counts: np.ndarray,
    *,
    layers: Sequence[int],
    ratio: float | None = None,
) -> Figure:
    """Area: entries by layer at every ratio, counts (ratios, layers); `ratio` is marked."""
    marked = () if ratio is None else (Marker("x", x=ratio, label="ratio", selected=True),)
    return Figure(
        "area",
        "What each layer keeps at every ratio",
        Axis("compression ratio", np.array(ratios)),
        Axis("entries per KV head, all layers"),
        {"y": counts.T.astype(np.float32)},
        series=tuple(Series(f"layer {layer}") for layer in layers),
        markers=marked,
        caption=f"Each band is one layer, the lowest first. {source_words(capture)}.",
        alt=f"Entries kept by {len(layers)} layers at {len(ratios)} ratios.",
        note=BUDGET_NOTE,
        provenance=provenance(capture, figure="budgets_over_ratios", ratio=ratio),
    )


def allocation_lines(
    capture: Capture, counts: Mapping[str, np.ndarray], *, layers: Sequence[int], ratio: float
) -> Figure:
    """Lines over layers: mean entries per KV head of each allocation, the band over heads.

    counts: by key of ALLOCATIONS, (layers, kv_heads) of `allocated`.
    """
    arrays = banded([values.T.astype(np.float32) for values in counts.values()])
    totals = "; ".join(
        f"{ALLOCATIONS[name]} {int(values.sum()):,}" for name, values in counts.items()
    )
    return Figure(
        "lines",
        "The same budget, split five ways" if len(counts) == 5 else "The same budget, split",
        Axis("layer", np.array(layers)),
        Axis("entries per KV head"),
        arrays,
        series=tuple(Series(ALLOCATIONS[name]) for name in counts),
        caption=(
            f"{number(ratio * 100)} % evicted, the same scores"
            f"{f'; band: {BAND_WORDS} of the KV heads' if 'low' in arrays else ''}. Realised "
            f"entries over all heads: {totals}. {source_words(capture)}."
        ),
        alt=f"Entries by layer under {len(counts)} allocations; totals: {totals}.",
        note=SPLIT_NOTE,
        provenance=provenance(
            capture, figure="allocation_lines", allocations=list(counts), ratio=ratio
        ),
    )


def head_budgets(
    capture: Capture,
    counts: np.ndarray,
    allocate: str,
    *,
    layers: Sequence[int],
    context: int,
    selected: tuple[int, int] | None = None,
) -> Figure:
    """Heatmap layer (y) by KV head (x): entries each head keeps; counts (layers, kv_heads)."""
    markers = () if selected is None else (Marker("cell", selected[1], selected[0], selected=True),)
    return Figure(
        "heatmap",
        f"Entries by layer and KV head, {ALLOCATIONS[allocate]}",
        Axis("KV head", np.arange(counts.shape[1])),
        Axis("layer", np.array(layers), reversed=True),
        {"z": counts.astype(np.float32)},
        colour=ColourScale("entries kept", (0.0, float(max(1, context)))),
        markers=markers,
        pickable=True,
        caption=f"Of {context:,} entries of the context. {source_words(capture)}.",
        alt=f"Entries per head from {int(counts.min()):,} to {int(counts.max()):,}.",
        note=SPLIT_NOTE,
        provenance=provenance(capture, figure="head_budgets", allocate=allocate),
    )


def composite_matrix(
    capture: Capture,
    composed: Composed,
    layer: int,
    *,
    layers: Sequence[int],
    first: int = 0,
    rows: int = 64,
    chosen: int | None = None,
) -> Figure:
    """Heatmap slot (y) by KV head (x): original positions of the composite tokens of a layer.

    first: the first slot shown; slots that are not kept are empty. chosen: a slot to mark.
    """
    number_of = _place(layer, layers)
    kept = int(composed.counts[number_of])
    shown = composed.slots[number_of, :, first : first + rows].T.astype(np.float32)
    if not len(shown):
        raise AnalysisError(f"Layer {layer} has slots 0 to {composed.context - 1}, not {first}.")
    shown[max(0, kept - first) :] = np.nan
    alike = (shown == shown[:, :1]).all(axis=1)
    return Figure(
        "heatmap",
        f"Composite tokens of layer {layer}",
        Axis("KV head", np.arange(shown.shape[1])),
        Axis("composite slot", first + np.arange(len(shown)), reversed=True),
        {"z": shown},
        colour=ColourScale("original position", (0.0, float(max(1, composed.context - 1)))),
        markers=() if chosen is None else (Marker("y", y=chosen, selected=True),),
        pickable=shown.size <= 4096,
        caption=(
            f"Slots {first:,} to {first + len(shown) - 1:,} of {kept:,} kept in layer {layer}; "
            f"{int(alike.sum())} of these hold one and the same token in every head. "
            f"{source_words(capture)}."
        ),
        alt=f"Original positions of {len(shown)} composite tokens over {shown.shape[1]} heads.",
        note=MATRIX_NOTE,
        provenance=provenance(capture, figure="composite_matrix", layer=layer, first=first),
    )


def composite_table(
    capture: Capture,
    composed: Composed,
    layer: int,
    *,
    layers: Sequence[int],
    first: int = 0,
    rows: int = 64,
) -> pd.DataFrame:
    """One row per slot and head: slot, kv_head, position, token, slot_score, kept."""
    number_of = _place(layer, layers)
    pieces = token_pieces(capture)
    slots = composed.slots[number_of, :, first : first + rows]
    places, heads = np.meshgrid(first + np.arange(slots.shape[1]), np.arange(slots.shape[0]))
    return pd.DataFrame(
        {
            "slot": places.T.reshape(-1),
            "kv_head": heads.T.reshape(-1),
            "position": slots.T.reshape(-1),
            "token": [visible(pieces[place]) for place in slots.T.reshape(-1)],
            "slot_score": composed.slot_scores[number_of][places.T.reshape(-1)],
            "kept": places.T.reshape(-1) < composed.counts[number_of],
        }
    )


def _place(layer: int, layers: Sequence[int]) -> int:
    if layer not in layers:
        raise AnalysisError(
            f"Layer {layer} has no composite tokens; choose one of {', '.join(map(str, layers))}."
        )
    return list(layers).index(layer)


def operator_effect(
    capture: Capture,
    default: Composed,
    variants: Mapping[str, Composed],
    *,
    layers: Sequence[int],
) -> Figure:
    """Bars: what each variant adds to or takes from each layer, against the default."""
    if not variants:
        raise AnalysisError("No other operator is chosen to compare with the default.")
    differences = np.stack([made.counts - default.counts for made in variants.values()])
    told = "; ".join(
        f"{name} {number(float(overlap(default, made).mean()) * 100)} %"
        for name, made in variants.items()
    )
    return Figure(
        "bars",
        "Effect of the operators on the budgets",
        Axis("layer", np.array(layers)),
        Axis("entries more than the default"),
        {"y": differences.astype(np.float32)},
        series=tuple(Series(name) for name in variants),
        markers=(Marker("y", y=0.0),),
        caption=f"Overlap of what is kept with the default: {told}. {source_words(capture)}.",
        alt=f"Differences of layer budgets for {len(variants)} variants. Overlap: {told}.",
        note=OPERATOR_NOTE,
        provenance=provenance(capture, figure="operator_effect", variants=list(variants)),
    )


OVERRIDE = (
    "The authors' contribution to kvpress raises layer 0's slot scores to the best of all layers, "
    "so that no layer keeps more than layer 0, from which tools take the cache's length; the other "
    "layers pay for it. The paper does not."
)
