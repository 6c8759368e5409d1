"""KVCompose's figures: what each layer and head keeps, at one ratio and at all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

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
from analysis.words import number
from cache_store.reader import Capture

BUDGET_NOTE = Note(
    "Layers whose composite slots score high keep more of the context. All heads of a layer keep "
    "equally many entries, so that the cache stays a plain tensor.",
    "N_ℓ = |{k : slot (ℓ, k) among the ⌊(1 − r)·L·N⌋ best}|, slot score = mean over heads of their "
    "k-th best",
    "KVCompose, Section 3.3, Eqs. 19–22",
)
RATIOS_NOTE = Note(
    "Read it at one ratio from below: the height of a band is what that layer still keeps, and all "
    "bands together are the total. A band that stays wide to the right is a layer that keeps its "
    "entries longest.",
    BUDGET_NOTE.formula,
    BUDGET_NOTE.source,
)
HEADS_NOTE = Note(
    "Each cell is one KV head. KVCompose, uniform and pyramid give all heads of a layer the same; "
    "the unstructured variant keeps every head's own number, which a plain tensor cannot store.",
    "entries of head h in layer ℓ among the L·H·B that the rule keeps",
    "KVCompose, Appendix A.2 and Table 4: the unstructured variant",
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
    total = sum(int(made.counts.sum()) for made in composed)
    kept = f"{total:,} slots of {composed[0].context:,} per layer"
    if not one:
        slots = sum(made.slot_scores.size for made in composed)
        kept = f"{total:,} of {slots:,} slots in all runs together"
    realised = float(np.mean([made.realised_ratio for made in composed]))
    note = "" if abs(realised - ratio) < 0.005 else f" ({number(realised * 100)} % realised)"
    return Figure(
        "bars" if one else "lines",
        "What each layer keeps",
        Axis("layer", np.array(layers), ticks=layer_axis(len(layers)).ticks if one else ()),
        Axis("entries per KV head" if one else "share of the context kept"),
        arrays,
        series=(Series("KVCompose"),),
        markers=(Marker("y", y=float(arrays["y"].mean()), label="mean"),),
        caption=(
            f"{number(ratio * 100)} % evicted{note}: {kept}"
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
    captures: Sequence[Capture],
    ratios: Sequence[float],
    counts: Sequence[np.ndarray],
    *,
    layers: Sequence[int],
    ratio: float | None = None,
) -> Figure:
    """Area: entries by layer at every ratio; for several captures, shares of all slots, their mean.

    counts: (ratios, layers) of each capture. `ratio` is marked.
    """
    marked = () if ratio is None else (Marker("x", x=ratio, label="ratio", selected=True),)
    one = len(same_model(captures)) == 1
    slots = [1 if one else len(layers) * max(1, run.info.context_length) for run in captures]
    heights = np.mean([part / size for part, size in zip(counts, slots, strict=True)], axis=0)
    return Figure(
        "area",
        "What each layer keeps at every ratio",
        Axis("compression ratio", np.array(ratios)),
        Axis("entries per KV head, all layers" if one else "share of all slots kept"),
        {"y": heights.T.astype(np.float32)},
        series=tuple(Series(f"layer {layer}") for layer in layers),
        markers=marked,
        caption=(
            f"Each band is one layer, the lowest first{'' if one else '; the mean of the runs'}. "
            f"{captures_words(captures)}."
        ),
        alt=f"Entries kept by {len(layers)} layers at {len(ratios)} ratios.",
        note=RATIOS_NOTE,
        provenance=captures_provenance(captures, figure="budgets_over_ratios", ratio=ratio),
    )


def allocation_lines(
    captures: Sequence[Capture],
    counts: Sequence[Mapping[str, np.ndarray]],
    *,
    layers: Sequence[int],
    ratio: float,
) -> Figure:
    """Lines over layers: mean entries per KV head of each allocation, the band over heads; for
    several captures, shares of the context, over the heads of all.

    counts: of each capture by key of ALLOCATIONS, (layers, kv_heads) of `allocated`.
    """
    one = len(same_model(captures)) == 1
    names = list(counts[0])
    sizes = [1 if one else max(1, run.info.context_length) for run in captures]
    rows = [
        np.concatenate([part[name].T / size for part, size in zip(counts, sizes, strict=True)])
        for name in names
    ]
    arrays = banded([part.astype(np.float32) for part in rows])
    totals = "; ".join(
        f"{ALLOCATIONS[name]} {sum(int(part[name].sum()) for part in counts):,}" for name in names
    )
    return Figure(
        "lines",
        "The same budget, split five ways" if len(names) == 5 else "The same budget, split",
        Axis("layer", np.array(layers)),
        Axis("entries per KV head" if one else "share of the context kept"),
        arrays,
        series=tuple(Series(ALLOCATIONS[name]) for name in names),
        caption=(
            f"{number(ratio * 100)} % evicted, the same scores"
            f"{f'; band: {BAND_WORDS} of the KV heads' if 'low' in arrays else ''}. Realised "
            f"entries over all heads: {totals}. {captures_words(captures)}."
        ),
        alt=f"Entries by layer under {len(names)} allocations; totals: {totals}.",
        note=SPLIT_NOTE,
        provenance=captures_provenance(
            captures, figure="allocation_lines", allocations=names, ratio=ratio
        ),
    )


def head_budgets(
    captures: Sequence[Capture],
    counts: Sequence[np.ndarray],
    allocate: str,
    *,
    layers: Sequence[int],
    selected: tuple[int, int] | None = None,
) -> Figure:
    """Heatmap layer (y) by KV head (x): entries each head keeps; for several captures, the mean
    share of the context.

    counts: (layers, kv_heads) of each capture.
    """
    one = len(same_model(captures)) == 1
    context = max(1, captures[0].info.context_length)
    sizes = [1 if one else max(1, run.info.context_length) for run in captures]
    z = np.mean([part / size for part, size in zip(counts, sizes, strict=True)], axis=0)
    markers = () if selected is None else (Marker("cell", selected[1], selected[0], selected=True),)
    of = f"Of {context:,} entries of the context" if one else "The mean of the runs"
    return Figure(
        "heatmap",
        f"Entries by layer and KV head, {ALLOCATIONS[allocate]}",
        Axis("KV head", np.arange(z.shape[1])),
        Axis("layer", np.array(layers), reversed=True),
        {"z": z.astype(np.float32)},
        colour=(
            ColourScale("entries kept", (0.0, float(context)))
            if one
            else ColourScale("share of the context kept", (0.0, 1.0))
        ),
        markers=markers,
        caption=f"{of}. {captures_words(captures)}.",
        alt=f"Entries per head from {number(float(z.min()))} to {number(float(z.max()))}.",
        note=HEADS_NOTE,
        provenance=captures_provenance(captures, figure="head_budgets", allocate=allocate),
    )


def operator_effect(
    captures: Sequence[Capture],
    default: Sequence[Composed],
    variants: Mapping[str, Sequence[Composed]],
    *,
    layers: Sequence[int],
) -> Figure:
    """Bars: what each variant adds to or takes from each layer, against the default; for several
    captures, the mean in shares of the context.

    default, and each of variants: one per capture.
    """
    if not variants:
        raise AnalysisError("No other operator is chosen to compare with the default.")
    one = len(same_model(captures)) == 1
    rows, overlaps = [], {}
    for name, made in variants.items():
        pairs = list(zip(made, default, strict=True))
        sizes = [1 if one else max(1, own.context) for own in made]
        moved = [own.counts - usual.counts for own, usual in pairs]
        rows.append(np.mean([part / size for part, size in zip(moved, sizes, strict=True)], axis=0))
        overlaps[name] = float(np.mean([overlap(usual, own).mean() for own, usual in pairs]))
    differences = np.stack(rows)
    told = "; ".join(f"{name} {number(share * 100)} %" for name, share in overlaps.items())
    return Figure(
        "bars",
        "Effect of the operators on the budgets",
        Axis("layer", np.array(layers)),
        Axis("entries" if one else "share of the context", unit="more than the default"),
        {"y": differences.astype(np.float32)},
        series=tuple(Series(name) for name in variants),
        markers=(Marker("y", y=0.0),),
        caption=f"Overlap of what is kept with the default: {told}. {captures_words(captures)}.",
        alt=f"Differences of layer budgets for {len(variants)} variants. Overlap: {told}.",
        note=OPERATOR_NOTE,
        provenance=captures_provenance(captures, figure="operator_effect", variants=list(variants)),
    )


OVERRIDE = (
    "The authors' contribution to kvpress raises layer 0's slot scores to the best of all layers, "
    "so that no layer keeps more than layer 0, from which tools take the cache's length; the other "
    "layers pay for it. The paper does not."
)
