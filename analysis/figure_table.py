"""The table behind a `Figure`: what the Data button of its card gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis.figure import Axis, Figure


def table_of(figure: Figure) -> pd.DataFrame:
    """One row per cell that exists, point or bar."""
    if figure.mark == "heatmap":
        return _heatmap(figure)
    if figure.mark == "raster":
        return _raster(figure)
    if figure.mark == "scatter":
        return _scatter(figure)
    return _series(figure)


def _series(figure: Figure) -> pd.DataFrame:
    y = figure.arrays["y"]
    columns = _axis_columns(figure.x, y.shape[1], figure.x.name)
    columns = {name: np.tile(values, y.shape[0]) for name, values in columns.items()}
    names = np.array([series.name for series in figure.series], dtype=object)
    frame = pd.DataFrame({"series": np.repeat(names, y.shape[1]), **columns})
    frame[figure.y.name] = y.reshape(-1)
    for name in ("low", "high"):
        if name in figure.arrays:
            frame[name] = figure.arrays[name].reshape(-1)
    return frame


def _heatmap(figure: Figure) -> pd.DataFrame:
    z = figure.arrays["z"]
    assert figure.colour is not None
    there = ~np.isnan(z)
    return pd.DataFrame(_places(figure, there) | {figure.colour.label: z[there]})


def _raster(figure: Figure) -> pd.DataFrame:
    codes = figure.arrays["codes"]
    there = codes > 0
    labels = np.array(["", *(category.label for category in figure.categories)], dtype=object)
    columns = _places(figure, there) | {"category": labels[codes[there]]}
    if "share" in figure.arrays:
        columns["share"] = figure.arrays["share"][there]
    return pd.DataFrame(columns)


def _places(figure: Figure, there: np.ndarray) -> dict[str, np.ndarray]:
    """Row and column of the cells where `there` (y, x) holds, in reading order."""
    row, column = np.nonzero(there)
    rows = _axis_columns(figure.y, there.shape[0], figure.y.name)
    columns = _axis_columns(figure.x, there.shape[1], figure.x.name)
    return {name: values[row] for name, values in rows.items()} | {
        name: values[column] for name, values in columns.items()
    }


def _scatter(figure: Figure) -> pd.DataFrame:
    data: dict[str, Any] = {
        figure.x.name: figure.arrays["x"],
        figure.y.name: figure.arrays["y"],
    }
    if "colour" in figure.arrays and figure.colour is not None:
        data[figure.colour.label] = figure.arrays["colour"]
    if "series" in figure.arrays:
        data["series"] = [figure.series[index].name for index in figure.arrays["series"]]
    if figure.point_text:
        data["text"] = list(figure.point_text)
    return pd.DataFrame(data)


def _axis_columns(axis: Axis, size: int, name: str) -> dict[str, np.ndarray]:
    """The column(s) that say where each cell along an axis lies."""
    if axis.edges is not None:
        edges = np.asarray(axis.edges)
        return {f"{name}, first": edges[:-1], f"{name}, last": edges[1:] - 1}
    values = np.arange(size) if axis.values is None else np.asarray(axis.values)
    return {name: values}
