"""The table behind a `Figure`: what the Data button of its card gives."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from analysis.figure import Axis, Figure

_SURROGATES = re.compile("[\ud800-\udfff]")  # half characters, which no file can hold


def table_of(figure: Figure) -> pd.DataFrame:
    """One row per cell that exists, point, bar or token."""
    if figure.mark == "heatmap":
        return _heatmap(figure)
    if figure.mark == "raster":
        return _raster(figure)
    if figure.mark == "scatter":
        return _scatter(figure)
    if figure.mark == "text":
        return _text(figure)
    return _series(figure)


def _series(figure: Figure) -> pd.DataFrame:
    y = figure.arrays["y"]
    columns = _axis_columns(figure.x, y.shape[1], figure.x.name)
    columns = {name: np.tile(values, y.shape[0]) for name, values in columns.items()}
    names = np.array([_whole(series.name) for series in figure.series], dtype=object)
    frame = pd.DataFrame({"series": np.repeat(names, y.shape[1]), **columns})
    frame[_whole(figure.y.name)] = y.reshape(-1)
    for name in ("low", "high"):
        if name in figure.arrays:
            frame[name] = figure.arrays[name].reshape(-1)
    if "point_x" not in figure.arrays:
        return frame
    places = figure.arrays["point_series"].astype(int)
    points = pd.DataFrame(
        {
            "series": names[places],
            _whole(figure.x.name): figure.arrays["point_x"],
            _whole(figure.y.name): figure.arrays["point_y"],
            "text": [_whole(text) for text in figure.point_text] or [""] * len(places),
        }
    )
    lines = frame[~frame["series"].isin(names[np.unique(places)])]
    return pd.concat([lines, points], ignore_index=True)


def _heatmap(figure: Figure) -> pd.DataFrame:
    z = figure.arrays["z"]
    assert figure.colour is not None
    there = ~np.isnan(z)
    return pd.DataFrame(_places(figure, there) | {_whole(figure.colour.label): z[there]})


def _raster(figure: Figure) -> pd.DataFrame:
    codes = figure.arrays["codes"]
    there = codes > 0
    labels = ["", *(_whole(category.label) for category in figure.categories)]
    columns = _places(figure, there) | {"category": np.array(labels, dtype=object)[codes[there]]}
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
        _whole(figure.x.name): figure.arrays["x"],
        _whole(figure.y.name): figure.arrays["y"],
    }
    if "colour" in figure.arrays and figure.colour is not None:
        data[_whole(figure.colour.label)] = figure.arrays["colour"]
    if "series" in figure.arrays:
        data["series"] = [_whole(figure.series[index].name) for index in figure.arrays["series"]]
    if figure.point_text:
        data["text"] = [_whole(text) for text in figure.point_text]
    return pd.DataFrame(data)


def _text(figure: Figure) -> pd.DataFrame:
    """One row per token; what its text is struck, faded or underlined for as true and false."""
    assert figure.colour is not None
    data: dict[str, Any] = {
        _whole(figure.x.name): figure.x.values,
        "token": [_whole(text) for text in figure.point_text],
        _whole(figure.colour.label): figure.arrays["shade"],
    }
    named = {category.key: category.label for category in figure.categories}
    for name in ("struck", "faded", "evidence"):
        if name in figure.arrays:
            data[_whole(named.get(name, name))] = figure.arrays[name] > 0
    return pd.DataFrame(data)


def _axis_columns(axis: Axis, size: int, name: str) -> dict[str, np.ndarray]:
    """The column(s) that say where each cell along an axis lies."""
    name = _whole(name)
    if axis.edges is not None:
        edges = np.asarray(axis.edges)
        return {f"{name}, first": edges[:-1], f"{name}, last": edges[1:] - 1}
    values = np.arange(size) if axis.values is None else np.asarray(axis.values)
    return {name: values}


def _whole(text: str) -> str:
    return _SURROGATES.sub("\ufffd", text)
