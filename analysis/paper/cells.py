"""Heatmaps and rasters on paper.

Cells become one image with whole pixels per cell, fine enough that no viewer smooths it away.
Raster categories and negative values carry lines drawn into it, so that they hold in grey.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import (
    Colormap,
    LinearSegmentedColormap,
    LogNorm,
    Normalize,
    PowerNorm,
    to_rgb,
)
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from analysis.colours import DIVERGING, SHADE, SHADED, Category
from analysis.figure import ColourScale, Figure
from analysis.geometry import spacing
from analysis.paper.axes import paper_in
from analysis.paper.texts import fitted, number, shown
from analysis.paper.venues import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PIXELS_PER_IN = 300
HATCH_PX = 10  # from line to line of a hatch
GROUND = 0.3  # of a hatched cell between its lines
LETTER_ROOM_IN = 1.25  # cell height over letter height from which a cell shows its letter
SHADES = (0.5, 0.75, 1.0)  # of a cell of which up to a quarter, a half, all is its category
HATCHES = {"/": "/////", "-": "-----", ".": ".....", "": ""}


def draw_heatmap(axes: Axes, figure: Figure, style: Style) -> list[Any]:
    """The cells and their colour bar; NaN is left white."""
    scale = figure.colour
    assert scale is not None
    z = np.asarray(figure.arrays["z"], np.float32)
    mapping = colour_map(scale, style)
    norm = norm_of(scale)
    low, high = scale.range
    down, across = _repeats(axes, z.shape)
    indices = np.asarray(norm(np.clip(z, low, high)).filled(np.nan) * 255)
    palette = np.round(mapping(np.arange(256) / 255) * 255).astype(np.uint8)
    missing = np.isnan(z)
    image = palette[np.where(missing, 0, np.nan_to_num(indices) + 0.5).astype(np.uint8)]
    image[missing] = (255, 255, 255, 0)
    fine = np.repeat(np.repeat(image, down, axis=0), across, axis=1)
    if hatched_below_zero(scale, style):
        below = np.repeat(np.repeat(z < low * 0.02, down, axis=0), across, axis=1)
        fine[below & _lines("/", fine.shape[:2])] = (255, 255, 255, 255)
    _place(axes, figure, fine, z.shape)
    if style.legend != "none":
        draw_colour_bar(axes, scale, style)
    return []


def colour_map(scale: ColourScale, style: Style) -> Colormap:
    """The colours of a scale on paper; a centred scale stays centred in every map."""
    chosen = style.colour_map
    if scale.name == SHADE:  # the more, the darker, and nothing is the paper's white
        if chosen in ("viridis", "cividis"):
            return mpl.colormaps[f"{chosen}_r"]
        ends = ["#FFFFFF", "#8C8C8C" if chosen == "grey" else SHADED]
        return LinearSegmentedColormap.from_list(SHADE, ends)
    if chosen == "grey":
        return LinearSegmentedColormap.from_list("grey", ["#EEEEEE", "#000000"])
    if chosen != "cividis" and (chosen != "viridis" or scale.name == DIVERGING):
        chosen = scale.name
    names = {name.lower(): name for name in mpl.colormaps}
    return mpl.colormaps[names.get(chosen.lower(), "viridis")]


def hatched_below_zero(scale: ColourScale, style: Style) -> bool:
    """Whether the two sides of zero look alike in grey and therefore need lines."""
    return scale.name == DIVERGING and colour_map(scale, style).name == DIVERGING


def norm_of(scale: ColourScale) -> Normalize:
    """From a number to 0 ... 1, as the screen colours it."""
    if scale.power != 1:
        return PowerNorm(scale.power, *scale.range, clip=True)
    return (LogNorm if scale.log else Normalize)(*scale.range, clip=True)


def draw_colour_bar(axes: Axes, scale: ColourScale, style: Style) -> None:
    """The bar beside the plot, with the scale's label and range."""
    figure = axes.figure
    colours = ScalarMappable(norm_of(scale), colour_map(scale, style))
    bar = figure.colorbar(colours, ax=axes, fraction=0.06, pad=0.02, aspect=24)
    room = paper_in(axes)[1] * 0.8
    bar.set_label(fitted(scale.label, room, style.font_pt, style.family))
    bar.outline.set_linewidth(0.4)
    if scale.log:
        low, high = (math.log10(limit) for limit in scale.range)
        powers = np.arange(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
        bar.ax.yaxis.set_major_locator(FixedLocator((10.0**powers).tolist()))
    else:
        bar.ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    if hatched_below_zero(scale, style):
        bar.ax.add_patch(
            Rectangle(
                (0, 0),
                1,
                0.49,
                transform=bar.ax.transAxes,
                fill=False,
                hatch="//////",
                edgecolor="white",
                linewidth=0,
            )
        )


def draw_raster(axes: Axes, figure: Figure, style: Style) -> list[Any]:
    """The cells of categories with their hatches or letters; returns the legend's entries."""
    codes = figure.arrays["codes"]
    share = figure.arrays.get("share", np.ones(codes.shape, np.float32))
    lettered = _lettered(axes, codes.shape, style)
    down, across = _repeats(axes, codes.shape)
    shade = np.digitize(share, (0.25 + 1e-6, 0.5 + 1e-6))
    tone = np.array(SHADES)[shade]
    image = np.zeros((*codes.shape, 4), np.uint8)
    lines = image.copy()
    for code, category in enumerate(figure.categories, start=1):
        here = codes == code
        ground = _ground(category, lettered)
        for alpha in SHADES:
            cells = here & (tone == alpha)
            image[cells] = _on_white(category.colour, ground * alpha)
            lines[cells] = _on_white(category.colour, alpha)
    fine = np.repeat(np.repeat(image, down, axis=0), across, axis=1)
    if not lettered:
        fine_codes = np.repeat(np.repeat(codes, down, axis=0), across, axis=1)
        ink = np.zeros(fine_codes.shape, bool)
        for code, category in enumerate(figure.categories, start=1):
            if category.hatch:
                ink |= (fine_codes == code) & _lines(category.hatch, fine_codes.shape)
        fine[ink] = np.repeat(np.repeat(lines, down, axis=0), across, axis=1)[ink]
    _place(axes, figure, fine, codes.shape)
    if lettered:
        _letters(axes, figure, style)
    present = set(np.unique(codes).tolist())
    return [
        Patch(
            facecolor=_hex(_on_white(category.colour, _ground(category, lettered))),
            edgecolor=category.colour,
            hatch=None if lettered else HATCHES.get(category.hatch, ".....") or None,
            linewidth=0.4,
            label=shown(f"{category.letter} {category.label}"),
        )
        for code, category in enumerate(figure.categories, start=1)
        if code in present
    ]


def _hex(colour: tuple[int, int, int, int]) -> str:
    red, green, blue, _ = colour
    return f"#{red:02x}{green:02x}{blue:02x}"


def _ground(category: Category, lettered: bool) -> float:
    """How strong a category's colour is between its lines or behind its letter."""
    if lettered:
        return 0.45
    return GROUND if category.hatch else 1.0


def _on_white(colour: str, alpha: float) -> tuple[int, int, int, int]:
    red, green, blue = (round(255 * (1 - alpha + alpha * part)) for part in to_rgb(colour))
    return red, green, blue, 255


def _lines(hatch: str, shape: tuple[int, ...]) -> np.ndarray:
    """bool (rows, columns): where a hatch has ink."""
    row, column = np.arange(shape[0])[:, None], np.arange(shape[1])
    if hatch == "/":
        return (row + column) % HATCH_PX < 2
    if hatch == "-":
        return (row % (HATCH_PX * 0.8) < 3) & (column >= 0)
    return (row % (HATCH_PX * 0.7) < 3) & (column % (HATCH_PX * 0.7) < 3)


def _lettered(axes: Axes, shape: tuple[int, ...], style: Style) -> bool:
    width, height = _room_in(axes)
    letter = style.font_pt * 0.85 / 72
    rows, columns = max(1, shape[0]), max(1, shape[1])
    return bool(
        height / rows >= letter * LETTER_ROOM_IN and width / columns >= letter * LETTER_ROOM_IN
    )


def _letters(axes: Axes, figure: Figure, style: Style) -> None:
    codes = figure.arrays["codes"]
    x, y = spacing(figure.x, codes.shape[1]), spacing(figure.y, codes.shape[0])
    for row, column in zip(*np.nonzero(codes), strict=True):
        axes.text(
            x[0] + column * x[1],
            y[0] + row * y[1],
            shown(figure.categories[codes[row, column] - 1].letter, 2),
            ha="center",
            va="center_baseline",
            fontsize=style.font_pt * 0.85,
            clip_on=True,
        ).set_in_layout(False)


def _room_in(axes: Axes) -> tuple[float, float]:
    """About how large the plot will be, in inches: the paper less what axes and legend take."""
    width, height = paper_in(axes)
    return max(0.5, width * 0.85), max(0.5, height * 0.75)


def _repeats(axes: Axes, shape: tuple[int, ...]) -> tuple[int, int]:
    """How many pixels high and wide each cell is drawn."""
    width, height = _room_in(axes)
    down = round(height * PIXELS_PER_IN / max(1, shape[0]))
    across = round(width * PIXELS_PER_IN / max(1, shape[1]))
    return max(1, down), max(1, across)


def _place(axes: Axes, figure: Figure, image: np.ndarray, shape: tuple[int, ...]) -> None:
    """Row 0 at the axes' lower y; `renderer` turns reversed axes."""
    if not image.size:
        return
    x, y = spacing(figure.x, shape[1]), spacing(figure.y, shape[0])
    axes.imshow(
        image,
        extent=(
            x[0] - x[1] / 2,
            x[0] + (shape[1] - 0.5) * x[1],
            y[0] - y[1] / 2,
            y[0] + (shape[0] - 0.5) * y[1],
        ),
        origin="lower",
        aspect="auto",
        interpolation="none",
    )
