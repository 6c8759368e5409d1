"""Which study is shown, and what can be done with it."""

from __future__ import annotations

import io
from typing import Any

import streamlit as st

from backend.study.spec import StudySpec
from cache_store.errors import KVScopeError
from cache_store.study import StudyReader, delete_study, export_study, studies
from cache_store.study_files import study_folder
from pages.parts import backstage, selection, study_draft
from pages.parts.text import clock, plain, shorten, some

NEW = "new"
BEHIND = ("example", "study_depth", "study_length")  # which of the prompts; in no control
OF_ONE_STUDY = ("study_task", "study_needle", "study_size", "study_policy", "study_policies")
_CHOICE = "study_choice"


@st.cache_resource(max_entries=8, show_spinner=False)
def _reader(folder: str, complete: bool) -> StudyReader:
    """Kept while the study runs, so that finished prompts are read once."""
    return StudyReader(folder)


def reader(study_id: str) -> StudyReader:
    """Raises StoreError where there is no such study."""
    folder = study_folder(backstage.home(), study_id)
    return _reader(str(folder), StudyReader(folder).complete)


def pick() -> str:
    """The study in the URL, the newest one, or NEW: the picker, and what can be done with it."""
    found = studies(backstage.home())
    ids = [study.id for study in found]
    asked = st.query_params.get("study")
    shown = asked if asked in (*ids, NEW) else (ids[0] if ids else NEW)
    if asked not in (None, shown):
        selection.notice(
            "study", f"This library has no study {shorten(asked, 20)!r}. Shown is another one."
        )
    elif asked is not None:
        selection.forget_notice("study")
    names = {
        study.id: f"{shorten(study.title, 50)} · {clock(study.created_at)}" for study in found
    } | {NEW: "New study …"}
    st.session_state[_CHOICE] = shown
    st.selectbox(
        "Study",
        [NEW, *ids],
        format_func=lambda study_id: names.get(study_id, study_id),
        key=_CHOICE,
        on_change=_picked,
    )
    if shown != NEW:
        _actions(reader(shown))
    return shown


def _picked() -> None:
    open_study(st.session_state[_CHOICE])


def open_study(study_id: str) -> None:
    """From a callback: show this study, or the form of a new one. What was chosen of another
    study's tasks, sizes and policies may not be there."""
    if study_id != st.query_params.get("study"):
        for name in (*BEHIND, *OF_ONE_STUDY):
            st.query_params.pop(name, None)
            st.session_state.pop(name, None)
    st.query_params["study"] = study_id


def _actions(study: StudyReader) -> None:
    st.button(
        "Clone and change",
        icon=":material/content_copy:",
        key="study-clone",
        on_click=_clone,
        args=(study.id,),
    )
    with st.popover("Download", icon=":material/download:", key="study-download"):
        spec = StudySpec.from_dict(study.spec)
        _download("Specification (TOML)", spec.to_toml, f"{study.id}.toml", "application/toml")
        _download(
            "Rows (CSV)", lambda: study.rows().to_csv(index=False), f"{study.id}.csv", "text/csv"
        )
        _download("Everything (zip)", lambda: _zip(study), f"{study.id}.zip", "application/zip")
    with st.popover("Delete", icon=":material/delete:", type="tertiary", key="study-delete"):
        count = study.progress().examples_done
        st.caption(plain(f"{study.title}: {some(count, 'finished prompt')} would be lost."))
        st.button("Delete this study", key="study-delete-now", on_click=_delete, args=(study.id,))


def _download(label: str, data: Any, name: str, mime: str) -> None:
    st.download_button(
        label,
        data=data,
        file_name=f"kvscope-study-{name}",
        mime=mime,
        on_click="ignore",
        type="tertiary",
        key=f"study-download-{mime}",
    )


def _zip(study: StudyReader) -> bytes:
    buffer = io.BytesIO()
    export_study(study.folder, buffer)
    return buffer.getvalue()


def _clone(study_id: str) -> None:
    """The form with this study's specification; its sets come along."""
    study = reader(study_id)
    study_draft.replace({**study.spec, "title": f"{study.title}, changed"})
    for name in StudySpec.from_dict(study.spec).sets:
        from cache_store.study_files import read_set_file

        study_draft.sets()[name] = read_set_file(study.folder, name)
    open_study(NEW)


def _delete(study_id: str) -> None:
    from backend.study.work import study_job

    try:
        job = study_job(backstage.home(), study_id)
        jobs = backstage.jobs()
        if any(state.id == job.id and not state.finished for state in jobs.jobs()):
            jobs.cancel(job.id)
        delete_study(backstage.home(), study_id)
    except KVScopeError as error:
        st.toast(plain(error))
        return
    open_study(NEW)
