"""The plot component in a real browser, without Streamlit: what it draws anew, and when."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.colours import Category
from analysis.figure import Axis, ColourScale, Figure, Marker, Series
from analysis.plotly_renderer import to_spec
from pages.parts import plot as component
from tests.chromium import PLOTLY

CODE = Path(component.__file__).with_suffix(".js").read_text("utf-8")
ADDRESS = "http://kvscope.test/"
MOUNT = """async ([code, data, id]) => {
  const url = URL.createObjectURL(new Blob([code], {type: "text/javascript"}))
  window.component ??= await import(url)
  window.sent ??= []
  const place = document.getElementById(id)
  window.ends ??= {}
  window.ends[id] = window.component.default({
    data, parentElement: place, setTriggerValue: (...told) => window.sent.push(told),
  })
}"""
# Counts what Plotly is asked to do; `react` is a whole drawing.
COUNT = """() => {
  window.calls = {react: 0, relayout: 0}
  for (const name of Object.keys(window.calls)) {
    const own = window.Plotly[name]
    window.Plotly[name] = (...told) => { window.calls[name] += 1; return own(...told) }
  }
}"""
GRID = Figure(
    "heatmap",
    "t",
    Axis("head"),
    Axis("layer", reversed=True),
    {"z": np.array([[0.1, 0.2, 0.3], [0.4, 0.5, np.nan]], np.float32)},
    colour=ColourScale("share", (0.0, 1.0)),
)
LINES = Figure(
    "lines",
    "t",
    Axis("step", np.arange(40), range=(0.0, 39.0)),
    Axis("entries", range=(0.0, 100.0)),
    {"y": np.arange(40.0)[None]},
    series=(Series("a"),),
    markers=(Marker("x", x=5, label="step", selected=True),),
)

Show = Callable[..., Any]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """What the component is sent for a figure."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(component, "_component", lambda **given: calls.append(given["data"]))
    monkeypatch.setattr(component, "_library", lambda: "library.js")

    def data(figure: Figure, **options: Any) -> dict[str, Any]:
        component.plot(to_spec(figure), key="k", **{"alt": "in words"} | options)
        return calls[-1]

    return data


@pytest.fixture
def show(browser: Any, told: Callable[..., dict[str, Any]]) -> Iterator[Show]:
    """Mounts a figure; a second call is what a rerun of the page sends."""
    page = browser.new_page(viewport={"width": 900, "height": 600})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.route(ADDRESS + "library.js", lambda route: route.fulfill(path=PLOTLY))
    host = component._HTML
    body = (
        f"<meta charset=utf-8><div id=one>{host}</div>"
        f"<div style='height:900px'></div><div id=two>{host}</div>"
    )
    page.route(ADDRESS, lambda route: route.fulfill(body=body, content_type="text/html"))
    page.goto(ADDRESS)

    def mount(
        figure: Figure, place: str = "one", library: str = "library.js", **options: Any
    ) -> Any:
        page.evaluate(MOUNT, [CODE, told(figure, **options) | {"library": library}, place])
        return page

    yield mount
    page.close()
    assert not problems


def drawn(page: Any, place: str = "one") -> None:
    page.locator(f"#{place} .kv-plot:not([data-waiting]) .main-svg").first.wait_for()


def calls(page: Any) -> dict[str, int]:
    return page.evaluate("window.calls")


@pytest.mark.browser
def test_the_readers_choice_moves_without_a_drawing_and_the_zoom_stays(show: Show) -> None:
    page = show(LINES)
    drawn(page)
    page.evaluate(COUNT)
    page.evaluate("Plotly.relayout(document.querySelector('.kv-plot'), {'xaxis.range': [10, 20]})")
    where = "document.querySelector('.kv-plot').layout"
    (marker,) = LINES.markers
    show(replace(LINES, markers=(replace(marker, x=15),)), alt="other words")
    drawn(page)
    assert page.evaluate(f"{where}.shapes[0].x0") == 15
    assert page.evaluate(f"{where}.xaxis.range") == [10, 20]
    assert page.locator("#one .kv-plot").get_attribute("aria-label") == "other words"
    assert calls(page) == {"react": 0, "relayout": 2}


@pytest.mark.browser
def test_other_numbers_are_drawn_once_and_the_same_not_at_all(show: Show) -> None:
    page = show(LINES)
    drawn(page)
    page.evaluate(COUNT)
    box = page.locator("#one .nsewdrag").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    page.wait_for_function("document.querySelector('.kv-plot')._fullLayout.xaxis.range[1] < 30")
    zoomed = page.evaluate("document.querySelector('.kv-plot')._fullLayout.xaxis.range")
    assert zoomed == pytest.approx([39 / 4, 39 / 2], abs=0.5)
    show(LINES)
    drawn(page)
    assert calls(page)["react"] == 0
    show(replace(LINES, arrays={"y": 2 * LINES.arrays["y"]}))
    drawn(page)
    assert calls(page)["react"] == 1
    traced = page.evaluate("Array.from(document.querySelector('.kv-plot')._fullData[0].y).at(-1)")
    assert traced == 78
    assert page.evaluate("document.querySelector('.kv-plot')._fullLayout.xaxis.range") == zoomed


