"""The system's Chromium, as tests and benchmarks start it; when a page is settled."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import plotly

PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
SETTLED = (
    "() => document.querySelector('[data-testid=stApp]')"
    "?.getAttribute('data-test-script-state') === 'notRunning'"
)


def installed() -> str | None:
    """Where it is; None where there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser. Raises RuntimeError where none is installed."""
    from playwright.sync_api import sync_playwright

    path = installed()
    if path is None:
        raise RuntimeError("there is no Chromium here: install the system's chromium package")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield browser
        browser.close()
