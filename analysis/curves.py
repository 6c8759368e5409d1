"""What the papers' own views share in drawing: bands over heads and captures, captions, pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.comparison import BAND, band_over, mean_over
from analysis.errors import AnalysisError
from analysis.words import provenance, source_words
from cache_store.reader import Capture, CaptureInfo

BAND_WORDS = f"{BAND[0]}th to {BAND[1]}th percentile"


def same_model(captures: Sequence[Capture]) -> Sequence[Capture]:
    """The captures, if they can be pooled: at least one, all of one model.

    Raises AnalysisError naming two that differ.
    """
    if not captures:
        raise AnalysisError("No run is chosen; choose one from the library.")
    first = captures[0].info
    for capture in captures[1:]:
        info = capture.info
        if _shape(info) != _shape(first):
            raise AnalysisError(
                f"Runs of different models cannot be pooled: {first.id} is of {first.model_id}, "
                f"{info.id} of {info.model_id}; choose runs of one model."
            )
    return captures


def _shape(info: CaptureInfo) -> tuple[object, ...]:
    """What two runs must share so that their layers and heads are the same ones."""
    return info.model_id, info.layers, info.query_heads, info.kv_heads


def captures_words(captures: Sequence[Capture]) -> str:
    """Which model and runs a caption speaks of, and how many there are."""
    if len(captures) == 1:
        return source_words(captures[0])
    info = captures[0].info
    lengths = [capture.info.length for capture in captures]
    return (
        f"{info.model_id}, {len(captures)} runs of {min(lengths):,} to {max(lengths):,} tokens "
        f"pooled"
    )


def captures_provenance(captures: Sequence[Capture], **selection: Any) -> dict[str, Any]:
    """Where the numbers come from: the first run's facts, and all runs where several are pooled."""
    told = provenance(captures[0], **selection)
    if len(captures) > 1:
        told["runs"] = [capture.id for capture in captures]
    return told


def banded(lines: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays of a line figure from each line's rows (m, x): the mean, and a band where m > 1."""
    means = np.stack([mean_over(rows) for rows in lines])
    bands = [band_over(rows) for rows in lines]
    low, high = (np.stack([band[side] for band in bands]) for side in (0, 1))
    if not np.isfinite(low).any():
        return {"y": means}
    return {"y": means, "low": low, "high": high}


def edges_within(length: int, bins: int) -> np.ndarray:
    """Edges of at most `bins` equally wide cells over `length` positions; int64, from 0."""
    width = max(1, -(-length // max(1, bins)))
    return np.append(np.arange(0, length, width), length).astype(np.int64)


def pool_columns(values: np.ndarray, edges: np.ndarray, how: str = "max") -> np.ndarray:
    """Values (..., n) pooled to (..., cells) between the edges: "max" or "mean", without NaN."""
    empty = np.isnan(values)
    if how == "max":
        pooled = np.maximum.reduceat(np.where(empty, -np.inf, values), edges[:-1], axis=-1)
        return np.where(np.isneginf(pooled), np.nan, pooled).astype(np.float32)
    counts = np.add.reduceat(~empty, edges[:-1], axis=-1, dtype=np.int64)
    sums = np.add.reduceat(np.where(empty, 0, values), edges[:-1], axis=-1)
    pooled = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return pooled.astype(np.float32)


def pooling_words(length: int, edges: np.ndarray, how: str = "max") -> str:
    """How positions became cells, for a caption; empty when each has its own."""
    width = int(edges[1] - edges[0]) if len(edges) > 1 else 1
    names = {"max": "the largest", "mean": "the mean"}
    return "" if width == 1 else f" Each cell is {names[how]} of {width} positions."
