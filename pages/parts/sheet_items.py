"""The figures of a sheet one by one: their order, captions and sizes, and those taken out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import streamlit as st

from analysis import sheet as sheets
from analysis.paper.venues import LEGENDS
from analysis.sheet import Item, Sheet
from pages.parts.policy_slots import hold
from pages.parts.text import plain, shorten, some

Change = Callable[[str, Callable[[Sheet], Sheet]], None]
AS_SHEET = "as the sheet"


def show(sheet_id: str, sheet: Sheet, change: Change) -> None:
    """One box per figure; every change goes to the sheet at once."""
    for place, item in enumerate(sheet.items):
        with st.container(border=True, gap="xsmall", key=f"sheet-item-{sheets.letter(place)}"):
            _item(sheet, place, item, functools.partial(change, sheet_id))
    if sheet.removed:
        _removed(sheet, functools.partial(change, sheet_id))


def _item(
    sheet: Sheet, place: int, item: Item, change: Callable[[Callable[[Sheet], Sheet]], None]
) -> None:
    letter = sheets.letter(place)
    st.markdown(f"**({letter})** {plain(item.title, 120)}")
    caption = f"sheet-caption-{item.id}"
    hold(caption, item.caption)
    st.text_area(
        f"Caption of ({letter})",
        key=caption,
        max_chars=sheets.MAX_CAPTION,
        height="content",
        label_visibility="collapsed",
        placeholder="No caption",
        on_change=lambda: _set(change, item, caption=st.session_state[caption]),
    )
    with st.container(horizontal=True, gap="small"):
        st.button(
            "Up",
            icon=":material/arrow_upward:",
            type="tertiary",
            key=f"sheet-up-{item.id}",
            disabled=place == 0,
            on_click=change,
            args=(lambda now: sheets.moved(now, item.id, -1),),
        )
        st.button(
            "Down",
            icon=":material/arrow_downward:",
            type="tertiary",
            key=f"sheet-down-{item.id}",
            disabled=place == len(sheet.items) - 1,
            on_click=change,
            args=(lambda now: sheets.moved(now, item.id, 1),),
        )
        with st.popover(
            "Size", icon=":material/aspect_ratio:", type="tertiary", key=f"sheet-size-{item.id}"
        ):
            _size(sheet, item, change)
        if item.link:
            st.link_button(
                "Open the view", item.link, icon=":material/open_in_new:", type="tertiary"
            )
        st.button(
            "Remove",
            icon=":material/close:",
            type="tertiary",
            key=f"sheet-remove-{item.id}",
            on_click=change,
            args=(lambda now: sheets.without(now, item.id),),
        )


def _set(change: Callable[[Callable[[Sheet], Sheet]], None], item: Item, **fields: Any) -> None:
    change(lambda sheet: sheets.changed(sheet, item.id, **fields))


def _size(sheet: Sheet, item: Item, change: Callable[[Callable[[Sheet], Sheet]], None]) -> None:
    """What one figure may have apart from the sheet's look."""
    if sheet.look.columns > 1:
        wide = f"sheet-wide-{item.id}"
        hold(wide, item.wide)
        st.toggle(
            "Over all columns",
            key=wide,
            on_change=lambda: _set(change, item, wide=st.session_state[wide]),
        )
    height = f"sheet-height-{item.id}"
    hold(height, item.height_in)
    st.number_input(
        "Height (in)",
        step=0.25,
        placeholder="automatic",
        key=height,
        help="Figures side by side are as high as the highest of them.",
        on_change=lambda: _set(change, item, height_in=st.session_state[height]),
    )
    legend = f"sheet-legend-{item.id}"
    hold(legend, item.legend or "")
    st.selectbox(
        "Legend",
        ["", *LEGENDS],
        format_func=lambda value: value or AS_SHEET,
        key=legend,
        on_change=lambda: _set(change, item, legend=st.session_state[legend] or None),
    )


def _removed(sheet: Sheet, change: Callable[[Callable[[Sheet], Sheet]], None]) -> None:
    """What was taken out last, first; until then it can be put back."""
    with st.popover(
        f"{some(len(sheet.removed), 'figure')} removed", icon=":material/undo:", type="tertiary"
    ):
        for taken in reversed(sheet.removed):
            with st.container(horizontal=True, vertical_alignment="center"):
                st.text(shorten(taken.item.title, 60))
                st.button(
                    "Put back",
                    key=f"sheet-back-{taken.item.id}",
                    type="tertiary",
                    on_click=change,
                    args=(functools.partial(sheets.put_back, item_id=taken.item.id),),
                )
