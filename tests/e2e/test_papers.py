"""The pages of the papers in a real browser: α moves W, a draft is recorded, tokens find points."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.app_server import AppServer
from tests.e2e.conftest import Reader

pytestmark = pytest.mark.browser


def proposed(page: Any) -> str:
    """What the page proposes as W."""
    metric = page.get_by_test_id("stMetricValue").first
    metric.wait_for()
    return str(metric.inner_text())


def test_alpha_moves_the_window_and_the_link_keeps_it(
    app: AppServer, browser: Any, reader: Reader, sample: Path
) -> None:
    page = reader.open(f"/recurrence?run={sample.name}")
    expect(page.get_by_role("combobox", name="Layer")).to_be_visible(timeout=120_000)
    reader.settle()
    page.locator(".st-key-mri-cdf .plot-container").wait_for()
    before = now = proposed(page)
    slider = page.get_by_role("slider", name=re.compile("active"))
    for _ in range(12):
        slider.press("ArrowRight")
        page.wait_for_timeout(400)
        reader.settle()
        now = proposed(page)
        if now != before:
            break
    assert now != before
    reader.wait_for_address("alpha=")
    alpha = re.search(r"alpha=([\d.e-]+)", page.url)
    assert alpha is not None
    window = now.split()[0]
    page.locator(".st-key-card-mri-cdf").get_by_text(f"W = {window} step").wait_for()
    page.get_by_test_id("stMain").get_by_text("Link", exact=True).first.click()
    link = page.get_by_test_id("stCode").first.inner_text().strip()
    assert f"alpha={alpha[1]}" in link
    other = Reader(browser, app.url)
    other.page.goto(link)
    other.page.locator(".st-key-mri-cdf .plot-container").wait_for()
    other.settle()
    assert proposed(other.page) == now
    assert not other.problems
    other.close()


def dashed_lines(page: Any, card: str) -> int:
    """How many lines of a figure are dashed."""
    lines = page.locator(f".st-key-{card} .scatterlayer path.js-line")
    return int(
        lines.evaluate_all("found => found.filter(line => line.style.strokeDasharray).length")
    )


def test_a_missing_lookahead_is_recorded_and_its_dashed_curve_appears(
    reader: Reader, sample: Path
) -> None:
    page = reader.open(f"/recall?run={sample.name}")
    page.locator(".st-key-recall .plot-container").wait_for(timeout=120_000)
    reader.settle()
    drafts = page.locator(".st-key-card-drafts")
    drafts.get_by_text("This draft is not recorded yet").wait_for()
    assert dashed_lines(page, "recall") == 0
    drafts.get_by_role("button", name=re.compile("^Record it")).click()
    legend = page.locator(".st-key-recall .legend").get_by_text(re.compile("draft on SnapKV"))
    expect(legend.first).to_be_visible(timeout=180_000)
    reader.settle()
    budgets = page.locator(".st-key-recall .legend .traces").count() // 2
    assert dashed_lines(page, "recall") == budgets > 0
    expect(drafts.get_by_text(re.compile("lookahead of 8 on SnapKV"))).to_be_visible()
    expect(drafts.get_by_text("This draft is not recorded yet")).to_have_count(0)


def test_a_cell_of_the_composite_tokens_leads_to_its_text(reader: Reader, sample: Path) -> None:
    page = reader.open(f"/budgets?run={sample.name}")
    page.locator(".st-key-composite .plot-container").wait_for(timeout=120_000)
    reader.settle()
    plot = page.locator(".st-key-composite .nsewdrag").first
    plot.scroll_into_view_if_needed()
    reader.settle()
    box = plot.bounding_box()
    assert box is not None
    # the first 32 slots by four KV heads: slot 10 of head 2
    at = box["x"] + box["width"] * 2.5 / 4, box["y"] + box["height"] * 10.5 / 32
    page.mouse.move(*at)
    hover = page.locator(".st-key-composite .hoverlayer")
    expect(hover).to_contain_text(re.compile("original position"))
    position = re.search(r"original position ([\d,]+)", hover.text_content() or "")
    assert position is not None
    page.mouse.click(*at)
    reader.wait_for_address("slot=10")
    reader.wait_for_address("kv_head=2")
    card = page.locator(".st-key-card-slot")
    expect(card).to_contain_text("Composite token 10 of layer")
    expect(card).to_contain_text(f"What KV head 2 puts in it, at position {position[1]}:")
    expect(card.locator(".stMarkdownColoredBackground")).to_be_visible()


def test_a_token_that_is_pointed_at_rings_its_point(reader: Reader, sample: Path) -> None:
    page = reader.open(f"/queries?run={sample.name}")
    page.locator(".st-key-map-figure .scatterlayer path.point").first.wait_for(timeout=120_000)
    reader.settle()
    tokens = page.locator(".st-key-said .token")
    tokens.first.wait_for()
    ring = page.locator(".st-key-map-figure .kvscope-ring")
    expect(ring).to_have_count(0)
    tokens.nth(2).hover()
    expect(ring).to_have_count(1)
    at = ring.get_attribute("transform")
    points = page.locator(".st-key-map-figure .scatterlayer path.point")
    assert at in points.evaluate_all("found => found.map(point => point.getAttribute('transform'))")
    tokens.nth(3).hover()
    expect(ring).not_to_have_attribute("transform", str(at))
    points.first.hover(force=True)
    expect(page.locator(".st-key-said .token.cursor")).to_have_count(1)
