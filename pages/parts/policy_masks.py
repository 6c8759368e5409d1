"""Keep-masks from another tool: taken in once, then compared like a policy."""

from __future__ import annotations

import streamlit as st

from backend.masks import COLUMNS, MaskSet, delete_masks, import_masks, mask_sets
from cache_store.errors import KVScopeError
from pages.parts import backstage, jobs_view, policy_slots
from pages.parts.text import number, plain, some

_ASKED = "masks_asked_for"


def ask(index: int) -> None:
    """From a callback: the reader wants keep-masks in this place."""
    st.session_state[_ASKED] = index


def dialog_if_asked(run_id: str) -> None:
    """Open the dialog once when the reader asked for it."""
    index = st.session_state.pop(_ASKED, None)
    if index is not None:
        _dialog(index, run_id)


@st.cache_data(max_entries=64, show_spinner=False)
def label(run_id: str, source: str) -> str:
    """What the reader's file was called, and how much it says."""
    known = {item.source: item for item in mask_sets(backstage.capture(run_id))}
    return _words(known[source]) if source in known else "not imported for this run"


def _words(item: MaskSet) -> str:
    steps = f", {some(item.steps, 'step')}" if item.steps > 1 else ""
    return f"{item.label} ({number(item.rows)} kept entries{steps})"


@st.dialog("Keep-masks from another tool")
def _dialog(index: int, run_id: str) -> None:
    jobs_view.hold_for_dialog()
    st.caption(
        f"An .npz or Parquet file with one row per kept entry: {', '.join(COLUMNS[:3])}, and "
        f"{COLUMNS[3]} where the masks change while decoding. Heads are KV heads, positions count "
        "from 0, step 0 is the end of the prompt."
    )
    file = st.file_uploader("File of keep-masks", type=["npz", "parquet"], key="masks_file")
    if file is not None:
        _take_in(index, run_id, file.name, file.getvalue())
    known = mask_sets(backstage.capture(run_id))
    if known:
        st.markdown("**Imported before**")
    for item in known:
        with st.container(horizontal=True, vertical_alignment="center", wrap=False):
            st.caption(plain(_words(item), 80), width="stretch")
            if st.button("Compare", key=f"masks-{item.source}"):
                _show(index, item.source)
            if st.button("Delete", key=f"masks-delete-{item.source}", type="tertiary"):
                delete_masks(backstage.home(), run_id, item.source)
                label.clear()
                st.rerun(scope="fragment")


def _take_in(index: int, run_id: str, name: str, data: bytes) -> None:
    backstage.heavy_imports()
    try:
        source = import_masks(backstage.home(), run_id, name, data)
    except KVScopeError as error:
        st.error(plain(error))
        return
    label.clear()
    _show(index, source)


def _show(index: int, source: str) -> None:
    """Close the dialog with these masks in the place that was asked for."""
    policy_slots.replace(index, {"masks": source})
    st.rerun()
