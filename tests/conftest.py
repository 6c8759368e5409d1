"""One browser for every test that looks at something in a real one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.chromium import chromium, installed

SHOWN_MS = 60_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A browser on a loaded machine may miss a moment: one story gets a second chance, and the
    report counts it as a rerun. The files with stories come first: they take longest, and at the
    end one would keep a single worker busy."""
    stories = [item for item in items if item.get_closest_marker("browser")]
    for item in stories:
        item.add_marker(pytest.mark.flaky(reruns=1))
    long = {item.path for item in stories}
    items.sort(key=lambda item: item.path not in long)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Why a story needed its second chance: a story that passes then hides it otherwise."""
    for report in terminalreporter.stats.get("rerun", ()):
        why = [line for line in report.longreprtext.splitlines() if line.startswith(("E ", ">"))]
        terminalreporter.write_line(f"{report.nodeid} ({report.when}) was run again:")
        terminalreporter.write_line("\n".join(why or report.longreprtext.splitlines()[-5:]))
        for title, text in report.sections:
            terminalreporter.write_line(f"{title}:\n{text}")


@pytest.fixture(scope="module")  # while one is open, no other event loop can run in this thread
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    sync_api.expect.set_options(timeout=SHOWN_MS)
    if installed() is None:
        pytest.skip("no Chromium here: install the system's chromium package")
    with chromium() as browser:
        yield browser
