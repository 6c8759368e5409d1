"""A study under way: how far it is, what failed, and pause, resume and cancel."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from backend.jobs import JobState
from backend.study.work import study_job
from cache_store.errors import KVScopeError
from cache_store.study import StudyReader
from pages.parts import backstage, study_list
from pages.parts.text import duration, number, plain, some

_SHOWN_CELLS = 400
_BUSY_S, _IDLE_S = 2.0, 10.0


def state(study_id: str) -> JobState | None:
    """The study's job, or None where it was never started here."""
    job = study_job(backstage.home(), study_id)
    return next((one for one in backstage.jobs().jobs() if one.id == job.id), None)


def running(study_id: str) -> bool:
    job = state(study_id)
    return job is not None and not job.finished


def interval(study_id: str) -> float | None:
    """Seconds until the page looks again; an unfinished study may be resumed elsewhere."""
    if running(study_id):
        return _BUSY_S
    return None if study_list.reader(study_id).progress().complete else _IDLE_S


def show(study_id: str) -> None:
    """One line of progress with what can be done; nothing once a study is complete."""
    study = study_list.reader(study_id)
    progress = study.progress()
    job = state(study_id)
    if progress.complete:
        st.caption(f"Complete: {some(progress.examples, 'prompt')}, {some(progress.cells, 'row')}.")
    else:
        share = progress.cells_done / progress.cells if progress.cells else 0.0
        if job is not None and job.total:
            share = max(share, job.done / job.total)
        st.progress(min(1.0, share), text=plain(_words(study, job)))
        if job is not None and job.status in ("failed", "lost") and job.error:
            st.error(plain(job.error))
        with st.container(horizontal=True, gap="small"):
            _actions(study_id, job)
    failed = int(study.rows()["error"].notna().sum())
    if not progress.complete or failed:
        words = f"Cells, and {some(failed, 'row')} without a number" if failed else "Cells"
        icon = ":material/error:" if failed else None
        with st.expander(words, icon=icon, key=f"study-cells-{study_id}"):
            _cells(study)


def _words(study: StudyReader, job: JobState | None) -> str:
    progress = study.progress()
    words = [
        f"{number(progress.examples_done)} of {some(progress.examples, 'prompt')}",
        f"{number(progress.cells_done)} of {some(progress.cells, 'row')}",
    ]
    if job is None:
        words.insert(0, "not started here")
    elif job.status == "running":
        words.insert(0, job.phase or "starting")
        if job.eta_s is not None:
            words.append(f"about {duration(job.eta_s)} left")
    elif job.status == "queued":
        words.insert(0, "waiting for other jobs")
    else:
        words.insert(0, {"done": "finished"}.get(job.status, job.status))
    return " · ".join(words)


def _actions(study_id: str, job: JobState | None) -> None:
    if job is None or job.finished:
        st.button(
            "Resume" if job is not None else "Start",
            icon=":material/play_arrow:",
            key="study-resume",
            on_click=_resume,
            args=(study_id,),
        )
        return
    st.button(
        "Pause",
        icon=":material/pause:",
        key="study-pause",
        help="The prompt in hand is finished; the rest waits.",
        on_click=_act,
        args=("pause", job.id),
    )
    st.button(
        "Cancelling" if job.cancelling else "Cancel",
        key="study-cancel",
        disabled=job.cancelling,
        help="Finished prompts stay and can be looked at; resuming goes on after them.",
        on_click=_act,
        args=("cancel", job.id),
    )


def _resume(study_id: str) -> None:
    try:
        backstage.jobs().submit(study_job(backstage.home(), study_id))
    except KVScopeError as error:
        st.toast(plain(error))


def _act(action: str, job_id: str) -> None:
    """The job may have ended in the meantime; then the sentence is shown instead."""
    try:
        getattr(backstage.jobs(), action)(job_id)
    except KVScopeError as error:
        st.toast(plain(error))


def _cells(study: StudyReader) -> None:
    """Finished prompts by policy and size, and why rows have no number."""
    rows = study.rows()
    if rows.empty:
        st.caption("The first prompt is not finished yet.")
        return
    size = "budget" if study.spec.get("budgets") else "ratio"
    rows = rows.assign(failed=rows["error"].notna(), size=rows[size].round(3))
    whole = study.progress().examples
    table = rows.groupby(["policy", "size"], sort=False, dropna=False).agg(
        prompts=("example_id", "nunique"), failed=("failed", "sum"), score=("score", "mean")
    )
    table = table.reset_index().rename(
        columns={"size": "share evicted" if size == "ratio" else "budget"}
    )
    st.dataframe(
        table.head(_SHOWN_CELLS),
        hide_index=True,
        placeholder="",
        column_config={
            "prompts": st.column_config.ProgressColumn(
                "prompts", min_value=0, max_value=max(1, whole), format="%d"
            ),
            "score": st.column_config.NumberColumn("mean score", format="%.3f"),
        },
    )
    reasons = rows.loc[rows["failed"], ["policy", "error"]]
    if not reasons.empty:
        st.markdown("**Rows without a number**")
        st.dataframe(_reasons(reasons), hide_index=True, placeholder="")


def _reasons(rows: pd.DataFrame) -> pd.DataFrame:
    return (
        rows.groupby(["policy", "error"], sort=False)
        .size()
        .rename("rows")
        .reset_index()
        .rename(columns={"error": "reason"})
    )
