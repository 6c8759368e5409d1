"""Figures on paper: real fonts, exact sizes, the screen's data, and text that stays text."""

from __future__ import annotations

import base64
import concurrent.futures
import io
import json
import re
import subprocess
import sys
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pypdf
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from analysis.colours import REASONS
from analysis.errors import AnalysisError
from analysis.figure import Axis, ColourScale, Figure, Marker, Series
from analysis.geometry import limits
from analysis.paper.renderer import render, settings, to_matplotlib
from analysis.paper.texts import fitted, number, shown, width_in, wrapped
from analysis.paper.venues import VENUES, Style, colour_maps, style_for
from analysis.plotly_renderer import to_plotly
from tests.analysis.figures import HOSTILE, MARKS, PLOTTED, figure, hostile

SVG = "{http://www.w3.org/2000/svg}"


def page_of(content: bytes) -> pypdf.PageObject:
    pages = pypdf.PdfReader(io.BytesIO(content)).pages
    assert len(pages) == 1
    return pages[0]


def drawn_axes(shown_figure: Figure, style: Style | None = None) -> Any:
    style = style or style_for()
    with settings(style):
        drawn = to_matplotlib(shown_figure, style)
        drawn.draw_without_rendering()
    return drawn.axes[0]


@pytest.mark.parametrize(
    ("mark", "family"), [*((mark, "serif") for mark in MARKS), ("lines", "sans")]
)
def test_a_pdf_embeds_truetype_fonts_and_its_text_is_found(mark: str, family: str) -> None:
    page = page_of(render(figure(mark), style_for(family=family), "pdf"))
    fonts = [font.get_object() for font in page["/Resources"]["/Font"].values()]
    assert fonts
    for font in fonts:
        below = font["/DescendantFonts"][0].get_object() if "/DescendantFonts" in font else font
        assert font["/Subtype"] != "/Type3" and below["/Subtype"] in ("/CIDFontType2", "/TrueType")
        assert below["/FontDescriptor"]["/FontFile2"].get_object().get_data()
    text = page.extract_text()
    assert f"Title of {mark}" in text and "position" in text and "step" in text


@pytest.mark.parametrize("venue", ["neurips", "icml", "acl-wide", "nature", "ieee", "slides"])
def test_the_page_is_as_wide_as_the_venue_asks(venue: str) -> None:
    expected = {"neurips": 5.5, "icml": 3.25, "acl-wide": 6.3, "nature": 89 / 25.4, "ieee": 3.5}
    page = page_of(render(figure("lines"), style_for(venue), "pdf"))
    assert float(page.mediabox.width) / 72 == pytest.approx(VENUES[venue].width_in, abs=0.01)
    if venue in expected:
        assert float(page.mediabox.width) / 72 == pytest.approx(expected[venue], abs=0.01)


def test_width_height_and_dpi_are_exact() -> None:
    style = Style(width_in=4.1, height_in=2.3, dpi=210)
    page = page_of(render(figure("raster"), style, "pdf"))
    size = float(page.mediabox.width) / 72, float(page.mediabox.height) / 72
    assert size == pytest.approx((4.1, 2.3), abs=0.01)
    picture = Image.open(io.BytesIO(render(figure("raster"), style, "png")))
    assert picture.size == (861, 483)
    svg = ElementTree.fromstring(render(figure("raster"), style, "svg"))
    assert svg.get("width") == f"{4.1 * 72:g}pt"


@pytest.mark.parametrize(
    ("mark", "form"), [(mark, ("pdf", "svg", "png")[n % 3]) for n, mark in enumerate(MARKS)]
)
def test_the_same_bytes_every_time(mark: str, form: str) -> None:
    style = style_for(width_in=3.0, dpi=60)
    first = render(figure(mark), style, form)
    with mpl.rc_context({"font.size": 30, "pdf.fonttype": 3, "axes.facecolor": "red"}):
        assert render(figure(mark), style, form) == first
        assert mpl.rcParams["font.size"] == 30
    assert b"2026" not in first.replace(b"20261120", b"") or form == "png"


