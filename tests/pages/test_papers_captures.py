"""Every view of the papers over every kind of capture: a figure or a sentence, no exception."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from pages.parts import (
    budgets_view,
    drawn,
    partitions_view,
    picks_view,
    queries_view,
    recall_view,
    recurrence_view,
)
from tests.pages.conftest import Open
from tests.pages.plots import plots
from tests.synthetic import Synthetic

# Runs of their own: what a server remembers of a run, it remembers for all tests of a process.
SMALL: dict[str, Any] = {"prompt_length": 40, "response_length": 6, "window": 8}
KINDS: dict[str, dict[str, Any]] = {
    "without grouping": {"query_heads": 3, "kv_heads": 3},
    "a single-token response": {"response_length": 1},
    "no response": {"response_length": 0},
    "one layer": {"layers": 1},
    "one head": {"query_heads": 1, "kv_heads": 1},
    "a prompt shorter than every window": {"prompt_length": 3},
    "a prompt of one token": {"prompt_length": 1, "response_length": 2},
    "a sliding window in every other layer": {"sliding_window": (6, None)},
}
MADE = {
    name: Synthetic(run_id=f"20261121-121212-00000{number:x}", seed=number, **SMALL | changes)
    for number, (name, changes) in enumerate(KINDS.items())
}
EMBEDDED = "the embedded model"
# page -> the address's key of its panels, and the panels
PANELS: dict[str, tuple[str, tuple[str, ...]]] = {
    "recurrence": ("recurrence", tuple(recurrence_view.PANELS)),
    "recall": ("over", recall_view.OVER),
    "queries": ("space", queries_view.SPACES),
    "budgets": ("source", tuple(budgets_view.SOURCES)),
    "partitions": ("lagkv", tuple(partitions_view.PANELS)),
    "picks": ("sage", tuple(picks_view.PANELS)),
}
SENTENCES = (
    "Nothing was generated in this run",
    "needs at least",
    "Nothing is evicted",
    "No partition of this text",
    "so nothing is picked",
    "so there are no picks to compare",
    "second reading of the context",
    "has no question after its context",
    "composite slots cannot give each of",
    "no context",
    "attends within a sliding window",
)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of the embedded model."""
    from backend.capture import capture
    from backend.spec import CaptureSpec

    home = tmp_path_factory.mktemp("embedded")
    spec = CaptureSpec(
        context="The quiet river runs to the old town. The pass key is 4071. Remember it.",
        question="What is the pass key?",
        max_new_tokens=8,
        min_new_tokens=8,
        stop_at_eos=False,
    )
    return home / capture(spec, home)


@pytest.fixture(params=[EMBEDDED, *MADE])
def run_id(request: pytest.FixtureRequest, home: Path) -> str:
    """The id of a run in the reader's library."""
    if request.param == EMBEDDED:
        folder: Path = request.getfixturevalue("embedded")
        shutil.copytree(folder, home / folder.name)
        return folder.name
    MADE[request.param].write(home)
    return MADE[request.param].run_id


def said(app: Any) -> str:
    elements = (*app.caption, *app.markdown, *app.warning, *app.text)
    return "\n".join(str(element.value) for element in elements).replace("\\", "")


@pytest.mark.parametrize("page", PANELS)
def test_every_panel_says_how_to_read_it(home: Path, open_at: Open, page: str) -> None:
    """Two sentences for every figure, the formula one click away, and the paper's settings."""
    made = Synthetic(run_id="20261121-121212-0000ff", seed=40, **SMALL)
    made.write(home)
    key, panels = PANELS[page]
    for panel in panels:
        with drawn.listening() as seen:
            app = open_at(page, run=made.run_id, **{key: panel, "L": "8", "alpha": "0.05"})
        there = said(app).replace("\u200b", "")
        app.session_state["formulas"] = True  # opened
        formulas = [element.value for element in app.run().text]
        figures = {name: figure for name, (figure, _) in seen.figures.items()}
        for name, figure in figures.items():
            if figure.mark == "text":
                continue
            assert figure.note is not None and figure.note.source, name
            assert figure.note.how_to_read in there, name
            assert figure.note.formula and figure.note.formula in formulas, name
            assert len(re.findall(r"[.!?](?= |$)", figure.note.how_to_read)) == 2, name
        assert not figures or "The paper's settings" in there, panel


@pytest.mark.parametrize("page", PANELS)
def test_every_panel_of_every_capture(run_id: str, open_at: Open, page: str) -> None:
    key, panels = PANELS[page]
    app = open_at(page, run=run_id)
    for panel in panels:
        if panel != panels[0]:
            app.segmented_control(key=key).set_value(panel).run()
        assert not app.exception and not app.error, f"{panel}: {app.exception or app.error}"
        assert not app.warning, panel
        there = said(app)
        figures = plots(app) or app.dataframe
        assert figures or any(words in there for words in SENTENCES), there
