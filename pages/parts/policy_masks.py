"""Keep-masks from another tool: taken in once, then compared like a policy."""

from __future__ import annotations

import streamlit as st

from cache_store.reader import CaptureInfo
from pages.parts import jobs_view

_ASKED = "masks_asked_for"


def ask(index: int) -> None:
    """From a callback: the reader wants keep-masks in this place."""
    st.session_state[_ASKED] = index


def dialog_if_asked(info: CaptureInfo) -> None:
    """Open the dialog once when the reader asked for it."""
    index = st.session_state.pop(_ASKED, None)
    if index is not None:
        _dialog(index, info)


@st.dialog("Keep-masks from another tool")
def _dialog(index: int, info: CaptureInfo) -> None:
    jobs_view.hold_for_dialog()
    st.caption(
        "A file of kept entries, one per row: the columns layer, head, position and, if the masks "
        "change while decoding, step."
    )
