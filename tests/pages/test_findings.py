"""The Findings page over the shipped results: every claim opens and gives its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from analysis.study import claims
from pages.parts import sitemap
from tests.pages.conftest import ROOT
from tests.pages.plots import plots


@pytest.fixture
def page(home: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    monkeypatch.setattr(sitemap, "FIRST_PAGE", "pages/findings.py")
    return AppTest.from_file(str(ROOT / "app.py"), default_timeout=180).run()


def fine(app: AppTest) -> bool:
    return not app.exception and not app.error and not app.warning


def test_every_claim_has_a_verdict_and_its_numbers(page: AppTest) -> None:
    assert fine(page)
    assert page.title[0].value == "Do the papers' claims hold on the embedded model?"
    table = page.dataframe[0].value
    assert list(table["claim"]) == [claim.title for claim in claims.claims()]
    assert set(table["here"]) <= {claims.HOLDS, claims.REVERSED, claims.UNSEEN}
    for claim in claims.claims():
        page.selectbox(key="claim").set_value(claim.title).run()
        assert fine(page), claim.title
        assert len(page.dataframe[1].value) == len(claim.comparisons)
        assert plots(page)


def test_a_shipped_study_opens_in_the_form(page: AppTest) -> None:
    page.selectbox(key="claim").set_value("SAGE-KV over StreamingLLM").run()
    page.button(key="run-finding").click().run()
    assert fine(page)
    assert page.title[0].value == "What does compression cost, over many prompts?"
    title = next(element.value for element in page.text_input if element.label == "Title")
    assert title == "Findings: needles at small budgets"
