"""Several figures on one page: each drawn as it is alone, at its place, with its letter below."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.backends.backend_mixed import MixedModeRenderer
from matplotlib.backends.backend_pdf import PdfFile, RendererPdf
from matplotlib.figure import Figure as Drawing
from PIL import Image

from analysis.errors import AnalysisError
from analysis.figure import Figure
from analysis.paper.layout import default_height_in
from analysis.paper.renderer import keep_every_cell, settings, to_matplotlib
from analysis.paper.texts import width_in, wrapped
from analysis.paper.venues import Style

ROW_GAP_IN = 0.14
WORDS_LINES = 24  # of a caption below its figure
LINE = 1.2  # from line to line, in letter sizes
TALLEST_IN = 200.0  # of a PDF page
RASTER_DPI = 300  # of what a PDF holds as a picture


@dataclass(frozen=True)
class Panel:
    """A figure with the style that says how large it is, and the words below it."""

    figure: Figure
    style: Style
    words: str


@dataclass(frozen=True)
class Place:
    """A panel on the page: its left and upper edge in inches from the page's upper left."""

    panel: Panel
    left: float
    top: float


def level(row: Sequence[Panel]) -> list[Panel]:
    """Panels that stand side by side, made equally high."""
    tallest = max(
        panel.style.height_in or default_height_in(panel.figure, panel.style) for panel in row
    )
    return [replace(panel, style=replace(panel.style, height_in=tallest)) for panel in row]


def render_page(
    rows: Sequence[Sequence[Panel]],
    style: Style,
    form: str,
    *,
    title: str,
    gap_in: float,
    step: Callable[[], None] = lambda: None,
) -> bytes:
    """The page as "pdf" or "png", `style.width_in` wide and as high as it has to be.

    rows: panels that `level` made equally high. step: called after each figure. Raises
    AnalysisError for a page that no PDF can hold.
    """
    with settings(style):
        places, height = _places(rows, style, gap_in)
        if height > TALLEST_IN:
            raise AnalysisError(
                f"The page would be {height:,.0f} in high, and a PDF page has at most "
                f"{TALLEST_IN:g} in: choose more columns or make two sheets."
            )
        host = Drawing(figsize=(style.width_in, height), facecolor="white")
        for place in places:
            _say(host, place, style)
        if form == "pdf":
            return _pdf(host, places, title, step)
        return _png(host, places, style.dpi, step)


def _places(
    rows: Sequence[Sequence[Panel]], style: Style, gap_in: float
) -> tuple[list[Place], float]:
    """Where each panel stands, rows centred, and the height of the page."""
    places, top = [], 0.0
    for row in rows:
        taken = sum(panel.style.width_in for panel in row) + gap_in * (len(row) - 1)
        left = (style.width_in - taken) / 2
        for panel in row:
            places.append(Place(panel, left, top))
            left += panel.style.width_in + gap_in
        words = max(_words(panel, style).count("\n") + 1 for panel in row)
        top += (row[0].style.height_in or 0.0) + (words * LINE + 0.4) * style.font_pt / 72
        top += ROW_GAP_IN
    return places, max(top - ROW_GAP_IN, 0.3)


def _words(panel: Panel, style: Style) -> str:
    room = panel.style.width_in * 0.98
    return wrapped(panel.words, room, style.font_pt, style.family, lines=WORDS_LINES)


def _say(host: Drawing, place: Place, style: Style) -> None:
    """The words below a panel: one line in the middle, more from the left."""
    width, height = host.get_size_inches()
    panel, words = place.panel, _words(place.panel, style)
    left = place.left + panel.style.width_in * 0.01
    if "\n" not in words:
        left = place.left + (panel.style.width_in - _width(words, style)) / 2
    below = place.top + (panel.style.height_in or 0.0) + 0.15 * style.font_pt / 72
    host.text(left / width, 1 - below / height, words, va="top", ha="left", linespacing=LINE)


def _width(words: str, style: Style) -> float:
    return width_in(words, style.font_pt, style.family)


def _drawn(place: Place, page_height: float, dpi: float) -> Drawing:
    """The panel laid out as it is alone, then moved to its place."""
    drawn = to_matplotlib(place.panel.figure, place.panel.style)
    drawn.set_dpi(dpi)
    drawn.draw_without_rendering()
    drawn.set_layout_engine("none")
    width, height = drawn.get_size_inches()
    bottom = page_height - place.top - height
    drawn.bbox_inches.set_points(
        np.array([[place.left, bottom], [place.left + width, bottom + height]])
    )
    return drawn


def _pdf(host: Drawing, places: Sequence[Place], title: str, step: Callable[[], None]) -> bytes:
    file = io.BytesIO()
    width, height = host.get_size_inches()
    told = {"Title": title, "Creator": "KVScope", "Producer": None, "CreationDate": None}
    page = PdfFile(file, metadata=told)
    page.newPage(width, height)
    vector = RendererPdf(page, RASTER_DPI, height, width)
    host.set_dpi(72)
    canvas: Any = MixedModeRenderer(host, width, height, RASTER_DPI, vector)
    host.draw(canvas)
    for place in places:
        drawn = _drawn(place, height, 72)
        canvas = MixedModeRenderer(drawn, width, height, RASTER_DPI, vector)
        drawn.draw(canvas)
        step()
    vector.finalize()
    page.finalize()
    page.close()
    return file.getvalue()


def _png(host: Drawing, places: Sequence[Place], dpi: int, step: Callable[[], None]) -> bytes:
    width, height = host.get_size_inches()
    picture = RendererAgg(round(width * dpi), round(height * dpi), dpi)
    host.set_dpi(dpi)
    host.draw(picture)
    for place in places:
        drawn = _drawn(place, height, dpi)
        keep_every_cell(drawn)
        drawn.draw(picture)
        step()
    file = io.BytesIO()
    Image.fromarray(np.asarray(picture.buffer_rgba())).convert("RGB").save(file, "png")
    return file.getvalue()
