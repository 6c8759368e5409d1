"""The parts of the Picks page: SAGE-KV's partition for a budget, and one function per panel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from analysis.errors import AnalysisError, NeedsJob
from analysis.figure import Figure, Note
from analysis.picks import Partition
from analysis.picks_figures import (
    GROUP_NOTE,
    OVERLAP_NOTE,
    PICK_NOTE,
    SLIDE_NOTE,
    UNION_NOTE,
    partition_words,
)
from analysis.retained_figures import RETAINED_NOTE, SCHEME_NOTE
from cache_store.reader import CaptureInfo
from pages.parts import (
    card,
    eviction_looks,
    looks_maps,
    places,
    policy_budget,
    policy_replays,
    selection,
    waiting,
)
from pages.parts.text import plain
from pages.parts.text_card import text_card

Notes = dict[str, str | Note]

SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)
_SMALLEST = 8
_HEIGHT = 400
TABLE_NOTE = Note(
    "The entries that most query heads of the layer agree on stand first. The weight is the "
    "largest attention that any of them gives to the entry at the last prompt token.",
    "weight = max over query heads of A(P − 1, i), P the length of the prompt",
    "SAGE-KV, Section 2, step 2",
)
BETWEEN = ("query heads", "groups")


SETTINGS = (
    "S, k and R divide the budget as in the paper, which takes B = 8,192: S = 2,048, k = 1,024 and "
    "R = 2,048 with four query heads per KV head. Positions stay absolute, as there; the last "
    "prompt token is kept besides the budget."
)


@dataclass(frozen=True)
class Look:
    """Everything the page shows, as chosen by the reader; all of it is in the URL."""

    run_id: str
    info: CaptureInfo
    budget: int
    layer: int
    head: int
    step: int
    panel: str

    @property
    def parts(self) -> Partition:
        return looks_maps.sage_partition(self.run_id, self.budget)

    def link(self) -> dict[str, Any]:
        return places.link(
            self.run_id,
            "budget",
            "unit",
            "page",
            "between",
            layer=self.layer,
            head=self.head,
            step=self.step,
            sage=self.panel,
        )


def controls(run_id: str, info: CaptureInfo) -> Look:
    """One row of controls, the partition they make, and which panel is shown."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        budget = policy_budget.control(info).entries(info)
        layer = places.layer(run_id, info)
        head = places.query_head(run_id, info)
        step = places.step(info)
    words = partition_words(looks_maps.sage_partition(run_id, budget))
    sharing = (
        f"{info.query_heads} query heads share {info.kv_heads} KV heads, G = {info.group}"
        if info.group > 1
        else "each query head has a KV head of its own, G = 1"
    )
    st.caption(plain(f"{words}. In this model {sharing}."))
    panel = selection.segment("Show", "sage", tuple(PANELS), label_visibility="collapsed")
    return Look(run_id, info, budget, layer, int(head), step, panel)


def overview(look: Look) -> Notes:
    """The partition with every query head's picks, the text of one, and the picks as a table."""
    _card(look, "picks", lambda: _figure(look, "picks_strip", step=look.step))
    notes: Notes = {"Picks": PICK_NOTE}
    with st.container(horizontal=True):
        page = places.text_page(look.run_id, look.info, look.step)
    shown = looks_maps.sage_text(look.run_id, look.budget, look.layer, look.head, look.step, page)
    text_card(
        shown,
        "What the chosen query head attends to",
        key="sage-text",
        figure_title=f"SAGE-KV, step {look.step}, {shown.place}",
        link_values=look.link(),
    )
    notes["The text"] = shown.note
    _table(look)
    return {**notes, "The table": TABLE_NOTE}


def _table(look: Look) -> None:
    table = looks_maps.picks_table(look.run_id, look.budget, look.layer)
    with st.container(border=True, gap="xsmall", key="card-picks-table"):
        st.markdown(f"**Picked in layer {look.layer}**")
        if table.empty:
            st.caption(plain(f"{partition_words(look.parts)}, so nothing is picked."))
            return
        st.dataframe(
            table,
            hide_index=True,
            placeholder="",
            height=_HEIGHT - 80,
            alt=f"The {len(table)} entries that a query head of layer {look.layer} picks",
            column_config={
                "position": st.column_config.NumberColumn("Position", format="localized"),
                "token": st.column_config.TextColumn("Token"),
                "heads": st.column_config.ProgressColumn(
                    "Query heads", format="%d", min_value=0, max_value=look.info.query_heads
                ),
                "by": st.column_config.TextColumn("Which"),
                "weight": st.column_config.NumberColumn("Largest weight", format="%.2g"),
            },
        )
        card.actions(lambda: table, key="picks-table", name="picks", link_values=look.link())


