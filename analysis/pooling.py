"""Rasters made small enough for a screen without hiding what is there in a single cell."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PooledCodes:
    """codes uint8 and share float32 (rows, columns); rows and columns stand for the indices
    edges[i] ... edges[i + 1] - 1, every block as wide as the first but the last."""

    codes: np.ndarray
    share: np.ndarray
    y_edges: np.ndarray
    x_edges: np.ndarray

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns that a cell stands for."""
        return int(self.y_edges[1]), int(self.x_edges[1])


def pool_codes(codes: np.ndarray, rows: int, columns: int) -> PooledCodes:
    """Pool uint8 codes (y, x) to at most `rows` x `columns` cells.

    Of a block's codes the one that is rarest in the whole array wins, so that nothing disappears;
    ties go to the lower code, and 0 (nothing) wins only where there is nothing else. `share` is
    the winner's part of what the block holds besides 0.
    """
    y_edges, x_edges = _edges(codes.shape[0], rows), _edges(codes.shape[1], columns)
    if len(y_edges) - 1 == codes.shape[0] and len(x_edges) - 1 == codes.shape[1]:
        return PooledCodes(codes, (codes > 0).astype(np.float32), y_edges, x_edges)
    totals = np.bincount(codes.reshape(-1), minlength=256)
    present = [code for code in range(1, 256) if totals[code]]
    shape = len(y_edges) - 1, len(x_edges) - 1
    winner, count = np.zeros(shape, np.uint8), np.zeros(shape, np.float32)
    held = np.zeros(shape, np.float32)
    for code in sorted(present, key=lambda code: (-totals[code], -code)):  # the rarest last
        counts = _block_sums(codes == code, y_edges, x_edges)
        held += counts
        winner[counts > 0] = code
        count = np.where(counts > 0, counts, count)
    return PooledCodes(winner, count / np.maximum(held, 1), y_edges, x_edges)


def _edges(length: int, most: int) -> np.ndarray:
    width = max(1, math.ceil(length / most))
    return np.append(np.arange(0, length, width), length).astype(np.int64)


def _block_sums(there: np.ndarray, y_edges: np.ndarray, x_edges: np.ndarray) -> np.ndarray:
    by_column = np.add.reduceat(there, x_edges[:-1], axis=1, dtype=np.float32)
    return np.add.reduceat(by_column, y_edges[:-1], axis=0, dtype=np.float32)
