"""The matrix of attention weights, queries by keys, pooled to the cells a screen can show."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from analysis.errors import AnalysisError, NeedsJob
from analysis.figure import Axis, ColourScale, Figure, Marker, Note
from analysis.rows import (
    DIRECT_CELLS,
    Selection,
    check_range,
    check_step,
    chosen_heads,
    chosen_layers,
    layer_states,
    position_of,
)
from analysis.text import token_pieces
from analysis.words import number, provenance, selection_words, source_words, span, visible
from cache_store.reader import Capture

CELLS_PER_SECOND = 1e8  # of one layer's heads on two cores, 64 wide; an estimate for the job's ETA
# A figure beside another is about this many pixels wide. With more cells than pixels a browser
# leaves cells out, and with them the very spikes that pooling by maximum keeps.
PIXELS = 240
MAX_BINS = 700  # cells a side: the largest matrix is sent in less than 7 MB
LOG_FLOOR = 1e-5  # weights below this are drawn as this on a logarithmic scale
LABELLED = 28  # axes of at most this many positions show the tokens themselves

MATRIX_NOTE = Note(
    "Each row is one query, each column one key; a row's weights sum to 1 and nothing above the "
    "diagonal exists. Vertical lines are tokens that keep being attended, diagonals are copying, "
    "dotted lines begin the response, and the red line is the step.",
    "A = softmax(scaling · q kᵀ), causal, in float32 from the stored float16 states",
    "LazyEviction, Figure 3a: the attention map with recurring tokens",
)


def head_matrix(
    capture: Capture,
    layer: Selection,
    head: Selection,
    query_range: tuple[int, int] | None = None,
    key_range: tuple[int, int] | None = None,
    *,
    bins: int = PIXELS,
    pool: str = "max",
    log: bool = False,
    hide_sink: bool = False,
    step: int | None = None,
) -> Figure:
    """Heatmap of attention from query positions (y) to key positions (x), ranges [first, last + 1).

    Ranges wider than `bins` (at most MAX_BINS) are pooled ("max", or "mean" over visible cells),
    narrower ones exact. `hide_sink` leaves out the run's sink positions; `step` draws a line at its
    query. Keys after the last query are cut off. Raises NeedsJob (kind "mean_matrix") when too
    costly and not derived yet; AnalysisError for a selection that does not exist.
    """
    info = capture.info
    layers, heads = chosen_layers(capture, layer), chosen_heads(capture, head)
    bins = min(bins, MAX_BINS)
    if pool not in ("max", "mean"):
        raise AnalysisError(f"Cells are pooled by 'max' or 'mean', not by {pool!r}.")
    queries = check_range("query", query_range, info.length)
    keys = check_range("key", key_range, info.length)
    sink = min(info.sink, queries[1] - 1) if hide_sink else 0
    keys = max(keys[0], sink), min(keys[1], queries[1])
    if keys[0] >= keys[1]:
        raise AnalysisError(
            f"No query of {span(*queries)} sees a key of the chosen range"
            + (" outside the hidden sink" if hide_sink else "")
            + "; choose keys that come before the queries."
        )
    matrix = _matrix(capture, layers, heads, queries, keys, bins, pool)
    query_edges, key_edges = _edges(queries, bins), _edges(keys, bins)
    height, width = (int(edges[1] - edges[0]) for edges in (query_edges, key_edges))
    pooled = (
        f"pooled by {pool}, {height} × {width} (queries × keys) a cell"
        if height * width > 1
        else "every weight shown"
    )
    what = selection_words(layer, head)
    hidden = f"; the first {sink} positions (sink) hidden" if sink else ""
    pieces = token_pieces(capture)
    figure = Figure(
        "heatmap",
        f"Attention, {what}",
        token_axis("key position", keys, key_edges, pieces),
        token_axis("query position", queries, query_edges, pieces, reversed=True),
        {"z": matrix},
        colour=_weight_scale(matrix, log),
        markers=_boundaries(capture, queries, keys),
        caption=(
            f"{what[0].upper()}{what[1:]}: queries {span(*queries)}, keys {span(*keys)}, "
            f"{pooled}{hidden}; {source_words(capture)}."
        ),
        alt=_matrix_alt(matrix, query_edges, key_edges, pieces, what),
        note=MATRIX_NOTE,
        provenance=provenance(
            capture,
            figure="head_matrix",
            layer=layer,
            head=head,
            query_range=queries,
            key_range=keys,
            bins=bins,
            pool=pool,
        ),
    )
    return figure if step is None else mark_step(figure, capture, step)


def mark_step(figure: Figure, capture: Capture, step: int) -> Figure:
    """A head matrix with a line at a step's query, if it shows it: so that a matrix that was
    computed once serves every step."""
    assert figure.y.edges is not None
    position = position_of(capture, check_step(capture, step))
    if not figure.y.edges[0] <= position < figure.y.edges[-1]:
        return figure
    line = Marker("y", y=position, selected=True)
    return replace(figure, markers=(*figure.markers, line))


def _matrix(
    capture: Capture,
    layers: list[int],
    heads: list[int],
    queries: tuple[int, int],
    keys: tuple[int, int],
    bins: int,
    pool: str,
) -> np.ndarray:
    """The pooled weights, float32 (query bins, key bins), from a derived file or computed now."""
    spec: dict[str, Any] = {
        "layers": layers,
        "heads": heads,
        "query_range": list(queries),
        "key_range": list(keys),
        "bins": bins,
        "pool": pool,
    }
    derived = capture.derived("mean_matrix", spec)
    if derived is not None:
        with derived:
            return derived.array("matrix")
    visible_keys = (queries[0] + queries[1]) / 2
    cells = (queries[1] - queries[0]) * visible_keys * len(layers) * len(heads)
    if cells > DIRECT_CELLS:
        raise NeedsJob("mean_matrix", spec, cells / CELLS_PER_SECOND)
    from kvpolicies.pooling import pooled_attention

    states = [layer_states(capture, number, heads, *queries) for number in layers]
    return pooled_attention(states, queries[0], keys, bins=bins, pool=pool)


def _edges(positions: tuple[int, int], bins: int) -> np.ndarray:
    from kvpolicies.pooling import bin_edges

    return positions[0] + bin_edges(positions[1] - positions[0], bins)


def token_axis(
    label: str,
    positions: tuple[int, int],
    edges: np.ndarray,
    pieces: list[str],
    *,
    reversed: bool = False,
) -> Axis:
    """Positions along an axis: with the tokens themselves where few enough are visible."""
    ticks: tuple[tuple[float, str], ...] = ()
    if positions[1] - positions[0] == len(edges) - 1 <= LABELLED:
        ticks = tuple(
            (position, f"{position} {visible(pieces[position], 12)}")
            for position in range(*positions)
        )
    return Axis(label, edges=edges, ticks=ticks, reversed=reversed)


def _weight_scale(matrix: np.ndarray, log: bool) -> ColourScale:
    """Attention weights up to the next 1, 2 or 5 above the largest, so that near views agree."""
    largest = float(np.nanmax(matrix))
    power = 10.0 ** math.floor(math.log10(max(largest, 10 * LOG_FLOOR)))
    top = min(1.0, next(power * step for step in (1, 2, 5, 10) if largest <= power * step * 1.0001))
    return ColourScale("attention weight", (LOG_FLOOR if log else 0.0, top), log=log)


def _boundaries(
    capture: Capture, queries: tuple[int, int], keys: tuple[int, int]
) -> tuple[Marker, ...]:
    """Where the response begins, where that lies inside the ranges."""
    start = capture.info.prompt_length
    markers = []
    if queries[0] < start < queries[1]:
        markers.append(Marker("y", y=start - 0.5))
    if keys[0] < start < keys[1]:
        markers.append(Marker("x", x=start - 0.5, label="response"))
    return tuple(markers)


def _matrix_alt(
    matrix: np.ndarray,
    query_edges: np.ndarray,
    key_edges: np.ndarray,
    pieces: list[str],
    what: str,
) -> str:
    row, column = np.unravel_index(np.nanargmax(matrix), matrix.shape)

    def place(edges: np.ndarray, cell: int) -> str:
        first, stop = int(edges[cell]), int(edges[cell + 1])
        return span(first, stop) + (f" “{pieces[first]}”" if stop - first == 1 else "")

    return (
        f"Attention matrix, {what}: {len(query_edges) - 1} by {len(key_edges) - 1} cells, largest "
        f"weight {number(float(matrix[row, column]))} from query {place(query_edges, int(row))} to "
        f"key {place(key_edges, int(column))}."
    )
