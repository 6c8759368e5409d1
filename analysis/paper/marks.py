"""Lines, areas, bars and scatters on paper: series differ in more than colour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.colours import series_colour, series_dash, series_pattern
from analysis.figure import Figure
from analysis.geometry import places
from analysis.paper.cells import colour_map, draw_colour_bar, norm_of
from analysis.paper.texts import shown
from analysis.paper.venues import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (5, 2)),
    "dot": (0, (1, 1.4)),
    "dashdot": (0, (5, 1.6, 1, 1.6)),
    "longdash": (0, (9, 2.4)),
    "longdashdot": (0, (9, 1.6, 1, 1.6)),
}
SYMBOLS = ("o", "s", "D", "P", "X", "^", "v", "<")
PATTERNS = {"": "", "/": "////", ".": "....", "\\": "\\\\\\\\", "x": "xxxx", "-": "----"}
PATTERNS |= {"|": "||||", "+": "++++"}
NAMED_POINTS = 24  # up to so many points of a scatter carry their text
FEW_POINTS = 8  # up to so many are marked, so that one beside a gap is seen


def draw_lines(axes: Axes, figure: Figure, style: Style) -> list[Any]:
    """Lines with their bands; returns the legend's entries."""
    lines = figure.arrays["y"]
    x = places(figure.x, lines.shape[1])
    drawn: list[Any] = []
    points = figure.arrays.get("point_series", np.empty(0))
    for index, series in enumerate(figure.series):
        colour = series.colour or series_colour(index)
        own = np.flatnonzero(points == index)
        if len(own):
            drawn.append(
                axes.scatter(
                    figure.arrays["point_x"][own],
                    figure.arrays["point_y"][own],
                    s=(style.font_pt * 0.4) ** 2,
                    color=colour,
                    alpha=0.6,
                    marker=SYMBOLS[int(np.searchsorted(np.unique(points), index)) % len(SYMBOLS)],
                    linewidths=0,
                    label=shown(series.name) or " ",
                    rasterized=len(own) > 20_000,
                )
            )
            continue
        if "low" in figure.arrays:
            low, high = figure.arrays["low"][index], figure.arrays["high"][index]
            axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        drawn += axes.plot(
            x,
            lines[index],
            color=colour,
            linestyle=DASHES.get(series.dash or series_dash(index), "-"),
            linewidth=style.font_pt / 7,
            marker=SYMBOLS[index % len(SYMBOLS)] if lines.shape[1] <= FEW_POINTS else None,
            markersize=style.font_pt * 0.45,
            label=shown(series.name) or " ",
        )
    return drawn


def draw_area(axes: Axes, figure: Figure, style: Style) -> list[Any]:
    """Layers upon each other, the first at the bottom; returns the legend's entries."""
    heights = np.nan_to_num(figure.arrays["y"].astype(float))
    x = places(figure.x, heights.shape[1]).astype(float)
    above = np.concatenate([np.zeros((1, len(x))), heights.cumsum(axis=0)])
    return [
        axes.fill_between(
            x,
            above[index],
            above[index + 1],
            facecolor=series.colour or series_colour(index),
            edgecolor="white",
            linewidth=0,
            hatch=PATTERNS[series_pattern(index)] or None,
            label=shown(series.name) or " ",
        )
        for index, series in enumerate(figure.series)
    ]


def draw_bars(axes: Axes, figure: Figure, style: Style) -> list[Any]:
    """Bars side by side or stacked; returns the legend's entries."""
    heights = figure.arrays["y"]
    x = places(figure.x, heights.shape[1]).astype(float)
    stacked = figure.mark == "stacked_bars"
    step = float(np.diff(np.sort(x)).min()) if len(x) > 1 else 1.0
    room = step * (1.0 if heights.shape[1] > 64 else 0.85)
    width = room if stacked else room / max(1, len(heights))
    above, below = np.zeros(len(x)), np.zeros(len(x))
    drawn = []
    for index, series in enumerate(figure.series):
        values = np.nan_to_num(heights[index].astype(float))
        places_x = x if stacked else x - room / 2 + (index + 0.5) * width
        base = np.where(values >= 0, above, below) if stacked else np.zeros(len(x))
        drawn.append(
            axes.bar(
                places_x,
                values,
                width,
                bottom=base,
                color=series.colour or series_colour(index),
                edgecolor="white",
                linewidth=0,
                hatch=PATTERNS[series_pattern(index)] or None,
                label=shown(series.name) or " ",
            )
        )
        above += np.maximum(values, 0)
        below += np.minimum(values, 0)
    if len(x):
        axes.set_xlim(x.min() - 0.6 * step, x.max() + 0.6 * step)
    return drawn


def draw_scatter(axes: Axes, figure: Figure, style: Style) -> list[Any]:
    """Points by series and by number; few points are named. Returns the legend's entries."""
    x, y = figure.arrays["x"], figure.arrays["y"]
    groups = figure.arrays.get("series", np.zeros(len(x), np.uint8))
    coloured = "colour" in figure.arrays and figure.colour is not None
    drawn = []
    for index in range(max(1, len(figure.series))):
        taken = np.flatnonzero(groups == index)
        looks: dict[str, Any] = {}
        if coloured:
            assert figure.colour is not None
            looks = {
                "c": figure.arrays["colour"][taken],
                "cmap": colour_map(figure.colour, style),
                "norm": norm_of(figure.colour),
            }
        else:
            own = figure.series[index].colour if figure.series else None
            looks = {"color": own or series_colour(index)}
        drawn.append(
            axes.scatter(
                x[taken],
                y[taken],
                s=(style.font_pt * (0.5 if len(x) <= 2000 else 0.3)) ** 2,
                marker=SYMBOLS[index % len(SYMBOLS)],
                linewidths=0,
                label=(shown(figure.series[index].name) if figure.series else "") or " ",
                rasterized=len(x) > 20_000,
                **looks,
            )
        )
    if coloured and figure.colour is not None and style.legend != "none":
        draw_colour_bar(axes, figure.colour, style)
    if len(x) <= NAMED_POINTS:
        _names(axes, x, y, figure.point_text, style)
    return drawn


def _names(axes: Axes, x: np.ndarray, y: np.ndarray, texts: tuple[str, ...], style: Style) -> None:
    """Each point's text beside it, on the side where the plot has room."""
    if not len(x):
        return
    middle = float(np.nanmin(x)) + 0.7 * float(np.nanmax(x) - np.nanmin(x))
    for place_x, place_y, text in zip(x, y, texts, strict=False):
        right = place_x > middle
        axes.annotate(
            shown(text, 16),
            (float(place_x), float(place_y)),
            xytext=(style.font_pt * (-0.4 if right else 0.4), style.font_pt * 0.35),
            textcoords="offset points",
            ha="right" if right else "left",
            fontsize=style.font_pt * 0.85,
            annotation_clip=True,
        ).set_in_layout(False)
