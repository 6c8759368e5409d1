"""Jobs as the reader sees them: the indicator in the sidebar and one card per job."""

from __future__ import annotations

import streamlit as st

from backend.jobs import Jobs, JobState
from cache_store.errors import KVScopeError
from pages.parts import backstage
from pages.parts.text import duration, number, plain, shorten, some

ATTENTION = "pages/attention.py"
STUDY = "study"  # what is finished of it is kept, whatever ends the rest
_BUSY_S = 1.0
_IDLE_S = 4.0
_SHOWN = 8
_TAIL = 300  # characters of a growing answer: its end is what is new
_UNITS = {
    "prefill": "layer",
    "decode": "token",
    "lookahead": "layer",
    "second reading": "layer",
    "draw": "figure",
    "running": "cell",
}
_DIALOG = "dialog_open"
_WHOLE = "whole_app_runs"


def active() -> list[JobState]:
    """Jobs that wait or run, the newest first."""
    return [job for job in backstage.jobs().jobs() if not job.finished]


def ended() -> frozenset[tuple[str, object]]:
    """The runs that were made so far; to be asked before the list of runs is read."""
    return frozenset(
        (job.id, job.finished_at)
        for job in backstage.jobs().jobs()
        if job.status == "done" and job.kind == "capture"
    )


def hold_for_dialog() -> None:
    """From a dialog: a run that ends meanwhile waits, because redrawing the app closes it."""
    st.session_state[_DIALOG] = True


def indicator(seen: frozenset[tuple[str, object]]) -> None:
    """How many jobs are under way and how far; refreshes itself without touching the page.

    When a run ends that is not in `seen`, the whole app runs once, so that every list has it."""
    st.session_state.pop(_DIALOG, None)
    st.session_state[_WHOLE] = True
    st.fragment(run_every=_BUSY_S if active() else _IDLE_S)(_indicator)(seen)


def _indicator(seen: frozenset[tuple[str, object]]) -> None:
    jobs = backstage.jobs()
    # Within a run of the whole app the page is still to come, and with it the click that the
    # reader has just made: starting over here would lose it.
    whole = st.session_state.pop(_WHOLE, False)
    if ended() - seen and not whole and not st.session_state.get(_DIALOG):
        st.rerun()
    known = jobs.jobs()
    under_way = [job for job in known if not job.finished]
    failed = [job for job in known if job.status in ("failed", "lost")]
    if under_way:
        running = [job for job in under_way if job.status == "running"]
        share = f" {_share(running[0]):.0%}" if running and running[0].total else ""
        label = f":material/progress_activity: {some(len(under_way), 'job')}{share}"
    elif failed:
        label = f":material/error: {some(len(failed), 'job')} not finished"
    else:
        label = ":material/check: No job running"
    with st.popover(label, type="tertiary", key="jobs_popover"):
        if not known:
            st.caption("Runs and longer computations appear here while they are under way.")
        for job in known[:_SHOWN]:
            card(jobs, job, where="popover")


def card(jobs: Jobs, job: JobState, *, where: str) -> None:
    """One job: what it does, how far it is, and what can be done about it."""
    with st.container(border=True, gap="xsmall", key=f"job-{where}-{job.id}"):
        st.text(shorten(job.title or job.kind, 70))
        if job.status == "running":
            st.progress(_share(job), text=plain(_progress_words(job)))
            if job.text and where == "page":
                st.caption("The text so far")
                st.code(_tail(job.text), language=None, wrap_lines=True, height=160)
        else:
            st.caption(plain(_status_words(job)))
            if where == "page" and job.status == "done" and job.kind == "capture" and job.run_id:
                _answer(job.run_id)
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            _actions(jobs, job, where)


def _tail(text: str) -> str:
    return text if len(text) <= _TAIL else "…" + text[-_TAIL:]


def _answer(run_id: str) -> None:
    """The first line of what the model answered, while the run is there."""
    try:
        lines = backstage.capture(run_id).response_text().strip().splitlines()
    except KVScopeError:
        return
    if lines:
        st.text(shorten(lines[0], 200))


def _actions(jobs: Jobs, job: JobState, where: str) -> None:
    key = f"{where}-{job.id}"
    if not job.finished:
        st.button(
            "Cancelling" if job.cancelling else "Cancel",
            key=f"cancel-{key}",
            disabled=job.cancelling,
            on_click=_act,
            args=(jobs.cancel, job.id),
        )
        return
    if job.status == "done" and job.kind == "capture" and job.run_id:
        st.page_link(
            ATTENTION, label="Open", icon=":material/grid_on:", query_params={"run": job.run_id}
        )
    if job.status in ("failed", "cancelled", "lost", "paused"):
        label = "Resume" if job.kind == STUDY else "Run again"
        st.button(label, key=f"retry-{key}", on_click=_act, args=(jobs.retry, job.id))
    st.button(
        "Dismiss", key=f"dismiss-{key}", type="tertiary", on_click=_act, args=(jobs.dismiss, job.id)
    )


def _act(action: object, job_id: str) -> None:
    """A job may have ended or gone in the meantime; then the sentence is shown instead."""
    assert callable(action)
    try:
        action(job_id)
    except KVScopeError as error:
        st.toast(plain(error))


def _share(job: JobState) -> float:
    return min(1.0, max(0.0, job.done / job.total)) if job.total else 0.0


def _progress_words(job: JobState) -> str:
    words = [job.phase or "starting"]
    unit = _UNITS.get(job.phase, "")
    if job.total and job.phase not in ("load", "write"):
        words.append(f"{job.done:,} of {some(job.total, unit) if unit else f'{job.total:,}'}")
    if job.rate and unit:
        words.append(f"{number(float(f'{job.rate:.3g}'))} {unit}s per second")
    if job.eta_s is not None:
        words.append(f"about {duration(job.eta_s)} left")
    return " · ".join(words)


def _status_words(job: JobState) -> str:
    if job.status == "queued":
        place = f", number {job.queue_position} in the queue" if job.queue_position else ""
        return f"Waiting{place}."
    if job.status == "done":
        took = (
            (job.finished_at - job.started_at).total_seconds()
            if job.started_at and job.finished_at
            else None
        )
        return f"Done in {duration(took)}." if took is not None else "Done."
    if job.status in ("cancelled", "paused"):
        kept = "what is finished is" if job.kind == STUDY else "nothing was"
        return f"{job.status.capitalize()}; {kept} kept."
    if job.status == "lost":
        return job.error or "The app was stopped before this job ended."
    return job.error or "Failed without saying why."
