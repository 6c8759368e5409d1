"""The parts of the Attention page: its controls and one function per figure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import streamlit as st

from analysis.errors import NeedsJob
from analysis.figure import Figure, Note
from analysis.rows import MEAN, MEASURES, Selection
from analysis.text_figures import attention_figure
from analysis.words import selection_words
from cache_store.reader import CaptureInfo
from pages.parts import card, looks, selection, waiting
from pages.parts.text import plain
from pages.parts.token_text import token_text

PAGE_TOKENS = 1500
_MASSES = ("sink_mass", "recent_mass", "top1_mass", "far_top1_mass")
_HEIGHT = 420
TEXT_WORDS = (
    "The outlined token is the query of the step; the darker a token, the more the query attends "
    "to it. The shades mean the same on every step and head, so that they can be compared; tokens "
    "after the query are faded because it cannot see them."
)


@dataclass(frozen=True)
class Look:
    """Everything the page shows, as chosen by the reader; all of it is in the URL."""

    run_id: str
    info: CaptureInfo
    measure: str
    layer: Selection
    head: Selection
    step: int
    queries: tuple[int, int]
    keys: tuple[int, int]
    pool: str
    log: bool
    hide_sink: bool
    at_step: bool

    def link(self) -> dict[str, Any]:
        whole = (0, self.info.length)
        return {
            "run": self.run_id,
            "measure": MEASURES[self.measure],
            "layer": self.layer,
            "head": self.head,
            "step": self.step,
            "q": None if self.queries == whole else (self.queries[0], self.queries[1] - 1),
            "k": None if self.keys == whole else (self.keys[0], self.keys[1] - 1),
            "pool": self.pool,
            "scale": "log" if self.log else "linear",
            "sink": "hidden" if self.hide_sink else "shown",
            "when": "this step" if self.at_step else "all steps",
            "page": st.session_state.get("page"),
            "from": st.session_state.get("from"),
            "as": st.session_state.get("as"),
        }


def controls(run_id: str, info: CaptureInfo) -> Look:
    """One row of controls; the rare ones behind "More"."""
    layers = [MEAN, *(str(layer) for layer in range(info.layers))]
    heads = [MEAN, *(str(head) for head in range(info.query_heads))]
    best = looks.first_look(run_id)
    last = info.response_length
    selection.settle_page(math.ceil(info.length / PAGE_TOKENS))
    first = max(1 - info.prompt_length, 1 - info.window)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        label = selection.choice(
            "Measure", "measure", list(MEASURES.values()), MEASURES["far_top1_mass"], width=170
        )
        layer = selection.choice("Layer", "layer", layers, str(best[0]), width=100)
        head = selection.choice("Head", "head", heads, str(best[1]), width=100)
        step = selection.step_slider(
            "Step", "step", first, last, 1 - info.prompt_length, min(1, last)
        )
        with st.popover("More", icon=":material/tune:"):
            more = _rare_controls(info)
    return Look(
        run_id,
        info,
        next(key for key, words in MEASURES.items() if words == label),
        layer if layer == MEAN else int(layer),
        head if head == MEAN else int(head),
        step,
        **more,
    )


def _rare_controls(info: CaptureInfo) -> dict[str, Any]:
    queries = selection.span("Query positions of the matrix", "q", info.length)
    keys = selection.span("Key positions of the matrix", "k", info.length)
    pool = selection.segment("Cells of the matrix show", "pool", ["max", "mean"])
    scale = selection.segment("Colour and shade", "scale", ["log", "linear"])
    sink = selection.segment(f"First {info.sink} tokens (sink)", "sink", ["shown", "hidden"])
    when = selection.segment("Overview over", "when", ["all steps", "this step"])
    return {
        "queries": queries,
        "keys": keys,
        "pool": pool,
        "log": scale == "log",
        "hide_sink": sink == "hidden",
        "at_step": when == "this step",
    }


def overview(look: Look) -> Figure:
    """Layer x head grid; a click on a cell chooses that layer and head."""
    chosen = (
        (look.layer, look.head)
        if isinstance(look.layer, int) and isinstance(look.head, int)
        else None
    )
    figure = looks.overview(look.run_id, look.measure, look.step if look.at_step else None, chosen)
    card.figure_card(
        figure,
        key="overview",
        link_values=look.link(),
        height=_HEIGHT,
        on_cell=lambda layer, head: _go(layer=str(layer), head=str(head)),
    )
    return figure


def matrix(look: Look) -> Figure | None:
    """The chosen head's attention over the chosen ranges, or the offer to compute the mean."""
    try:
        figure = looks.head_matrix(
            look.run_id,
            look.layer,
            look.head,
            look.queries,
            look.keys,
            look.pool,
            look.log,
            look.hide_sink,
        )
    except NeedsJob as need:
        title = f"Attention, {selection_words(look.layer, look.head)}"
        waiting.job_offer(need, look.run_id, title, key="matrix")
        return None
    card.figure_card(
        looks.with_step(figure, look.run_id, look.step),
        key="matrix",
        link_values=look.link(),
        height=_HEIGHT,
    )
    return figure


