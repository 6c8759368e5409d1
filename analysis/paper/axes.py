"""Axes on paper: what they span, and labels and ticks that fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from analysis.figure import Axis, Figure
from analysis.geometry import limits
from analysis.paper.texts import fitted, number, shown, width_in
from analysis.paper.venues import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TICK_CHARACTERS = 24
FEW_PLACES = 16  # up to so many layers, heads or steps each have their number


def paper_in(axes: Axes) -> tuple[float, float]:
    """Width and height of the paper, in inches."""
    drawn = axes.get_figure(root=True)
    assert drawn is not None
    width, height = drawn.get_size_inches()
    return float(width), float(height)


def draw_axis(axes: Axes, axis: Axis, figure: Figure, name: str, style: Style) -> None:
    """Range, direction, label and ticks of the axis "x" or "y"."""
    side = axes.xaxis if name == "x" else axes.yaxis
    reach = limits(figure, name)
    if axis.log:
        (axes.set_xscale if name == "x" else axes.set_yscale)("log")
    if reach is not None and reach[0] != reach[1]:
        (axes.set_xlim if name == "x" else axes.set_ylim)(*reach)
    elif name == "x" and figure.mark == "lines":
        axes.margins(x=0.02)
    if axis.reversed:
        (axes.invert_xaxis if name == "x" else axes.invert_yaxis)()
    room = (style.width_in if name == "x" else paper_in(axes)[1]) * 0.75
    label = fitted(axis.name, room, style.font_pt, style.family)
    (axes.set_xlabel if name == "x" else axes.set_ylabel)(label)
    side.set_minor_locator(NullLocator())
    if axis.ticks:
        _named_ticks(axes, axis, name, room, style)
        return
    if not axis.log:
        whole = figure.cells is not None or _whole(axis, figure, name)
        bins = MaxNLocator(6 if name == "x" else 5, integer=whole, steps=[1, 2, 2.5, 5, 10])
        each = _few_places(axis, figure, name) if whole and room > 1.6 else None
        side.set_major_locator(bins if each is None else FixedLocator(each))
    side.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def _whole(axis: Axis, figure: Figure, name: str) -> bool:
    """Whether the places along the axis are whole numbers."""
    if figure.mark == "scatter" or name == "y":
        return False
    return axis.values is None or np.issubdtype(np.asarray(axis.values).dtype, np.integer)


def _few_places(axis: Axis, figure: Figure, name: str) -> list[float] | None:
    """Every place of an axis with so few that each can be labelled, otherwise None."""
    array = figure.cells if figure.cells is not None else figure.arrays["y"]
    count = array.shape[-1 if name == "x" else 0]
    if axis.edges is not None or not 0 < count <= FEW_PLACES:
        return None
    values = np.arange(count) if axis.values is None else np.asarray(axis.values)
    return [float(value) for value in values] if np.ptp(values) < FEW_PLACES else None


def _named_ticks(axes: Axes, axis: Axis, name: str, room_in: float, style: Style) -> None:
    """Labels as they are; turned where they do not fit side by side, some left out where crowded.

    Every second, third ... label is left out rather than printed over its neighbour.
    """
    size = style.font_pt * 0.9
    texts = [shown(text, TICK_CHARACTERS) for _, text in axis.ticks]
    turned = name == "x" and is_turned(axis, room_in, style)
    line = size * 1.15 / 72
    every = 1
    if turned or name == "y":
        every = max(1, int(np.ceil(len(texts) * line / max(room_in, line))))
    kept = slice(None, None, every)
    side = axes.xaxis if name == "x" else axes.yaxis
    side.set_major_locator(FixedLocator([place for place, _ in axis.ticks][kept]))
    longest = paper_in(axes)[1 if name == "x" else 0] * 0.3
    labels = [
        fitted(text, longest, size, style.family) if turned or name == "y" else text
        for text in texts
    ]
    side.set_ticklabels(labels[kept])
    if turned:
        axes.tick_params(axis="x", labelrotation=90)


def is_turned(axis: Axis, room_in: float, style: Style) -> bool:
    """Whether the labels below the plot do not fit side by side."""
    texts = [shown(text, TICK_CHARACTERS) for _, text in axis.ticks]
    widths = [width_in(text, style.font_pt * 0.9, style.family) for text in texts]
    return sum(widths) + 0.08 * len(texts) > room_in


def shorten_labels(drawn: Drawing, axes: Axes, figure: Figure, style: Style) -> None:
    """Cut a name that is longer than its axis; only then the layout has to be known."""
    names = (figure.x.name, style.width_in), (figure.y.name, drawn.get_figheight())
    widths = [width_in(shown(name), style.font_pt, style.family) for name, _ in names]
    if all(width < 0.5 * room for width, (_, room) in zip(widths, names, strict=True)):
        return
    drawn.draw_without_rendering()
    box = axes.get_position()
    rooms = box.width * style.width_in, box.height * drawn.get_figheight()
    texts = [
        fitted(name, room, style.font_pt, style.family)
        for (name, _), room in zip(names, rooms, strict=True)
    ]
    axes.set_xlabel(texts[0])
    axes.set_ylabel(texts[1])
