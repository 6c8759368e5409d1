"""KVCompose's composite tokens: which original tokens the heads of a layer put side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.budgets import Composed
from analysis.errors import AnalysisError
from analysis.figure import Axis, ColourScale, Figure, Marker, Note
from analysis.text import token_pieces
from analysis.words import provenance, source_words, visible
from cache_store.reader import Capture

ROWS = 32  # composite slots shown at once, as many as can be clicked one by one

MATRIX_NOTE = Note(
    "Row k is the k-th composite token: every head brings its own k-th best entry, so one row may "
    "hold different original tokens. Colours are original positions; only kept slots are drawn.",
    "slot (ℓ, k) of head h = the entry with the k-th largest score of head h",
    "KVCompose, Figure 1",
)


def composite_matrix(
    capture: Capture,
    composed: Composed,
    layer: int,
    *,
    layers: Sequence[int],
    first: int = 0,
    rows: int = ROWS,
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
    rows: int = ROWS,
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
