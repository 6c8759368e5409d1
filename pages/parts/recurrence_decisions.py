"""The Recurrence page's panels on LazyEviction itself: its score, and what it evicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from analysis.figure import Figure
from analysis.lazy_decisions import decision_summary
from cache_store.reader import CaptureInfo
from kvpolicies.parameters import PARAMETERS
from pages.parts import (
    card,
    eviction_looks,
    looks_recurrence,
    paper_view,
    policy_budget,
    policy_replays,
    policy_slots,
    selection,
)
from pages.parts.policy_replays import Pending
from pages.parts.text import plain

if TYPE_CHECKING:
    from pages.parts.recurrence_view import Look

WINDOW = 25  # the policy's own default
SCORE_HEIGHT = 460  # it is as wide as the page
AXES = ("the policies", "with the full cache")
EVICTED_COLUMNS = {
    "decisions": "Decisions",
    "evicted": "Evicted",
    "returned": "Return later",
}


def scores(look: Look) -> dict[str, Figure | None]:
    """H1, H2 and I in both forms, with the tokens of the head on them."""
    curves = list(PARAMETERS["h1"].choices)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        h1 = selection.choice("Curve of H1", "h1", curves, curves[0], width=120)
        h2 = selection.choice("Curve of H2", "h2", curves, curves[0], width=120)
    figures: dict[str, Figure | None] = {"The score": _curves(look, "I", h1, h2)}
    with st.grid(2, min_column_width=440):
        for term in ("H1", "H2"):
            figures[term] = _curves(look, term, h1, h2)
    return figures


def _curves(look: Look, term: str, h1: str, h2: str) -> Figure | None:
    return paper_view.attempt(
        lambda: looks_recurrence.score_curves(*look.head, term, look.step, h1, h2),
        title=f"{term} as a curve",
        key=f"score-{term}",
        run_id=look.run_id,
        link=look.link(),
        height=SCORE_HEIGHT if term == "I" else paper_view.HEIGHT,
    )


def evictions(look: Look) -> dict[str, Figure | None]:
    """What stays cached over the steps, and what each decision evicts in both forms."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        shared = policy_budget.control(look.info)
        window = _window(look)
        axis = selection.segment("Axis of the cached entries", "axis", AXES)
    budget = shared.entries(look.info)
    figures: dict[str, Figure | None] = {}
    with st.grid(2, min_column_width=440):
        figures["Evictions"] = paper_view.attempt(
            lambda: looks_recurrence.evictions(*look.head, budget, window, look.step),
            title="What LazyEviction evicts",
            key="evictions",
            run_id=look.run_id,
            link=look.link(),
        )
        figures["The sawtooth"] = _sawtooth(look, shared, window, axis == AXES[1])
    if figures["Evictions"] is not None:
        _summary(look, budget, window)
        _decision(look, budget, window)
    return figures


def _window(look: Look) -> int:
    """The W of the policy: the reader's, or the proposed one at a press."""
    last, asked = longest(look.info), asked_window(look.info)
    st.number_input(
        "W",
        min_value=1,
        max_value=last,
        key="lazy_window",
        on_change=paper_view.hold("w", "lazy_window", asked),
        help="Steps between two evictions, whose entries are always kept.",
        width=120,
    )
    found = looks_recurrence.pooled(look.runs, look.alpha, look.count)
    proposed = found.window(look.share)
    if proposed is not None and min(proposed, last) != asked:
        st.button(
            f"Take the proposed {min(proposed, last)}",
            key="take-window",
            on_click=_take,
            args=(min(proposed, last),),
        )
    return asked


def longest(info: CaptureInfo) -> int:
    """The largest W that can be chosen; as long as the response."""
    return max(2, info.response_length)


def asked_window(info: CaptureInfo) -> int:
    """The URL's W."""
    last = longest(info)
    usual = str(min(WINDOW, last))
    return int(
        paper_view.held(
            "w",
            usual,
            lambda value: selection.is_step(value, 1, last),
            f"W goes from 1 to {last:,}",
        )
    )


def _take(window: int) -> None:
    st.query_params["w"] = str(window)


def _sawtooth(look: Look, shared: policy_slots.Budget, window: int, full: bool) -> Figure | None:
    """LazyEviction with this W beside the policies of the Eviction page, where they are there."""
    lazy = {"key": "lazyeviction", "options": {"window": window}}
    others = [one for one in policy_slots.choices() if one.get("key") != "lazyeviction"]
    choices = [policy_slots.with_budget(one, shared, look.info) for one in (lazy, *others)]
    seen = [policy_replays.replay(look.run_id, one) for one in choices]
    ready = [one for one in seen if policy_replays.is_ready(one)]
    with st.container():
        figure = None
        if ready:
            names = tuple(eviction_looks.name_of(one.choice) for one in ready)
            figure = paper_view.attempt(
                lambda: looks_recurrence.cached_over_steps(look.run_id, names, look.step, full),
                title="Entries cached over the generated length",
                key="sawtooth",
                run_id=look.run_id,
                link=look.link(),
            )
        missing = [one for one in seen if isinstance(one, Pending)]
        if missing:
            title = "Replays for the sawtooth"
            policy_replays.waiting_for(missing, title, key="sawtooth", verb="Replay them")
    return figure


def _summary(look: Look, budget: int, window: int) -> None:
    table = looks_recurrence.evictions_table(*look.head, budget, window)
    summary = decision_summary(table).round({"share_returned": 3})
    with st.container(border=True, gap="xsmall", key="card-evicted"):
        st.markdown("**How much of it would have come back**")
        if summary.empty:
            st.caption(
                "Nothing is evicted in this head: no decision finds more entries than the budget. "
                "Choose a smaller budget or W."
            )
            return
        column = st.column_config
        st.dataframe(
            summary,
            hide_index=True,
            placeholder="",
            alt="Evictions of both forms and how many of them return",
            column_config={
                "form": column.TextColumn("Form"),
                **{
                    key: column.NumberColumn(words, format="localized")
                    for key, words in EVICTED_COLUMNS.items()
                },
                "share_returned": column.NumberColumn("Share", format="percent"),
            },
        )
        st.caption(plain("The data below lists every evicted entry of this head."))
        card.actions(lambda: table, key="evicted", name="evictions", link_values=look.link())


def _decision(look: Look, budget: int, window: int) -> None:
    """The tokens that the newest decision until the chosen step evicts."""
    if looks_recurrence.evictions_table(*look.head, budget, window).empty:
        return
    at, rows = looks_recurrence.decision_at(*look.head, budget, window, look.step)
    with st.container(border=True, gap="xsmall", key="card-decision"):
        st.markdown(f"**Evicted at step {at:,}**")
        column = st.column_config
        st.dataframe(
            rows.assign(recurs_at=rows["recurs_at"].where(rows["recurs_at"] > 0)),
            hide_index=True,
            placeholder="",
            height=250,
            alt=f"The {len(rows)} entries that are evicted at step {at}",
            column_config={
                "position": column.NumberColumn("Position", format="localized"),
                "token": column.TextColumn("Token"),
                "by": column.TextColumn("By"),
                "mri": column.NumberColumn("MRI", help="steps, under the full cache"),
                "released": column.NumberColumn("I, released", format="%.2e"),
                "printed": column.NumberColumn("I, printed", format="%.2e"),
                "recurs_at": column.NumberColumn("Returns at step"),
            },
        )
        st.caption("The newest decision until the chosen step; the slider shows others.")
        card.actions(lambda: rows, key="decision", name="decision", link_values=look.link())
