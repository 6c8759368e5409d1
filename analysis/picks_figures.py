"""SAGE-KV's figures: the partition, each query head's picks, and how they overlap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.colours import REASONS, Category
from analysis.errors import AnalysisError
from analysis.figure import Axis, ColourScale, Figure, Marker, Note
from analysis.picks import Partition, jaccard, stored_sizes, unions
from analysis.pooling import pool_codes
from analysis.text import token_pieces
from analysis.words import number, provenance, source_words, visible
from cache_store.reader import Capture

COLUMNS = 480
ROLES = (
    REASONS["sink"],
    Category("own", "picked by this query head", "#009E73", "K"),
    Category("group", "picked by another head of its group", "#B8A04A", "g", "-"),
    Category("recent", "recent window and last token", "#56B4E9", "R", "-"),
    Category("evicted", "evicted", "#D55E00", "×", "/"),
)

PICK_NOTE = Note(
    "Each row is a query head of the last prompt token: it keeps the sinks, its own best entries "
    "and the recent window. What only its group picked is stored as well but hidden from it, "
    "unless the picks are shared.",
    "S = ⌊B/4⌋, k = B/(2G) rounded down to a power of two, R = B − S − G·k; G query heads per KV "
    "head",
    "SAGE-KV, Figure 1 and Section 2",
)
OVERLAP_NOTE = Note(
    "How alike two query heads choose: 1 means the same entries. Where the heads of a group (a "
    "square on the diagonal) overlap, their union is small and the budget is not used up.",
    "J(a, b) = |picks_a ∩ picks_b| / |picks_a ∪ picks_b|",
    "SAGE-KV, Section 2, step 2",
)
GROUP_NOTE = Note(
    "How alike two groups choose once the picks of their query heads are united: 1 means the same "
    "entries. Groups that differ are why each KV head keeps entries of its own.",
    "J(g, h) = |∪picks_g ∩ ∪picks_h| / |∪picks_g ∪ ∪picks_h|, each union over the query heads of a "
    "KV head",
    "SAGE-KV, Section 2, step 2",
)
UNION_NOTE = Note(
    "A KV head stores what any of its query heads picked; the more they agree, the smaller the "
    "number and the less of the budget is used. A click on a cell chooses its layer and heads.",
    "stored = S + |∪ picks of the group's query heads| + R + 1 ≤ B + 1",
    "SAGE-KV, Section 2, step 3",
)
SLIDE_NOTE = Note(
    "Sinks and picks stay while decoding. Each new token joins the recent window, whose oldest "
    "entry leaves.",
    "after step t the window holds the positions P + t − R − 1 … P + t − 1",
    "SAGE-KV, Section 2, step 4",
)


def partition_words(parts: Partition) -> str:
    """The sizes of a partition in words, for a caption."""
    if not parts.selects:
        return (
            f"Nothing is selected: {parts.prompt_length:,} prompt tokens fit a budget of "
            f"{parts.budget:,}, and everything stays"
        )
    first, stop = parts.candidates
    each = f"each of {parts.group} query heads" if parts.group > 1 else "each query head"
    return (
        f"B = {parts.budget:,}: {parts.sink:,} sinks, {parts.picks:,} picks for {each}, "
        f"{parts.recent:,} recent and the last token; "
        f"{stop - first:,} candidates"
    )


def role_codes(picked: np.ndarray, parts: Partition, step: int = 0) -> np.ndarray:
    """What each entry is to each query head after a step; uint8 (query_heads, P + step).

    picked: bool (query_heads, P) of one layer. 1 sink, 2 own pick, 3 the group's, 4 recent,
    5 evicted.
    """
    heads, prompt = picked.shape
    length = prompt + step
    codes = np.full((heads, length), 5, np.uint8)
    if not parts.selects:
        codes[:] = 4
        codes[:, : parts.sink] = 1
        return codes
    shared = unions(picked[None], parts.group)[0].repeat(parts.group, axis=0)
    codes[:, :prompt][shared] = 3
    codes[:, :prompt][picked] = 2
    first, stop = parts.window(step)
    codes[:, first:stop] = np.where(codes[:, first:stop] == 5, 4, codes[:, first:stop])
    codes[:, : parts.sink] = 1
    return codes


def picks_strip(
    capture: Capture, picked: np.ndarray, parts: Partition, layer: int, *, step: int = 0
) -> Figure:
    """Raster: query heads (y) by positions (x): sinks, own picks, the group's, recent, evicted.

    picked: (query_heads, P) of the layer.
    """
    check_step(capture, step)
    codes = role_codes(picked, parts, step)
    heads = len(codes)
    groups = [n - 0.5 for n in range(parts.group, heads, parts.group)]
    return _raster(
        capture,
        codes,
        Axis("query head", np.arange(heads), reversed=True),
        f"What each query head picks, layer {layer}",
        f"{partition_words(parts)}. After step {step:,}.",
        PICK_NOTE,
        markers=tuple(Marker("y", y=place) for place in groups if parts.group > 1),
        figure="picks_strip",
        layer=layer,
        step=step,
        budget=parts.budget,
    )


def sliding(
    capture: Capture, picked: np.ndarray, parts: Partition, layer: int, query_head: int
) -> Figure:
    """Raster: steps 0 ... T (y) by positions (x) of one query head; picked (query_heads, P)."""
    steps, length = capture.info.response_length, capture.info.length
    if not 0 <= query_head < len(picked):
        raise AnalysisError(
            f"This run has no query head {query_head}; it has 0 to {len(picked) - 1}."
        )
    codes = np.zeros((steps + 1, length), np.uint8)
    for step in range(steps + 1):
        own = role_codes(picked, parts, step)[query_head]
        codes[step, : len(own)] = own
    return _raster(
        capture,
        codes,
        Axis("step", np.arange(steps + 1), reversed=True),
        f"The recent window slides, layer {layer}, query head {query_head}",
        f"{partition_words(parts)}.",
        SLIDE_NOTE,
        figure="sliding",
        layer=layer,
        query_head=query_head,
        budget=parts.budget,
    )


def _raster(
    capture: Capture,
    codes: np.ndarray,
    y: Axis,
    title: str,
    caption: str,
    note: Note,
    *,
    markers: Sequence[Marker] = (),
    **selection: object,
) -> Figure:
    pooled = pool_codes(codes, COLUMNS, COLUMNS)
    tall, wide = pooled.block
    told = ""
    if tall * wide > 1:
        rows = "" if tall == 1 else f" by {tall} rows"
        told = f" Each cell is {wide} positions{rows}, the rarest role wins."
        y = y if tall == 1 else Axis(y.label, edges=pooled.y_edges, reversed=y.reversed)
    return Figure(
        "raster",
        title,
        Axis("position", edges=pooled.x_edges),
        y,
        {"codes": pooled.codes, "share": pooled.share} if told else {"codes": pooled.codes},
        categories=ROLES,
        markers=tuple(markers),
        caption=f"{caption}{told} {source_words(capture)}.",
        alt=f"{title}: {int((codes == 2).sum()):,} picks, {int((codes == 5).sum()):,} evicted.",
        note=note,
        provenance=provenance(capture, **selection),
    )


def check_step(capture: Capture, step: int) -> None:
    """Raise AnalysisError where a run has no such step."""
    if not 0 <= step <= capture.info.response_length:
        raise AnalysisError(
            f"This run has no step {step}; its steps are 0 to {capture.info.response_length}."
        )


def group_overlap(capture: Capture, picked: np.ndarray, parts: Partition, layer: int) -> Figure:
    """Heatmap: Jaccard overlap of every two groups' united picks; picked (query_heads, P)."""
    z = jaccard(unions(picked[None], parts.group)[0]).astype(np.float32)
    groups = len(z)
    if not np.isfinite(z).any():
        raise AnalysisError(f"{partition_words(parts)}, so there are no picks to compare.")
    other = z[~np.eye(groups, dtype=bool)]
    mean = number(float(np.nanmean(other))) if np.isfinite(other).any() else "none"
    return Figure(
        "heatmap",
        f"Overlap of the groups' picks, layer {layer}",
        Axis("KV head", np.arange(groups)),
        Axis("KV head", np.arange(groups), reversed=True),
        {"z": z},
        colour=ColourScale("Jaccard overlap", (0.0, 1.0)),
        caption=(
            f"Mean overlap between groups {mean}; a group is the query heads of one KV head. "
            f"{partition_words(parts)}. {source_words(capture)}."
        ),
        alt=f"Overlap of {groups} groups of query heads, mean {mean}.",
        note=GROUP_NOTE,
        provenance=provenance(capture, figure="group_overlap", layer=layer, budget=parts.budget),
    )


