"""What does compression cost, over many prompts? Studies: build, run, watch, read."""

from __future__ import annotations

import streamlit as st

from analysis.study.rows import Study
from cache_store.errors import KVScopeError
from pages.parts import (
    card,
    frame,
    study_draft,
    study_form,
    study_list,
    study_look,
    study_start,
    study_view,
    study_watch,
)
from pages.parts.text import plain

QUESTION = "What does compression cost, over many prompts?"


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
    study = study_look.study_of(shown)
    look = study_look.controls(study)
    with head:
        frame.heading(QUESTION, look.link())
    busy = study_watch.running(shown)
    st.fragment(run_every=study_watch.interval(shown))(_drawn)(look, busy, _known(study))


def _drawn(look: study_look.Look, busy: bool, known: tuple[object, ...]) -> None:
    """Progress and figures, drawn again while prompts are being finished."""
    study_watch.show(look.study_id)
    study = study_look.study_of(look.study_id)
    # begun or ended, here or in another window: the page is drawn anew, and as often as it needs
    if study_watch.running(look.study_id) != busy or (busy and _known(study) != known):
        st.rerun()
    notes = study_view.show(look, study)
    if notes:
        card.how_to_read(notes)


def _known(study: Study) -> tuple[object, ...]:
    """What the controls offer; when the first prompt of a task arrives, they offer more."""
    return study.policies, study.tasks


try:
    main()
except KVScopeError as error:
    st.error(plain(error))
