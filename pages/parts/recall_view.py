"""The parts of the Recall page: its controls, the drafts that are recorded, and its figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import streamlit as st

from analysis.figure import Figure, Note
from analysis.recall import NO_RESPONSE, OFFSETS, WEIGHTINGS, WIDTH
from cache_store.reader import CaptureInfo
from pages.parts import eviction_view, looks_recall, paper_view, recall_drafts
from pages.parts import selection as chosen
from pages.parts.text import plain

if TYPE_CHECKING:
    from pages.parts.policy_slots import Choice

OVER = ("all layers and heads", "this layer", "this head")
DRAFT = ("drafter", "draft_budget", "draft_steps")  # as the Queries page knows them
JOINED = {"the draft alone (LAQ)": 0, "with the prompt's last 8 (LAQ++)": 8}


@dataclass(frozen=True)
class Look:
    """Everything the page shows, as chosen by the reader; all of it is in the URL."""

    run_id: str
    info: CaptureInfo
    runs: tuple[str, ...]
    layer: int
    kv_head: int
    budgets: tuple[int, ...]
    budget: int
    start: int
    width: int
    weighting: str
    over: str
    joined: str
    draft: tuple[Choice, int]
    drafts: tuple[str, ...]

    @property
    def where(self) -> tuple[int | None, int | None]:
        """What the lines are restricted to: a layer, a head of it, or neither."""
        layer = None if self.over == OVER[0] else self.layer
        return layer, self.kv_head if self.over == OVER[2] else None

    @property
    def window(self) -> int:
        """Prompt queries that the Q-cache is joined with."""
        return JOINED[self.joined]

    def link(self) -> dict[str, Any]:
        return {
            "run": self.run_id,
            "with": list(self.runs[1:]) or None,
            "layer": self.layer,
            "kv_head": self.kv_head,
            "budgets": list(self.budgets),
            "b": self.budget,
            "start": self.start,
            "width": self.width,
            "weighting": self.weighting,
            "over": self.over,
            "joined": self.joined,
            "compared": st.query_params.get_all("compared") or None,
            **{key: st.query_params.get(key) for key in (*DRAFT, "step")},
        }


def controls(run_id: str, info: CaptureInfo) -> Look:
    """One row of controls; the rare ones behind "More"."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        layer, kv_head = eviction_view.layer_and_head(run_id, info)
        budgets = _budgets(info)
        budget = _budget(info)
        start = _start()
        with st.popover("More", icon=":material/tune:"):
            over = chosen.segment("Lines over", "over", OVER)
            weighting = chosen.segment("Weighting", "weighting", WEIGHTINGS)
            joined = chosen.segment("Length of the Q-cache", "joined", list(JOINED))
            width = int(
                chosen.choice("Queries per window", "width", [str(n) for n in range(1, 17)], "8")
            )
            runs = paper_view.pooled_runs(run_id, info, "response")
    draft = recall_drafts.asked(info)
    return Look(
        run_id,
        info,
        runs,
        layer,
        kv_head,
        budgets,
        budget,
        start,
        width,
        weighting,
        over,
        joined,
        draft,
        recall_drafts.shown(runs, draft),
    )


def _usual(info: CaptureInfo) -> list[int]:
    return sorted({max(1, info.prompt_length // part) for part in (16, 4, 2)})


def _budgets(info: CaptureInfo) -> tuple[int, ...]:
    """The budgets of the lines; a reader types any other."""
    asked = st.query_params.get_all("budgets")
    found = paper_view.numbers(asked, 1, info.prompt_length)
    if len(found) < len(set(asked)):
        chosen.notice(
            "budgets", f"Budgets go from 1 to {info.prompt_length:,} entries; others are left out."
        )
    else:
        chosen.forget_notice("budgets")
    now = [str(value) for value in found or _usual(info)][:6]
    offered = {max(1, info.prompt_length // part) for part in (32, 16, 8, 4, 2)}
    options = [str(value) for value in sorted(offered | {int(value) for value in now})]
    st.multiselect(
        "Budgets of the lines",
        options,
        key="recall_budgets",
        accept_new_options=True,
        max_selections=6,
        on_change=paper_view.hold("budgets", "recall_budgets", now),
        help="Prompt entries kept per KV head; type a number for another.",
        width=270,
    )
    return tuple(int(value) for value in now)


def _budget(info: CaptureInfo) -> int:
    """The budget of the grid and of the lengths."""
    last = max(2, info.prompt_length)
    text = paper_view.held(
        "b",
        str(max(1, info.prompt_length // 4)),
        lambda value: chosen.is_step(value, 1, last),
        f"budgets go from 1 to {last:,}",
    )
    st.slider(
        "Budget B of the grid",
        1,
        last,
        key="recall_budget",
        on_change=paper_view.hold("b", "recall_budget", int(text)),
    )
    return int(text)


def _start() -> int:
    first, last = min(OFFSETS), max(OFFSETS)
    text = paper_view.held(
        "start",
        str(-WIDTH),
        lambda value: chosen.is_step(value, first, last),
        f"windows start from {first} to {last}",
    )
    st.slider(
        "Window start of the grid",
        first,
        last,
        key="recall_start",
        on_change=paper_view.hold("start", "recall_start", int(text)),
        help="0 is the first generated token; negative starts lie in the prompt.",
    )
    return int(text)


def show(look: Look) -> dict[str, str | Note]:
    if look.info.response_length == 0:
        st.markdown(plain(NO_RESPONSE))
        return {}
    figures: dict[str, Figure | None] = {}
    with st.grid(2, min_column_width=440):
        figures["Recall"] = _figure(
            look,
            "Recall of what the response needs, by window start",
            "recall",
            lambda: looks_recall.recall_lines(
                look.runs, look.budgets, look.weighting, look.width, look.drafts, look.where
            ),
        )
        figures["By layer and head"] = _figure(
            look,
            "Recall by layer and KV head",
            "recall-grid",
            lambda: looks_recall.recall_by_head(
                look.runs,
                look.budget,
                look.start,
                look.weighting,
                look.width,
                (look.layer, look.kv_head),
            ),
            on_cell=eviction_view.go,
        )
    recall_drafts.card(look)
    with st.grid(2, min_column_width=440):
        figures["The Q-cache's length"] = _figure(
            look,
            "Recall by the length of the Q-cache",
            "recall-length",
            lambda: looks_recall.recall_over_length(
                look.runs, look.budget, look.weighting, look.window, look.drafts
            ),
        )
        figures["The Q-cache's quality"] = recall_drafts.quality(look)
    figures["Time by stage"] = recall_drafts.latency(look)
    return paper_view.notes_of(figures) | {"The paper's settings": _settings(look)}


def _settings(look: Look) -> str:
    """Which of the paper's settings are shown."""
    width = "as here" if look.width == WIDTH else f"here {look.width}"
    drafted = "as here" if look.draft[1] == WIDTH else f"here {look.draft[1]}"
    return (
        f"The paper takes windows of {WIDTH} queries ({width}), drafts of {WIDTH} tokens on SnapKV "
        f"({drafted}), joins LAQ++ with the prompt's last 8, and draws its Figure 2 at a budget of "
        "1,024 entries. Weights are softmax by default; its formula prints raw products."
    )


def _figure(
    look: Look, title: str, key: str, make: Callable[[], Figure], **more: Any
) -> Figure | None:
    return paper_view.attempt(
        make, title=title, key=key, run_id=look.run_id, link=look.link(), **more
    )
