"""Do the papers' claims hold on the embedded model? The shipped study, claim by claim."""

from __future__ import annotations

import streamlit as st

from cache_store.errors import KVScopeError
from pages.parts import findings_view, frame
from pages.parts.text import plain

frame.current_run()
frame.heading("Do the papers' claims hold on the embedded model?", findings_view.link_values())
try:
    findings_view.show()
except KVScopeError as error:
    st.error(plain(error))
