"""How much does each layer deserve to keep? KVCompose's view of a run."""

from __future__ import annotations

import streamlit as st

from cache_store.errors import KVScopeError
from kvpolicies import PolicyError
from pages.parts import backstage, frame, paper_view, waiting
from pages.parts import budgets_view as view
from pages.parts.text import plain

QUESTION = "How much does each layer deserve to keep?"

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
    paper_view.notes_of(view.show(look))
except (KVScopeError, PolicyError) as error:
    st.error(plain(error))