def overlap(look: Look) -> Notes:
    """How alike the query heads choose, and how much of the budget their union takes."""
    cell = (look.layer, look.head // look.info.group)
    between = BETWEEN[0]
    if look.info.group > 1 and look.info.kv_heads > 1:
        between = selection.segment("Overlap between", "between", BETWEEN)
    figure, note = (
        ("overlap_matrix", OVERLAP_NOTE) if between == BETWEEN[0] else ("group_overlap", GROUP_NOTE)
    )
    with st.grid(2, min_column_width=440):
        _card(look, "overlap", lambda: _figure(look, figure), height=_HEIGHT)
        _card(
            look,
            "union",
            lambda: looks_maps.union_sizes(look.run_id, look.budget, cell),
            height=_HEIGHT,
            on_cell=lambda layer, kv_head: _go(layer, kv_head * look.info.group),
        )
    return {"Overlap": note, "Stored entries": UNION_NOTE}


def _go(layer: int, head: int) -> None:
    """From a click on a cell: this layer, and the first query head of the KV head."""
    st.session_state["layer"], st.session_state["head"] = str(layer), str(head)
    selection.forget_notices()


def window(look: Look) -> Notes:
    """The recent window over the steps, and what positions the cached entries are given."""
    _card(look, "sliding", lambda: _figure(look, "sliding", look.head))
    notes: Notes = {"Sliding window": SLIDE_NOTE, "Position schemes": SCHEME_NOTE}
    with st.grid(2, min_column_width=440):
        _card(
            look,
            "schemes",
            lambda: looks_maps.position_schemes(look.run_id, look.budget, look.step),
            height=_HEIGHT,
        )
        with st.container():
            measured = _schemes_measured(look)
    if measured is not None and measured.note:
        notes["Their effect"] = measured.note
    return notes


def _schemes_measured(look: Look) -> Figure | None:
    """StreamingLLM run for real under both schemes: its drift from the full cache."""
    if look.info.response_length == 0:
        places.sentence("Nothing was generated in this run, so no scheme can make a difference.")
        return None
    choices = [
        {"key": "streaming_llm", "options": {"budget": look.budget, "positions": scheme}}
        for scheme in ("absolute", "cache")
    ]
    names, missing = policy_replays.live_runs(look.run_id, choices)
    figure = None
    if names:
        figure = eviction_looks.live(look.run_id, "kl_over_steps", names, step=look.step)
        card.figure_card(figure, key="sage-drift", link_values=look.link(), height=_HEIGHT)
    if missing:
        policy_replays.waiting_for(
            missing, "StreamingLLM under both schemes", key="drift", verb="Run them for real"
        )
    return figure


def over_budgets(look: Look) -> Notes:
    """What stays of the response's attention at each budget, against StreamingLLM."""
    sizes = budgets(look.info.prompt_length)
    try:
        figures = [
            looks_maps.over_budgets(look.run_id, measure, look.layer, sizes, look.budget)
            for measure in ("mass", "error")
        ]
    except NeedsJob as need:
        name = f"Attention kept over budgets, layer {look.layer}"
        waiting.job_offer(need, look.run_id, name, key="retained")
        return {}
    except AnalysisError as error:
        places.sentence(error)
        return {}
    with st.grid(2, min_column_width=440):
        for index, figure in enumerate(figures):
            card.figure_card(
                figure, key=f"sage-retained-{index}", link_values=look.link(), height=_HEIGHT
            )
    return {"Over the budget": RETAINED_NOTE}


def budgets(prompt_length: int) -> tuple[int, ...]:
    """The budgets that are measured, in entries; small prompts have fewer."""
    sizes = {max(_SMALLEST, int(share * prompt_length)) for share in SHARES}
    return tuple(sorted({min(size, prompt_length) for size in sizes}))


PANELS = {
    "Picks": overview,
    "Overlap": overlap,
    "Sliding window": window,
    "Over budgets": over_budgets,
}


def show(look: Look) -> Notes:
    return PANELS[look.panel](look) | {"The paper's settings": SETTINGS}


def _figure(look: Look, name: str, *chosen: int, **more: int) -> Figure:
    return looks_maps.sage_figure(name, look.run_id, look.budget, look.layer, *chosen, **more)


def _card(look: Look, key: str, make: Callable[[], Figure], **more: Any) -> None:
    """A figure as a card, or the sentence why there is none."""
    try:
        figure = make()
    except AnalysisError as error:
        places.sentence(error)
    else:
        card.figure_card(figure, key=f"sage-{key}", link_values=look.link(), **more)
