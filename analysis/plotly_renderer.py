"""Draws a `Figure` with Plotly, for the screen.

Arrays travel as typed arrays (float32, uint8), cells on evenly spaced axes so that Plotly draws
one image. Plotly reads labels and hover text as a small HTML and templates: every text from outside
goes through `escaped`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from analysis.colours import SELECTED
from analysis.figure import Axis, Figure, Marker
from analysis.geometry import limits as axis_limits
from analysis.plotly_marks import (
    draw_area,
    draw_bars,
    draw_heatmap,
    draw_lines,
    draw_scatter,
    escaped,
)
from analysis.plotly_raster import draw_raster, spell_out
from analysis.plotly_spec import Spec

if TYPE_CHECKING:
    import plotly.graph_objects as go

FONT = '"Source Sans 3", "Source Sans Pro", "Segoe UI", sans-serif'
THEMES = {
    "light": {"text": "#31333F", "grid": "rgba(49,51,63,0.14)", "ground": "#FFFFFF"},
    "dark": {"text": "#FAFAFA", "grid": "rgba(250,250,250,0.18)", "ground": "#0E1117"},
}
DRAW: dict[str, Callable[[Spec, Figure], None]] = {
    "heatmap": draw_heatmap,
    "raster": draw_raster,
    "lines": draw_lines,
    "area": draw_area,
    "bars": draw_bars,
    "stacked_bars": draw_bars,
    "scatter": draw_scatter,
}


def to_plotly(figure: Figure, *, theme: str = "light", height: int | None = None) -> go.Figure:
    """The Plotly figure: transparent ground, readable on a light or dark page.

    theme: "light" or "dark"; height in pixels, by default what the mark needs. The title and the
    caption are left to the page. Raises ValueError for another theme, and for a text, which the
    page shows as text (`pages/parts/token_text.py`) and a file of its own as HTML (`text_html`).
    """
    import plotly.graph_objects as go

    spec = to_spec(figure, theme=theme, height=height)
    drawn = go.Figure(data=spec.traces, layout={"template": go.layout.Template()} | spec.layout)
    spell_out(drawn)
    return drawn


def to_spec(figure: Figure, *, theme: str = "light", height: int | None = None) -> Spec:
    """What Plotly is told, unchecked; the words of a raster's cells once, in its `meta`.

    Takes and raises what `to_plotly` does.
    """
    if figure.mark == "text":
        raise ValueError(f"figure {figure.title!r} is a text, which Plotly does not draw")
    if theme not in THEMES:
        raise ValueError(f"theme must be 'light' or 'dark', not {theme!r}")
    colours = THEMES[theme]
    axes = ((figure.x, "x"), (figure.y, "y"))
    layout = {f"{name}axis": _axis(axis, figure, name, colours) for axis, name in axes} | {
        "height": height or _height(figure),
        "margin": {"l": 8, "r": 8, "t": 32, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 13, "color": colours["text"]},
        "hoverlabel": {
            "bgcolor": colours["ground"],
            "bordercolor": colours["text"],
            "font": {"family": FONT, "size": 13, "color": colours["text"]},
            "align": "left",
        },
        "legend": {
            "orientation": "h",
            "x": 0,
            # above the label of the reader's own choice, where there is one
            "y": 1.1 if any(m.kind == "x" and m.selected for m in figure.markers) else 1.02,
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": colours["text"]},
        "shapes": [_shape(marker, figure, colours) for marker in figure.markers],
        "uirevision": f"{figure.mark} {axis_limits(figure, 'x')} {axis_limits(figure, 'y')}",
    }
    spec = Spec(layout)
    DRAW[figure.mark](spec, figure)
    if figure.mark == "raster":  # left alone, the letters contrast with what lies under the cells
        for trace in spec.traces:
            if trace["type"] == "heatmap":
                trace["textfont"] = {"color": colours["text"]}
    return spec


def _axis(axis: Axis, figure: Figure, name: str, colours: dict[str, str]) -> dict[str, Any]:
    cells = figure.cells is not None
    drawn: dict[str, Any] = {
        "title": {"text": escaped(axis.name), "standoff": 8},
        "automargin": True,
        "fixedrange": cells,  # dragging would only magnify pooled cells
        "showgrid": not cells,
        "gridcolor": colours["grid"],
        "linecolor": colours["grid"],
        "zeroline": False,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": colours["grid"],
        "tickfont": {"size": 12},
        "separatethousands": True,
        "exponentformat": "none",
    }
    limits = axis_limits(figure, name)
    if axis.log:
        drawn["type"] = "log"
    elif limits is not None:
        drawn["range"] = list(reversed(limits)) if axis.reversed else list(limits)
    elif axis.reversed:
        drawn["autorange"] = "reversed"
    if axis.ticks:
        drawn |= {
            "tickmode": "array",
            "tickvals": [position for position, _ in axis.ticks],
            "ticktext": [escaped(text) for _, text in axis.ticks],
            "tickfont": {"size": 11 if len(axis.ticks) <= 40 else 10},
        }
        if name == "x" and len(axis.ticks) > 16:  # fewer labels turn only where they have to
            drawn["tickangle"] = -90
    elif cells and limits is not None and limits[1] - limits[0] <= 16:
        drawn["dtick"] = 1  # whole positions only
    return drawn


def _shape(marker: Marker, figure: Figure, colours: dict[str, str]) -> dict[str, Any]:
    """A line across, or the outline of a cell; the reader's own choice drawn stronger."""
    line = (
        {"color": SELECTED, "width": 2}
        if marker.selected
        else {"color": colours["text"], "width": 1, "dash": "dot"}
    )
    if marker.kind == "cell":
        assert marker.x is not None and marker.y is not None
        return {
            "type": "rect",
            "x0": marker.x - 0.5,
            "x1": marker.x + 0.5,
            "y0": marker.y - 0.5,
            "y1": marker.y + 0.5,
            "line": line | {"width": 3},
            "label": {"text": escaped(marker.label), "font": {"size": 14, "color": "#FFFFFF"}},
        }
    # A border is named inside the plot and the choice above it, so that neither covers the other;
    # on the right half to the left of the line, where there is room.
    limits = axis_limits(figure, "x")
    if limits is None and figure.x.values is not None and len(figure.x.values):
        limits = float(figure.x.values[0]), float(figure.x.values[-1])
    right_half = bool(limits and marker.x is not None and marker.x > sum(limits) / 2)
    across = {"x0": 0, "x1": 1, "xref": "paper", "y0": marker.y, "y1": marker.y}
    place = {"xanchor": "right", "yanchor": "bottom"}
    if marker.kind == "x":
        across = {"x0": marker.x, "x1": marker.x, "y0": 0, "y1": 1, "yref": "paper"}
        place = {
            "xanchor": "right" if right_half else "left",
            "yanchor": "bottom" if marker.selected else "top",
        }
    font: dict[str, Any] = {
        "size": 11,
        "color": SELECTED if marker.selected else colours["text"],
    }
    if figure.cells is not None:  # of any colour
        font["shadow"] = ", ".join([f"0 0 2px {colours['ground']}"] * 3)
    label = {
        "text": escaped(marker.label),
        "textposition": "end",
        "textangle": 0,
        **place,
        "font": font,
    }
    return {"type": "line", "line": line, "label": label, **across}


def _height(figure: Figure) -> int:
    """Pixels: enough for labelled rows, low for small grids, a fixed page share otherwise."""
    if figure.cells is None or figure.mark == "raster":
        return 340
    rows = figure.cells.shape[0]
    if figure.y.ticks:
        return max(320, 13 * rows + 140)
    return 560 if figure.y.edges is not None else min(640, 26 * rows + 110)
