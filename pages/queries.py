"""Do a rough draft's queries lie nearer to the response's than the prompt's do? (LAQ)"""

from __future__ import annotations

import streamlit as st

from pages.parts import queries_view as view
from pages.parts import run_page


def figures(look: view.Look) -> run_page.Notes:
    if look.joint:
        return view.projected(look)
    with st.grid(2, min_column_width=440):
        notes = view.projected(look)
        with st.container():
            view.missing_lookahead(look)
            view.distances(look)
            view.texts(look)
    return notes | view.WORDS


run_page.show("Whose queries resemble the response's?", view.controls, figures)
