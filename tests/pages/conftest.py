"""Pages without a browser: `AppTest` over synthetic captures, with a queue that runs nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.runtime.pages_manager import PagesManager
from streamlit.testing.v1 import AppTest

from backend.jobs import Jobs
from pages.parts import backstage, sitemap
from tests.synthetic import Synthetic

ROOT = Path(__file__).resolve().parents[2]
RUN = "20261120-101112-abcdef"
OTHER = "20261120-101213-0a1b2c"
HOSTILE = "<script>alert(1)</script> **x** $a$ [x](javascript:alert(1)) :red[x] :material/home:"
FIRST = Synthetic(run_id=RUN, title="first")

Open = Callable[..., AppTest]


@pytest.fixture(autouse=True)
def app_names_the_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """AppTest forgets before every run that `app.py` names the pages; a server does not."""
    made = PagesManager.__init__

    def named(self: PagesManager, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **options)
        monkeypatch.setattr(PagesManager, "uses_pages_directory", False)

    monkeypatch.setattr(PagesManager, "__init__", named)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVSCOPE_HOME", str(tmp_path))
    monkeypatch.delenv("KVSCOPE_MODELS", raising=False)
    monkeypatch.setattr(backstage, "Jobs", functools.partial(Jobs, workers=False))
    monkeypatch.setattr("backend.first_start.samples", lambda: ())
    return tmp_path


@pytest.fixture
def two_runs(home: Path) -> Path:
    """A home with two runs; the newer one has a hostile title."""
    FIRST.write(home)
    Synthetic(run_id=OTHER, title=HOSTILE, layers=3, seed=1).write(home)
    return home


@pytest.fixture
def open_page() -> Open:
    """Opens a page of the app at an address, as a browser would."""

    def open_page(page: str, /, **query: str | list[str]) -> AppTest:
        app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
        for key, value in query.items():
            app.query_params[key] = value
        app.run()
        return app.switch_page(f"pages/{page}.py").run()

    return open_page


@pytest.fixture
def open_at(monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a page at an address, as a cold link does."""

    def open_at(page: str, /, **query: str | list[str]) -> AppTest:
        monkeypatch.setattr(sitemap, "FIRST_PAGE", f"pages/{page}.py")
        app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=180)
        for key, value in query.items():
            app.query_params[key] = value
        return app.run()

    return open_at
