"""A real app with a home of its own, and a real browser to look at it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app_server import AppServer
from tests.chromium import SETTLED
from tests.conftest import SHOWN_MS

# A cold link to a page makes Streamlit's frontend look for its server below that page first.
EXPECTED = "/_stcore/"

TWO_PROMPTS = (
    {"context": "The code of the market is 87725.", "question": "What is its code?"},
    {"context": "The code of the harbour is 10364.", "question": "What is its code?"},
)


class Reader:
    """One browser window: a session of its own that remembers every console error."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.url = url
        self.context = browser.new_context(viewport={"width": 1440, "height": 1000}, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(SHOWN_MS)
        self.problems: list[str] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.problems.append(f"page error: {error}"))
        self.page.on("dialog", self._dialog)

    def _console(self, message: Any) -> None:
        if message.type == "error" and EXPECTED not in message.location.get("url", ""):
            self.problems.append(f"console: {message.text} at {message.location}")

    def _dialog(self, dialog: Any) -> None:
        self.problems.append(f"a script opened a dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, path: str = "/") -> Any:
        self.page.goto(self.url + path)
        self.page.get_by_role("heading", level=1).wait_for()
        self.settle()
        return self.page

    def settle(self) -> None:
        """Until the script has run to its end."""
        self.page.wait_for_timeout(250)
        self.page.wait_for_function(SETTLED)

    def choose(self, label: str, option: str) -> None:
        """Take an option of a select box."""
        self.page.get_by_role("combobox", name=label).click()
        self.page.get_by_role("option", name=option, exact=True).click()
        self.settle()

    def press(self, name: str) -> None:
        """Press a button, or one part of a segmented control, of the page's main area."""
        main = self.page.get_by_test_id("stMain")
        radio = main.get_by_role("radio", name=name, exact=True)
        main.get_by_role("button", name=name, exact=True).or_(radio).first.click()
        self.settle()

    def start_prompts(self, *rows: dict[str, str], row: int, new_tokens: int) -> Any:
        """Upload prompts as JSON lines, choose one of them and start it."""
        page = self.open("/new_run")
        self.press("a file")
        lines = "".join(json.dumps(given) + "\n" for given in rows)
        page.locator("input[type=file]").set_input_files(
            {"name": "prompts.jsonl", "mimeType": "application/json", "buffer": lines.encode()}
        )
        chosen = f"Rows (1 to {len(rows)}), each becomes a run"
        page.get_by_role("textbox", name=chosen).fill(str(row))
        page.keyboard.press("Enter")
        self.settle()
        most = page.get_by_role("spinbutton", name="New tokens, at most")
        most.fill(str(new_tokens))
        most.press("Enter")
        self.settle()
        self.press("Start")
        return page

    def tick_first_row(self) -> None:
        """Tick the first row of the page's first table."""
        table = self.page.get_by_test_id("stDataFrame").locator("canvas").first
        table.wait_for()
        self.settle()
        box = table.bounding_box()
        assert box is not None
        self.page.mouse.click(box["x"] + 16, box["y"] + 36 + 18)  # below a row of names

    def wait_for_address(self, part: str) -> None:
        self.page.wait_for_url(lambda address: part in address)

    def close(self) -> None:
        self.context.close()


_WINDOW = pytest.StashKey[Reader]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A story that fails tells what its reader saw last."""
    report = yield
    if report.when == "call" and report.failed and _WINDOW in item.stash:
        with contextlib.suppress(Exception):  # the window may be what failed
            page = item.stash[_WINDOW].page
            report.sections.append(
                ("what the window showed", f"{page.url}\n{page.locator('body').inner_text()}")
            )
    return report


@pytest.fixture
def reader(request: pytest.FixtureRequest, browser: Any, app: AppServer) -> Iterator[Reader]:
    """A fresh window; the test fails when the browser's console showed an error."""
    window = Reader(browser, app.url)
    request.node.stash[_WINDOW] = window
    yield window
    window.close()
    assert not window.problems, "\n".join(window.problems)


@pytest.fixture(scope="package")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run that the app's library begins with: the first of the samples."""
    from backend.capture import capture
    from backend.first_start import samples

    home = tmp_path_factory.mktemp("e2e") / "home"
    return home / capture(samples()[0].spec(), home)


@pytest.fixture(scope="package")
def app(sample: Path) -> Iterator[AppServer]:
    """An app whose library began with one run; the stories of several files share it."""
    yield from served(sample.parent)


def served(home: Path) -> Iterator[AppServer]:
    """An app on this home until the tests are done with it."""
    server = AppServer(home)
    server.start()
    yield server
    server.stop()
