"""The Recurrence page's panels on the tokens that come back, and on the window they propose."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import streamlit as st

from analysis.figure import Figure
from analysis.recurrence import COUNTS
from analysis.text_figures import attention_figure
from cache_store.errors import KVScopeError
from pages.parts import card, eviction_view, looks_recurrence, paper_view, selection
from pages.parts.text import number, plain
from pages.parts.token_text import token_text

if TYPE_CHECKING:
    from pages.parts.recurrence_view import Look

MAPS = {"attention": "attention_map", "important positions": "important_map"}
COUNTED = dict(zip(("birth", "first activation"), COUNTS, strict=True))


def _figure(
    look: Look, title: str, key: str, make: Callable[[], Figure], **more: Any
) -> Figure | None:
    return paper_view.attempt(
        make, title=title, key=key, run_id=look.run_id, link=look.link(), **more
    )


def _cdf(look: Look) -> Figure | None:
    return _figure(
        look,
        "Share of tokens that a window covers",
        "mri-cdf",
        lambda: looks_recurrence.mri(look.runs, "mri_cdf", look.alpha, look.count, look.share),
    )


def tokens(look: Look) -> dict[str, Figure | None]:
    """The map with numbered tokens, the text, when each token was active."""
    figures: dict[str, Figure | None] = {}
    shows = selection.segment("The map shows", "shows", list(MAPS))
    with st.grid(2, min_column_width=440):
        figures["The map"] = _figure(
            look,
            "Tokens that come back",
            "map",
            lambda: looks_recurrence.step_map(MAPS[shows], *look.head, look.count, look.step),
        )
        figures["The window W"] = _cdf(look)
    _text(look)
    _table(look)
    figures["Activations"] = _figure(
        look,
        "When tokens are active",
        "raster",
        lambda: looks_recurrence.activation_raster(*look.head, look.count),
        height=740,
    )
    return figures


def _text(look: Look) -> None:
    page = st.query_params.get("page")
    asked = int(page) - 1 if page is not None and page.isdecimal() else None
    try:
        shown = looks_recurrence.numbered_text(*look.head, look.count, look.step, asked)
    except KVScopeError:
        shown = looks_recurrence.numbered_text(*look.head, look.count, look.step, None)
    with st.container(border=True, gap="xsmall", key="card-text"):
        st.markdown("**The same tokens in the text**")
        token_text(
            shown,
            key="recurring-text",
            log=True,
            hide_sink=False,
            sink=look.info.sink,
            dark=card.theme() == "dark",
            on_step=lambda step: selection.go_to_step("step", max(0, step)),
        )
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(plain(shown.caption), width="stretch")
            if shown.pages > 1:
                selection.settle_page(shown.pages)
                st.pagination(shown.pages, default=shown.page + 1, key="page", bind="query-params")
        place = f"layer {look.layer}, KV head {look.kv_head}"
        figure = attention_figure(shown, f"Recurring tokens, {place}, step {look.step}", log=True)
        card.actions(
            figure.table, key="recurring-text", name="text", link_values=look.link(), figure=figure
        )


def _table(look: Look) -> None:
    table = looks_recurrence.recurring_table(*look.head, look.count)
    with st.container(border=True, gap="xsmall", key="card-recurring"):
        st.markdown("**The numbered tokens**")
        if table.empty:
            st.caption("No token of this head came back at this α; choose a smaller one.")
            return
        column = st.column_config
        st.dataframe(
            table,
            hide_index=True,
            placeholder="",
            alt=f"The {len(table)} tokens whose return drew most attention",
            column_config={
                "number": column.TextColumn("No.", width=45),
                "position": column.NumberColumn("Position", format="localized", width=75),
                "token": column.TextColumn("Token", width=90),
                "segment": column.TextColumn("Part", width=80),
                "returned": column.NumberColumn("Back at step", width=90),
                "pause": column.NumberColumn("Pause", help="steps", width=65),
                "weight": column.NumberColumn("Attention then", format="%.2g", width=105),
                "activations": column.NumberColumn("Times active", width=90),
            },
        )
        card.actions(lambda: table, key="recurring", name="recurring", link_values=look.link())


def window(look: Look) -> dict[str, Figure | None]:
    """The distribution of MRI over everything, and by layer and head."""
    figures: dict[str, Figure | None] = {}
    st.caption(plain(_both_counts(look)))
    with st.grid(2, min_column_width=440):
        figures["Distribution"] = _figure(
            look,
            "How long tokens stay silent",
            "mri-histogram",
            lambda: looks_recurrence.mri(
                look.runs, "mri_histogram", look.alpha, look.count, look.share
            ),
        )
        _cdf(look)
        for measure in ("share", "window"):
            figures["By layer and head"] = _figure(
                look,
                "By layer and KV head",
                f"mri-{measure}",
                lambda measure=measure: looks_recurrence.mri_by_head(  # type: ignore[misc]
                    look.runs,
                    measure,
                    look.alpha,
                    look.count,
                    look.share,
                    (look.layer, look.kv_head),
                ),
                on_cell=eviction_view.go,
            )
    if any(len(looks_recurrence.response_layers(run)) < look.info.layers for run in look.runs):
        st.caption("The response is long: the distributions are over evenly spread layers.")
    return figures


def _both_counts(look: Look) -> str:
    """What counting from a token's birth or from its first activation makes of the share."""
    told = []
    for words, count in COUNTED.items():
        found = looks_recurrence.pooled(look.runs, look.alpha, count)
        if not found.tokens:
            return "No token was ever active at this α."
        share, window = number(found.share_above_one * 100), found.window(look.share)
        told.append(f"counted from {words}, {share} % recur and W = {window}")
    return (
        f"Prompt tokens begin at step 0, so a first activation already ends an interval: "
        f"{'; '.join(told)}."
    )
