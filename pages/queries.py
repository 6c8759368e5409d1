"""Do a rough draft's queries lie nearer to the response's than the prompt's do? (LAQ)"""

from __future__ import annotations

import streamlit as st

from cache_store.errors import KVScopeError
from kvpolicies import PolicyError
from pages.parts import backstage, card, frame, waiting
from pages.parts import queries_view as view
from pages.parts.text import plain

QUESTION = "Whose queries resemble the response's?"

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
    if look.joint:
        notes = view.projected(look)
    else:
        with st.grid(2, min_column_width=440):
            notes = view.projected(look)
            with st.container():
                view.missing_lookahead(look)
                view.distances(look)
                view.texts(look)
        notes |= view.WORDS
    if notes:
        card.how_to_read(notes)
except (KVScopeError, PolicyError) as error:
    st.error(plain(error))
