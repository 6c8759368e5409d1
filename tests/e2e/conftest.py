"""A real app with a home of its own, and a real browser to look at it."""

from __future__ import annotations

import json
from collections.abc import Iterator
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

    def wait_for_address(self, part: str) -> None:
        self.page.wait_for_url(lambda address: part in address)

    def close(self) -> None:
        self.context.close()


@pytest.fixture
def reader(browser: Any, app: AppServer) -> Iterator[Reader]:
    """A fresh window; the test fails when the browser's console showed an error."""
    window = Reader(browser, app.url)
    yield window
    window.close()
    assert not window.problems, "\n".join(window.problems)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppServer]:
    """An app whose library is empty, so that its first start captures the samples."""
    server = AppServer(tmp_path_factory.mktemp("e2e") / "home")
    server.start()
    yield server
    server.stop()
