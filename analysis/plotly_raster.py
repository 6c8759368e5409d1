"""How a raster of categories becomes Plotly traces.

The picture is one heatmap of palette indices (uint8) finer than the cells, so that categories are
hatched and told apart without colour; a second, invisible one answers the hover; the legend is
made of bars, the only trace whose legend shows a hatch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis.colours import Category
from analysis.figure import Figure
from analysis.geometry import spacing
from analysis.plotly_marks import escaped, hover_line
from analysis.plotly_spec import Spec

if TYPE_CHECKING:
    import plotly.graph_objects as go

# With more cells than pixels a browser leaves some out: the hatch is no finer than a small card.
FINE_ROWS, FINE_COLUMNS = 260, 330
LETTER_ROWS, LETTER_COLUMNS = 22, 40  # cells large enough for their letter
WORDS = "words"  # in a trace's `meta`: what the hover says of a cell, by its number
SHADES = (0.5, 0.75, 1.0)  # of a cell of which up to a quarter, a half, all is its category
INK, GROUND = 0.85, 0.26  # the lines of a hatch and what lies between them
LETTERED = 0.5  # behind a letter
_FLAT = "rgba(0,0,0,0)"


def draw_raster(spec: Spec, figure: Figure) -> None:
    """Add the traces of a raster."""
    codes = figure.arrays["codes"]
    lettered = codes.shape[0] <= LETTER_ROWS and codes.shape[1] <= LETTER_COLUMNS
    _picture(spec, figure, lettered)
    _answers(spec, figure, lettered)
    present = np.unique(codes)
    for code, category in enumerate(figure.categories, start=1):
        if code in present:
            _legend_entry(spec, category)
    spec.layout |= {"showlegend": True, "barmode": "overlay"}


def _picture(spec: Spec, figure: Figure, lettered: bool) -> None:
    codes = figure.arrays["codes"]
    rows, columns = codes.shape
    down = 1 if lettered else max(1, FINE_ROWS // max(1, rows))
    across = 1 if lettered else max(1, FINE_COLUMNS // max(1, columns))
    indices = _palette_indices(figure, down, across, lettered)
    palette = [_FLAT]
    for category in figure.categories:
        for shade in SHADES:
            tones = (GROUND, INK) if category.hatch else (1.0, 1.0)
            if lettered:
                tones = (LETTERED, LETTERED)
            palette += [_rgba(category.colour, tone * shade) for tone in tones]
    x, y = spacing(figure.x, columns), spacing(figure.y, rows)
    spec.add(
        "heatmap",
        z=indices,
        x0=x[0] - x[1] / 2 + x[1] / across / 2,
        dx=x[1] / across,
        y0=y[0] - y[1] / 2 + y[1] / down / 2,
        dy=y[1] / down,
        zmin=-0.5,
        zmax=len(palette) - 0.5,
        colorscale=_steps(palette),
        showscale=False,
        hoverinfo="skip",
        xgap=0,
        ygap=0,
    )


def _palette_indices(figure: Figure, down: int, across: int, lettered: bool) -> np.ndarray:
    """uint8 (rows x down, columns x across): 0, or category, shade and whether a line is here."""
    codes = figure.arrays["codes"]
    share = figure.arrays.get("share", np.ones(codes.shape, np.float32))
    shade = np.digitize(share, (0.25 + 1e-6, 0.5 + 1e-6)).astype(np.uint8)
    index = np.where(codes > 0, 1 + ((codes - 1) * len(SHADES) + shade) * 2, 0).astype(np.uint8)
    fine = np.repeat(np.repeat(index, down, axis=0), across, axis=1)
    if lettered:
        return fine
    fine_codes = np.repeat(np.repeat(codes, down, axis=0), across, axis=1)
    row, column = np.arange(fine.shape[0])[:, None], np.arange(fine.shape[1])
    for code, category in enumerate(figure.categories, start=1):
        if category.hatch:
            fine += ((fine_codes == code) & _line(category.hatch, row, column)).astype(np.uint8)
    return fine


def _line(hatch: str, row: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Where a hatch has ink."""
    if hatch == "/":
        return (row + column) % 6 < 1
    if hatch == "-":
        return (row % 4 < 2) & (column >= 0)
    return (row % 4 < 1) & (column % 4 < 1)


def _answers(spec: Spec, figure: Figure, lettered: bool) -> None:
    """The invisible heatmap that says what a cell is, and shows its letter where it fits."""
    codes, kinds = figure.arrays["codes"], figure.categories
    x, y = spacing(figure.x, codes.shape[1]), spacing(figure.y, codes.shape[0])
    letters = ["", *(escaped(category.letter) for category in kinds)]
    shown = {}
    if lettered:
        shown = {"text": np.array(letters)[codes], "texttemplate": "%{text}"}
    spec.add(
        "heatmap",
        z=codes,
        x0=x[0],
        dx=x[1],
        y0=y[0],
        dy=y[1],
        colorscale=[[0, _FLAT], [1, _FLAT]],
        showscale=False,
        hovertemplate=(
            f"{hover_line(figure.y, 'y', y[1])}<br>{hover_line(figure.x, 'x', x[1])}<br>"
            "<b>%{hovertext}</b><extra></extra>"
        ),
        meta={
            WORDS: ["not there yet", *(f"{escaped(k.letter)} {escaped(k.label)}" for k in kinds)]
        },
        **shown,
    )


def spell_out(drawn: go.Figure) -> None:
    """Give each cell of the rasters the words of its category, where nobody else does that."""
    for trace in drawn.data:
        if WORDS in (trace.meta or {}):
            # Checked, each word becomes an object that is copied on its own with the figure.
            trace._props["hovertext"] = np.array(trace.meta[WORDS])[trace.z]


def _legend_entry(spec: Spec, category: Category) -> None:
    spec.add(
        "bar",
        x=[None],
        y=[None],
        name=f"{escaped(category.letter)} {escaped(category.label)}",
        marker={
            "color": category.colour if not category.hatch else _rgba(category.colour, GROUND),
            "line": {"width": 0},
            "pattern": {
                "shape": category.hatch,
                "fgcolor": category.colour,
                "fillmode": "overlay",
                "size": 5,
                "solidity": 0.35,
            },
        },
        hoverinfo="skip",
    )


def _rgba(colour: str, alpha: float) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"


def _steps(palette: list[str]) -> list[tuple[float, str]]:
    """A colour scale that jumps from one colour to the next."""
    count = len(palette)
    return [
        (place / count, colour)
        for index, colour in enumerate(palette)
        for place in (index, index + 1)
    ]
