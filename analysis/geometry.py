"""Where the cells of a figure lie and how far its axes reach: what both renderers agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from analysis.figure import Axis, Figure


def spacing(axis: Axis, count: int) -> tuple[float, float]:
    """Centre of the first cell and distance of cells; the axis' range cuts a narrower last one."""
    if axis.edges is not None:
        width = float(axis.edges[1] - axis.edges[0])
        return float(axis.edges[0]) + (width - 1) / 2, width
    if axis.values is None or len(axis.values) == 0:
        return 0.0, 1.0
    step = float(axis.values[1] - axis.values[0]) if count > 1 else 1.0
    return float(axis.values[0]), step


def places(axis: Axis, count: int) -> np.ndarray:
    """Where the points or bars of an axis stand: its values, or the middles of its cells."""
    if axis.values is not None:
        return np.asarray(axis.values)
    first, width = spacing(axis, count)
    return np.arange(count) if axis.edges is None else first + width * np.arange(count)


def limits(figure: Figure, name: str) -> tuple[float, float] | None:
    """What the axis "x" or "y" spans, from edge to edge of its cells; None: what the data need."""
    axis: Axis = getattr(figure, name)
    if axis.range is not None:
        return axis.range
    if axis.edges is not None:
        return float(axis.edges[0]) - 0.5, float(axis.edges[-1]) - 0.5
    if figure.cells is not None:
        count = figure.cells.shape[1 if name == "x" else 0]
        first, step = spacing(axis, count)
        return first - step / 2, first + (count - 0.5) * step
    return None
