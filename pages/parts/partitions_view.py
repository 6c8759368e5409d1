"""The parts of the Partitions page: LagKV's settings, and one function per panel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import streamlit as st

from analysis.partitions import (
    KEEP_RATIO,
    LAG,
    SINK,
    VARIANTS,
    kept_per_partition,
    layout,
)
from cache_store.reader import CaptureInfo
from pages.parts import partitions_panels, places, selection
from pages.parts.looks_maps import Lag
from pages.parts.partitions_panels import NAMES, Notes
from pages.parts.text import number, plain

_SMALLEST_LAG = 4
LAGS, RATIOS = (128, 512, 1024), (0.5, 0.25, 0.167, 0.125)  # the paper's


@dataclass(frozen=True)
class Look:
    """Everything the page shows, as chosen by the reader; all of it is in the URL."""

    run_id: str
    info: CaptureInfo
    layer: int
    kv_head: int
    step: int
    sink: int
    lag: int
    keep_ratio: float
    variant: str
    panel: str

    @property
    def scores(self) -> Lag:
        """What the caches know the scores by."""
        return self.run_id, self.layer, self.variant, self.sink, self.lag

    @property
    def variants(self) -> tuple[Lag, ...]:
        return tuple((self.run_id, self.layer, key, self.sink, self.lag) for key in VARIANTS)

    def link(self) -> dict[str, Any]:
        return places.link(
            self.run_id,
            "variant",
            "partition",
            "page",
            layer=self.layer,
            kv_head=self.kv_head,
            step=self.step,
            S=self.sink,
            L=self.lag,
            r=f"{self.keep_ratio:g}",
            lagkv=self.panel,
        )


def controls(run_id: str, info: CaptureInfo) -> Look:
    """One row of controls, what they mean for this text, and which panel is shown."""
    usual = _usual_lag(info.length)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        layer = places.layer(run_id, info)
        kv_head = places.kv_head(run_id, info)
        step = places.step(info)
        lag = places.number(
            "L", "L", 1, 4096, usual, step=8, width=110, help="Tokens in a partition."
        )
        keep_ratio = places.number(
            "r", "r", 0.0, 1.0, KEEP_RATIO, slider=True, step=0.05, width=220,
            help="Share of each compressed partition that is kept.",
        )  # fmt: skip
        name = selection.choice("Score", "variant", list(NAMES), "LagKV", width=120)
        with st.popover("More", icon=":material/tune:"):
            sink = places.number("Sinks S", "S", 0, 1024, SINK, help="First tokens, always kept.")
    st.caption(plain(_setting(info, int(sink), int(lag), keep_ratio, usual)))
    panel = selection.segment("Show", "lagkv", tuple(PANELS), label_visibility="collapsed")
    return Look(
        run_id, info, layer, kv_head, step, int(sink), int(lag), keep_ratio, NAMES[name], panel
    )


def _usual_lag(length: int) -> int:
    """The paper's L, or the largest half of a half of it that compresses four partitions."""
    lag = LAG
    while lag > _SMALLEST_LAG and length < SINK + (lag != LAG) * 3 * lag + 2 * lag:
        lag //= 2
    return lag


def _setting(info: CaptureInfo, sink: int, lag: int, keep_ratio: float, usual: int) -> str:
    """Which of the paper's settings are used, and what they do to a text of this length."""
    kept = kept_per_partition(lag, keep_ratio)
    words = f"Of each compressed partition {kept} of {lag} entries stay."
    if (sink, lag) == (SINK, LAG):
        words += " S = 16 and L = 128 are the paper's."
    elif (sink, lag) == (SINK, usual):
        words += (
            f" The paper's L = {LAG} would compress nothing in {info.length:,} tokens, so L = "
            f"{lag} is shown."
        )
    parts = layout(info.length, sink, lag)
    if not parts.compressed:
        words += (
            f" Nothing is evicted: that takes at least S + 2L = {sink + 2 * lag:,} tokens, and "
            f"this text has {info.length:,}; choose a smaller L."
        )
    return words


PANELS = {
    "Partitions": partitions_panels.overview,
    "Recursion": partitions_panels.recursion,
    "Variants": partitions_panels.variants,
    "What is kept": partitions_panels.kept_tokens,
}


def show(look: Look) -> Notes:
    notes = PANELS[look.panel](look)
    return notes | {"The paper's settings": _settings(look)} if notes else notes


def _settings(look: Look) -> str:
    """Which of the paper's settings are shown."""
    sink = "as here" if look.sink == SINK else f"here {look.sink}"
    lag = "as here" if look.lag in LAGS else f"here {look.lag}"
    ratio = "as here" if look.keep_ratio in RATIOS else f"here {number(look.keep_ratio)}"
    return (
        f"The paper takes S = {SINK} ({sink}), L = {LAGS[0]}, {LAGS[1]} or {LAGS[2]:,} ({lag}) and "
        f"keeps r = 1/2, 1/4, 1/6 or 1/8 of each partition ({ratio}); it counts r as “2x” to “8x”. "
        "Keys and values both score, by their spread within the next partition's range."
    )
