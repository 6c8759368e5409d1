"""What a study will take, its specification as text, and starting it."""

from __future__ import annotations

import streamlit as st

from backend.study.estimate import StudyEstimate, estimate
from backend.study.spec import StudySpec
from backend.study.work import make_study, missing_set, study_job
from cache_store.errors import KVScopeError
from pages.parts import backstage, models_known, study_draft, study_list
from pages.parts.text import duration, number, plain, size


def show() -> None:
    """Counts and estimate of the draft, the start, and the specification as TOML."""
    try:
        spec = study_draft.spec()
        counted, refusals = _counts(spec)
    except KVScopeError as error:
        spec, counted, refusals = None, {}, [str(error)]
    with st.grid(5, min_column_width=110, gap="xsmall"):
        for name in ("Prompts", "Cells per prompt", "Rows", "Time, about", "Memory"):
            _fact(name, counted.get(name, "–"))
    for sentence in refusals:
        st.error(plain(sentence))
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "Start the study",
            type="primary",
            icon=":material/play_arrow:",
            key="study-start",
            disabled=spec is None or bool(refusals),
            on_click=_start,
        )
        if spec is not None:
            st.download_button(
                "Specification",
                data=spec.to_toml(),
                file_name="study.toml",
                mime="application/toml",
                icon=":material/download:",
                on_click="ignore",
                key="study-toml",
            )
    failed = st.session_state.pop("study_refused", None)
    if failed:
        st.error(plain(failed))
    with st.expander("As text (TOML)"):
        _as_text(spec)


def _as_text(spec: StudySpec | None) -> None:
    """The specification to read, to keep and to paste; the command runs the same file."""
    st.caption("The same file runs without the page: `python -m backend study study.toml`.")
    if spec is None:
        st.caption("The form holds the mistake named above; a text that is used here replaces it.")
    text = st.text_area(
        "Specification",
        spec.to_toml() if spec is not None else "",
        height=260,
        key=study_draft.key(f"text-{hash(spec.to_json()) if spec is not None else 0}"),
        label_visibility="collapsed",
    )
    st.button("Use this text", key="study-use-text", on_click=_use_text, args=(text,))
    problem = st.session_state.pop("study_text_refused", None)
    if problem:
        st.error(plain(problem))


def _use_text(text: str) -> None:
    try:
        study_draft.replace(StudySpec.from_toml(text).to_dict())
    except KVScopeError as error:
        st.session_state["study_text_refused"] = str(error)


@st.cache_data(max_entries=16, show_spinner=False)
def _expected(spec: str, sets: dict[str, bytes]) -> StudyEstimate:
    parsed = StudySpec.from_json(spec)
    return estimate(parsed, sets, models_known.facts(parsed.model))


def _counts(spec: StudySpec) -> tuple[dict[str, str], list[str]]:
    """Prompts, cells and rows, what they will take, and what stands in the way."""
    expected = _expected(spec.to_json(), study_draft.sets())
    found = {
        "Prompts": number(expected.examples),
        "Cells per prompt": number(len(spec.cells())),
        "Rows": number(expected.cells),
        "Time, about": duration(expected.seconds),
        "Memory": size(expected.memory_bytes),
    }
    missing = [name for name in spec.sets if name not in study_draft.sets()]
    if missing:
        return found, [missing_set(missing[0])]
    return found, list(expected.refusals[:1])


def _start() -> None:
    """From the button: keep the study, queue it, and show it."""
    try:
        study_id = make_study(backstage.home(), study_draft.spec(), study_draft.sets())
        backstage.jobs().submit(study_job(backstage.home(), study_id))
    except KVScopeError as error:
        st.session_state["study_refused"] = str(error)
        return
    study_list.open_study(study_id)


def _fact(name: str, value: str) -> None:
    with st.container(gap=None, key=f"study-fact-{name.split()[0].lower().rstrip(',')}"):
        st.caption(name)
        st.text(value)
