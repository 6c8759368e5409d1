"""Where does each head look? Overview grid, one head's matrix, one step on the text."""

from __future__ import annotations

import streamlit as st

from cache_store.errors import KVScopeError
from pages.parts import attention_view as view
from pages.parts import backstage, frame, waiting
from pages.parts.text import plain

QUESTION = "Where does each head look?"

run_id = frame.current_run()
if run_id is None:
    frame.heading(QUESTION)
    waiting.empty_library()
    st.stop()

head = st.container()
try:
    capture = backstage.capture(run_id)
    look = view.controls(run_id, capture.info)
    with head:
        frame.heading(QUESTION, look.link())
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
    view.how_to_read(grid, matrix, lines, received)
except KVScopeError as error:
    st.error(plain(error))
