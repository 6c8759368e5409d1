"""Which tokens would each policy evict? Masks, text, evidence, cost, and the run for real."""

from __future__ import annotations

import streamlit as st

from cache_store.errors import KVScopeError
from kvpolicies import PolicyError
from pages.parts import backstage, card, eviction_panels, frame, waiting
from pages.parts import eviction_view as view
from pages.parts.text import plain

QUESTION = "Which tokens would each policy evict?"

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
    notes = eviction_panels.PANELS[look.panel](look)
    if notes:
        card.how_to_read(notes)
except (KVScopeError, PolicyError) as error:
    st.error(plain(error))
