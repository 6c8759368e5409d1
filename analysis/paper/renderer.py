"""Draws a `Figure` with matplotlib, for print: exact size, TrueType fonts, same bytes every time.

No pyplot and nothing kept between figures. matplotlib's settings are one dictionary per process,
so drawing takes turns; a settings file of the machine has no say.
"""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Drawing
from matplotlib.layout_engine import ConstrainedLayoutEngine

from analysis.figure import Figure
from analysis.paper.axes import draw_axis, shorten_labels
from analysis.paper.cells import draw_heatmap, draw_raster
from analysis.paper.layout import PAD_IN, default_height_in, draw_legend, draw_title
from analysis.paper.markers import draw_marker
from analysis.paper.marks import draw_area, draw_bars, draw_lines, draw_scatter
from analysis.paper.palettes import in_palette
from analysis.paper.texts import FONTS, shown
from analysis.paper.tokens import draw_tokens, legend_entries
from analysis.paper.venues import INK, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAW: dict[str, Callable[[Axes, Figure, Style], list[Any]]] = {
    "heatmap": draw_heatmap,
    "raster": draw_raster,
    "lines": draw_lines,
    "area": draw_area,
    "bars": draw_bars,
    "stacked_bars": draw_bars,
    "scatter": draw_scatter,
}
TICKS = {"size": 2.5, "width": 0.5, "pad": 2.0}
_OF_THE_PROGRAM = ("backend", "interactive", "toolbar", "tk.", "webagg.", "keymap.", "docstring.")
_TURN = threading.Lock()


def render(figure: Figure, style: Style, form: str) -> bytes:
    """The file of a figure: `form` is "pdf", "svg" or "png". Safe to call from several threads."""
    file = io.BytesIO()
    with settings(style):
        drawn = to_matplotlib(figure, style)
        if form == "pdf":
            told = {"Title": shown(figure.title), "Creator": "KVScope", "Producer": None}
            told["CreationDate"] = None
            FigureCanvasPdf(drawn).print_pdf(file, metadata=told)
        elif form == "svg":
            FigureCanvasSVG(drawn).print_svg(
                file, metadata={"Title": shown(figure.title), "Date": None, "Creator": "KVScope"}
            )
        elif form == "png":
            drawn.set_dpi(style.dpi)
            keep_every_cell(drawn)
            FigureCanvasAgg(drawn).print_png(file, metadata={"Software": None})
        else:
            raise ValueError(f"form is pdf, svg or png, not {form!r}")
    return file.getvalue() if form != "svg" else _with_usual_fonts(file.getvalue())


def keep_every_cell(drawn: Drawing) -> None:
    """Where a picture has more cells than pixels, mix them instead of leaving some out."""
    for axes in drawn.axes:
        for image in axes.images:
            rows, columns = image.get_size()
            if rows > axes.bbox.height or columns > axes.bbox.width:
                image.set_interpolation("hanning")


def _with_usual_fonts(svg: bytes) -> bytes:
    """Name a common typeface for readers whose machine lacks the one it was set in."""
    return svg.replace(
        b"font-family: 'STIXGeneral', 'DejaVu Sans';",
        b"font-family: 'STIXGeneral', 'STIX Two Text', 'Times New Roman', Times, serif;",
    ).replace(
        b"font-family: 'DejaVu Sans';",
        b"font-family: 'DejaVu Sans', Verdana, Arial, sans-serif;",
    )


@contextmanager
def settings(style: Style) -> Iterator[None]:
    """matplotlib's settings for one drawing and its file, put back afterwards."""
    size = style.font_pt
    wanted: dict[str, Any] = {
        "pdf.fonttype": 42,
        "svg.fonttype": "none",
        "svg.hashsalt": "kvscope",
        "text.parse_math": False,  # "$" in a token is a dollar
        "text.usetex": False,
        "text.hinting": "no_hinting",  # a PNG sets letters as wide as a PDF
        "font.family": list(FONTS[style.family]),
        "font.size": size,
        "axes.titlesize": size,
        "axes.labelsize": size,
        "xtick.labelsize": size * 0.9,
        "ytick.labelsize": size * 0.9,
        "legend.fontsize": size * 0.9,
        "axes.linewidth": 0.5,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.unicode_minus": True,
        "hatch.linewidth": 0.6,
        "image.composite_image": False,
        **{f"{axis}tick.major.{part}": value for axis in "xy" for part, value in TICKS.items()},
    }
    with _TURN, mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        changed: Any = mpl.rcParams
        for name, value in mpl.rcParamsDefault.items():
            if not name.startswith(_OF_THE_PROGRAM):
                changed[name] = value
        changed.update(wanted)
        yield


def to_matplotlib(figure: Figure, style: Style) -> Drawing:
    """The drawing, laid out when it is saved; call it within `settings(style)`."""
    figure = in_palette(figure, style)
    height = style.height_in or default_height_in(figure, style)
    engine = ConstrainedLayoutEngine(w_pad=PAD_IN, h_pad=PAD_IN, wspace=0, hspace=0)
    drawn = Drawing(figsize=(style.width_in, height), layout=engine, facecolor="white")
    if figure.mark == "text":
        _set_text(drawn, figure, style)
        return drawn
    axes = drawn.add_subplot()
    entries = DRAW[figure.mark](axes, figure, style)
    for axis, name in ((figure.x, "x"), (figure.y, "y")):
        draw_axis(axes, axis, figure, name, style)
    if figure.cells is None:
        axes.grid(True, color="#DDDDDD", linewidth=0.4)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    for marker in figure.markers:
        draw_marker(axes, marker, style)
    top = draw_title(drawn, figure, style) if style.title else 1.0
    room = (0.0, 0.0, 1.0, top)
    if style.legend != "none" and len(entries) > (figure.mark != "raster"):
        room = draw_legend(drawn, axes, entries, style, top)
    engine.set(rect=room)
    shorten_labels(drawn, axes, figure, style)
    return drawn


def _set_text(drawn: Drawing, figure: Figure, style: Style) -> None:
    """Title, legend and tokens; a text has no empty place for a legend inside."""
    drawn.set_layout_engine("none")
    top = draw_title(drawn, figure, style) if style.title else 1.0
    entries = legend_entries(figure, style)
    axes = drawn.add_axes((0, 0, 1, 1))
    left, bottom, right, above = 0.0, 0.0, 1.0, top
    if style.legend != "none" and entries:
        place = replace(style, legend="above") if style.legend == "inside" else style
        left, bottom, right, above = draw_legend(drawn, axes, entries, place, top)
    height = drawn.get_figheight()
    x, y = left + PAD_IN / style.width_in, bottom + PAD_IN / height
    width, tall = right - 2 * PAD_IN / style.width_in, above - 2 * PAD_IN / height
    axes.set_position((x, y, width, tall))
    draw_tokens(axes, figure, style, (width * style.width_in, tall * height))
