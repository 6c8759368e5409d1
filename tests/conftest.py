"""One browser for every test that looks at something in a real one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

SHOWN_MS = 60_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A browser on a loaded machine may miss a moment: one story gets a second chance, and the
    report counts it as a rerun."""
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="module")  # while one is open, no other event loop can run in this thread
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    sync_api.expect.set_options(timeout=SHOWN_MS)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no Chromium here: install the system's chromium package")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield browser
        browser.close()
