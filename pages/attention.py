"""Where does each head look? Overview grid, one head's matrix, one step on the text."""

from __future__ import annotations

import streamlit as st

from pages.parts import attention_view as view
from pages.parts import run_page


def figures(look: view.Look) -> run_page.Notes:
    with st.grid(2, min_column_width=440):
        grid = view.overview(look)
        beside = st.container()  # filled last: right after a start it waits for torch
    view.text(look)
    with st.grid(2, min_column_width=440):
        view.top_tokens(look)
        lines = view.statistics(look)
    received = view.received(look)
    with beside:
        matrix = view.matrix(look)
    return view.notes(grid, matrix, lines, received)


run_page.show("Where does each head look?", view.controls, figures)