def test_several_sessions_export_at_once() -> None:
    styles = [style_for(font_pt=size, width_in=2.5, dpi=60) for size in (6.0, 11.0)] * 2
    alone = [render(figure("lines"), style, "png") for style in styles]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda style: render(figure("lines"), style, "png"), styles))
    assert together == alone


@pytest.mark.parametrize(
    ("mark", "text"), [(MARKS[index % len(MARKS)], text) for index, text in enumerate(HOSTILE)]
)
def test_hostile_texts_are_drawn_as_text(mark: str, text: str) -> None:
    style = style_for(width_in=5.0)
    svg = ElementTree.fromstring(render(hostile(mark, text), style, "svg"))
    names = {element.tag.removeprefix(SVG) for element in svg.iter()}
    assert "script" not in names and "text" in names
    words = " ".join("".join(element.itertext()) for element in svg.iter(f"{SVG}text"))
    assert shown(text)[:12] in words
    page = page_of(render(hostile(mark, text), style, "pdf"))
    assert not page.annotations
    found = page.extract_text()
    if text.isascii() and text.isprintable():
        assert shown(text)[:12].strip() in found
    Image.open(io.BytesIO(render(hostile(mark, text), style_for(dpi=50), "png"))).verify()


def test_right_to_left_text_and_emoji_reach_the_pdf() -> None:
    page = page_of(render(figure("lines", title="שלום مرحبا 😀"), style_for(), "pdf"))
    found = page.extract_text()
    assert "😀" in found and set("שלום") <= set(found)


def test_texts_are_cut_to_the_room_they_have() -> None:
    long = "word " * 60
    line = fitted(long, 2.0, 8.0, "serif")
    assert line.endswith("…") and width_in(line, 8.0, "serif") <= 2.0
    assert width_in(line[:-1] + " wordword", 8.0, "serif") > 2.0
    assert fitted("short", 2.0, 8.0, "sans") == "short"
    lines = wrapped(long, 2.0, 8.0, "sans").split("\n")
    assert len(lines) == 3 and lines[-1].endswith("…")
    assert all(width_in(part, 8.0, "sans") <= 2.0 for part in lines)
    assert shown("a\x00b\ud800c\u202e") == "a␀b\ufffdc◌"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1500, "1,500"), (-2.5, "−2.5"), (1e-5, "10⁻⁵"), (2.5e7, "2.5·10⁷"), (0.05, "0.05")],
)
def test_ticks_are_numbers_as_a_reader_writes_them(value: float, text: str) -> None:
    assert number(value) == text


def screen(shown_figure: Figure) -> dict[str, Any]:
    return json.loads(to_plotly(shown_figure).to_json())


def numbers(entry: Any) -> np.ndarray:
    return np.frombuffer(base64.b64decode(entry["bdata"]), entry["dtype"])


def test_lines_and_bands_are_those_of_the_screen() -> None:
    lines = figure("lines")
    axes, traces = drawn_axes(lines), screen(lines)["data"]
    for index, line in enumerate(axes.lines[:2]):
        on_screen = traces[3 * index + 2]
        np.testing.assert_array_equal(line.get_xdata(), numbers(on_screen["x"]))
        np.testing.assert_allclose(line.get_ydata(), numbers(on_screen["y"]), rtol=1e-6)
        assert to_rgb(line.get_color()) == to_rgb(on_screen["line"]["color"])
        assert line.get_label() == on_screen["name"]
        band = axes.collections[index].get_paths()[0].vertices
        assert band[:, 1].min() == pytest.approx(numbers(traces[3 * index]["y"]).min())
        assert band[:, 1].max() == pytest.approx(numbers(traces[3 * index + 1]["y"]).max())


