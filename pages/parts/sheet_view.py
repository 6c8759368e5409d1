"""The page of a figure sheet: which sheet, how it is set, its figures, and how to read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from analysis import sheet as sheets
from analysis.paper.venues import COLOUR_MAPS, FAMILIES, LEGENDS, VENUES
from analysis.sheet import Look, Sheet
from cache_store.errors import KVScopeError
from cache_store.sheets import MAIN
from pages.parts import backstage, selection, sheet_items, sheet_output
from pages.parts.jobs_view import ATTENTION
from pages.parts.paper_view import hold
from pages.parts.policy_slots import hold as keep
from pages.parts.sheet_add import SHEET, current
from pages.parts.text import plain, shorten

COLOURS = tuple(name for name in COLOUR_MAPS if name != "diverging")  # not for every figure at once
VENUES_OWN = "as the venue asks"
HOW_TO_READ = (
    "Every figure is drawn here as it will be printed: in the venue’s width and typeface, its text "
    "selectable in the PDF. The zip holds each figure as a PDF of its own, figures.tex with the "
    "same grid for LaTeX, the numbers as Parquet and CSV, where they come from, and redraw.py, "
    "which draws every figure again with nothing but matplotlib. All who use this library share "
    "its sheets."
)
_REFUSED = "sheet_refused"


def chosen() -> str:
    """The sheet of the URL; says so when it is not there."""
    asked, found = st.query_params.get(SHEET, MAIN), current()
    if asked != found:
        selection.notice(SHEET, f"There is no figure sheet {shorten(asked, 40)!r} here.")
    else:
        selection.forget_notice(SHEET)
    return found


def link_values(sheet_id: str) -> dict[str, Any]:
    return {"run": st.session_state.get("run"), SHEET: sheet_id}


def read(sheet_id: str) -> Sheet:
    """What the sheet says now. Raises KVScopeError."""
    return sheets.from_dict(backstage.sheets().read(sheet_id))


def change(sheet_id: str, edit: Callable[[Sheet], Sheet]) -> None:
    """From a callback: change what the sheet says, or keep the sentence why it cannot."""
    st.session_state.pop(_REFUSED, None)
    try:
        backstage.sheets().change(
            sheet_id, lambda told: sheets.to_dict(edit(sheets.from_dict(told)))
        )
    except KVScopeError as error:
        st.session_state[_REFUSED] = str(error)


def controls(sheet_id: str, sheet: Sheet) -> None:
    """Which sheet, and what all its figures share."""
    titles = {
        one: shorten(title or sheets.TITLE, 40)
        for one, title in backstage.sheets().titles().items()
    }
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.selectbox(
            "Sheet",
            list(titles),
            format_func=lambda one: titles.get(one, one),
            key="sheet_choice",
            on_change=hold(SHEET, "sheet_choice", sheet_id),
            width=220,
        )
        _choice(sheet_id, "Venue", "venue", list(VENUES), sheet.look, width=230)
        _choice(sheet_id, "Columns", "columns", _columns(sheet.look.venue), sheet.look, width=90)
        with st.popover("More", icon=":material/tune:"):
            _more(sheet_id, sheet)
    if refused := st.session_state.pop(_REFUSED, None):
        st.error(plain(refused))


def _columns(venue: str) -> list[int]:
    return list(range(1, sheets.most_columns(venue) + 1))


def _choice(
    sheet_id: str, label: str, name: str, options: list[Any], look: Look, **more: Any
) -> None:
    """A select box of one field of the look; "" stands for what the venue asks for."""
    key = f"sheet-{name}-{sheet_id}"
    keep(key, getattr(look, name) or "")

    def words(value: Any) -> str:
        return VENUES[value].label if name == "venue" else str(value or VENUES_OWN)

    def changed() -> None:
        value = st.session_state[key] or None
        change(sheet_id, lambda sheet: sheets.relooked(sheet, **{name: value}))

    st.selectbox(label, options, format_func=words, key=key, on_change=changed, **more)


def _more(sheet_id: str, sheet: Sheet) -> None:
    look = sheet.look
    usual = VENUES[look.venue]
    with st.container(horizontal=True):
        _choice(sheet_id, "Typeface", "family", ["", *FAMILIES], look, width=170)
        key = f"sheet-font-{sheet_id}"
        keep(key, look.font_pt)
        st.number_input(
            "Font (pt)",
            step=0.5,
            placeholder=f"{usual.font_pt:g}",
            key=key,
            on_change=lambda: change(
                sheet_id, lambda now: sheets.relooked(now, font_pt=st.session_state[key])
            ),
            width=120,
        )
    with st.container(horizontal=True):
        _choice(sheet_id, "Colours", "colour_map", list(COLOURS), look, width=170)
        _choice(sheet_id, "Legend", "legend", list(LEGENDS), look, width=120)
    with st.container(horizontal=True):
        _toggle(sheet_id, "Titles", "titles", look)
        _toggle(sheet_id, "Captions", "captions", look, help="Letters alone are left without.")
    _words(sheet_id, sheet)
    st.divider()
    _other_sheets(sheet_id, sheet)


def _toggle(sheet_id: str, label: str, name: str, look: Look, **more: Any) -> None:
    key = f"sheet-{name}-{sheet_id}"
    keep(key, getattr(look, name))
    st.toggle(
        label,
        key=key,
        on_change=lambda: change(
            sheet_id, lambda sheet: sheets.relooked(sheet, **{name: st.session_state[key]})
        ),
        **more,
    )


def _words(sheet_id: str, sheet: Sheet) -> None:
    """The name of the sheet, and the caption of the whole in LaTeX."""
    title, caption = f"sheet-title-{sheet_id}", f"sheet-whole-{sheet_id}"
    keep(title, sheet.title)
    keep(caption, sheet.caption)

    def changed() -> None:
        words = st.session_state[title], st.session_state[caption]
        change(sheet_id, lambda now: sheets.renamed(now, *words))

    st.text_input("Name of this sheet", key=title, max_chars=sheets.MAX_TITLE, on_change=changed)
    st.text_area(
        "Caption of the whole, for LaTeX",
        key=caption,
        max_chars=sheets.MAX_CAPTION,
        height=90,
        on_change=changed,
    )


def _other_sheets(sheet_id: str, sheet: Sheet) -> None:
    with st.container(horizontal=True):
        st.button("New sheet", icon=":material/add:", key="sheet-new", on_click=_create)
        if st.button("Delete this sheet", icon=":material/delete:", key="sheet-delete"):
            _delete(sheet_id, sheet.title, len(sheet.items))


def _create() -> None:
    """From the button: an empty sheet in the look of this one, and the page shows it."""
    try:
        names = set(backstage.sheets().titles().values())
        number = next(n for n in range(2, len(names) + 3) if f"{sheets.TITLE} {n}" not in names)
        fresh = Sheet(title=f"{sheets.TITLE} {number}")
        st.query_params[SHEET] = backstage.sheets().create(sheets.to_dict(fresh))
    except KVScopeError as error:
        st.session_state[_REFUSED] = str(error)


@st.dialog("Delete for good", on_dismiss="rerun")
def _delete(sheet_id: str, title: str, count: int) -> None:
    from pages.parts import jobs_view
    from pages.parts.text import some

    jobs_view.hold_for_dialog()
    st.text(f"“{shorten(title, 70)}” with {some(count, 'figure')}; the runs stay.")
    with st.container(horizontal=True):
        if st.button("Delete", type="primary", key="sheet-delete-confirmed"):
            try:
                backstage.sheets().delete(sheet_id)
            except KVScopeError as error:
                st.error(plain(error))
                return
            st.query_params.pop(SHEET, None)
            st.rerun()
        if st.button("Keep", key="sheet-keep"):
            st.rerun()


def show(sheet_id: str, sheet: Sheet) -> None:
    """The page as it will be printed, beside it the figures one by one."""
    if not sheet.items and not sheet.removed:
        st.markdown(
            "No figure is here yet. Below every figure of every page there is **Add to sheet**."
        )
        st.page_link(ATTENTION, label="Look at a figure", icon=":material/grid_on:")
        return
    columns = st.grid(2, min_column_width=420, gap="medium")
    left, right = columns.cell(), columns.cell()
    with right:
        sheet_items.show(sheet_id, sheet, change)
    with left:
        sheet_output.show(sheet_id, sheet)
    st.subheader("How to read it", anchor=False)
    st.markdown(plain(HOW_TO_READ))


def cannot_be_read(sheet_id: str, error: KVScopeError) -> None:
    """In place of the page: why, and the way out."""
    st.error(plain(error))
    if st.button("Delete this sheet", icon=":material/delete:", key="sheet-delete-damaged"):
        _delete(sheet_id, sheet_id, 0)