def overlap_matrix(capture: Capture, picked: np.ndarray, parts: Partition, layer: int) -> Figure:
    """Heatmap: Jaccard overlap of every two query heads' picks; picked (query_heads, P)."""
    z = jaccard(picked).astype(np.float32)
    heads = len(z)
    if not np.isfinite(z).any():
        raise AnalysisError(f"{partition_words(parts)}, so there are no picks to compare.")
    within = np.equal.outer(np.arange(heads) // parts.group, np.arange(heads) // parts.group)
    other = within & ~np.eye(heads, dtype=bool)
    inside = number(float(np.nanmean(z[other]))) if other.any() else "none"
    outside = number(float(np.nanmean(z[~within]))) if (~within).any() else "none"
    borders = [n - 0.5 for n in range(parts.group, heads, parts.group)] if parts.group > 1 else []
    told = f"within groups {inside}, between groups" if parts.group > 1 else "of two query heads"
    return Figure(
        "heatmap",
        f"Overlap of the picks, layer {layer}",
        Axis("query head", np.arange(heads)),
        Axis("query head", np.arange(heads), reversed=True),
        {"z": z},
        colour=ColourScale("Jaccard overlap", (0.0, 1.0)),
        markers=tuple(
            marker for place in borders for marker in (Marker("x", x=place), Marker("y", y=place))
        ),
        caption=(
            f"Mean overlap {told} {outside}. {partition_words(parts)}. {source_words(capture)}."
        ),
        alt=f"Overlap of {heads} query heads: within groups {inside}, between {outside}.",
        note=OVERLAP_NOTE,
        provenance=provenance(capture, figure="overlap_matrix", layer=layer, budget=parts.budget),
    )


def union_sizes(
    capture: Capture,
    picked: np.ndarray,
    parts: Partition,
    *,
    selected: tuple[int, int] | None = None,
) -> Figure:
    """Heatmap layer (y) by KV head (x): entries stored after prefill; picked (layers, heads, P)."""
    sizes = stored_sizes(picked, parts)
    markers = () if selected is None else (Marker("cell", selected[1], selected[0], selected=True),)
    top = max(parts.budget + 1, int(sizes.max()))
    return Figure(
        "heatmap",
        "Entries stored after prefill",
        Axis("KV head", np.arange(sizes.shape[1])),
        Axis("layer", np.arange(sizes.shape[0]), reversed=True),
        {"z": sizes.astype(np.float32)},
        colour=ColourScale("entries", (0.0, float(top))),
        markers=markers,
        caption=(
            f"{partition_words(parts)}. Mean {number(float(sizes.mean()))} entries stored, at most "
            f"B + 1 = {parts.budget + 1:,} where anything is selected. {source_words(capture)}."
        ),
        alt=f"Stored entries from {int(sizes.min()):,} to {int(sizes.max()):,}.",
        note=UNION_NOTE,
        provenance=provenance(capture, figure="union_sizes", budget=parts.budget),
    )


def picks_table(capture: Capture, picked: np.ndarray, rows: np.ndarray) -> pd.DataFrame:
    """The entries that some query head of a layer picks, most picked first.

    picked, rows: (query_heads, P) of one layer. Columns: position, token, heads (how many pick
    it), by (which), weight (the largest attention it gets).
    """
    places = np.flatnonzero(picked.any(axis=0))
    counts = picked[:, places].sum(axis=0)
    order = np.argsort(-counts, kind="stable")
    pieces = token_pieces(capture)
    return pd.DataFrame(
        {
            "position": places[order],
            "token": [visible(pieces[place]) for place in places[order]],
            "heads": counts[order],
            "by": [
                ", ".join(map(str, np.flatnonzero(picked[:, place]))) for place in places[order]
            ],
            "weight": rows[:, places[order]].max(axis=0),
        }
    )