def test_bars_have_the_heights_and_order_of_the_screen() -> None:
    for mark in ("bars", "stacked_bars"):
        bars = figure(mark)
        axes, traces = drawn_axes(bars), screen(bars)["data"]
        for container, trace in zip(axes.containers, traces, strict=True):
            heights = [bar.get_height() for bar in container]
            np.testing.assert_allclose(heights, numbers(trace["y"]), rtol=1e-6)
    second = [bar.get_y() for bar in axes.containers[1]]
    np.testing.assert_allclose(second, bars.arrays["y"][0])
    assert all(container[0].get_hatch() for container in axes.containers[1:])


def test_layers_lie_upon_each_other_as_on_the_screen() -> None:
    area = figure("area")
    axes, traces = drawn_axes(area), screen(area)["data"]
    below = np.zeros(6)
    for layer, trace in zip(axes.collections, traces, strict=True):
        assert trace["stackgroup"] == "one"
        above = below + numbers(trace["y"])
        corners = layer.get_paths()[0].vertices
        for place, (low, high) in enumerate(zip(below, above, strict=True)):
            own = corners[corners[:, 0] == place, 1]
            assert own.min() == pytest.approx(low, abs=1e-6)
            assert own.max() == pytest.approx(high, abs=1e-6)
        below = above


def test_points_upon_lines_are_those_of_the_screen() -> None:
    points = figure("points")
    axes, traces = drawn_axes(points), screen(points)["data"]
    assert [trace["mode"] for trace in traces] == ["lines+markers", "markers"]
    on_screen = np.stack([numbers(traces[1]["x"]), numbers(traces[1]["y"])], 1)
    np.testing.assert_allclose(axes.collections[0].get_offsets(), on_screen, rtol=1e-6)
    assert len(axes.lines) == 1 and traces[1]["text"] == list("abcd")


def test_points_are_those_of_the_screen() -> None:
    points = figure("scatter")
    axes, traces = drawn_axes(points), screen(points)["data"]
    for drawn, trace in zip(axes.collections, traces, strict=True):
        on_screen = np.stack([numbers(trace["x"]), numbers(trace["y"])], 1)
        np.testing.assert_allclose(drawn.get_offsets(), on_screen, rtol=1e-6)


@pytest.mark.parametrize("mark", PLOTTED)
def test_both_renderers_span_the_same_ranges_in_the_same_direction(mark: str) -> None:
    both = figure(mark)
    axes, layout = drawn_axes(both), screen(both)["layout"]
    for name, reach in (("x", axes.get_xlim()), ("y", axes.get_ylim())):
        if limits(both, name) is not None:
            assert list(reach) == pytest.approx(layout[f"{name}axis"]["range"])


def cell_colours(axes: Any, rows: int, columns: int) -> np.ndarray:
    """(rows, columns, 4): the upper right pixel of each cell."""
    image = np.asarray(axes.images[0].get_array())
    down, across = image.shape[0] // rows, image.shape[1] // columns
    assert image.shape[:2] == (rows * down, columns * across)
    return image[::down, ::across]


def test_cells_have_the_colours_of_their_numbers() -> None:
    heat = figure("heatmap")
    axes, z = drawn_axes(heat), heat.arrays["z"]
    drawn = cell_colours(axes, *z.shape)
    for (row, column), value in np.ndenumerate(z):
        if np.isnan(value):
            assert drawn[row, column, 3] == 0
        else:
            place = (np.log10(np.clip(value, 1e-4, 1)) + 4) / 4
            expected = np.array(mpl.colormaps["viridis"](float(place))) * 255
            assert np.abs(drawn[row, column] - expected).max() <= 4
    assert axes.images[0].get_extent() == [-0.5, 47.5, -0.5, 11.5]


def test_zero_is_the_middle_of_a_centred_scale_and_below_it_is_hatched() -> None:
    z = np.array([[-2.0, 0.0, 2.0]], np.float32)
    centred = figure("centred", arrays={"z": z})
    image = np.asarray(drawn_axes(centred).images[0].get_array())
    thirds = np.array_split(image, 3, axis=1)
    assert [len({tuple(pixel) for pixel in part.reshape(-1, 4)}) for part in thirds] == [2, 1, 1]
    assert thirds[1][0, 0, :3].min() > 240


