"""What can be done with runs: open, rename, export, delete, and bring one in."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import BinaryIO

import pandas as pd
import streamlit as st

from cache_store.errors import KVScopeError
from pages.parts import backstage, frame, jobs_view, run_table
from pages.parts.jobs_view import ATTENTION
from pages.parts.text import plain, shorten, size, some

_POPOVER, _IMPORTED, _IMPORTS, _REFUSED = "import", "imported", "imports", "import_refused"


def row(chosen: pd.DataFrame) -> None:
    """The actions on the selected runs, or what to select."""
    if chosen.empty:
        st.caption("Tick a row to open, rename, export or delete it; tick two to compare them.")
        return
    readable = chosen[chosen["error"].isna()]
    one = chosen.iloc[0] if len(chosen) == 1 else None
    with st.container(horizontal=True, vertical_alignment="center"):
        if one is not None and len(readable) == 1:
            st.page_link(
                ATTENTION, label="Open", icon=":material/grid_on:", query_params={"run": one["id"]}
            )
            if st.button("Rename and tag", icon=":material/edit:"):
                _rename(one)
            st.download_button(
                "Export",
                data=lambda: _zip(str(one["id"])),
                file_name=f"kvscope-{one['id']}.zip",
                mime="application/zip",
                icon=":material/archive:",
                on_click="ignore",
            )
        if st.button("Delete", icon=":material/delete:"):
            _delete(chosen)
        st.caption(f"{some(len(chosen), 'run')} selected", width="content")


def import_popover() -> None:
    """A run that was exported, or a bare capture file."""
    key = f"import_file_{st.session_state.get(_IMPORTS, 0)}"
    with st.popover("Import", icon=":material/upload:", key=_POPOVER, on_change="rerun"):
        file = st.file_uploader(
            "A run exported by KVScope (.zip) or a capture file (.duckdb)",
            type=["zip", "duckdb"],
            key=key,
        )
        if file is None:
            return
        st.button("Import this file", type="primary", on_click=_import, args=(key,))
        refused = st.session_state.get(_REFUSED)
        if refused and refused[0] == file.file_id:
            st.error(plain(refused[1]))


def say_imported() -> None:
    """Once, after an import: which run is there now."""
    run_id = st.session_state.pop(_IMPORTED, None)
    if run_id is not None:
        title = backstage.capture(run_id).info.title or run_id
        st.success(
            plain(f"Imported “{shorten(title, 60)}”. It is the run in the sidebar now."),
            icon=":material/check:",
        )


def _import(key: str) -> None:
    """From the button: on success the popover closes and its uploader is empty again."""
    file = st.session_state.get(key)
    if file is None:
        return
    try:
        run_id = backstage.library().import_file(file, file.name)
    except KVScopeError as error:
        st.session_state[_REFUSED] = (file.file_id, str(error))
        return
    st.session_state[_IMPORTED] = run_id
    st.session_state[_IMPORTS] = st.session_state.get(_IMPORTS, 0) + 1
    st.session_state[_POPOVER] = False
    frame.show_run(run_id)


@st.dialog("Rename and tag", on_dismiss="rerun")
def _rename(run: pd.Series) -> None:
    jobs_view.hold_for_dialog()
    title = st.text_input("Title", value=run["title"] or "", max_chars=200)
    tags = st.multiselect(
        "Tags",
        sorted({*run["tags"], *(tag for tags in backstage.runs()["tags"] for tag in tags)}),
        default=list(run["tags"]),
        accept_new_options=True,
        placeholder="Type a tag and press Enter",
    )
    if st.button("Save", type="primary"):
        try:
            backstage.library().set_title(run["id"], title or "")
            backstage.library().set_tags(run["id"], tags)
        except KVScopeError as error:
            st.error(plain(error))
            return
        st.rerun()


@st.dialog("Delete for good", on_dismiss="rerun")
def _delete(chosen: pd.DataFrame) -> None:
    jobs_view.hold_for_dialog()
    total = size(chosen["file_bytes"].sum())
    them = "it" if len(chosen) == 1 else "them"
    st.text(f"{some(len(chosen), 'run')}, {total}, with everything computed from {them}:")
    for title, run_id in zip(chosen["title"], chosen["id"], strict=True):
        st.text(f"· {shorten(title or run_id, 70)}")
    st.caption("There is no way back. An exported zip can be imported again.")
    with st.container(horizontal=True):
        if st.button("Delete", type="primary", key="delete_confirmed"):
            try:
                for run_id in chosen["id"]:
                    backstage.library().delete(run_id)
            except KVScopeError as error:
                st.error(plain(error))
                return
            run_table.pick([])
            if st.session_state.get("run") in set(chosen["id"]):
                frame.show_run(None)
            st.rerun()
        if st.button("Keep"):
            st.rerun()


def _zip(run_id: str) -> BinaryIO:
    """The run as one zip, in a file that disappears when it has been sent."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.zip"
        backstage.library().export_zip(run_id, path)
        return path.open("rb")
