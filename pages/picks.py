"""Which entries does each query head pick? SAGE-KV's partition, picks and sliding window."""

from __future__ import annotations

import streamlit as st

from cache_store.errors import KVScopeError
from kvpolicies import PolicyError
from pages.parts import backstage, card, frame, waiting
from pages.parts import picks_view as view
from pages.parts.text import plain

QUESTION = "Which entries does each query head pick?"

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
    notes = view.PANELS[look.panel](look)
    if notes:
        card.how_to_read(notes)
except (KVScopeError, PolicyError) as error:
    st.error(plain(error))
