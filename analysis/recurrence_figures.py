"""LazyEviction's recurring tokens: the attention map with their numbers, and their activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.colours import Category
from analysis.curves import edges_within, pool_columns, pooling_words
from analysis.errors import AnalysisError
from analysis.figure import Axis, ColourScale, Figure, Marker, Note
from analysis.recurrence import NO_RESPONSE, Recurring, Tracked
from analysis.text import TokenView, token_pieces
from analysis.words import number, provenance, source_words, visible
from cache_store.reader import Capture

COLUMNS = 480
ROWS = 48  # tokens of the activation raster

MAP_NOTE = Note(
    "Rows are generated tokens, columns the tokens they look at. A numbered token draws attention, "
    "is left alone for a while, and draws attention again: evicted in between, it would be missed.",
    "A(t, i) = softmax(scaling · q_t kᵀ)ᵢ, the mean over the query heads of the KV head; numbered "
    "are the tokens whose return after their longest pause drew most attention",
    "LazyEviction, Figure 3(a) and (b)",
)
IMPORTANT_NOTE = Note(
    "Each row marks the half of the entries that a step attends to most. A column that is marked, "
    "then empty, then marked again is a token that a policy looking at the present alone would "
    "have evicted in between.",
    "important(t, i): A(t, i) is among the ⌈n/2⌉ largest of the n entries that step t sees",
    "LazyEviction, Figure 2(b)",
)
RASTER_NOTE = Note(
    "Each row is a token: filled where a step attends to it with at least α, striped while it is "
    "silent but will be needed again. The longest stripe and its end are its maximum recurrence "
    "interval.",
    "active(t, i): A(t, i) ≥ α; MRIᵢ = max over active steps of t − TSᵢ",
    "LazyEviction, Section 4.2: dynamic MRI tracking",
)
ACTIVATION = (
    Category("active", "active (attention of at least α)", "#0072B2", "A"),
    Category("waiting", "silent, comes back", "#E69F00", "w", "/"),
    Category("silent", "silent until the end", "#808080", "·", "."),
)


def attention_map(
    capture: Capture,
    attention: np.ndarray,
    recurring: Sequence[Recurring],
    layer: int,
    kv_head: int,
    *,
    step: int | None = None,
    bins: int = COLUMNS,
) -> Figure:
    """Heatmap of one KV head, steps (y) by positions (x), with the recurring tokens numbered.

    attention: (T, P + T) of `response_attention`; a number stands where its token came back. More
    than `bins` positions or steps are pooled by their maximum.
    """
    steps, length = attention.shape
    columns, rows, z = _map_cells(attention, bins, "max")
    largest = float(np.nanmax(z))
    return Figure(
        "heatmap",
        f"Tokens that come back, layer {layer}, KV head {kv_head}",
        Axis("position", edges=columns),
        Axis("step", edges=rows + 1, reversed=True),
        {"z": z},
        colour=ColourScale("attention", (1e-5, 1.0), log=True),
        markers=_map_markers(capture, recurring, step),
        caption=(
            f"Attention of the {steps:,} generated tokens, the mean over the query heads of KV "
            f"head {kv_head} in layer {layer}, under the full cache; {len(recurring)} recurring "
            f"tokens numbered.{pooling_words(length, columns)}"
            f"{'' if step is None else f' Red line: step {step:,}.'} {source_words(capture)}."
        ),
        alt=(
            f"Attention map of {steps:,} steps by {length:,} positions, largest weight "
            f"{number(largest)}; recurring tokens at positions "
            f"{', '.join(f'{token.position:,}' for token in recurring) or 'none'}."
        ),
        note=MAP_NOTE,
        provenance=provenance(capture, figure="attention_map", layer=layer, kv_head=kv_head),
    )


def important_map(
    capture: Capture,
    attention: np.ndarray,
    recurring: Sequence[Recurring],
    layer: int,
    kv_head: int,
    *,
    step: int | None = None,
    bins: int = COLUMNS,
) -> Figure:
    """Heatmap of one KV head, steps (y) by positions (x): 1 where the entry is among the half that
    the step attends to most, 0 where not; more than `bins` are pooled by their mean.

    attention: (T, P + T) of `response_attention`; recurring tokens carry their numbers.
    """
    steps, length = attention.shape
    born = ~np.isnan(attention)
    order = np.argsort(np.where(born, -attention, np.inf), axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.broadcast_to(np.arange(length), order.shape), axis=1)
    half = -(-born.sum(axis=1, keepdims=True) // 2)
    important = np.where(born, (ranks < half).astype(np.float32), np.nan)
    columns, rows, z = _map_cells(important, bins, "mean")
    changed = (important[1:] != important[:-1]) & born[:-1]
    share = float(changed.sum() / max(1, born[:-1].sum()))
    return Figure(
        "heatmap",
        f"Important positions at each step, layer {layer}, KV head {kv_head}",
        Axis("position", edges=columns),
        Axis("step", edges=rows + 1, reversed=True),
        {"z": z},
        colour=ColourScale("share in the more attended half", (0.0, 1.0)),
        markers=_map_markers(capture, recurring, step),
        caption=(
            f"The more attended half at each of {steps:,} steps in KV head {kv_head} of layer "
            f"{layer}, under the full cache; from one step to the next {number(share * 100)} % of "
            f"the entries enter or leave it.{pooling_words(length, columns, 'mean')} "
            f"{source_words(capture)}."
        ),
        alt=(
            f"Which of {length:,} positions are in the more attended half at each of {steps:,} "
            f"steps; {number(share * 100)} % change from step to step."
        ),
        note=IMPORTANT_NOTE,
        provenance=provenance(capture, figure="important_map", layer=layer, kv_head=kv_head),
    )


def _map_cells(values: np.ndarray, bins: int, how: str) -> tuple[np.ndarray, ...]:
    """Edges of positions and of steps, and values (steps, positions) pooled between them."""
    steps, length = values.shape
    if not steps:
        raise AnalysisError(NO_RESPONSE)
    columns, rows = edges_within(length, bins), edges_within(steps, bins)
    return columns, rows, pool_columns(pool_columns(values, columns, how).T, rows, how).T


def _map_markers(
    capture: Capture, recurring: Sequence[Recurring], step: int | None
) -> tuple[Marker, ...]:
    """Where the response begins, where the numbered tokens came back, and the reader's step."""
    markers = [Marker("x", x=capture.info.prompt_length - 0.5, label="response")]
    markers += [
        Marker("cell", token.position, token.returned, circled(token.number)) for token in recurring
    ]
    if step is not None and 1 <= step <= capture.info.response_length:
        markers.append(Marker("y", y=step, selected=True))
    return tuple(markers)


