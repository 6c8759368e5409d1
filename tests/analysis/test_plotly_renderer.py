"""What reaches the browser: typed arrays, evenly spaced cells, and text that stays text."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from analysis.colours import Category
from analysis.figure import Axis, ColourScale, Figure, Marker, Series
from analysis.plotly_marks import escaped, number_format
from analysis.plotly_renderer import to_plotly, to_spec
from analysis.plotly_spec import to_json
from analysis.pooling import pool_codes

HOSTILE = ("<b>bold</b>", "<script>alert(1)</script>", "$x^2$", "%{z}", "&amp;", "⏎", "␣the")
MARKS = ("heatmap", "raster", "lines", "area", "bars", "stacked_bars", "scatter")


def figure(mark: str, **changes: Any) -> Figure:
    names = tuple(Series(name) for name in HOSTILE[:2])
    parts: dict[str, Any] = {"mark": mark, "title": "t", "x": Axis("step"), "y": Axis("mass")}
    if mark == "heatmap":
        z = np.tril(np.full((4, 4), 0.5, np.float32)) + np.triu(np.full((4, 4), np.nan), 1)
        parts |= {"arrays": {"z": z}, "colour": ColourScale(HOSTILE[0], (0.0, 1.0))}
    elif mark == "raster":
        codes = np.array([[1, 2, 0], [2, 2, 1]], np.uint8)
        kinds = (
            Category("a", HOSTILE[0], "#0072B2", "A"),
            Category("b", HOSTILE[1], "#D55E00", "×", "/"),
        )
        parts |= {"arrays": {"codes": codes}, "categories": kinds}
    elif mark == "scatter":
        points = {"x": np.arange(7.0), "y": np.arange(7.0), "series": np.arange(7) % 2}
        parts |= {"arrays": points, "series": names, "point_text": HOSTILE}
    else:
        parts |= {"arrays": {"y": np.arange(8.0).reshape(2, 4)}, "series": names}
    return Figure(**(parts | changes))


def sent(drawn: Any) -> dict[str, Any]:
    return json.loads(drawn.to_json())


def array(entry: dict[str, str]) -> np.ndarray:
    values = np.frombuffer(base64.b64decode(entry["bdata"]), entry["dtype"])
    shape = [int(size) for size in entry.get("shape", str(len(values))).split(",")]
    return values.reshape(shape)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("mark", MARKS)
def test_every_mark_is_drawn_on_either_ground(mark: str, theme: str) -> None:
    drawn = sent(to_plotly(figure(mark), theme=theme))
    assert drawn["layout"]["paper_bgcolor"] == "rgba(0,0,0,0)"
    assert drawn["layout"]["font"]["color"] == {"light": "#31333F", "dark": "#FAFAFA"}[theme]
    assert drawn["data"]
    assert "<script" not in json.dumps(drawn) and "<b>bold" not in json.dumps(drawn)


def test_an_unknown_theme_is_refused() -> None:
    with pytest.raises(ValueError, match="sepia"):
        to_plotly(figure("lines"), theme="sepia")


def test_escaped_text_has_no_active_character_left() -> None:
    for text in HOSTILE:
        assert not set(escaped(text)) & set("<>$%{")
    assert escaped("&amp;") == "&amp;amp;"
    assert escaped("⏎ a") == "⏎ a"


def test_cells_are_float32_evenly_spaced_and_nan_stays_nan() -> None:
    z = np.arange(12, dtype=np.float64).reshape(3, 4)
    z[0, 3] = np.nan
    drawn = sent(
        to_plotly(
            figure(
                "heatmap",
                x=Axis("key", edges=np.array([10, 13, 16, 19, 20])),  # last cell one key wide
                y=Axis("query", np.array([5, 6, 7]), reversed=True),
                arrays={"z": z},
                colour=ColourScale("weight", (0.0, 11.0)),
            )
        )
    )
    trace, layout = drawn["data"][0], drawn["layout"]
    assert trace["z"]["dtype"] == "f4"
    np.testing.assert_array_equal(array(trace["z"]), z.astype(np.float32))
    assert (trace["x0"], trace["dx"], trace["y0"], trace["dy"]) == (11.0, 3.0, 5.0, 1.0)
    assert layout["xaxis"]["range"] == [9.5, 19.5]  # cuts the last cell where the keys end
    assert layout["yaxis"]["range"] == [7.5, 4.5]
    assert (trace["zmin"], trace["zmax"]) == (0.0, 11.0)
    assert "± 1<br>" in trace["hovertemplate"] and trace["hoverongaps"] is False


@pytest.mark.parametrize(
    ("values", "form"),
    [
        ([3, 2041, np.nan], ",.0f"),  # positions and counts are whole
        ([0.25, 0.5], ".3~g"),
        ([0.5, 2041.25], ",.1f"),  # three digits of it would be 2.04e+3
        ([np.nan], ".3~g"),
    ],
)
def test_a_hover_writes_no_powers_of_ten(values: list[float], form: str) -> None:
    assert number_format(np.array(values, np.float32)) == form


def test_a_logarithmic_scale_colours_by_logarithm_and_tells_the_number() -> None:
    z = np.array([[1e-9, 0.01], [np.nan, 1.0]], np.float32)
    scale = ColourScale("weight", (1e-5, 1.0), log=True)
    trace = sent(to_plotly(figure("heatmap", arrays={"z": z}, colour=scale)))["data"][0]
    np.testing.assert_allclose(array(trace["z"]), np.array([[-5, -2], [np.nan, 0]]), atol=1e-6)
    np.testing.assert_array_equal(array(trace["customdata"]), z)
    assert (trace["zmin"], trace["zmax"]) == (-5.0, 0.0)
    assert trace["colorbar"]["ticktext"] == ["10⁻⁵", "10⁻⁴", "0.001", "0.01", "0.1", "1"]


def test_token_ticks_are_shown_as_text() -> None:
    ticks = tuple((float(place), text) for place, text in enumerate(HOSTILE[:4]))
    layout = sent(to_plotly(figure("heatmap", x=Axis("key", ticks=ticks))))["layout"]
    assert layout["xaxis"]["tickvals"] == [0, 1, 2, 3]
    assert layout["xaxis"]["ticktext"] == [escaped(text) for text in HOSTILE[:4]]


def palette_of(trace: dict[str, Any]) -> list[str]:
    """The colour of each number of a raster's picture."""
    return [colour for _, colour in trace["colorscale"][::2]]


