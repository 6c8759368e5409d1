"""A figure card: what it sends to be drawn, and what is behind its small actions."""

from __future__ import annotations

import json

import pytest
from streamlit.testing.v1 import AppTest

from pages.parts import card
from tests.pages.plots import plots

SCRIPT = """
from pages.parts import card
from tests.analysis.figures import figure

card.figure_card(figure("heatmap"), key="k", link_values={"run": "1"})
"""


@pytest.fixture
def app() -> AppTest:
    return AppTest.from_string(SCRIPT, default_timeout=60)


def test_a_closed_card_sends_its_figure_and_nothing_of_its_actions(app: AppTest) -> None:
    app.run()
    assert not app.exception
    (plot,) = plots(app)
    sent = json.loads(plot.proto.json)
    assert json.loads(sent["traces"])[0]["type"] == "heatmap"
    assert sent["height"] > 100 and sent["alt"] and not sent["clicks"]
    assert sent["library"].endswith("/plotly.min.js")
    assert not app.get("download_button") and not app.code


def test_opened_data_offers_four_files(app: AppTest) -> None:
    app.session_state["data-k"] = True
    app.run()
    labels = [button.proto.label for button in app.get("download_button")]
    assert labels == ["CSV", "Parquet", "LaTeX", "Markdown"]
    assert not app.code


def test_an_opened_link_is_the_address_of_the_view(app: AppTest) -> None:
    app.session_state["link-k"] = True
    app.run()
    (code,) = app.code
    assert code.value.endswith("?run=1")
    assert not app.get("download_button")


def test_a_click_is_a_row_and_a_column_of_a_grid_or_a_place() -> None:
    seen: list[tuple[float, float]] = []
    on_cell = card._clicked(lambda row, column: seen.append((row, column)), None)
    on_point = card._clicked(None, lambda x, y: seen.append((x, y)))
    assert on_cell is not None and on_point is not None
    on_cell(3.0, 1.0)
    on_point(3.5, 1.5)
    assert seen == [(1, 3), (3.5, 1.5)]
    assert card._clicked(None, None) is None