def circled(value: int) -> str:
    """① … ⑳, as the paper numbers its tokens; plain beyond that."""
    return chr(0x245F + value) if 1 <= value <= 20 else f"({value})"


def numbered_text(
    view: TokenView, recurring: Sequence[Recurring], layer: int, kv_head: int
) -> TokenView:
    """The text with the numbers of its recurring tokens.

    view: shaded by the KV head's attention, the mean over its query heads.
    """
    pieces = list(view.pieces)
    for token in recurring:
        place = token.position - view.first
        if 0 <= place < len(pieces):
            word = pieces[place].lstrip(" ")
            space = " " * (len(pieces[place]) - len(word))
            pieces[place] = f"{space}{circled(token.number)}{word}"
    return replace(
        view,
        pieces=tuple(pieces),
        caption=(
            f"Shade: attention of step {view.step:,}, the mean over the query heads of KV head "
            f"{kv_head} in layer {layer}; numbers: the {len(recurring)} recurring tokens."
        ),
        alt=f"The text with {len(recurring)} recurring tokens numbered.",
        provenance={**view.provenance, "figure": "numbered_text", "head": f"KV head {kv_head}"},
    )


def recurring_table(capture: Capture, recurring: Sequence[Recurring]) -> pd.DataFrame:
    """Number, position, token, segment, returned (step), pause (steps), weight, activations."""
    tokens = capture.tokens()
    rows = [
        {
            "number": circled(token.number),
            "position": token.position,
            "token": visible(tokens["text"].iloc[token.position]),
            "segment": tokens["segment"].iloc[token.position],
            "returned": token.returned,
            "pause": token.pause,
            "weight": token.weight,
            "activations": token.activations,
        }
        for token in recurring
    ]
    names = ["number", "position", "token", "segment", "returned", "pause", "weight"]
    return pd.DataFrame(rows, columns=[*names, "activations"])


def activation_raster(
    capture: Capture,
    tracked: Tracked,
    layer: int,
    kv_head: int,
    *,
    alpha: float | str,
    positions: Sequence[int] | None = None,
    bins: int = COLUMNS,
) -> Figure:
    """Raster: tokens of one KV head (y, with their MRI) by steps (x): active, waiting, silent.

    positions: which tokens; by default, in order of position, those with the largest MRI among
    the tokens active more than once, then among the others.
    """
    steps, length = tracked.active.shape
    if not steps:
        raise AnalysisError(NO_RESPONSE)
    if positions is None:
        once = tracked.active.sum(axis=0) < 2
        order = np.lexsort((np.arange(length), -tracked.mri, once))[:ROWS]
        positions = sorted(int(place) for place in order if tracked.ever[place])
    if not len(positions):
        raise AnalysisError(f"No token of this head reached α = {alpha}; choose a smaller one.")
    active = tracked.active[:, list(positions)].T  # (tokens, T)
    later = np.flip(np.logical_or.accumulate(np.flip(active, 1), 1), 1)
    codes = np.where(active, 1, np.where(later, 2, 3)).astype(np.uint8)
    born = np.array(positions)[:, None] <= capture.info.prompt_length + np.arange(steps)
    codes[~born] = 0
    edges = edges_within(steps, bins)
    if len(edges) <= steps:  # the strongest state of a cell wins: active, then waiting
        strength = np.where(codes == 0, 9, codes)
        codes = np.minimum.reduceat(strength, edges[:-1], axis=1).astype(np.uint8) % 9
    pieces = token_pieces(capture)
    ticks = tuple(
        (float(row), f"{place:,} {visible(pieces[place], 12)} · {tracked.mri[place]}")
        for row, place in enumerate(positions)
    )
    return Figure(
        "raster",
        f"When tokens are active, layer {layer}, KV head {kv_head}",
        Axis("step", edges=edges + 1),
        Axis("token · MRI", ticks=ticks, reversed=True),
        {"codes": codes},
        categories=ACTIVATION,
        caption=(
            f"{len(positions)} tokens of KV head {kv_head} in layer {layer}, those that recur "
            f"first; active is attention of at least α = {alpha}, under the full cache. "
            f"{source_words(capture)}."
        ),
        alt=(
            f"Activations of {len(positions)} tokens over {steps:,} steps; the longest pause is "
            f"{int(tracked.mri[list(positions)].max()):,} steps."
        ),
        note=RASTER_NOTE,
        provenance=provenance(
            capture, figure="activation_raster", layer=layer, kv_head=kv_head, alpha=alpha
        ),
    )