def test_a_raster_is_drawn_in_uint8_with_a_letter_in_every_large_cell() -> None:
    picture, answers, *legend = sent(to_plotly(figure("raster")))["data"]
    assert picture["z"]["dtype"] == answers["z"]["dtype"] == "u1"
    z, palette = array(picture["z"]), palette_of(picture)
    assert (picture["zmin"], picture["zmax"]) == (-0.5, len(palette) - 0.5)
    drawn = [[palette[value] for value in row] for row in z]
    blue, orange = "rgba(0,114,178,0.5)", "rgba(213,94,0,0.5)"
    assert drawn == [[blue, orange, "rgba(0,0,0,0)"], [orange, orange, blue]]
    assert answers["text"] == [["A", "×", ""], ["×", "×", "A"]]
    assert answers["hovertext"][0] == [
        f"A {escaped(HOSTILE[0])}",
        f"× {escaped(HOSTILE[1])}",
        "not there yet",
    ]
    assert answers["textfont"]["color"] == "#31333F"
    assert [entry["name"][0] for entry in legend] == ["A", "×"]
    assert [entry["marker"]["pattern"]["shape"] for entry in legend] == ["", "/"]


def test_small_cells_are_hatched_and_paler_where_they_share_a_cell() -> None:
    codes = np.full((60, 100), 2, np.uint8)
    codes[:, 50:] = 1
    share = np.where(np.arange(60)[:, None] < 30, 1.0, 0.2) * np.ones(codes.shape)
    drawn = figure("raster", arrays={"codes": codes, "share": share.astype(np.float32)})
    picture = sent(to_plotly(drawn))["data"][0]
    z, palette = array(picture["z"]), palette_of(picture)
    half = z.shape[1] // 2
    upper, lower = slice(0, z.shape[0] // 2), slice(z.shape[0] // 2, None)

    def alphas(part: np.ndarray) -> list[float]:
        return sorted({float(palette[value].strip("rgba()").split(",")[3]) for value in part.flat})

    full, hatched, pale = z[upper, half:], z[upper, :half], z[lower, half:]
    assert len(alphas(full)) == 1 and len(alphas(hatched)) == 2
    assert max(alphas(pale)) < alphas(full)[0] == 1
    assert z.shape[0] % 60 == 0 and z.shape[1] % 100 == 0
    dx = picture["dx"]
    assert picture["x0"] - dx / 2 == pytest.approx(-0.5)
    assert dx * z.shape[1] == pytest.approx(100)


def test_a_raster_of_4224_positions_and_129_steps_is_sent_in_less_than_half_a_mb() -> None:
    codes = np.random.default_rng(0).integers(0, 3, (129, 4224), dtype=np.uint8)
    pooled = pool_codes(codes, 240, 320)
    drawn = figure("raster", arrays={"codes": pooled.codes, "share": pooled.share})
    assert len(to_json(to_spec(drawn).traces)) < 500_000


def test_what_a_page_is_sent_is_what_plotly_for_python_would_send() -> None:
    for mark in MARKS:
        spec = to_spec(figure(mark))
        checked = sent(to_plotly(figure(mark)))
        layout = {key: part for key, part in checked["layout"].items() if key != "template"}
        assert same(json.loads(to_json(spec.layout)), {"shapes": []} | layout), mark
        for plain, trace in zip(json.loads(to_json(spec.traces)), checked["data"], strict=True):
            trace.pop("hovertext", None)
            assert same(plain, trace), mark


def same(one: Any, other: Any) -> bool:
    """Whether two parts say the same, however their arrays are written."""
    if isinstance(one, dict) and "bdata" in one:
        one = array(one)
    if isinstance(other, dict) and "bdata" in other:
        other = array(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(np.asarray(one), np.asarray(other), equal_nan=True)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_numbers_that_are_none_are_sent_as_null() -> None:
    spec = {"a": [np.float32(1.5), float("nan"), np.inf], "b": np.array(["x", "y"]), "c": (1, 2)}
    assert json.loads(to_json(spec)) == {"a": [1.5, None, None], "b": ["x", "y"], "c": [1, 2]}


def test_bands_lie_under_their_line_and_markers_become_shapes() -> None:
    y = np.arange(8.0).reshape(2, 4)
    drawn = sent(
        to_plotly(
            figure(
                "lines",
                arrays={"y": y, "low": y - 1, "high": y + 1},
                markers=(
                    Marker("x", x=2, label="<i>step", selected=True),
                    Marker("y", y=1),
                    Marker("cell", x=1, y=2),
                ),
            )
        )
    )
    assert [trace.get("fill") for trace in drawn["data"]] == [None, "tonexty", None] * 2
    np.testing.assert_array_equal(array(drawn["data"][5]["y"]), y[1])
    line, across, cell = drawn["layout"]["shapes"]
    assert (line["x0"], line["x1"], line["label"]["text"]) == (2, 2, "&lt;i&gt;step")
    assert (across["y0"], across["y1"], across["xref"]) == (1, 1, "paper")
    assert (cell["x0"], cell["x1"], cell["y0"], cell["y1"]) == (0.5, 1.5, 1.5, 2.5)


def test_points_that_would_cover_each_other_are_drawn_as_one_that_says_so() -> None:
    x = np.array([0.0, 5.0, 5.001, 10.0, 5.002])
    drawn = to_plotly(
        figure(
            "lines",
            arrays={
                "y": np.array([[0.0, 1.0], [np.nan, np.nan]]),
                "point_x": x,
                "point_y": np.array([0.0, 0.5, 0.5, 0.5, 0.9]),
                "point_series": np.ones(5, int),
            },
            x=Axis("pause", np.array([0.0, 10.0]), range=(0.0, 10.0)),
            point_text=tuple("abcde"),
        )
    )
    points = drawn.data[-1]
    assert points.x.tolist() == pytest.approx([0, 5, 10, 5.002])
    assert points.y.tolist() == pytest.approx([0, 0.5, 0.5, 0.9])
    assert list(points.text) == ["a", "b<br>and 1 more here", "d", "e"]


def test_lines_are_told_apart_without_colour() -> None:
    drawn = sent(to_plotly(figure("lines")))
    assert len({trace["line"]["dash"] for trace in drawn["data"]}) == 2
    stacked = sent(to_plotly(figure("stacked_bars")))
    assert len({trace["marker"]["pattern"]["shape"] for trace in stacked["data"]}) == 2
    assert stacked["layout"]["barmode"] == "stack"


def test_a_full_size_heatmap_stays_below_8_mb() -> None:
    z = np.random.default_rng(0).random((700, 700), np.float32)
    scale = ColourScale("weight", (1e-5, 1.0), log=True)
    assert len(to_plotly(figure("heatmap", arrays={"z": z}, colour=scale)).to_json()) < 7_000_000