def text(look: Look) -> None:
    """The step's attention on the text itself."""
    window = looks.window_for(look.info.length)
    here = looks.text_view(look.run_id, look.layer, look.head, look.step, None, window)
    page = _page(look, here.page, here.pages)
    shown = (
        here
        if page == here.page
        else looks.text_view(look.run_id, look.layer, look.head, look.step, page, window)
    )
    with st.container(border=True, gap="xsmall", key="card-text"):
        st.markdown("**What this step attends to**")
        token_text(
            shown,
            key="text",
            log=look.log,
            hide_sink=look.hide_sink,
            sink=look.info.sink,
            dark=card.theme() == "dark",
            on_step=_go_to_step,
        )
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(plain(shown.caption), width="stretch")
            if here.pages > 1:
                st.pagination(here.pages, default=here.page + 1, key="page", bind="query-params")
        card.actions(
            lambda: looks.step_table(look.run_id, look.layer, look.head, look.step),
            key="text",
            name=f"step-{look.step}",
            link_values=look.link(),
            figure=attention_figure(
                shown,
                f"What step {look.step} attends to, {selection_words(look.layer, look.head)}",
                log=look.log,
                hide_sink=look.hide_sink,
                sink=look.info.sink,
            ),
        )


def _page(look: Look, around_step: int, pages: int) -> int:
    """The page of text to show: the reader's, until another step or run asks for its own."""
    seen, now = st.session_state.get("page_of"), (look.run_id, look.step)
    st.session_state["page_of"] = now
    asked = st.session_state.get("page", st.query_params.get("page"))
    if seen not in (None, now):
        asked = None
    known = selection.is_step(asked, 1, pages)
    page = int(asked) - 1 if asked is not None and known else around_step
    if pages > 1 and (asked is None or "page" in st.session_state):
        st.session_state["page"] = page + 1
    return page


def top_tokens(look: Look) -> None:
    """The most attended tokens of the step as a table."""
    table = looks.top_tokens(look.run_id, look.layer, look.head, look.step)
    with st.container(border=True, gap="xsmall", key="card-top"):
        st.markdown(f"**The most attended tokens of step {look.step}**")
        st.dataframe(
            table,
            hide_index=True,
            placeholder="",
            height=_HEIGHT - 60,
            alt=f"The {len(table)} most attended tokens of step {look.step} with their weights",
            column_config={
                "rank": st.column_config.NumberColumn("Rank", width=45),
                "position": st.column_config.NumberColumn("Position", format="localized", width=70),
                "token": st.column_config.TextColumn("Token", width=85),
                "weight": st.column_config.ProgressColumn(
                    "Weight", format="%.2g", min_value=0.0, max_value=1.0, width=100
                ),
                "cumulative_share": st.column_config.NumberColumn(
                    "Sum", help="of this and all larger weights", format="%.3f", width=70
                ),
                "segment": st.column_config.TextColumn("Part", width=80),
            },
        )
        card.actions(lambda: table, key="top", name="top-tokens", link_values=look.link())


def statistics(look: Look) -> Figure:
    """The chosen measure over all stored steps."""
    by_layer = look.layer == MEAN  # then one measure, a line per layer
    measures = _MASSES if look.measure in _MASSES and not by_layer else (look.measure,)
    figure = looks.step_statistics(
        look.run_id, look.layer, look.head, measures, by_layer, look.step
    )
    card.figure_card(figure, key="statistics", link_values=look.link(), height=_HEIGHT - 60)
    return figure


def received(look: Look) -> Figure | None:
    """How much attention each position received: from the stored rows, or from every query."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        over = selection.segment("Attention received from", "from", ["stored rows", "all queries"])
        statistic = selection.segment("as", "as", ["sum", "max", "last"])
    kv_head: Selection = look.head if isinstance(look.head, str) else look.head // look.info.group
    whole = over == "all queries"
    if whole and statistic == "last":
        whole = False
    try:
        figure = looks.received_attention(look.run_id, look.layer, kv_head, statistic, whole)
    except NeedsJob as need:
        waiting.job_offer(need, look.run_id, "Attention each position received", key="received")
        return None
    card.figure_card(figure, key="received", link_values=look.link(), height=300)
    return figure


def notes(
    grid: Figure, matrix: Figure | None, lines: Figure, received: Figure | None
) -> dict[str, str | Note]:
    """Two sentences for each figure that is shown."""
    figures = {
        "Layers and heads": grid,
        "The matrix": matrix,
        "Over the steps": lines,
        "Attention received": received,
    }
    notes = {name: figure.note for name, figure in figures.items() if figure and figure.note}
    return {**notes, "The text": TEXT_WORDS}


def _go(**values: Any) -> None:
    """From a callback: move the selection; the controls and the URL follow."""
    for key, value in values.items():
        st.session_state[key] = value
    selection.forget_notices()


def _go_to_step(step: int) -> None:
    selection.go_to_step("step", step)
    selection.forget_notices()
