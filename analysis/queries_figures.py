"""LAQ's Figure 7 and joint maps of queries and keys: projections with how far to trust them."""

from __future__ import annotations

import numpy as np

from analysis.errors import AnalysisError
from analysis.figure import Axis, ColourScale, Figure, Note, Series
from analysis.projections import NAMES, Projection
from analysis.queries import JointSpace, Points, colours_of
from analysis.rows import Selection
from analysis.words import number, provenance, selection_words, source_words, visible
from cache_store.reader import Capture

QUERY_NOTE = Note(
    "Each point is a query. Where the lookahead's points lie among the response's and away from "
    "the prompt window's, a rough draft asks for the same entries as the real answer.",
    "PCA: the two directions of largest variance; UMAP and t-SNE keep neighbours, not distances; "
    "trustworthiness 1 means that all neighbours shown are real ones",
    "LAQ, Figure 7",
)
JOINT_NOTE = Note(
    "Queries and keys of one head in one space: the nearer a key lies to a query, the more "
    "attention it gets, as far as the printed fit says. Moving all keys by one vector and scaling "
    "queries against keys leaves the attention as it is.",
    "q′ = c·q, k′ = (k + mean q − mean k)/c, c where corr(−‖q′ − k′‖, q′·k′) is largest",
    "AttentionViz: joint query-key embeddings",
)
AXES = {"pca": ("first component", "second component")}


def projection_map(
    capture: Capture,
    points: Points,
    projection: Projection,
    layer: int,
    head: Selection,
    *,
    by: str = "group",
    joint: JointSpace | None = None,
    highlight: int | None = None,
) -> Figure:
    """Scatter of projected points, coloured `by` group, segment, token, step or position.

    points and projection belong together; joint: the space, where queries and keys share the map.
    highlight: a position in the text whose points become a series of their own.
    """
    if len(points.vectors) != len(projection.coordinates):
        raise AnalysisError(
            "The projection belongs to other points; choose the same layer, head and lookahead."
        )
    codes, names = colours_of(points, by, capture.info.prompt_length)
    arrays = {"x": projection.coordinates[:, 0], "y": projection.coordinates[:, 1]}
    series: tuple[Series, ...] = ()
    scale: ColourScale | None = None
    if names:
        arrays["series"] = codes.astype(np.int64)
        series = tuple(Series(names[code]) for code in sorted(names))
        if highlight is not None and (points.positions == highlight).any():
            arrays["series"] = np.where(points.positions == highlight, len(series), codes)
            series = (*series, Series(f"position {highlight:,}", "#E3342F"))
    else:
        arrays["colour"] = codes.astype(np.float32)
        low, high = float(codes.min()), float(codes.max())
        scale = ColourScale(by, (low, high if high > low else low + 1))
    name = NAMES[projection.method]
    first, second = AXES.get(projection.method, (f"{name} 1", f"{name} 2"))
    if projection.explained is not None:
        first, second = (
            f"{axis} ({number(share * 100)} % of the variance)"
            for axis, share in zip((first, second), projection.explained, strict=True)
        )
    what = selection_words(layer, head)
    trust = number(projection.trustworthiness)
    fit = (
        ""
        if joint is None
        else (
            f"; fit of nearness to dot product {number(joint.correlation)} at "
            f"c = {number(joint.scale)}"
        )
    )
    counts = ", ".join(
        f"{int((points.group == n).sum()):,} {group}" for n, group in enumerate(points.groups)
    )
    return Figure(
        "scatter",
        f"{'Queries and keys' if joint else 'Queries'} in {name}, {what} (trustworthiness {trust}"
        f"{f', fit {number(joint.correlation)}' if joint else ''})",
        Axis(first),
        Axis(second),
        arrays,
        series=series,
        colour=scale,
        point_text=tuple(
            f"{points.groups[group]} · {place:,} {visible(text)}"
            for group, place, text in zip(points.group, points.positions, points.texts, strict=True)
        ),
        caption=(
            f"{counts}; trustworthiness {trust} over {projection.neighbours} neighbours{fit}. "
            f"{source_words(capture)}."
        ),
        alt=f"{name} of {len(codes):,} points ({counts}), {what}; trustworthiness {trust}.",
        note=QUERY_NOTE if joint is None else JOINT_NOTE,
        provenance=provenance(
            capture,
            figure="projection_map",
            layer=layer,
            head=head,
            method=projection.method,
            by=by,
        ),
    )
