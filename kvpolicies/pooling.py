"""Attention of many queries, averaged over heads and layers, pooled to the cells of a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from kvpolicies.attention import LayerStates, row_blocks


def bin_edges(length: int, bins: int) -> np.ndarray:
    """Edges of at most `bins` equally wide bins over `length` entries (the last may be narrower).

    Returns int64 (number of bins + 1,), from 0 to `length`.
    """
    width = max(1, math.ceil(length / bins))
    return np.append(np.arange(0, length, width), length)


def pooled_attention(
    layers: LayerStates | Sequence[LayerStates],
    query_start: int,
    key_range: tuple[int, int],
    *,
    bins: int,
    pool: str = "max",
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Attention averaged over the given heads and layers, pooled to at most `bins` x `bins`.

    Rows are the layers' queries, positions `query_start` onwards; columns the keys of `key_range`
    (first, last + 1). `pool` is "max" (keeps spikes) or "mean" (keeps mass; over visible cells
    only). Returns float32 (query bins, key bins), NaN where a bin lies wholly in the future; bins
    are those of `bin_edges`. Averaging comes before pooling. `progress(done, total)` counts
    queries and may raise to stop.
    """
    if pool not in ("max", "mean"):
        raise ValueError(f"pool must be 'max' or 'mean', not {pool!r}")
    layers = [layers] if isinstance(layers, LayerStates) else list(layers)
    count = layers[0].queries.shape[1]
    first_key, last_key = key_range
    query_edges = bin_edges(count, bins)
    key_edges = bin_edges(last_key - first_key, bins)
    height, width = int(query_edges[1] - query_edges[0]), int(key_edges[1] - key_edges[0])
    pooled = np.zeros((len(query_edges) - 1, len(key_edges) - 1), np.float32)
    mean: torch.Tensor | None = None
    for position, number, rows in row_blocks(layers, query_start, multiple=height):
        part = rows.mean(0)[:, first_key:last_key]
        mean = part if mean is None else mean.add_(part)
        if number < len(layers) - 1:
            continue
        first = position - query_start
        reduced = _pool(mean / len(layers), height, width, pool)
        top = first // height
        pooled[top : top + reduced.shape[0], : reduced.shape[1]] = reduced.cpu().numpy()
        if progress is not None:
            progress(first + rows.shape[1], count)
        mean = None
    visible = _visible_cells(query_start + query_edges, first_key + key_edges)
    if pool == "mean":
        pooled /= np.maximum(visible, 1)
    pooled[visible == 0] = np.nan
    return pooled


def _pool(cells: torch.Tensor, height: int, width: int, pool: str) -> torch.Tensor:
    """Maximum or sum over tiles of height x width; (m, n) -> (ceil(m/height), ceil(n/width))."""
    rows, columns = -cells.shape[0] % height, -cells.shape[1] % width
    if rows or columns:
        cells = torch.nn.functional.pad(cells, (0, columns, 0, rows))
    # First over rows, where the memory is contiguous: ten times faster than both axes at once.
    strips = cells.reshape(cells.shape[0] // height, height, cells.shape[1])
    strips = strips.amax(1) if pool == "max" else strips.sum(1)
    tiles = strips.reshape(strips.shape[0], strips.shape[1] // width, width)
    return tiles.amax(2) if pool == "max" else tiles.sum(2)


def _visible_cells(query_edges: np.ndarray, key_edges: np.ndarray) -> np.ndarray:
    """How many (query, key) pairs of each bin are causal; float32 (query bins, key bins)."""
    positions = np.arange(query_edges[0], query_edges[-1])
    below = np.minimum(positions[:, None] + 1, key_edges[None, :])  # keys before each edge
    per_row = np.diff(np.maximum(below, key_edges[0]), axis=1)
    return np.add.reduceat(per_row, query_edges[:-1] - query_edges[0], axis=0).astype(np.float32)
