"""Recurrence, Recall and Budgets without a browser: three kinds of captures, their addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from pages.parts import backstage, sitemap
from tests.pages.conftest import ROOT, Open
from tests.synthetic import Synthetic

# Runs of their own: what a server remembers of a run, it remembers for all tests of a process.
SMALL: dict[str, Any] = {"prompt_length": 28, "response_length": 6, "window": 8}
CAPTURES = {
    "grouped": Synthetic(run_id="20261120-111111-00000a", **SMALL),
    "ungrouped": Synthetic(
        run_id="20261120-111111-00000b", layers=1, query_heads=2, kv_heads=2, seed=3, **SMALL
    ),
    "single-token": Synthetic(
        run_id="20261120-111111-00000c", **(SMALL | {"response_length": 1}), seed=4
    ),
}
NOTHING = Synthetic(run_id="20261120-111111-00000d", **(SMALL | {"response_length": 0}))
PANELS = ("Tokens that come back", "Which window", "The score", "What is evicted")


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


@pytest.fixture(params=CAPTURES)
def made(request: pytest.FixtureRequest, home: Path) -> Synthetic:
    made: Synthetic = CAPTURES[request.param]
    made.write(home)
    return made


def said(app: AppTest) -> str:
    elements = (*app.caption, *app.markdown, *app.warning)
    return "\n".join(str(element.value).replace("\\", "") for element in elements)


def fine(app: AppTest) -> bool:
    return not app.exception and not app.error and not app.warning


def test_every_panel_of_recurrence_shows_something(made: Synthetic, open_at: Open) -> None:
    app = open_at("recurrence", run=made.run_id, alpha="0.05")
    assert app.title[0].value == "Which tokens come back after a silence?"
    for panel in PANELS:
        app.segmented_control(key="recurrence").set_value(panel).run()
        assert fine(app)
        assert app.get("plotly_chart")
        assert app.metric[0].label == "Proposed W"


def test_recall_shows_lines_and_offers_a_draft(made: Synthetic, open_at: Open) -> None:
    app = open_at(
        "recall", run=made.run_id, budgets=["4", "9"], b="7", start="0", draft="streaming_llm"
    )
    assert fine(app)
    assert app.title[0].value == "Which queries know what the response will need?"
    assert len(app.get("plotly_chart")) == 3
    assert app.multiselect(key="recall_budgets").value == ["4", "9"]
    assert app.selectbox(key="recall_draft").value == "streaming_llm"
    assert "B = 7, window from 0" in said(app)
    app.button(key="ask-draft").click().run()
    (job,) = backstage.jobs().jobs()
    assert backstage.jobs().spec(job.id).params["kind"] == "lookahead"
    assert fine(app)


def test_budgets_follow_the_ratio(made: Synthetic, open_at: Open) -> None:
    app = open_at("budgets", run=made.run_id, ratio="0.5")
    assert fine(app)
    assert app.title[0].value == "How much does each layer deserve to keep?"
    assert len(app.get("plotly_chart")) == 6
    # 20 tokens are context; half of all layers' slots stay
    assert f"{made.layers * 10} slots of 20 per layer" in said(app)
    app.slider(key="compression_ratio").set_value(0.75).run()
    assert f"{made.layers * 5} slots of 20 per layer" in said(app)
    assert app.query_params["ratio"] == "0.75"


@pytest.mark.parametrize("page", ["recurrence", "recall"])
def test_without_a_response_a_sentence_stands_in(home: Path, open_at: Open, page: str) -> None:
    NOTHING.write(home)
    app = open_at(page, run=NOTHING.run_id)
    assert fine(app)
    assert "Nothing was generated in this run" in said(app)


def test_alpha_follows_the_slider_into_the_address(home: Path, open_at: Open) -> None:
    made = CAPTURES["grouped"]
    made.write(home)
    app = open_at("recurrence", run=made.run_id, alpha="0.0123", step="2", layer="1")
    slider = app.select_slider(key="alpha_number")
    assert slider.value == "0.0123"
    slider.set_value("0.05").run()
    assert app.query_params["alpha"] == "0.05"
    app.button(key="alpha-kind").click().run()
    assert app.query_params["alpha"] == "3/n"
    assert app.select_slider(key="alpha_multiple").value == "3/n"
    assert fine(app)
    assert app.slider(key="step").value == 2
    assert app.selectbox(key="layer").value == "1"


def test_a_total_below_the_floor_is_a_sentence(home: Path, open_at: Open) -> None:
    made = CAPTURES["grouped"]
    made.write(home)
    app = open_at("budgets", run=made.run_id, ratio="1")
    assert not app.exception and not app.error
    assert not app.get("plotly_chart")


WRONG = {
    "recurrence": {"alpha": "much", "w": "0", "recurrence": "What is evicted"},
    "recall": {
        "b": "0",
        "start": "-99",
        "budgets": "x",
        "draft_b": "a",
        "draft_n": "99",
        "draft": "x",
    },
    "budgets": {"ratio": "2", "slot": "-1"},
}


@pytest.mark.parametrize("page", WRONG)
def test_an_address_that_cannot_be_says_so(home: Path, open_at: Open, page: str) -> None:
    made = CAPTURES["grouped"]
    made.write(home)
    app = open_at(page, run=made.run_id, **WRONG[page], **{"with": "nothing"})
    assert not app.exception and not app.error
    values = len(WRONG[page]) - ("recurrence" in WRONG[page])
    assert len(app.warning) == values + 1


def test_runs_of_one_model_are_pooled(home: Path, open_at: Open) -> None:
    first, second = CAPTURES["grouped"], CAPTURES["single-token"]
    first.write(home)
    second.write(home)
    for page in ("recurrence", "recall", "budgets"):
        app = open_at(page, run=first.run_id, **{"with": second.run_id})
        assert fine(app)
        assert "2 runs of" in said(app)
