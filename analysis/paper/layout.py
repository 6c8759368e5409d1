"""How the paper is shared out: the height, the title and the legend."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure as Drawing

from analysis.figure import Figure
from analysis.paper.axes import TICK_CHARACTERS, is_turned
from analysis.paper.texts import fitted, shown, widest_in, wrapped
from analysis.paper.tokens import legend_names, text_height_in
from analysis.paper.venues import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


PAD_IN = 0.02  # around everything that is drawn


def default_height_in(figure: Figure, style: Style) -> float:
    """What a mark needs at that width: rows that can be read, a wide raster, a golden plot."""
    return _plot_height_in(figure, style) + _around_in(figure, style)


def _plot_height_in(figure: Figure, style: Style) -> float:
    width = style.width_in
    if figure.mark == "text":
        beside = _each_in(entry_names(figure), style) if style.legend == "right" else 0.0
        return text_height_in(figure, style, width - 2 * PAD_IN - beside)
    if figure.mark == "raster":
        return max(1.6, width * 0.48)
    if figure.mark != "heatmap":
        return max(1.8, min(width * 0.62, 4.2))
    rows, columns = figure.arrays["z"].shape
    line = style.font_pt * 1.25 / 72
    if figure.y.ticks:
        return min(9.0, max(1.8, line * len(figure.y.ticks) + 0.8))
    if figure.y.edges is not None or rows > 48:
        return max(1.8, width * 0.8)
    return min(width * 0.8, max(1.5, rows * max(line, 0.6 * width / max(1, columns)) + 0.7))


def _around_in(figure: Figure, style: Style) -> float:
    """What title, legend and turned labels add, so that they do not press the plot flat."""
    around = 0.0
    if style.title:
        around += title_height_in(title_of(figure, style), style)
    names = entry_names(figure)
    if style.legend in ("above", "below") and len(names) > (figure.mark != "raster"):
        names = [_entry(name, style, 0.9) for name in names]
        rows = math.ceil(len(names) / columns_of(names, style))
        around += rows * style.font_pt * 0.9 * 1.45 / 72
    if figure.x.ticks and is_turned(figure.x, style.width_in * 0.75, style):
        texts = [shown(text, TICK_CHARACTERS) for _, text in figure.x.ticks]
        around += min(0.8, widest_in(texts, style.font_pt * 0.9, style.family))
    return around


def entry_names(figure: Figure) -> list[str]:
    """What the legend lists: the series, the categories that occur, or a text's shades."""
    if figure.mark == "text":
        return legend_names(figure)
    if figure.mark != "raster":
        return [shown(series.name) or " " for series in figure.series]
    present = set(np.unique(figure.arrays["codes"]).tolist())
    return [
        shown(f"{category.letter} {category.label}")
        for code, category in enumerate(figure.categories, start=1)
        if code in present
    ]


def _entry(name: str, style: Style, share: float) -> str:
    return fitted(name, style.width_in * share, style.font_pt * 0.9, style.family)


def columns_of(names: list[str], style: Style) -> int:
    """How many legend entries stand side by side."""
    return max(1, min(len(names), int(style.width_in * 0.97 / _each_in(names, style))))


def _each_in(names: list[str], style: Style) -> float:
    """The width of a column of the legend."""
    return widest_in(names, style.font_pt * 0.9, style.family) + 4.2 * style.font_pt * 0.9 / 72


def title_of(figure: Figure, style: Style) -> str:
    """The title over at most three lines."""
    return wrapped(figure.title, style.width_in * 0.96, style.font_pt, style.family)


def title_height_in(title: str, style: Style) -> float:
    """The height of a title of one or more lines, in inches."""
    return style.font_pt * (1.25 * title.count("\n") + 1.75) / 72


def draw_title(drawn: Drawing, figure: Figure, style: Style) -> float:
    """Set the title over the plot; returns where it ends, as a share of the height."""
    title = title_of(figure, style)
    height = title_height_in(title, style)
    drawn.text(
        0.01,
        1 - 0.25 * style.font_pt / 72 / drawn.get_figheight(),
        title,
        va="top",
        ha="left",
        linespacing=1.15,
    ).set_in_layout(False)
    return max(0.3, 1 - height / drawn.get_figheight())


def draw_legend(
    drawn: Drawing, axes: Axes, entries: list[Any], style: Style, top: float
) -> tuple[float, float, float, float]:
    """Draw the legend; returns what it leaves to the plot: left, bottom, width and height."""
    beside = style.legend in ("right", "inside")
    names = [_entry(str(entry.get_label()), style, 0.3 if beside else 0.9) for entry in entries]
    looks: dict[str, Any] = {
        "handles": entries,
        "labels": names,
        "frameon": style.legend == "inside",
        "handlelength": 2.4,
        "handletextpad": 0.5,
        "columnspacing": 1.2,
        "labelspacing": 0.3,
        "borderpad": 0.2,
        "borderaxespad": 0.2,
    }
    if style.legend == "inside":
        axes.legend(loc="best", framealpha=0.85, edgecolor="none", **looks)
        return 0.0, 0.0, 1.0, top
    columns = 1 if beside else columns_of(names, style)
    place = {"above": "upper left", "below": "lower left", "right": "upper right"}[style.legend]
    for part in ("handles", "labels"):  # matplotlib fills columns, a reader reads rows
        looks[part] = [one for column in range(columns) for one in looks[part][column::columns]]
    looks |= {"loc": place, "bbox_to_anchor": (0, 0, 1, top), "ncols": columns}
    legend = drawn.legend(**looks)
    legend.set_in_layout(False)
    taken = legend.get_window_extent()
    width, height = taken.width / drawn.bbox.width, taken.height / drawn.bbox.height
    if beside:
        return 0.0, 0.0, max(0.3, 1 - width - 0.01), top
    height = min(height + 0.04 / drawn.get_figheight(), top - 0.25)
    return 0.0, height if style.legend == "below" else 0.0, 1.0, top - height
