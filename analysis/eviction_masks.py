"""Which entries a policy keeps, step by step: rasters of one policy and of two compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from analysis.colours import Category
from analysis.comparison import budget_words
from analysis.eviction_codes import (
    CATEGORIES,
    Code,
    check_eviction_step,
    codes_of,
    head_entries,
    held,
    place_words,
)
from analysis.eviction_grids import check_same_heads
from analysis.figure import Axis, Figure, Marker, Note
from analysis.matrix import token_axis
from analysis.pooling import PooledCodes, pool_codes
from analysis.rows import check_range
from analysis.text import token_pieces
from analysis.words import number, provenance, source_words, span
from cache_store.reader import Capture

if TYPE_CHECKING:
    from analysis.replays import Replayed

PIXELS = 320  # cells a raster has at most across: fewer than pixels, or a browser leaves some out
ROWS = 240
KEPT = 16  # rasters in memory, a megabyte each: a look at four policies and the one before it
_HELD = np.array([code not in (Code.NOTHING, Code.EVICTED, Code.UNSEEN) for code in Code])

MASK_NOTE = Note(
    "Each column is one position of the text and each row one step: the colour and the letter say "
    "why the head still holds the entry after that step, × that it is gone. Read a column "
    "downwards to see when an entry goes; what lies beyond the stair on the right does not exist "
    "yet.",
    "cached after step t: { i < P + t : evicted_at(i) > t }",
    "LazyEviction, Figure 1: strategies side by side",
)
DIFFERENCE_NOTE = Note(
    "A cell says which of the two policies holds the entry after the step: both, one of them "
    "(A or B), or neither. Two policies that agree show no A and no B.",
    "A: evicted_at₁(i) > t ≥ evicted_at₂(i); B: evicted_at₂(i) > t ≥ evicted_at₁(i)",
    "LazyEviction, Figure 1: strategies side by side",
)


def mask(
    capture: Capture,
    replayed: Replayed,
    layer: int,
    head: int,
    step: int | None = None,
    positions: tuple[int, int] | None = None,
    *,
    bins: int = PIXELS,
) -> Figure:
    """Raster of one head: positions (x) by steps (y), coloured by the reason of being there.

    head: an index of the policy's own keep-sets; positions: [first, last + 1), all by default;
    `step` is marked. More than `bins` positions are pooled so that the category rarest in the
    range wins a cell; the caption says so. Raises AnalysisError for what does not exist.
    """
    shown = check_range("position", positions, capture.info.length)
    drawn = _mask(replayed, layer, head, *shown, bins)
    place = place_words(capture, replayed, layer, head)
    at = replayed.response_length if step is None else check_eviction_step(replayed, step)
    kept = int(held(replayed, at)[layer, head].sum())
    what = "attended to at" if replayed.visible is not None else "cached after"
    states = f"{kept:,} of {replayed.prompt_length + at:,} entries {what} step {at:,}"
    if replayed.exempt[layer]:
        states = "the layer attends in a sliding window and is exempt from the policy"
    return _raster(
        capture,
        (replayed,),
        drawn,
        shown,
        bins,
        title=f"{replayed.title}: {place}",
        categories=CATEGORIES,
        words=(place, states),
        step=step,
        note=MASK_NOTE,
        figure="mask",
        layer=layer,
        head=head,
    )


def mask_difference(
    capture: Capture,
    first: Replayed,
    second: Replayed,
    layer: int,
    head: int,
    step: int | None = None,
    positions: tuple[int, int] | None = None,
    *,
    bins: int = PIXELS,
) -> Figure:
    """Raster: kept by both, only by the first (A), only by the second (B), by neither.

    The caption counts entries after `step` (default: the last). Arguments as in `mask`; both
    policies need keep-sets for the same heads.
    """
    check_same_heads(first, second)
    shown = check_range("position", positions, capture.info.length)
    drawn = _difference(first, second, layer, head, *shown, bins)
    at = first.response_length if step is None else check_eviction_step(first, step)
    here = np.bincount(_difference_at(first, second, layer, head, at), minlength=5)
    place = place_words(capture, first, layer, head)
    return _raster(
        capture,
        (first, second),
        drawn,
        shown,
        bins,
        title=f"A: {first.title} · B: {second.title} · {place}",
        categories=_difference_categories(first, second),
        words=(
            place,
            f"after step {at:,}, {here[1]:,} entries kept by both, {here[2]:,} only by A, "
            f"{here[3]:,} only by B, {here[4]:,} by neither",
        ),
        step=step,
        note=DIFFERENCE_NOTE,
        figure="mask_difference",
        layer=layer,
        head=head,
    )


@dataclass(frozen=True)
class _Drawn:
    """What of a raster no chosen step changes: its cells, and how often each code occurs."""

    pooled: PooledCodes
    steps: int
    counts: np.ndarray

    @classmethod
    def of(cls, codes: np.ndarray, bins: int) -> _Drawn:
        counts = np.bincount(codes.reshape(-1), minlength=len(Code))
        return cls(pool_codes(codes, ROWS, bins), len(codes), counts)


@lru_cache(maxsize=KEPT)
def _codes(replayed: Replayed, layer: int, head: int, first: int, stop: int) -> np.ndarray:
    steps = np.arange(replayed.response_length + 1)
    return codes_of(head_entries(replayed, layer, head), steps, first, stop)


@lru_cache(maxsize=KEPT)
def _mask(replayed: Replayed, layer: int, head: int, first: int, stop: int, bins: int) -> _Drawn:
    return _Drawn.of(_codes(replayed, layer, head, first, stop), bins)


@lru_cache(maxsize=KEPT)
def _difference(
    first: Replayed, second: Replayed, layer: int, head: int, start: int, stop: int, bins: int
) -> _Drawn:
    codes = [_codes(policy, layer, head, start, stop) for policy in (first, second)]
    one, other = (_is_held(part) for part in codes)
    difference = np.where(one & other, 1, np.where(one, 2, np.where(other, 3, 4))).astype(np.uint8)
    difference[codes[0] == Code.NOTHING] = 0
    return _Drawn.of(difference, bins)


def _raster(
    capture: Capture,
    policies: Sequence[Replayed],
    drawn: _Drawn,
    positions: tuple[int, int],
    bins: int,
    *,
    title: str,
    categories: tuple[Category, ...],
    words: tuple[str, str],
    step: int | None,
    note: Note,
    **selection: object,
) -> Figure:
    """A raster of codes (T + 1, positions) with what all of them say below and beside it."""
    pooled = drawn.pooled
    place, states = words
    markers = _markers(capture, positions, step)
    return Figure(
        "raster",
        title,
        token_axis("position", positions, positions[0] + pooled.x_edges, token_pieces(capture)),
        Axis("step", edges=pooled.y_edges, reversed=True),
        {"codes": pooled.codes, "share": pooled.share},
        categories=categories,
        markers=markers,
        caption=(
            f"{place[0].upper()}{place[1:]}: {states}. Positions {span(*positions)}, steps "
            f"0–{drawn.steps - 1:,}, {_pooling_words(pooled)}. {budget_words(policies)}; "
            f"{source_words(capture)}.{_line_words(markers)}"
        ),
        alt=f"{title}: {states}. {_occurring(drawn.counts, categories)}",
        note=note,
        provenance=provenance(
            capture,
            policies=[policy.choice for policy in policies],
            positions=list(positions),
            step=step,
            bins=bins,
            **selection,
        ),
    )


def _is_held(codes: np.ndarray) -> np.ndarray:
    return _HELD[codes]


def _difference_at(
    first: Replayed, second: Replayed, layer: int, head: int, step: int
) -> np.ndarray:
    """1 both, 2 only A, 3 only B, 4 neither, for each position there is after the step."""
    there = first.prompt_length + step
    one, other = (held(policy, step)[layer, head][:there] for policy in (first, second))
    return np.where(one & other, 1, np.where(one, 2, np.where(other, 3, 4)))


def _difference_categories(first: Replayed, second: Replayed) -> tuple[Category, ...]:
    """Each policy in its colour; the same policy with other options needs another."""
    own = second.colour if second.colour != first.colour else "#E69F00"
    return (
        Category("both", "both", "#5B6770", "="),
        Category("first", "only A", first.colour, "A", "/"),
        Category("second", "only B", own, "B", "-"),
        Category("neither", "neither", "#9AA3AB", "–", "."),
    )


def _markers(capture: Capture, positions: tuple[int, int], step: int | None) -> tuple[Marker, ...]:
    markers = []
    start = capture.info.prompt_length
    if positions[0] < start < positions[1]:
        markers.append(Marker("x", x=start - 0.5))
    if step is not None:
        markers.append(Marker("y", y=step, selected=True))
    return tuple(markers)


def _line_words(markers: Sequence[Marker]) -> str:
    """What the lines across say: labels would not be legible on the hatches."""
    told = []
    for marker in markers:
        if marker.kind == "y":
            told.append(f"red line: step {marker.y:,}")
        else:
            told.append("dotted line: the response begins")
    words = ", ".join(told)
    return f" {words[0].upper()}{words[1:]}." if words else ""


def _pooling_words(pooled: PooledCodes) -> str:
    height, width = pooled.block
    if height * width == 1:
        return "every entry shown"
    return (
        f"{width} × {height} (positions × steps) a cell: its rarest category in view wins, paler "
        "the less of the cell it is"
    )


def _occurring(counts: np.ndarray, categories: tuple[Category, ...]) -> str:
    """Which categories take how much of the raster; counts by code."""
    counts = counts[1 : len(categories) + 1]
    told = [
        f"{category.label} {number(round(100 * count / counts.sum(), 1))} %"
        for category, count in zip(categories, counts, strict=True)
        if count
    ]
    return f"Of all entries and steps: {', '.join(told)}."
