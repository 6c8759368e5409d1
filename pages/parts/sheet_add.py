"""The action "Add to sheet" of every figure, and which sheet is meant."""

from __future__ import annotations

from typing import Any

import streamlit as st

from analysis import sheet as sheets
from analysis.figure import Figure
from analysis.figure_file import to_json
from analysis.sources import with_sources
from cache_store.errors import KVScopeError
from cache_store.sheets import MAIN, figure_name
from pages.parts import backstage, selection
from pages.parts.text import plain

SHEET = "sheet"  # in the URL, so that it goes from page to page


def button(figure: Figure, *, key: str, link_values: dict[str, Any]) -> None:
    """Pressed, the figure as it is now goes to the end of the sheet."""
    st.button(
        "Add to sheet",
        icon=":material/library_add:",
        type="tertiary",
        key=f"{SHEET}-{key}",
        on_click=_pressed,  # before the page runs: a run that is cut short must not lose it
        args=(figure, selection.link(link_values)),
    )


def _pressed(figure: Figure, link: str) -> None:
    try:
        sheet = add(figure, link)
    except KVScopeError as error:
        st.toast(plain(error), icon=":material/info:")
        return
    letter = sheets.letter(len(sheet.items) - 1)
    st.toast(plain(f"In the sheet “{sheet.title}” as ({letter})."), icon=":material/check:")


def add(figure: Figure, link: str) -> sheets.Sheet:
    """Put a figure into the current sheet; returns the sheet. Raises KVScopeError."""
    content = to_json(with_sources(figure, backstage.capture))
    item = sheets.item_of(figure, figure_name(content), link)

    def edit(told: dict[str, Any]) -> dict[str, Any]:
        return sheets.to_dict(sheets.added(sheets.from_dict(told), item))

    return sheets.from_dict(backstage.sheets().change(current(), edit, content))


def current() -> str:
    """The id of the sheet in the URL; one that is not there is the main one."""
    asked = st.query_params.get(SHEET, MAIN)
    return asked if asked == MAIN or asked in backstage.sheets().titles() else MAIN
