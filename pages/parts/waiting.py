"""What stands in for what is not there yet: a figure that needs a job, an empty library."""

from __future__ import annotations

import streamlit as st

from analysis.errors import NeedsJob
from backend.jobs import derive_job
from cache_store.errors import KVScopeError
from pages.parts import backstage, drawn, jobs_view
from pages.parts.text import duration, plain

NEW_RUN = "pages/new_run.py"


def job_offer(
    need: NeedsJob, run_id: str, title: str, *, key: str, verb: str = "Compute it"
) -> None:
    """In place of the figure: what it costs, a button, and its progress once it is under way."""
    drawn.tell_job(derive_job(run_id, need.kind, need.spec, title), need)
    with st.container(border=True, key=f"offer-{key}"):
        st.markdown(f"**{plain(title)}**")
        _offer(need, run_id, title, key, verb)


@st.fragment(run_every=1.0)
def _offer(need: NeedsJob, run_id: str, title: str, key: str, verb: str) -> None:
    jobs = backstage.jobs()
    spec = derive_job(run_id, need.kind, need.spec, title)
    state = next((job for job in jobs.jobs() if job.id == spec.id), None)
    waiting = f"job-asked-{spec.id}"
    if state is not None and state.status == "done" and st.session_state.pop(waiting, False):
        st.rerun()
    if state is not None and not state.finished:
        st.session_state[waiting] = True
        jobs_view.card(jobs, state, where=f"offer-{key}")
        return
    st.caption(plain(need))
    if state is not None and state.status == "failed":
        st.caption(plain(state.error or "The last attempt failed."))
    if st.button(f"{verb} (about {duration(max(1.0, need.seconds))})", key=f"compute-{key}"):
        st.session_state[waiting] = True
        try:
            jobs.submit(spec)
        except KVScopeError as error:
            st.warning(plain(error))
            return
        st.rerun(scope="fragment")


def empty_library() -> None:
    """Nothing to look at yet: the samples that are being read, or the one thing to do next."""
    if jobs_view.active():
        _samples_on_their_way()
        return
    st.markdown("There is no run to look at yet. Give the model something to read.")
    st.page_link(NEW_RUN, label="New run", icon=":material/add_circle:")


@st.fragment(run_every=1.0)
def _samples_on_their_way() -> None:
    """Shows the first run as soon as it is there; nothing else is on the page to be disturbed."""
    runs = backstage.runs()
    if len(runs):
        st.rerun()
    under_way = jobs_view.active()
    if not under_way:
        st.rerun()
    st.markdown(
        "The model is reading the first samples. The first one appears here within half a minute."
    )
    for job in reversed(under_way[-3:]):
        jobs_view.card(backstage.jobs(), job, where="first")