def test_raster_cells_show_their_category_and_its_share() -> None:
    codes = np.array([[1, 1], [0, 1]], np.uint8)
    share = np.array([[1.0, 0.2], [0.0, 0.4]], np.float32)
    kinds = (REASONS["selected"],)
    cells = figure("raster", arrays={"codes": codes, "share": share}, categories=kinds)
    drawn = cell_colours(drawn_axes(cells, Style(width_in=1.0, height_in=1.0, font_pt=48)), 2, 2)
    full = np.array(to_rgb("#009E73"))
    for (row, column), alpha in {(0, 0): 1.0, (0, 1): 0.5, (1, 1): 0.75}.items():
        np.testing.assert_allclose(drawn[row, column, :3], 255 * (1 - alpha + alpha * full), atol=1)
    assert drawn[1, 0, 3] == 0


def test_large_cells_carry_their_letters_and_small_ones_their_hatch() -> None:
    large = figure("letters")
    letters = {text.get_text() for text in drawn_axes(large, style_for("neurips")).texts}
    assert {"S", "R", "K", "×", "·"} <= letters
    small = figure("raster")
    axes = drawn_axes(small)
    assert not axes.texts
    legend = axes.figure.legends[0].get_patches()
    hatched = {patch.get_label(): bool(patch.get_hatch()) for patch in legend}
    assert [bool(kind.hatch) for kind in small.categories] == list(hatched.values())


def test_series_differ_without_colour() -> None:
    many = tuple(Series(str(index)) for index in range(6))
    y = np.random.default_rng(0).random((6, 30))
    lines = drawn_axes(figure("lines", arrays={"y": y}, series=many)).lines[:6]
    assert len({str(line._dash_pattern) for line in lines}) == 6  # type: ignore[attr-defined]
    bars = drawn_axes(figure("bars", arrays={"y": y}, series=many)).containers
    assert len({container[0].get_hatch() for container in bars}) == 6


def test_the_readers_options_are_followed() -> None:
    style = style_for(title=False, legend="none", font_pt=11.0, family="serif")
    page = page_of(render(figure("lines"), style, "pdf"))
    text = page.extract_text()
    assert "Title of" not in text and "SnapKV" not in text and "position" in text
    for place in ("above", "right", "below", "inside"):
        page = page_of(render(figure("lines"), style_for(legend=place), "pdf"))
        assert "SnapKV" in page.extract_text()
    heat = figure("heatmap")
    maps = {style_for(colour_map=name): name for name in ("viridis", "cividis", "grey")}
    pictures = {render(heat, style, "svg") for style in maps}
    assert len(pictures) == 3


def test_grey_heatmaps_darken_with_the_number() -> None:
    z = np.linspace(0, 1, 40, dtype=np.float32)[None]
    scale = ColourScale("weight", (0.0, 1.0))
    heat = figure("heatmap", arrays={"z": z}, colour=scale, x=Axis("x"), y=Axis("y"))
    for name, falls in (("grey", True), ("viridis", False), ("cividis", False)):
        axes = drawn_axes(heat, style_for(colour_map=name))
        image = np.asarray(axes.images[0].get_array())[0, ::1, :3].astype(float)
        grey = image @ (0.299, 0.587, 0.114)
        steps = np.diff(grey) * (-1 if falls else 1)
        assert steps.min() > -1.5 and steps.sum() > 100


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"width_in": 0.2}, "width of 0.2 in"),
        ({"width_in": float("nan")}, "width of nan in"),
        ({"height_in": 99.0}, "height of 99 in"),
        ({"font_pt": 1.0}, "Letters of 1 pt"),
        ({"dpi": 9000}, "9000 dpi"),
        ({"family": "comic"}, "'comic' is no typeface"),
        ({"legend": "away"}, "'away' is no legend place"),
        ({"colour_map": "jet"}, "'jet' is no colour map"),
        ({"shadow": True}, "'shadow' is no option"),
        ({"venue": "nips"}, "'nips' is no venue"),
    ],
)
def test_a_style_that_cannot_be_drawn_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(AnalysisError, match=re.escape(sentence)):
        style_for(**change)


