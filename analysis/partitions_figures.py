"""LagKV's figures: partitions on the sequence, their scores, and the recursion over the steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.colours import REASONS, Category
from analysis.curves import edges_within, pool_columns, pooling_words
from analysis.errors import AnalysisError
from analysis.figure import Axis, ColourScale, Figure, Marker, Note, Series
from analysis.partitions import (
    VARIANTS,
    LagScores,
    completed_at,
    compressing_steps,
    kept_per_partition,
    layout,
)
from analysis.pooling import pool_codes
from analysis.text import token_pieces
from analysis.words import number, provenance, source_words, visible
from cache_store.reader import Capture

COLUMNS = 480
ROLES = (
    REASONS["sink"],
    Category("kept", "kept of a compressed partition", "#009E73", "K"),
    Category("evicted", "evicted", "#D55E00", "×", "/"),
    Category("window", "last complete partition (reference)", "#56B4E9", "R", "-"),
    Category("remainder", "remainder, not yet a partition", "#808080", "·", "."),
)

STRIP_NOTE = Note(
    "Sinks stay, every compressed partition keeps its best ⌊rL⌋ entries per head, and the last "
    "complete partition waits whole: it is the reference of the one before it. When the response "
    "completes another partition, one more is compressed.",
    "N tokens: S + ⌊rL⌋(P − 1) + L + (N − S) mod L, with P = ⌊(N − S)/L⌋ partitions; nothing is "
    "evicted below S + 2L",
    "LagKV, Figure 1 and Eq. 10 (its bracket corrected)",
)
SCORE_NOTE = Note(
    "A token scores high when its channels spread widely within the range that the next partition "
    "has: it stands out against what follows. The cut is the lowest score that is still kept.",
    "z = (x − min_ref)/(max_ref − min_ref) per channel; part = softmax over the partition of "
    "std_channels(z); score = key part + value part",
    "LagKV, Eqs. 2–9; variants of Figure 5",
)
LENGTH_NOTE = Note(
    "The cache grows with each token and drops when a partition completes. The formula and what "
    "is really kept must be one line.",
    STRIP_NOTE.formula,
    "LagKV, Eq. 10 and Figure 2 (rL)",
)


def role_codes(scores: LagScores, keep_ratio: float, length: int) -> np.ndarray:
    """What each entry is once `length` positions were seen; uint8 (kv_heads, P + T).

    1 sink, 2 kept, 3 evicted, 4 last complete partition, 5 remainder, 0 not yet there.
    """
    roles = layout(length, scores.sink, scores.lag).roles()
    codes = np.zeros(scores.total.shape, np.uint8)
    kept = scores.keep(keep_ratio, length)
    codes[:, :length] = np.where(roles == 2, np.where(kept, 2, 3), np.array([0, 1, 0, 4, 5])[roles])
    return codes


def _strip(
    capture: Capture,
    codes: np.ndarray,
    y: Axis,
    title: str,
    caption: str,
    *,
    lines: Sequence[int] = (),
    markers: Sequence[Marker] = (),
    bins: int = COLUMNS,
    **selection: object,
) -> Figure:
    pooled = pool_codes(codes, codes.shape[0], bins)
    width = pooled.block[1]
    told = "" if width == 1 else f" Each cell is {width} positions, the rarest role wins."
    return Figure(
        "raster",
        title,
        Axis("position", edges=pooled.x_edges),
        y,
        {"codes": pooled.codes, "share": pooled.share} if width > 1 else {"codes": pooled.codes},
        categories=ROLES,
        markers=(*(Marker("x", x=place - 0.5) for place in lines), *markers),
        caption=f"{caption}{told} {source_words(capture)}.",
        alt=f"{title}: {int((codes == 3).sum()):,} of {int((codes > 0).sum()):,} entries evicted.",
        note=STRIP_NOTE,
        provenance=provenance(capture, **selection),
    )


def partition_strip(
    capture: Capture, scores: LagScores, keep_ratio: float, layer: int, *, step: int = 0
) -> Figure:
    """Raster: KV heads (y) by positions (x), what is kept and evicted after a step (0: prefill)."""
    length = _seen(scores, step)
    parts = layout(length, scores.sink, scores.lag)
    formula = parts.kept_length(keep_ratio)
    borders = [parts.span(number)[0] for number in range(parts.partitions)]
    kept = int(scores.keep(keep_ratio, length)[0].sum())
    state = (
        f"{parts.compressed} of {parts.partitions} partitions compressed"
        if parts.compressed
        else f"nothing is evicted below S + 2L = {scores.sink + 2 * scores.lag:,} tokens"
    )
    return _strip(
        capture,
        role_codes(scores, keep_ratio, length),
        Axis("KV head", np.arange(scores.total.shape[0]), reversed=True),
        f"Partitions of layer {layer} after step {step:,}",
        f"S = {scores.sink}, L = {scores.lag}, ⌊rL⌋ = {kept_per_partition(scores.lag, keep_ratio)}"
        f"; {state}; {kept:,} of {length:,} entries per head, the formula gives {formula:,}.",
        lines=borders if len(borders) <= 64 else (),
        figure="partition_strip",
        layer=layer,
        step=step,
        keep_ratio=keep_ratio,
    )


def recursion(
    capture: Capture,
    scores: LagScores,
    keep_ratio: float,
    layer: int,
    kv_head: int,
    *,
    step: int | None = None,
) -> Figure:
    """Raster: the steps at which something is compressed (y) by positions (x), for one KV head.

    step: the row of the newest of them until then is marked.
    """
    last = scores.length - scores.prompt_length
    parts = layout(scores.length, scores.sink, scores.lag)
    steps = sorted({0, last, *compressing_steps(parts, scores.prompt_length)})
    row = None if step is None else max(n for n, own in enumerate(steps) if own <= step)
    codes = np.stack(
        [role_codes(scores, keep_ratio, scores.prompt_length + step)[kv_head] for step in steps]
    )
    return _strip(
        capture,
        codes,
        Axis(
            "step",
            ticks=tuple((float(n), f"{step:,}") for n, step in enumerate(steps)),
            reversed=True,
        ),
        f"Recursion in layer {layer}, KV head {kv_head}",
        f"The end of prefill, every step that completes a partition, and the last step; "
        f"S = {scores.sink}, L = {scores.lag}.",
        markers=() if row is None else (Marker("y", y=row, selected=True),),
        figure="recursion",
        layer=layer,
        kv_head=kv_head,
        keep_ratio=keep_ratio,
    )


def variant_strip(
    capture: Capture,
    variants: Sequence[LagScores],
    keep_ratio: float,
    layer: int,
    kv_head: int,
    *,
    step: int = 0,
) -> Figure:
    """Raster: variants (y) by positions (x): what each keeps in one KV head."""
    if not variants:
        raise AnalysisError("No variant is chosen.")
    length = _seen(variants[0], step)
    codes = np.stack([role_codes(made, keep_ratio, length)[kv_head] for made in variants])
    named = [VARIANTS[made.variant].partition(" (") for made in variants]
    names = tuple((float(n), name) for n, (name, _, _) in enumerate(named))
    meant = [f"{name}: {words.rstrip(')')}." for name, _, words in named if words]
    return _strip(
        capture,
        codes,
        Axis("variant", ticks=names, reversed=True),
        f"LagKV and its variants, layer {layer}, KV head {kv_head}",
        f"After step {step:,}; S = {variants[0].sink}, L = {variants[0].lag}. {' '.join(meant)}",
        figure="variant_strip",
        layer=layer,
        kv_head=kv_head,
        step=step,
    )


def _seen(scores: LagScores, step: int) -> int:
    last = scores.length - scores.prompt_length
    if not 0 <= step <= last:
        raise AnalysisError(f"This run has no step {step}; its steps are 0 to {last}.")
    return scores.prompt_length + step


def partition_scores(
    capture: Capture,
    scores: LagScores,
    keep_ratio: float,
    layer: int,
    kv_head: int,
    partition: int = 0,
) -> Figure:
    """Lines over one partition: key part, value part and total, with the cut of what is kept."""
    parts = layout(scores.length, scores.sink, scores.lag)
    if not 0 <= partition < parts.compressed:
        raise AnalysisError(
            f"Partition {partition} is not compressed in this run; there are {parts.compressed} of "
            f"them, which takes at least S + 2L = {scores.sink + 2 * scores.lag:,} tokens."
        )
    start, stop = parts.span(partition)
    named = {"key part": scores.key_part, "value part": scores.value_part, "score": scores.total}
    if scores.value_part is None:
        named = {"score": scores.total}
    lines = [part[kv_head, start:stop] for part in named.values() if part is not None]
    kept = kept_per_partition(scores.lag, keep_ratio)
    total, rank = scores.total[kv_head, start:stop], scores.rank[kv_head, start:stop]
    cut = () if kept < 1 else (Marker("y", y=float(total[rank < kept].min()), label="cut"),)
    pieces = token_pieces(capture)
    best = start + int(total.argmax())
    step = completed_at(partition, scores.sink, scores.lag, scores.prompt_length)
    when = "at the end of prefill" if step == 0 else f"after step {step:,}"
    return Figure(
        "lines",
        f"Scores of partition {partition}, layer {layer}, KV head {kv_head}",
        Axis("position", np.arange(start, stop)),
        Axis("score"),
        {"y": np.stack(lines)},
        series=tuple(Series(name) for name in named),
        markers=cut,
        caption=(
            f"{VARIANTS[scores.variant]}; compressed {when}, {kept} of {scores.lag} kept. "
            f"{source_words(capture)}."
        ),
        alt=(
            f"Scores of positions {start:,} to {stop - 1:,}, highest {number(float(total.max()))} "
            f"at {best:,} “{visible(pieces[best])}”."
        ),
        note=SCORE_NOTE,
        provenance=provenance(
            capture, figure="partition_scores", layer=layer, kv_head=kv_head, partition=partition
        ),
    )


def score_map(capture: Capture, scores: LagScores, layer: int, *, bins: int = COLUMNS) -> Figure:
    """Heatmap KV head (y) by position (x) of the total score; empty where never ranked."""
    edges = edges_within(scores.length, bins)
    z = pool_columns(scores.total, edges)
    if not np.isfinite(z).any():
        raise AnalysisError(
            f"No partition of this run is complete enough to be scored; that takes at least "
            f"S + 2L = {scores.sink + 2 * scores.lag:,} tokens."
        )
    low, high = float(np.nanmin(z)), float(np.nanmax(z))
    return Figure(
        "heatmap",
        f"LagKV's scores in layer {layer}",
        Axis("position", edges=edges),
        Axis("KV head", np.arange(len(z)), reversed=True),
        {"z": z},
        colour=ColourScale("score", (low, high if high > low else low + 1e-6)),
        caption=(
            f"{VARIANTS[scores.variant]}, S = {scores.sink}, L = {scores.lag}."
            f"{pooling_words(scores.length, edges)} {source_words(capture)}."
        ),
        alt=f"Scores from {number(low)} to {number(high)}.",
        note=SCORE_NOTE,
        provenance=provenance(capture, figure="score_map", layer=layer),
    )


def length_over_steps(capture: Capture, scores: LagScores, keep_ratio: float) -> Figure:
    """Lines over steps 0 ... T: entries kept, what the formula gives, and the full cache."""
    steps = np.arange(scores.length - scores.prompt_length + 1)
    seen = scores.prompt_length + steps
    formula = [layout(int(n), scores.sink, scores.lag).kept_length(keep_ratio) for n in seen]
    lines = np.stack([scores.lengths(keep_ratio), formula, seen]).astype(np.float32)
    return Figure(
        "lines",
        "Cache length over the steps",
        Axis("step", steps),
        Axis("entries per KV head"),
        {"y": lines},
        series=(
            Series("kept", dash="solid"),
            Series("formula", dash="dash"),
            Series("full cache", "#7F7F7F", "dot"),
        ),
        caption=(
            f"S = {scores.sink}, L = {scores.lag}, r = {number(keep_ratio)}; {int(lines[0, -1]):,} "
            f"of {int(seen[-1]):,} entries in the end. {source_words(capture)}."
        ),
        alt=f"Cache length from {int(lines[0, 0]):,} to {int(lines[0, -1]):,} entries.",
        note=LENGTH_NOTE,
        provenance=provenance(capture, figure="length_over_steps", keep_ratio=keep_ratio),
    )
