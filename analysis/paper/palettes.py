"""The reader's choice of colours, put into a figure before it is drawn."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.colors import to_hex, to_rgb

from analysis.colours import DIVERGING, SERIES, SHADE, Category
from analysis.figure import ColourScale, Figure
from analysis.paper.venues import Style

DARKEST, PALEST = 0.0, 0.68  # grey of the first and the last line, bar or layer


def in_palette(figure: Figure, style: Style) -> Figure:
    """The figure in the colours of `style`.

    diverging: a plain scale centred on zero; okabe-ito: lines, bars and points in the palette's
    order, whatever colours of their own they have; grey: those in shades of grey, as categories.
    """
    if style.colour_map == "diverging":
        return replace(figure, colour=_centred(figure.colour))
    if style.colour_map == "okabe-ito":
        colours = [SERIES[index % len(SERIES)] for index in range(len(figure.series))]
    elif style.colour_map == "grey":
        step = (PALEST - DARKEST) / max(1, len(figure.series) - 1)
        colours = [to_hex((DARKEST + index * step,) * 3) for index in range(len(figure.series))]
        figure = replace(figure, categories=tuple(map(_grey, figure.categories)))
    else:
        return figure
    series = zip(figure.series, colours, strict=True)
    return replace(figure, series=tuple(replace(one, colour=colour) for one, colour in series))


def _centred(scale: ColourScale | None) -> ColourScale | None:
    """The scale with zero in its middle; a logarithmic one has no zero."""
    if scale is None or scale.log or scale.name in (DIVERGING, SHADE):
        return scale
    return ColourScale.centred(scale.label, max(map(abs, scale.range)))


def _grey(category: Category) -> Category:
    """As light as the category's own colour is."""
    red, green, blue = to_rgb(category.colour)
    return replace(category, colour=to_hex((0.299 * red + 0.587 * green + 0.114 * blue,) * 3))
