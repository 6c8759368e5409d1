"""How each mark of a `Figure` becomes Plotly traces; rasters are in `plotly_raster`."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from analysis.colours import series_colour, series_dash, series_pattern
from analysis.figure import Axis, ColourScale, Figure
from analysis.geometry import places, spacing
from analysis.plotly_spec import Spec
from analysis.words import number

PLACES_ACROSS, PLACES_UP = 110, 50  # points nearer than this cover each other on the screen
_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;", "%": "&#37;", "{": "&#123;"}
)


def escaped(text: str) -> str:
    """Text that Plotly shows as it is: no tags, no entities, no TeX and no template fields."""
    return text.translate(_ESCAPES)


def draw_heatmap(spec: Spec, figure: Figure) -> None:
    """Add the traces of a heatmap."""
    scale = figure.colour
    assert scale is not None
    z = np.ascontiguousarray(figure.arrays["z"], np.float32)
    low, high = scale.range
    shown: dict[str, Any] = {"z": z, "zmin": low, "zmax": high}
    form = number_format(z)
    value = f"%{{z:{form}}}"
    if scale.log:
        with np.errstate(invalid="ignore"):
            logarithms = np.log10(np.clip(z, low, high))
        shown = {"z": logarithms, "zmin": math.log10(low), "zmax": math.log10(high)}
        shown["customdata"] = z
        value = f"%{{customdata:{form}}}"
    x, y = spacing(figure.x, z.shape[1]), spacing(figure.y, z.shape[0])
    template = (
        f"{hover_line(figure.y, 'y', y[1])}<br>{hover_line(figure.x, 'x', x[1])}<br>"
        f"{escaped(scale.label)} <b>{value}</b><extra></extra>"
    )
    spec.add(
        "heatmap",
        x0=x[0],
        dx=x[1],
        y0=y[0],
        dy=y[1],
        colorscale=_colours(scale.name),
        colorbar=_colour_bar(scale),
        hovertemplate=template,
        hoverongaps=False,
        xgap=0,
        ygap=0,
        **shown,
    )


def number_format(values: np.ndarray) -> str:
    """How a hover writes numbers: whole ones whole, others with three digits, never 2.04e+3."""
    known = values[np.isfinite(values)]
    if len(known) and (known == np.round(known)).all():
        return ",.0f"
    return ",.1f" if len(known) and np.abs(known).max() >= 1000 else ".3~g"


def hover_line(axis: Axis, name: str, width: float) -> str:
    """The line of a hover that names the position: the token, the number, or the pooled range."""
    if axis.ticks:
        return f"{escaped(axis.label)} %{{{name}}}"
    spread = f" ± {(width - 1) / 2:g}" if width > 1 else ""
    return f"{escaped(axis.label)} %{{{name}:,}}{spread}"


def _colour_bar(scale: ColourScale) -> dict[str, Any]:
    bar: dict[str, Any] = {
        "title": {"text": escaped(scale.label), "side": "right"},
        "thickness": 12,
        "outlinewidth": 0,
        "ypad": 0,
    }
    if scale.log:
        low, high = (math.log10(limit) for limit in scale.range)
        powers = np.arange(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
        bar |= {
            "tickvals": powers.tolist(),
            "ticktext": [_power(int(power)) for power in powers],
        }
    return bar


@functools.lru_cache(maxsize=8)
def _colours(name: str) -> list[list[Any]]:
    """A colour scale by its name in Plotly for Python; the browser knows fewer of them."""
    from plotly.colors import get_colorscale

    return get_colorscale(name)


def _power(exponent: int) -> str:
    """A power of ten as a reader would write it: 100, 0.01, 10⁻⁵."""
    if -3 <= exponent <= 5:
        return number(10.0**exponent)
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def draw_lines(spec: Spec, figure: Figure) -> None:
    """Add the traces of lines with their bands."""
    lines = figure.arrays["y"]
    x = _values(figure.x, lines.shape[1])
    points = figure.arrays.get("point_series", np.empty(0))
    form = number_format(lines)
    for index, series in enumerate(figure.series):
        if (points == index).any():
            _draw_points(spec, figure, index)
            continue
        colour = series.colour or series_colour(index)
        if "low" in figure.arrays:
            edge = {"x": x, "mode": "lines", "hoverinfo": "skip", "showlegend": False}
            spec.add("scatter", y=_float(figure.arrays["low"][index]), line={"width": 0}, **edge)
            spec.add(
                "scatter",
                y=_float(figure.arrays["high"][index]),
                line={"width": 0},
                fill="tonexty",
                fillcolor=_faded(colour),
                **edge,
            )
        spec.add(
            "scatter",
            x=x,
            y=_float(lines[index]),
            name=escaped(series.name),
            mode=_line_mode(lines.shape[1]),
            line={"color": colour, "dash": series.dash or series_dash(index), "width": 1.6},
            # of a single point no line shows which it is
            marker={"symbol": index % 8} if lines.shape[1] == 1 else None,
            hovertemplate=f"%{{y:{form}}}",
        )
    unified = len(figure.series) <= 8 and not len(points)
    spec.layout |= {
        "hovermode": "x unified" if unified else "closest",
        "showlegend": len(figure.series) > 1,
    }


def _draw_points(spec: Spec, figure: Figure, index: int) -> None:
    """The points of one series, upon the lines of the others; those that would cover each other
    are drawn as one, which says how many it stands for."""
    own = np.flatnonzero(figure.arrays["point_series"] == index)
    taken, text = _apart(figure, own, "point_x", "point_y")
    series = figure.series[index]
    spec.add(
        "scatter",
        x=_float(figure.arrays["point_x"][taken]),
        y=_float(figure.arrays["point_y"][taken]),
        mode="markers",
        name=escaped(series.name),
        marker={
            "size": 6,
            "opacity": 0.6,
            "symbol": int(np.searchsorted(np.unique(figure.arrays["point_series"]), index)) % 8,
            "color": series.colour or series_colour(index),
        },
        text=text if len(text) else None,
        hovertemplate=("%{text}<br>" if len(text) else "")
        + f"{escaped(figure.y.name)} %{{y:.3~g}}<extra></extra>",
    )


def _apart(figure: Figure, points: np.ndarray, x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    """Those of the points (their numbers) that lie at places of their own, and the text of each,
    which says how many share its place. x, y: the arrays that hold the points."""
    cells = []
    for axis, name, fine in ((figure.x, x, PLACES_ACROSS), (figure.y, y, PLACES_UP)):
        values = figure.arrays[name].astype(np.float64)
        limits = np.array(axis.range or (np.nanmin(values), np.nanmax(values)), np.float64)
        if axis.log:
            values, limits = np.log10(values), np.log10(limits)
        reach = limits[1] - limits[0]
        cells.append(np.round((values[points] - limits[0]) / (reach or 1.0) * fine))
    _, first, count = np.unique(np.stack(cells), axis=1, return_index=True, return_counts=True)
    order = np.argsort(first)  # as they were given
    taken = points[first[order]]
    if not figure.point_text:
        return taken, np.empty(0, dtype=object)
    words = [
        escaped(figure.point_text[point]) + (f"<br>and {more - 1:,} more here" * (more > 1))
        for point, more in zip(taken.tolist(), count[order].tolist(), strict=True)
    ]
    return taken, np.array(words, dtype=object)


def draw_area(spec: Spec, figure: Figure) -> None:
    """Add the layers of an area, the first at the bottom."""
    heights = figure.arrays["y"]
    x, form = _values(figure.x, heights.shape[1]), number_format(heights)
    for index, series in enumerate(figure.series):
        colour = series.colour or series_colour(index)
        spec.add(
            "scatter",
            x=x,
            y=_float(heights[index]),
            name=escaped(series.name),
            mode="lines",
            stackgroup="one",
            line={"color": colour, "width": 0.5},
            fillcolor=colour,
            fillpattern={
                "shape": series_pattern(index),
                "fillmode": "overlay",
                "bgcolor": colour,
                "fgcolor": "rgba(255,255,255,0.6)",
                "solidity": 0.2,
            },
            hovertemplate=f"%{{y:{form}}}",
        )
    spec.layout |= {"hovermode": "x unified", "showlegend": len(figure.series) > 1}


def _line_mode(points: int) -> str:
    """Few points are marked, so that one beside a gap is seen."""
    return "markers" if points == 1 else "lines+markers" if points <= 12 else "lines"


def draw_bars(spec: Spec, figure: Figure) -> None:
    """Add the traces of bars side by side or stacked."""
    heights = figure.arrays["y"]
    x, form = _values(figure.x, heights.shape[1]), number_format(heights)
    stacked = figure.mark == "stacked_bars"
    for index, series in enumerate(figure.series):
        spec.add(
            "bar",
            x=x,
            y=_float(heights[index]),
            name=escaped(series.name),
            marker={
                "color": series.colour or series_colour(index),
                "line": {"width": 0},
                "pattern": {
                    "shape": series_pattern(index) if stacked else "",
                    "fillmode": "overlay",
                    "fgcolor": "rgba(255,255,255,0.6)",
                    "solidity": 0.2,
                },
            },
            hovertemplate=f"%{{y:{form}}}",
        )
    spec.layout |= {
        "barmode": "stack" if stacked else "group",
        "bargap": 0 if heights.shape[1] > 64 else 0.15,
        "hovermode": "x unified",
        "showlegend": len(figure.series) > 1,
    }


def draw_scatter(spec: Spec, figure: Figure) -> None:
    """Add the traces of a scatter."""
    x, y = _float(figure.arrays["x"]), _float(figure.arrays["y"])
    groups = figure.arrays.get("series", np.zeros(len(x), np.uint8))
    for index in range(max(1, len(figure.series))):
        taken = np.flatnonzero(groups == index)
        text = np.array(
            [escaped(figure.point_text[at]) for at in taken] if figure.point_text else []
        )
        if figure.crowded and len(taken):
            taken, text = _apart(figure, taken, "x", "y")
        marker: dict[str, Any] = {"size": 6, "symbol": index % 8}
        if "colour" in figure.arrays and figure.colour is not None:
            low, high = figure.colour.range
            marker |= {
                "color": _float(figure.arrays["colour"][taken]),
                "colorscale": _colours(figure.colour.name),
                "cmin": low,
                "cmax": high,
                "showscale": index == 0,
                "colorbar": _colour_bar(figure.colour),
            }
        else:
            own = figure.series[index].colour if figure.series else None
            marker["color"] = own or series_colour(index)
        spec.add(
            "scatter",
            x=x[taken],
            y=y[taken],
            mode="markers",
            name=escaped(figure.series[index].name) if figure.series else "",
            marker=marker,
            text=text if len(text) else None,
            hovertemplate=("%{text}<br>" if len(text) else "")
            + f"{escaped(figure.x.name)} %{{x:.3~g}}<br>{escaped(figure.y.name)} %{{y:.3~g}}"
            + "<extra></extra>",
        )
    spec.layout["showlegend"] = len(figure.series) > 1


def _float(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.float32)


def _values(axis: Axis, count: int) -> np.ndarray:
    values = places(axis, count)
    return values.astype(np.int32) if np.issubdtype(values.dtype, np.integer) else _float(values)


def _faded(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.2)"