@pytest.mark.browser
def test_a_click_names_the_cell_and_an_empty_cell_is_none(show: Show) -> None:
    page = show(GRID, on_point=lambda x, y: None)
    drawn(page)
    box = page.locator("#one .nsewdrag").bounding_box()
    assert box is not None
    for column, row in ((2.5, 1.5), (0.5, 1.5)):  # no such cell, then layer 1, head 0
        x, y = box["x"] + box["width"] * column / 3, box["y"] + box["height"] * row / 2
        page.mouse.move(x - 3, y)
        page.mouse.move(x, y)
        page.wait_for_timeout(200)  # Plotly gathers movements
        page.mouse.click(x, y)
    page.wait_for_function("window.sent.length")
    assert page.evaluate("window.sent") == [["point", {"x": 0, "y": 1}]]


@pytest.mark.browser
def test_a_figure_without_an_answer_to_clicks_sends_none(show: Show) -> None:
    page = show(GRID)
    drawn(page)
    page.locator("#one .nsewdrag").click()
    page.wait_for_timeout(400)
    assert page.evaluate("window.sent") == []


@pytest.mark.browser
def test_what_is_on_the_screen_is_drawn_first_and_the_rest_follows(show: Show) -> None:
    page = show(GRID, "two")  # below the screen, and told first
    show(LINES)
    drawn(page)
    drawn(page, "two")
    page.evaluate(
        """() => {
          window.order = []
          const own = Plotly.react
          Plotly.react = (...told) => { order.push(told[0].parentNode.id); return own(...told) }
        }"""
    )
    show(replace(GRID, arrays={"z": GRID.arrays["z"] / 2}), "two")
    show(replace(LINES, arrays={"y": 3 * LINES.arrays["y"]}))
    page.wait_for_function("window.order.length === 2")
    assert page.evaluate("window.order") == ["one", "two"]


@pytest.mark.browser
def test_the_cells_of_a_raster_have_their_words(show: Show) -> None:
    kinds = (Category("a", "kept", "#009E73", "K"), Category("b", "<b>gone", "#D55E00", "×", "/"))
    codes = np.zeros((30, 60), np.uint8)
    codes[:, :30], codes[15:, 30:] = 1, 2
    page = show(Figure("raster", "t", Axis("p"), Axis("s"), {"codes": codes}, categories=kinds))
    drawn(page)
    words = "document.querySelector('.kv-plot').data[1].hovertext"
    assert page.evaluate(f"[{words}.length, {words}[0].length]") == [30, 60]
    assert page.evaluate(f"[{words}[0][0], {words}[20][40], {words}[0][40]]") == [
        "K kept",
        "× &lt;b&gt;gone",
        "not there yet",
    ]


@pytest.mark.browser
def test_a_narrower_place_gets_a_narrower_figure(show: Show) -> None:
    page = show(GRID)
    drawn(page)
    page.set_viewport_size({"width": 500, "height": 600})
    width = "document.querySelector('#one .main-svg').getBoundingClientRect().width"
    page.wait_for_function(f"{width} < 500")


@pytest.mark.browser
def test_without_its_library_a_figure_says_so(show: Show) -> None:
    page = show(GRID, "two")
    page.evaluate("delete window.component")
    page.route(ADDRESS + "missing.js", lambda route: route.abort())
    show(GRID, library="missing.js")
    page.get_by_text("This figure cannot be drawn").wait_for()
    assert "Reload the page." in page.locator("#one").inner_text()


@pytest.mark.browser
def test_many_numbers_are_fetched_once_and_drawn_when_they_arrive(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: dict[str, bytes] = {}

    def address(data: bytes, key: str) -> str:
        name = f"media/{hashlib.sha256(data).hexdigest()[:8]}.bin"
        files[name] = data
        return name

    page = show(LINES, "two")
    monkeypatch.setattr(component, "SHORT", 0)
    monkeypatch.setattr("pages.parts.sent_once.address", address)
    fetched: list[str] = []

    def give(route: Any) -> None:
        name = route.request.url.removeprefix(ADDRESS)
        fetched.append(name)
        if len(fetched) == 2:
            route.fulfill(status=404)
        else:
            route.fulfill(body=files[name])

    page.route(ADDRESS + "media/*", give)
    show(GRID)
    drawn(page)
    show(replace(GRID, markers=(Marker("cell", 1, 1, selected=True),)))  # the same cells
    page.wait_for_function("document.querySelector('#one .kv-plot').layout.shapes.length === 1")
    assert len(fetched) == 1
    half = replace(GRID, arrays={"z": GRID.arrays["z"] / 2})
    show(half)
    page.get_by_text("its numbers did not arrive").wait_for()
    show(replace(half, title="told again"))
    drawn(page)
    assert page.evaluate("document.querySelector('#one .kv-plot').data.length") == 1
    assert len(fetched) == 3 and page.get_by_text("cannot be drawn").count() == 0


@pytest.mark.browser
def test_a_figure_that_leaves_the_page_is_forgotten(show: Show) -> None:
    page = show(GRID)
    drawn(page)
    page.evaluate("window.ends.one()")
    assert page.locator("#one .main-svg").count() == 0


def test_the_library_is_served_as_it_was_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {}
    declare = functools.partial(made.__setitem__)
    monkeypatch.setattr(
        component,
        "declare_component",
        lambda name, path: declare(name, path) or type("Made", (), {"name": f"x.{name}"}),
    )
    component._library.cache_clear()
    try:
        assert component._library() == "component/x.plotly/plotly.min.js"
    finally:
        component._library.cache_clear()
    assert (Path(made["plotly"]) / "plotly.min.js").is_file()
