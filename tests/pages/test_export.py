"""The popover "Export" over a figure: closed it costs nothing, open it shows the real rendering."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

SCRIPT = """
import sys
import streamlit as st
from pages.parts import export_view
from tests.analysis.figures import figure

export_view.popover(figure("lines"), key="k", name="lines", link_values={"run": "1"})
st.caption(f"matplotlib loaded: {'analysis.paper.renderer' in sys.modules}")
"""


def opened(**more: object) -> AppTest:
    app = AppTest.from_string(SCRIPT, default_timeout=60)
    app.session_state["export-k"] = True
    for key, value in more.items():
        app.session_state[key] = value
    return app.run()


def test_a_closed_popover_draws_nothing() -> None:
    app = AppTest.from_string(SCRIPT, default_timeout=60).run()
    assert not app.exception and not app.selectbox


def test_an_open_popover_offers_formats_venues_and_the_rendering() -> None:
    app = opened()
    assert not app.exception and not app.error
    assert app.selectbox(key="form-k").value == "pdf"
    assert app.selectbox(key="venue-k").value == "neurips"
    assert app.get("imgs") or app.get("image")
    assert app.get("download_button")


def test_a_width_that_cannot_be_drawn_is_refused_and_kept() -> None:
    app = opened()
    app.number_input(key="width-k").set_value(0.1).run()
    assert "width of 0" in str(app.error[0].value).replace("\\", "")
    assert app.number_input(key="width-k").value == 0.1
    assert not app.get("download_button")


def test_data_forms_have_no_options_of_paper() -> None:
    app = opened()
    app.selectbox(key="form-k").select("provenance").run()
    assert not app.exception
    assert [box.key for box in app.selectbox] == ["form-k"]
    assert app.get("download_button")
