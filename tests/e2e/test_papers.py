"""The pages of the papers in a real browser: α moves W, and the link keeps both."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.e2e.conftest import AppServer, Reader

pytestmark = pytest.mark.browser


def proposed(page: Any) -> str:
    """What the page proposes as W."""
    metric = page.get_by_test_id("stMetricValue").first
    metric.wait_for()
    return str(metric.inner_text())


def test_alpha_moves_the_window_and_the_link_keeps_it(
    app: AppServer, browser: Any, reader: Reader
) -> None:
    page = reader.open("/recurrence")
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
