"""Figures as data: what fits together, what does not, and the table behind each mark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.colours import REASONS
from analysis.figure import Axis, ColourScale, Figure, Marker, Series

SCALE = ColourScale("weight", (0.0, 1.0))


def heatmap(**changes: Any) -> Figure:
    parts: dict[str, Any] = {
        "mark": "heatmap",
        "title": "t",
        "x": Axis("key"),
        "y": Axis("query"),
        "arrays": {"z": np.array([[0.5, np.nan], [0.25, 0.75]], np.float32)},
        "colour": SCALE,
    }
    return Figure(**(parts | changes))


def raster(**changes: Any) -> Figure:
    parts: dict[str, Any] = {
        "mark": "raster",
        "title": "t",
        "x": Axis("position", edges=np.array([4, 6, 7])),
        "y": Axis("step"),
        "arrays": {
            "codes": np.array([[1, 2], [2, 0]], np.uint8),
            "share": np.array([[0.5, 1.0], [1.0, 0.0]], np.float32),
        },
        "categories": (REASONS["sink"], REASONS["evicted"]),
    }
    return Figure(**(parts | changes))


def lines(**changes: Any) -> Figure:
    parts: dict[str, Any] = {
        "mark": "lines",
        "title": "t",
        "x": Axis("step", np.array([-1, 0, 1])),
        "y": Axis("mass", unit="share"),
        "arrays": {"y": np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])},
        "series": (Series("a"), Series("b")),
    }
    return Figure(**(parts | changes))


@pytest.mark.parametrize(
    ("build", "changes", "message"),
    [
        (heatmap, {"mark": "pie"}, "'pie' is no mark"),
        (heatmap, {"arrays": {}}, "needs the array 'z'"),
        (heatmap, {"arrays": {"z": np.zeros(3)}}, "1 dimensions"),
        (heatmap, {"colour": None}, "needs a colour scale"),
        (heatmap, {"colour": ColourScale("w", (1.0, 1.0))}, "colour range"),
        (heatmap, {"colour": ColourScale("w", (0.0, np.nan))}, "colour range"),
        (heatmap, {"colour": ColourScale("w", (0.0, 1.0), log=True)}, "cannot begin at 0"),
        (heatmap, {"x": Axis("key", np.arange(3))}, "3 x values for 2"),
        (heatmap, {"y": Axis("query", edges=np.arange(2))}, "3 are needed"),
        (heatmap, {"arrays": {"z": np.zeros((2, 2)), "w": np.zeros(2)}}, "no array 'w'"),
        (heatmap, {"colour": ColourScale("w", (-1.0, 2.0), "PuOr")}, "centred on zero"),
        (raster, {"arrays": {"codes": np.full((1, 2), 3, np.uint8)}}, "code 3 for 2 categories"),
        (raster, {"arrays": {"codes": np.ones((1, 2), np.int32)}}, "codes are uint8, not int32"),
        (lines, {"series": (Series("a"),)}, "1 series names for 2 series"),
        (lines, {"arrays": {"y": np.zeros((2, 3)), "low": np.zeros((2, 4))}}, "does not fit"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    build: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(**changes)


@pytest.mark.parametrize(("kind", "place"), [("circle", {}), ("cell", {"x": 1.0}), ("x", {})])
def test_a_marker_needs_its_place(kind: str, place: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no marker"):
        Marker(kind, **place)


def test_heatmap_table_has_one_row_per_cell_that_exists() -> None:
    figure = heatmap(x=Axis("key", edges=np.array([4, 6, 7])), y=Axis("query", np.array([10, 11])))
    table = figure.table()
    assert table.columns.tolist() == ["query", "key, first", "key, last", "weight"]
    assert table.to_numpy().tolist() == [
        [10, 4, 5, 0.5],
        [11, 4, 5, 0.25],
        [11, 6, 6, 0.75],
    ]


def test_raster_table_names_the_category_of_every_cell_that_exists() -> None:
    table = raster().table()
    assert table.to_dict("list") == {
        "step": [0, 0, 1],
        "position, first": [4, 6, 4],
        "position, last": [5, 6, 5],
        "category": ["sink", "evicted", "evicted"],
        "share": [0.5, 1.0, 1.0],
    }


def test_a_centred_scale_reaches_as_far_below_zero_as_above() -> None:
    assert ColourScale.centred("d", -3).range == (-3.0, 3.0)
    low, high = ColourScale.centred("d", 0).range
    assert low == -high < 0


def test_lines_table_has_one_row_per_point() -> None:
    low = np.zeros((2, 3))
    figure = lines(arrays={"y": np.arange(6.0).reshape(2, 3), "low": low, "high": low + 9})
    table = figure.table()
    assert table["series"].tolist() == ["a", "a", "a", "b", "b", "b"]
    assert table["step"].tolist() == [-1, 0, 1, -1, 0, 1]
    assert table["mass (share)"].tolist() == [0, 1, 2, 3, 4, 5]
    assert table["high"].tolist() == [9] * 6


def test_a_table_of_lines_with_points_has_both() -> None:
    figure = lines(
        arrays={
            "y": np.array([[1.0, 2.0, 3.0], [np.nan] * 3]),
            "point_x": np.array([0.5, -1.0]),
            "point_y": np.array([7.0, 8.0]),
            "point_series": np.array([1, 1]),
        },
        point_text=("one", "two"),
    )
    table = figure.table()
    assert table["series"].tolist() == ["a", "a", "a", "b", "b"]
    assert table["step"].tolist() == [-1, 0, 1, 0.5, -1]
    assert table["mass (share)"].tolist() == [1, 2, 3, 7, 8]
    assert table["text"].tolist()[3:] == ["one", "two"]


def test_scatter_table_names_series_and_text() -> None:
    figure = Figure(
        "scatter",
        "t",
        Axis("x"),
        Axis("y"),
        {
            "x": np.array([1.0, 2.0]),
            "y": np.array([3.0, 4.0]),
            "colour": np.array([0.1, 0.2]),
            "series": np.array([1, 0]),
        },
        series=(Series("a"), Series("b")),
        colour=SCALE,
        point_text=("p", "q"),
    )
    assert figure.table().to_dict("list") == {
        "x": [1.0, 2.0],
        "y": [3.0, 4.0],
        "weight": [0.1, 0.2],
        "series": ["b", "a"],
        "text": ["p", "q"],
    }
