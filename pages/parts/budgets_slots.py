"""The Budgets page's composite tokens: the matrix of a layer, and what a slot is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from analysis.composite_figures import ROWS
from analysis.figure import Figure
from cache_store.reader import CaptureInfo
from pages.parts import card, looks_budgets, paper_view, selection
from pages.parts.text import plain

if TYPE_CHECKING:
    from pages.parts.budgets_view import Look

HEIGHT = 520


def composite(look: Look) -> Figure | None:
    """The composite tokens of the layer; a click shows what a slot is made of."""
    context = look.info.context_length
    first, slot = slots(look.info)
    if len(look.runs) > 1:
        st.caption("The tokens behind a slot are a prompt's own: below is this run alone.")
    with st.grid(2, min_column_width=440):
        with st.container(gap="xsmall"):
            figure = paper_view.attempt(
                lambda: looks_budgets.composite_matrix(*look.scored, look.layer, first, slot),
                title=f"Composite tokens of layer {look.layer}",
                key="composite",
                run_id=look.run_id,
                link=look.link(),
                height=HEIGHT,
                on_cell=_take_slot,
            )
            if context > ROWS:
                pages = -(-context // ROWS)
                st.pagination(
                    pages,
                    key="slots_page",
                    on_change=_page,
                    default=first // ROWS + 1,
                )
        if figure is not None:
            _slot(look, slot)
    return figure


def slots(info: CaptureInfo) -> tuple[int, int]:
    """The URL's first slot of the matrix, and the slot whose tokens are listed."""
    last = max(0, info.context_length - 1)
    first = _whole("first", 0, last)
    return first, _whole("slot", first, last)


def _whole(key: str, usual: int, last: int) -> int:
    return int(
        paper_view.held(
            key,
            str(usual),
            lambda value: selection.is_step(value, 0, last),
            f"it goes from 0 to {last:,}",
        )
    )


def _page() -> None:
    first = (int(st.session_state["slots_page"]) - 1) * ROWS
    st.query_params["first"] = str(first)
    st.query_params.pop("slot", None)


def _take_slot(slot: int, kv_head: int) -> None:
    """From a click on the matrix."""
    st.query_params["slot"] = str(slot)
    st.session_state["kv_head"] = str(kv_head)


def _slot(look: Look, slot: int) -> None:
    table = looks_budgets.slot_table(*look.scored, look.layer, slot)
    with st.container(border=True, gap="xsmall", key="card-slot"):
        st.markdown(f"**Composite token {slot:,} of layer {look.layer}**")
        column = st.column_config
        st.dataframe(
            table,
            hide_index=True,
            placeholder="",
            alt=f"The original tokens of composite token {slot} in {len(table)} heads",
            column_config={
                "kv_head": column.NumberColumn("KV head", width=70),
                "position": column.NumberColumn("Position", format="localized", width=75),
                "token": column.TextColumn("Token", width=90),
                "text": column.TextColumn("In the text", width="large"),
            },
        )
        position = int(table["position"][table["kv_head"] == look.kv_head].iloc[0])
        before, token, after = looks_budgets.excerpt(look.run_id, position)
        st.caption(plain(f"What KV head {look.kv_head} puts in it, at position {position:,}:"))
        st.markdown(f"…{plain(before)} :red-background[{plain(token)}] {plain(after)}…")
        st.caption("A click on a cell of the matrix shows another composite token.")
        card.actions(lambda: table, key="slot", name=f"slot-{slot}", link_values=look.link())
