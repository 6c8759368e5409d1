"""The parts of the Recall page: its controls, the drafts that are recorded, and its figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import streamlit as st

from analysis.errors import NeedsJob
from analysis.figure import Figure, Note
from analysis.lookaheads import lookahead
from analysis.recall import NO_RESPONSE, OFFSETS, WEIGHTINGS, WIDTH
from cache_store.errors import KVScopeError
from cache_store.reader import CaptureInfo
from kvpolicies import PolicyError, catalogue
from pages.parts import backstage, eviction_looks, eviction_view, looks_papers, paper_view
from pages.parts import selection as chosen
from pages.parts.text import plain

if TYPE_CHECKING:
    from analysis.lookaheads import Lookahead
    from pages.parts.policy_slots import Choice

OVER = ("all heads", "this layer", "this head")
DRAFTED_ON = ("snapkv", "streaming_llm", "h2o", "tova", "pyramidkv", "knorm", "full")
SHOWN_DRAFTS = 4
MEASURED = ("laq", "laq_pp", "snapkv")  # whose stages the latency compares
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
    drafts: tuple[str, ...]

    @property
    def where(self) -> tuple[int | None, int | None]:
        """What the lines are restricted to: a layer, a head of it, or neither."""
        layer = None if self.over == OVER[0] else self.layer
        return layer, self.kv_head if self.over == OVER[2] else None

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
            **{key: st.query_params.get(key) for key in ("draft", "draft_b", "draft_n", "step")},
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
            runs = paper_view.pooled_runs(run_id, info)
    _drafted_on()
    for key, usual, last in _draft_numbers(info):
        _asked(key, usual, last)
    newest = looks_papers.recorded(run_id)[-SHOWN_DRAFTS:]
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
        tuple(looks_papers.spec_text(draft) for draft in newest),
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
            lambda: looks_papers.recall_lines(
                look.runs, look.budgets, look.weighting, look.width, look.drafts, look.where
            ),
        )
        figures["By layer and head"] = _figure(
            look,
            "Recall by layer and KV head",
            "recall-grid",
            lambda: looks_papers.recall_by_head(
                look.runs,
                look.budget,
                look.start,
                look.weighting,
                look.width,
                None,
                (look.layer, look.kv_head),
            ),
            on_cell=eviction_view.go,
        )
    _record(look)
    with st.grid(2, min_column_width=440):
        figures["The Q-cache's length"] = _figure(
            look,
            "Recall by the length of the Q-cache",
            "recall-length",
            lambda: looks_papers.recall_over_length(
                look.runs, look.budget, look.weighting, JOINED[look.joined], look.drafts
            ),
        )
        figures["Time by stage"] = _latency(look)
    return paper_view.notes_of(figures)


def _figure(
    look: Look, title: str, key: str, make: Callable[[], Figure], **more: Any
) -> Figure | None:
    return paper_view.attempt(
        make, title=title, key=key, run_id=look.run_id, link=look.link(), **more
    )


def _record(look: Look) -> None:
    """A draft on a small cache: which policy, budget and length; one button records it."""
    names = {key: method.title for key, method in catalogue().items()}
    with st.container(border=True, gap="xsmall", key="card-drafts"):
        st.markdown("**Lookahead responses (dashed)**")
        with st.container(horizontal=True, vertical_alignment="bottom"):
            key = _drafted_on()
            st.selectbox(
                "Drafted on a cache of",
                DRAFTED_ON,
                format_func=lambda policy: names[policy],
                key="recall_draft",
                on_change=paper_view.hold("draft", "recall_draft", key),
                width=210,
            )
            numbers = _draft_numbers(look.info)
            budget = _number("Its budget", *numbers[0])
            steps = _number("Tokens", *numbers[1])
        drafts = {looks_papers.spec_text(one): one for one in looks_papers.recorded(look.run_id)}
        for spec in look.drafts:
            _draft(drafts[spec])
        if len(drafts) > SHOWN_DRAFTS:
            st.caption(f"Shown are the {SHOWN_DRAFTS} newest of {len(drafts)}.")
        _offer(look, key, budget, steps)


def _number(label: str, key: str, usual: int, last: int) -> int:
    highest = max(2, last)
    asked = _asked(key, usual, last)
    widget = f"recall_{key}"
    st.number_input(
        label,
        1,
        highest,
        key=widget,
        on_change=paper_view.hold(key, widget, asked),
        width=130,
    )
    return asked


def _asked(key: str, usual: int, last: int) -> int:
    """The URL's value of one of the draft's numbers."""
    highest = max(2, last)
    text = paper_view.held(
        key,
        str(usual),
        lambda value: chosen.is_step(value, 1, highest),
        f"it goes from 1 to {highest:,}",
    )
    return int(text)


def _drafted_on() -> str:
    """The URL's policy of the draft's cache."""
    return paper_view.held(
        "draft",
        DRAFTED_ON[0],
        lambda key: key in DRAFTED_ON,
        f"it is one of {', '.join(DRAFTED_ON)}",
    )


def _draft_numbers(info: CaptureInfo) -> tuple[tuple[str, int, int], ...]:
    """Address, default and largest value of the draft's budget and length."""
    prompt = info.prompt_length
    return ("draft_b", max(1, prompt // 4), prompt), ("draft_n", WIDTH, 16)


def _draft(draft: Lookahead) -> None:
    st.caption(plain(f"{draft.title}: “{''.join(draft.texts)}”"))


def _offer(look: Look, key: str, budget: int, steps: int) -> None:
    options = {} if key == "full" else {"budget": budget}
    choice: Choice = {"key": key, "options": options}
    try:
        found = lookahead(backstage.capture(look.run_id), choice, steps)
    except NeedsJob as need:
        paper_view.instead(
            need, title="This draft is not recorded yet", key="draft", run_id=look.run_id
        )
    except (KVScopeError, PolicyError) as error:
        st.caption(plain(str(error)))
    else:
        if looks_papers.spec_text(found) not in look.drafts:
            st.caption("This draft is recorded, but older than those that are shown.")


def _latency(look: Look) -> Figure | None:
    """Measured seconds by stage of LAQ, LAQ++ and SnapKV; what is missing is one press away."""
    names: list[str] = []
    missing: list[tuple[str, Exception]] = []
    for key in MEASURED:
        name = eviction_looks.name_of({"key": key, "options": {"budget": look.budget}})
        try:
            eviction_looks.policy_run(look.run_id, name)
            names.append(name)
        except (KVScopeError, PolicyError) as error:
            missing.append((key, error))
    with st.container():
        figure = None
        if names:
            figure = _figure(
                look,
                "Time by stage",
                "recall-latency",
                lambda: eviction_looks.live(look.run_id, "latency_by_stage", tuple(names)),
            )
        for key, reason in missing:
            title = f"Time by stage of {catalogue()[key].title}, B = {look.budget:,}"
            paper_view.instead(reason, title=title, key=f"stage-{key}", run_id=look.run_id)
    return figure
