"""Which entries a policy keeps: masks over the steps, shares by head, and two policies compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.figure import Figure
from cache_store.reader import Capture

if TYPE_CHECKING:
    from analysis.replays import Replayed

PIXELS = 480  # columns of a raster in half the page; wider ranges are pooled to at most this many


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
    """Raster of one KV head: positions (x) by steps (y), coloured by the reason of being there.

    positions: [first, last + 1), all by default; `step` is marked. More than `bins` positions or
    steps are pooled so that the category rarest in the range wins a cell; the caption says so.
    Raises AnalysisError for a layer, head, step or range that does not exist.
    """
    raise NotImplementedError


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
    """Raster: kept by both, only by the first, only by the second, by neither.

    The caption counts entries at `step` (default: the last). Arguments as in `mask`.
    """
    raise NotImplementedError


def kept_grid(
    capture: Capture,
    replayed: Replayed,
    step: int,
    *,
    selected: tuple[int, int] | None = None,
) -> Figure:
    """Heatmap layer (y) x KV head (x): share of the entries so far that is cached after `step`.

    Clickable; `selected` (layer, head) is outlined. The colour range is 0 to 1 for every policy.
    """
    raise NotImplementedError


def kept_difference(
    capture: Capture,
    first: Replayed,
    second: Replayed,
    step: int,
    *,
    selected: tuple[int, int] | None = None,
) -> Figure:
    """Heatmap layer x KV head: entries `first` keeps less those `second` keeps, centred on 0."""
    raise NotImplementedError