@pytest.mark.parametrize(
    "empty",
    [
        figure("raster", arrays={"codes": np.zeros((0, 0), np.uint8)}),
        figure("raster", arrays={"codes": np.zeros((3, 4), np.uint8)}),
        figure("lines", arrays={"y": np.full((2, 3), np.nan)}),
        figure("lines", arrays={"y": np.zeros((2, 0))}),
        figure("bars", arrays={"y": np.zeros((2, 0))}),
        figure("lines", arrays={"y": np.zeros((0, 0))}, series=()),
        figure("scatter", arrays={"x": np.zeros(0), "y": np.zeros(0)}, series=(), point_text=()),
        figure("lines", markers=(Marker("cell", 1.0, 0.5, "①"),)),
    ],
    ids=lambda value: value.mark,
)
def test_a_figure_with_nothing_in_it_is_drawn(empty: Figure) -> None:
    assert page_of(render(empty, style_for(), "pdf")).extract_text()


def test_no_window_system_and_no_pyplot() -> None:
    code = (
        "import sys; from analysis.paper.renderer import render;"
        "from analysis.paper.venues import style_for; from tests.analysis.figures import figure;"
        "render(figure('lines'), style_for(), 'pdf');"
        "assert not {'matplotlib.pyplot', 'streamlit', 'plotly', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_choosing_a_venue_loads_nothing_heavy() -> None:
    code = (
        "import sys, analysis.export;"
        "assert not {'matplotlib', 'plotly', 'pandas', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_lines_take_the_palette_in_its_order_or_shades_of_grey() -> None:
    """Okabe and Ito's first two colours here are blue and vermilion."""
    own = figure("lines", series=(Series("a", "#123456"), Series("b", "#654321")))
    drawn = drawn_axes(own, style_for(colour_map="okabe-ito")).lines[:2]
    assert [to_rgb(line.get_color()) for line in drawn] == [to_rgb("#0072B2"), to_rgb("#D55E00")]
    grey = [
        to_rgb(line.get_color()) for line in drawn_axes(own, style_for(colour_map="grey")).lines[:2]
    ]
    assert all(max(colour) - min(colour) < 1e-9 for colour in grey)
    assert abs(grey[0][0] - grey[1][0]) > 0.3
    cells = drawn_axes(figure("raster"), style_for(colour_map="grey")).images[0].get_array()
    assert np.ptp(np.asarray(cells)[..., :3].astype(int), axis=-1).max() <= 1


def test_any_scale_can_be_centred_on_zero() -> None:
    z = np.array([[0.0, 1.0, -0.5]], np.float32)
    scale = ColourScale("weight", (-0.5, 1.0))
    heat = figure("heatmap", arrays={"z": z}, colour=scale, x=Axis("x"), y=Axis("y"))
    image = np.asarray(drawn_axes(heat, style_for(colour_map="diverging")).images[0].get_array())
    middle, above, below = (part[1, 1, :3] / 255 for part in np.array_split(image, 3, axis=1))
    purple = mpl.colormaps["PuOr"]
    assert middle.min() > 0.94  # zero is the pale middle
    np.testing.assert_allclose(above, purple(1.0)[:3], atol=0.02)
    np.testing.assert_allclose(below, purple(0.25)[:3], atol=0.02)


@pytest.mark.parametrize("mark", MARKS)
def test_a_reader_is_offered_the_colours_that_make_a_difference(mark: str) -> None:
    names = colour_maps(figure(mark))
    assert names[0] == "as on screen"
    names = tuple(name for name in names if name != "viridis")  # which most heatmaps are on screen
    drawn = {render(figure(mark), style_for(colour_map=name, dpi=60), "png") for name in names}
    assert len(drawn) == len(names)
