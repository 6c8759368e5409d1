"""What comes out of a figure sheet: the page as it will be printed, and its files.

All of it is drawn in the small worker, so that nobody waits while somebody exports.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import streamlit as st

from analysis.sheet import Sheet
from analysis.sheet_job import KIND, export_name, params_of
from backend.jobs import JobSpec, JobState
from cache_store.errors import KVScopeError
from pages.parts import backstage, jobs_view
from pages.parts.text import plain, size

FILES = {  # form -> what the buttons call it, media type, icon
    "pdf": ("PDF", "application/pdf", ":material/picture_as_pdf:"),
    "zip": ("zip for LaTeX", "application/zip", ":material/folder_zip:"),
}
PREVIEW = "png"
POLL_S = 1.0
_LAST, _WANTED = "sheet_preview", "sheet_wanted"
_POLLING, _STALE = "sheet_polling", "sheet_stale"


def show(sheet_id: str, sheet: Sheet) -> None:
    """Buttons for the files, and the preview; it looks again while something is being drawn."""
    if not sheet.items:
        st.caption("The sheet is empty.")
        return
    _forget_stale()
    _ask_for_preview(sheet_id, sheet)
    waits = bool(_under_way(sheet_id, sheet))
    st.fragment(run_every=POLL_S if waits else None)(_output)(sheet_id, sheet, waits)


def _output(sheet_id: str, sheet: Sheet, waited: bool) -> None:
    if waited != bool(_under_way(sheet_id, sheet)):  # something was asked for here, or has ended
        st.rerun()
    with st.container(horizontal=True):
        for form in FILES:
            _file(sheet_id, sheet, form)
    for form in _wanted():
        _progress(sheet_id, sheet, form)
    _preview(sheet_id, sheet)


def _under_way(sheet_id: str, sheet: Sheet) -> list[str]:
    """The forms that are being made now."""
    states = {form: _state(_job(sheet_id, sheet, form)) for form in (PREVIEW, *_wanted())}
    return [form for form, state in states.items() if state is not None and not state.finished]


def _file(sheet_id: str, sheet: Sheet, form: str) -> None:
    """The button that makes a file or, when it is there, gives it."""
    name, mime, icon = FILES[form]
    path = _ready(sheet_id, sheet, form)
    if path is None:
        st.button(
            f"Make the {name}",
            icon=icon,
            key=f"sheet-make-{form}",
            on_click=_ask,
            args=(sheet_id, sheet, form),
        )
        return
    st.download_button(
        f"Download the {name} ({size(path.stat().st_size)})",
        data=path.read_bytes,
        file_name=f"kvscope-figures.{form}",
        mime=mime,
        icon=icon,
        type="primary",
        key=f"sheet-download-{form}",
        on_click="ignore",
    )


def _ask(sheet_id: str, sheet: Sheet, form: str) -> None:
    """From the button: a job, or the sentence why there is none."""
    wanted = st.session_state.setdefault(_WANTED, [])
    if form not in wanted:
        wanted.append(form)
    try:
        backstage.jobs().submit(_job(sheet_id, sheet, form))
    except KVScopeError as error:
        st.toast(plain(error))


def _progress(sheet_id: str, sheet: Sheet, form: str) -> None:
    """How far a file is that this reader asked for, or why it is not there."""
    state = _state(_job(sheet_id, sheet, form))
    if state is not None and _ready(sheet_id, sheet, form) is None:
        jobs_view.card(backstage.jobs(), state, where="sheet")


def _ask_for_preview(sheet_id: str, sheet: Sheet) -> None:
    """Have the page drawn that the sheet is now; the one that it was before is not needed."""
    job = _job(sheet_id, sheet, PREVIEW)
    if st.session_state.get(_POLLING) not in (None, job.id):
        _stop_the_last()
    if _ready(sheet_id, sheet, PREVIEW) is not None:
        return
    state = _state(job)
    stale = st.session_state.get(_STALE, [])
    if state is None or job.id in stale:
        if job.id in stale:
            stale.remove(job.id)
        backstage.jobs().submit(job)
        st.session_state[_POLLING] = job.id


def _preview(sheet_id: str, sheet: Sheet) -> None:
    """The page as it will be printed; until it is drawn, the last one and how far it is."""
    path, job = _ready(sheet_id, sheet, PREVIEW), _job(sheet_id, sheet, PREVIEW)
    state = _state(job)
    if path is not None:
        if state is not None and state.status == "done":
            with contextlib.suppress(KVScopeError):
                backstage.jobs().dismiss(state.id)
        st.session_state[_LAST] = str(path)
        _picture(path, sheet)
        return
    if state is not None and state.finished:
        st.caption(plain(state.error or "The preview was not drawn."))
        if st.button("Draw it again", key="sheet-redraw"):
            backstage.jobs().submit(job)
            st.rerun()
    else:
        share = state.done / state.total if state and state.total else 0.0
        st.progress(min(1.0, share), text="Drawing the page")
    last = Path(st.session_state.get(_LAST, ""))
    if last.is_file() and last.parent.parent.name == sheet_id:
        _picture(last, sheet)


def _picture(path: Path, sheet: Sheet) -> None:
    st.image(path.read_bytes(), width="stretch")
    width = sheet.look.style().width_in
    st.caption(plain(f"As it will be printed, {width:.3g} in wide."))


def _stop_the_last() -> None:
    """A preview of what the sheet was before is of no use any more."""
    before = st.session_state.pop(_POLLING, None)
    if before is not None:
        with contextlib.suppress(KVScopeError):  # it is over and forgotten
            backstage.jobs().cancel(before)
            st.session_state.setdefault(_STALE, []).append(before)


def _forget_stale() -> None:
    """Take previews that were cancelled out of the list of jobs."""
    for job_id in list(st.session_state.get(_STALE, ())):
        with contextlib.suppress(KVScopeError):
            if not backstage.jobs().get(job_id).finished:
                continue
            backstage.jobs().dismiss(job_id)
        st.session_state[_STALE].remove(job_id)


def _job(sheet_id: str, sheet: Sheet, form: str) -> JobSpec:
    what = FILES[form][0] if form in FILES else "preview"
    return JobSpec(KIND, params_of(sheet_id, sheet, form), f"{sheet.title}: {what}")


def _ready(sheet_id: str, sheet: Sheet, form: str) -> Path | None:
    """The file of a form, when it is made already."""
    name = export_name(params_of(sheet_id, sheet, form))
    path = backstage.sheets().export_path(sheet_id, name)
    return path if path.exists() else None


def _state(job: JobSpec) -> JobState | None:
    return next((state for state in backstage.jobs().jobs() if state.id == job.id), None)


def _wanted() -> list[str]:
    """The forms of files that this reader has asked for."""
    return list(st.session_state.get(_WANTED, ()))
