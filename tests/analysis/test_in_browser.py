"""A real browser draws the figures: hostile tokens stay text in labels and hover."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from analysis.colours import Category
from analysis.figure import Axis, ColourScale, Figure
from analysis.plotly_renderer import to_plotly
from tests.chromium import PLOTLY

TOKENS = ("<b>bold</b>", "<script>alert(1)</script>", "$x^2$", "%{z}", "&amp;", "⏎", "␣the")


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 900, "height": 700})
    page.set_content("<div id='figure'></div>")
    page.add_script_tag(path=PLOTLY)
    yield page
    page.close()


def draw(page: Page, figure: Figure) -> None:
    page.evaluate(
        "json => { const drawn = JSON.parse(json);"
        " return Plotly.newPlot('figure', drawn.data, drawn.layout); }",
        to_plotly(figure).to_json(),
    )


def hover(page: Page, column: float, row: float) -> Locator:
    """Text lines of the hover at a place given as shares of the plot's width and height."""
    box = page.locator("#figure .nsewdrag").bounding_box()
    assert box is not None
    page.mouse.move(0, 0)
    page.mouse.move(box["x"] + column * box["width"], box["y"] + row * box["height"])
    return page.locator(".hoverlayer .hovertext tspan.line")


@pytest.mark.browser
def test_hostile_tokens_are_text_in_labels_and_hover(page: Page) -> None:
    count = len(TOKENS)
    ticks = tuple((float(place), token) for place, token in enumerate(TOKENS))
    z = np.full((count, count), 0.25, np.float32)
    figure = Figure(
        "heatmap",
        "t",
        Axis("key", ticks=ticks),
        Axis("query", ticks=ticks, reversed=True),
        {"z": z},
        colour=ColourScale("weight", (1e-5, 1.0), log=True),
    )
    draw(page, figure)
    expect(page.locator(".ytick text")).to_have_text(list(TOKENS))
    for place, token in enumerate(TOKENS):
        lines = hover(page, (place + 0.5) / count, 0.5 / count)
        expect(lines).to_have_text([f"query {TOKENS[0]}", f"key {token}", "weight 0.25"])


@pytest.mark.browser
def test_hover_names_the_pooled_positions(page: Page) -> None:
    edges = np.array([100, 109, 118, 120])
    figure = Figure(
        "heatmap",
        "t",
        Axis("key", edges=edges),
        Axis("query", edges=edges, reversed=True),
        {"z": np.array([[0.5, np.nan, np.nan], [0.2, 0.3, np.nan], [0.1, 0.4, 0.6]])},
        colour=ColourScale("weight", (0.0, 1.0)),
    )
    draw(page, figure)
    lines = hover(page, 4.5 / 20, 13.5 / 20)
    expect(lines).to_have_text(["query 113 ± 4", "key 104 ± 4", "weight 0.2"])


@pytest.mark.browser
def test_a_raster_says_what_a_cell_is_and_lists_what_occurs(page: Page) -> None:
    kinds = (
        Category("a", "kept", "#009E73", "K"),
        Category("b", TOKENS[1], "#D55E00", "×", "/"),
        Category("c", "absent", "#808080", "·", "."),
    )
    codes = np.zeros((30, 60), np.uint8)
    codes[:, :30], codes[15:, 30:] = 1, 2
    figure = Figure(
        "raster",
        "t",
        Axis("position", edges=np.append(np.arange(0, 180, 3), 179)),
        Axis("step", reversed=True),
        {"codes": codes},
        categories=kinds,
    )
    draw(page, figure)
    expect(page.locator(".legendtext")).to_have_text(["K kept", f"× {TOKENS[1]}"])
    expect(hover(page, 10.5 / 59.67, 5.5 / 30)).to_have_text(
        ["step 5", "position 31 ± 1", "K kept"]
    )
    expect(hover(page, 40.5 / 59.67, 20.5 / 30)).to_have_text(
        ["step 20", "position 121 ± 1", f"× {TOKENS[1]}"]
    )
