"""What does compression cost, over many prompts? Studies: build, run, watch, read."""

from __future__ import annotations

import streamlit as st

from cache_store.errors import KVScopeError
from pages.parts import (
    card,
    frame,
    study_draft,
    study_form,
    study_list,
    study_start,
    study_view,
    study_watch,
)
from pages.parts.text import plain

QUESTION = "What does compression cost, over many prompts?"
_BUSY_S = 2.0


def main() -> None:
    frame.current_run()
    head = st.container()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        shown = study_list.pick()
        if shown == study_list.NEW:
            study_form.start_from()
    if shown == study_list.NEW:
        with head:
            frame.heading(QUESTION, {"study": shown})
        costs = st.container()
        study_form.show(study_draft.draft())
        with costs:
            study_start.show()
        return
    look = study_view.controls(study_view.study_of(shown))
    with head:
        frame.heading(QUESTION, look.link())
    busy = study_watch.running(shown)
    st.fragment(run_every=_BUSY_S if busy else None)(_drawn)(look, busy)


def _drawn(look: study_view.Look, busy: bool) -> None:
    """Progress and figures, drawn again while prompts are being finished."""
    study_watch.show(look.study_id)
    notes = study_view.show(look, study_view.study_of(look.study_id))
    if notes:
        card.how_to_read(notes)
    if busy and not study_watch.running(look.study_id):
        st.rerun()


try:
    main()
except KVScopeError as error:
    st.error(plain(error))
