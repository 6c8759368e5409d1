"""Which figures go into the paper? Collected figures, in order, on one page."""

from __future__ import annotations

import streamlit as st

from cache_store.errors import KVScopeError
from pages.parts import frame, sheet_view
from pages.parts.text import plain

frame.current_run()
sheet_id = sheet_view.chosen()
frame.heading("Which figures go into the paper?", sheet_view.link_values(sheet_id))
try:
    sheet = sheet_view.read(sheet_id)
except KVScopeError as error:
    sheet_view.cannot_be_read(sheet_id, error)
    st.stop()
try:
    sheet_view.controls(sheet_id, sheet)
    sheet_view.show(sheet_id, sheet)
except KVScopeError as error:
    st.error(plain(error))
