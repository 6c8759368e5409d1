"""A real app on a free port with a home of its own, and a real browser to look at it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SHOWN_MS

ROOT = Path(__file__).resolve().parents[2]
START_S = 90

# A cold link to a page makes Streamlit's frontend look for its server below that page first.
EXPECTED = "/_stcore/"


class AppServer:
    """`streamlit run app.py` in its own process group; `restart()` keeps the home."""

    def __init__(self, home: Path, **environment: str) -> None:
        self.home = home
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self.log = home.parent / f"{home.name}-app.log"

    def start(self) -> None:
        environment = os.environ | {"KVSCOPE_HOME": str(self.home)} | self._environment
        command = [sys.executable, "-m", "streamlit", "run", "app.py"]
        command += ["--server.port", str(self.port), "--server.headless", "true"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{self.url}/_stcore/health", timeout=2),
            ):
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.2)
        raise RuntimeError(f"the app did not start:\n{self.log.read_text()[-3000:]}")

    def stop(self) -> None:
        if self._process is None:
            return
        group = self._process.pid
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(15)
        self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
        self.page.wait_for_function(
            "() => document.querySelector('[data-testid=stApp]')"
            "?.getAttribute('data-test-script-state') === 'notRunning'"
        )

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
