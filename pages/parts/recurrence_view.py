"""The parts of the Recurrence page: its controls and its four panels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from analysis.figure import Figure, Note
from analysis.recurrence import NO_RESPONSE, SHARE, alpha_advice
from cache_store.reader import CaptureInfo
from pages.parts import (
    eviction_view,
    looks_recurrence,
    paper_view,
    recurrence_decisions,
    recurrence_tokens,
    selection,
)
from pages.parts.looks_recurrence import Alpha
from pages.parts.recurrence_tokens import COUNTED
from pages.parts.text import number, plain, some

ALPHA = "0.0005"  # the paper's
_NUMBERS = [f"{part * 10.0**power:g}" for power in range(-5, -1) for part in (1, 1.5, 2, 3, 5, 7)]
_MULTIPLES = [f"{value:g}/n" for value in (0.5, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100)]
SHARES = ("0.5", "0.6", "0.7", "0.8", "0.9", "0.95", "0.99")


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
    share: float
    panel: str

    @property
    def alpha(self) -> Alpha:
        return self.alpha_text if self.alpha_text.endswith("/n") else float(self.alpha_text)

    @property
    def count(self) -> str:
        return COUNTED[self.counted]

    @property
    def head(self) -> tuple[str, int, int, Alpha]:
        return self.run_id, self.layer, self.kv_head, self.alpha

    def link(self, **more: Any) -> dict[str, Any]:
        own = ("budget", "unit", "w", "axis", "shows", "h1", "h2", "page", "p1", "p2", "p3", "p4")
        return {
            "run": self.run_id,
            "with": list(self.runs[1:]) or None,
            "layer": self.layer,
            "kv_head": self.kv_head,
            "step": self.step,
            "alpha": self.alpha_text,
            "counted": self.counted,
            "share": f"{self.share:g}",
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
            counted = selection.segment("Intervals are counted from", "counted", list(COUNTED))
            share = selection.choice(
                "Share of the tokens that W covers", "share", SHARES, f"{SHARE:g}"
            )
            relative = alpha.endswith("/n")
            st.button(
                "α as a number" if relative else "α as a multiple of uniform attention",
                key="alpha-kind",
                on_click=_set_alpha,
                args=(ALPHA if relative else "3/n",),
            )
            runs = paper_view.pooled_runs(run_id, info, "response")
    recurrence_decisions.asked_window(info)
    panel = selection.segment("Show", "recurrence", list(PANELS), label_visibility="collapsed")
    look = Look(run_id, info, runs, layer, kv_head, step, alpha, counted, float(share), panel)
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
    window = found.window(look.share)
    share = found.share_above_one
    recur = "no token active" if window is None else f"{number(share * 100)} % recur"
    st.metric(
        "Proposed W",
        "–" if window is None else some(window, "step"),
        delta=recur,
        delta_color="off",
        delta_arrow="off",
        help=f"The longest silence of {100 * look.share:.0f} % of the tokens ever active, "
        "over all layers and KV heads; below it the share with MRI > 1.",
    )


PANELS: dict[str, Callable[[Look], dict[str, Figure | None]]] = {
    "Tokens that come back": recurrence_tokens.tokens,
    "Which window": recurrence_tokens.window,
    "The score": recurrence_decisions.scores,
    "What is evicted": recurrence_decisions.evictions,
}


def show(look: Look) -> dict[str, str | Note]:
    if look.info.response_length == 0:
        st.markdown(plain(NO_RESPONSE))
        return {}
    notes = paper_view.notes_of(PANELS[look.panel](look))
    return notes | {"The paper's settings": _settings(look)}


def _settings(look: Look) -> str:
    """Which of the paper's settings are shown."""
    alpha = "as here" if look.alpha_text == ALPHA else f"here {look.alpha_text}"
    rule = "as here" if look.share == SHARE else f"here {100 * look.share:.0f} %"
    return (
        f"The paper takes α = {ALPHA} for DS-Llama-8B and 0.0001 for its Qwen models ({alpha}), "
        f"lets W cover {100 * SHARE:.0f} % of the tokens ({rule}), and evicts every W steps, 25 on "
        "GSM8K."
    )
