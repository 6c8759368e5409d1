"""The parts of the Recurrence page: its controls and its four panels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from analysis.figure import Figure, Note
from analysis.recurrence import COUNTS, NO_RESPONSE, SHARE, alpha_advice
from analysis.text_figures import attention_figure
from cache_store.errors import KVScopeError
from cache_store.reader import CaptureInfo
from pages.parts import (
    card,
    eviction_view,
    looks_recurrence,
    paper_view,
    recurrence_decisions,
    selection,
)
from pages.parts.looks_recurrence import Alpha
from pages.parts.text import number, plain, some
from pages.parts.token_text import token_text

ALPHA = "0.0005"  # the paper's
_NUMBERS = [f"{part * 10.0**power:g}" for power in range(-5, -1) for part in (1, 1.5, 2, 3, 5, 7)]
_MULTIPLES = [f"{value:g}/n" for value in (0.5, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100)]
_COUNTS = dict(zip(("birth", "first activation"), COUNTS, strict=True))


@dataclass(frozen=True)
class Look:
    """Everything the page shows, as chosen by the reader; all of it is in the URL."""

    run_id: str
    info: CaptureInfo
    runs: tuple[str, ...]
    layer: int
    kv_head: int
    step: int
    alpha_text: str
    counted: str
    panel: str

    @property
    def alpha(self) -> Alpha:
        return self.alpha_text if self.alpha_text.endswith("/n") else float(self.alpha_text)

    @property
    def count(self) -> str:
        return _COUNTS[self.counted]

    @property
    def head(self) -> tuple[str, int, int, Alpha]:
        return self.run_id, self.layer, self.kv_head, self.alpha

    def link(self, **more: Any) -> dict[str, Any]:
        own = ("budget", "unit", "w", "term", "h1", "h2", "page", "p1", "p2", "p3", "p4")
        return {
            "run": self.run_id,
            "with": list(self.runs[1:]) or None,
            "layer": self.layer,
            "kv_head": self.kv_head,
            "step": self.step,
            "alpha": self.alpha_text,
            "counted": self.counted,
            "recurrence": self.panel,
            **{key: st.query_params.get(key) for key in own},
            **more,
        }


def controls(run_id: str, info: CaptureInfo) -> Look:
    """One row of controls with the window that α proposes, and which panel is shown."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        layer, kv_head = eviction_view.layer_and_head(run_id, info)
        alpha = _alpha()
        proposed = st.container(width=170)
        step = eviction_view.step_after(info)
        with st.popover("More", icon=":material/tune:"):
            counted = selection.segment("Intervals are counted from", "counted", list(_COUNTS))
            relative = alpha.endswith("/n")
            st.button(
                "α as a number" if relative else "α as a multiple of uniform attention",
                key="alpha-kind",
                on_click=_set_alpha,
                args=(ALPHA if relative else "3/n",),
            )
            runs = paper_view.pooled_runs(run_id, info)
    recurrence_decisions.asked_window(info)
    panel = selection.segment("Show", "recurrence", list(PANELS), label_visibility="collapsed")
    look = Look(run_id, info, runs, layer, kv_head, step, alpha, counted, panel)
    if info.response_length:
        with proposed:
            _window(look)
        advice = alpha_advice(look.alpha, info.length)
        if advice:
            with st.container(horizontal=True, vertical_alignment="center"):
                st.caption(plain(advice), width="stretch")
                st.button("Take 3/n", key="alpha-advice", on_click=_set_alpha, args=("3/n",))
    return look


def _alpha() -> str:
    text = paper_view.held("alpha", ALPHA, _is_alpha, "it is a number up to 1, or such as 3/n")
    relative = text.endswith("/n")
    options = list(_MULTIPLES if relative else _NUMBERS)
    if text not in options:
        options = sorted({*options, text}, key=lambda value: float(value.removesuffix("/n")))
    widget = "alpha_multiple" if relative else "alpha_number"
    st.select_slider(
        "α: attention that counts as active",
        options,
        key=widget,
        on_change=paper_view.hold("alpha", widget, text),
        help="Logarithmic. n is the number of entries that a step can see.",
    )
    return text


def _is_alpha(text: str) -> bool:
    try:
        value = float(text.removesuffix("/n"))
    except ValueError:
        return False
    return math.isfinite(value) and value > 0 and (text.endswith("/n") or value <= 1)


def _set_alpha(text: str) -> None:
    st.query_params["alpha"] = text


def _window(look: Look) -> None:
    """The W that the rule proposes, live."""
    found = looks_recurrence.pooled(look.runs, look.alpha, look.count)
    window = found.window()
    share = found.share_above_one
    recur = "no token active" if window is None else f"{number(share * 100)} % recur"
    st.metric(
        "Proposed W",
        "–" if window is None else some(window, "step"),
        delta=recur,
        delta_color="off",
        delta_arrow="off",
        help=f"The longest silence of {SHARE:.0%} of the tokens that were ever active, over all "
        "layers and KV heads; below it the share with MRI > 1.",
    )


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
        lambda: looks_recurrence.mri(look.runs, "mri_cdf", look.alpha, look.count),
    )


def tokens(look: Look) -> dict[str, Figure | None]:
    """The map with numbered tokens, the text, when each token was active."""
    figures: dict[str, Figure | None] = {}
    with st.grid(2, min_column_width=440):
        figures["The map"] = _figure(
            look,
            "Tokens that come back",
            "map",
            lambda: looks_recurrence.attention_map(*look.head, look.count, look.step),
        )
        figures["The window W"] = _cdf(look)
    _text(look)
    with st.grid(2, min_column_width=440):
        figures["Activations"] = _figure(
            look,
            "When tokens are active",
            "raster",
            lambda: looks_recurrence.activation_raster(*look.head, look.count),
            height=740,
        )
        _table(look)
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
    with st.grid(2, min_column_width=440):
        figures["Distribution"] = _figure(
            look,
            "How long tokens stay silent",
            "mri-histogram",
            lambda: looks_recurrence.mri(look.runs, "mri_histogram", look.alpha, look.count),
        )
        _cdf(look)
        for measure in ("share", "window"):
            _figure(
                look,
                "By layer and KV head",
                f"mri-{measure}",
                lambda measure=measure: looks_recurrence.mri_by_head(  # type: ignore[misc]
                    look.runs, measure, look.alpha, look.count, (look.layer, look.kv_head)
                ),
                on_cell=eviction_view.go,
            )
    if len(looks_recurrence.response_layers(look.run_id)) < look.info.layers:
        st.caption("The response is long: the distributions are over evenly spread layers.")
    return figures


PANELS: dict[str, Callable[[Look], dict[str, Figure | None]]] = {
    "Tokens that come back": tokens,
    "Which window": window,
    "The score": recurrence_decisions.scores,
    "What is evicted": recurrence_decisions.evictions,
}


def show(look: Look) -> dict[str, str | Note]:
    if look.info.response_length == 0:
        st.markdown(plain(NO_RESPONSE))
        return {}
    return paper_view.notes_of(PANELS[look.panel](look))
