"""The parts of the Partitions page: LagKV's settings, and one function per panel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import streamlit as st

from analysis.errors import AnalysisError
from analysis.figure import Figure, Note
from analysis.partitions import KEEP_RATIO, LAG, SINK, VARIANTS, kept_per_partition, layout
from analysis.partitions_figures import LENGTH_NOTE, SCORE_NOTE, STRIP_NOTE
from analysis.text_figures import eviction_figure
from cache_store.reader import CaptureInfo
from pages.parts import card, looks_maps, places, selection
from pages.parts.looks_maps import Lag
from pages.parts.text import plain
from pages.parts.token_text import eviction_text

Notes = dict[str, str | Note]

_VARIANTS = {"LagKV": "lag_relative", "LocalKV": "local_relative", "key norm": "key_norm"}
_SMALLEST_LAG = 4
_HEIGHT = 360
KINDS_NOTE = Note(
    "A lift above 1 means that tokens of this kind are kept more often than the average of what "
    "could be evicted. “Kept often” is the share of its tokens that more than half of the heads "
    "keep.",
    "lift = (share of the kind that is kept) / (share of all ranked tokens that is kept), means "
    "over the layer's KV heads",
    "LagKV, Section 5 (which tokens are kept)",
)
OVERLAP_NOTE = Note(
    "1 means that two variants keep the same entries, 0 that they share none. Chance alone gives "
    "r / (2 − r).",
    "J = |kept by a ∩ kept by b| / |kept by a ∪ kept by b| over the compressed partitions, mean "
    "over KV heads",
    "LagKV, Figure 5: the variants",
)


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
        name = selection.choice("Score", "variant", list(_VARIANTS), "LagKV", width=120)
        with st.popover("More", icon=":material/tune:"):
            sink = places.number("Sinks S", "S", 0, 1024, SINK, help="First tokens, always kept.")
    st.caption(plain(_setting(info, int(sink), int(lag), keep_ratio, usual)))
    panel = selection.segment("Show", "lagkv", tuple(PANELS), label_visibility="collapsed")
    return Look(
        run_id, info, layer, kv_head, step, int(sink), int(lag), keep_ratio, _VARIANTS[name], panel
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


def overview(look: Look) -> Notes:
    """The sequence with its partitions, the scores of one of them, and the cache's length."""
    _figure(look, "strip", "partition_strip", look.layer, step=look.step)
    number = _partition(look)
    with st.grid(2, min_column_width=440):
        if number is None:
            places.sentence("No partition of this text is compressed, so none is scored.")
        else:
            _figure(look, "scores", "partition_scores", look.layer, look.kv_head, number)
        _figure(look, "length", "length_over_steps")
    return {"Partitions": STRIP_NOTE, "Scores": SCORE_NOTE, "Cache length": LENGTH_NOTE}


def _partition(look: Look) -> int | None:
    """The partition whose scores are shown."""
    count = layout(look.info.length, look.sink, look.lag).compressed
    if count < 2:
        return 0 if count else None
    return int(places.number("Partition", "partition", 0, count - 1, 0, slider=True, width=440))


def recursion(look: Look) -> Notes:
    """How partitions are compressed one after another while the response grows."""
    _figure(look, "recursion", "recursion", look.layer, look.kv_head)
    try:
        figure = looks_maps.lag_score_map(look.scores)
    except AnalysisError as error:
        places.sentence(error)
    else:
        _card(look, figure, "score-map")
    return {"Recursion": STRIP_NOTE, "Scores": SCORE_NOTE}


def variants(look: Look) -> Notes:
    """The lag-relative score against its two variants."""
    try:
        figure = looks_maps.lag_variants(look.variants, look.keep_ratio, look.kv_head, look.step)
        table = looks_maps.lag_overlap(look.variants, look.keep_ratio, look.step)
    except AnalysisError as error:
        places.sentence(error)
        return {}
    _card(look, figure, "variants")
    named = {key: name for name, key in _VARIANTS.items()}
    shown = table.rename(index=named, columns=named).rename_axis("variant").reset_index()
    with st.container(border=True, gap="xsmall", key="card-overlap"):
        st.markdown("**How alike the variants choose**")
        if table.isna().all(axis=None):
            st.caption("Nothing is compressed after this step, so there is nothing to compare.")
        else:
            numbers = st.column_config.NumberColumn(format="%.2f")
            st.dataframe(
                shown,
                hide_index=True,
                alt="Jaccard overlap of what the variants keep",
                column_config=dict.fromkeys(named.values(), numbers),
            )
        card.actions(lambda: shown, key="overlap", name="variants", link_values=look.link())
    return {"Variants": STRIP_NOTE, "Overlap": OVERLAP_NOTE}


def kept_tokens(look: Look) -> Notes:
    """What distinguishes the tokens that are kept: on the text, and by kind."""
    with st.container(horizontal=True):
        page = places.text_page(look.run_id, look.info, look.step)
    try:
        shown = looks_maps.lag_text(look.scores, look.keep_ratio, look.kv_head, look.step, page)
        table = looks_maps.lag_kinds(look.scores, look.keep_ratio, look.step)
    except AnalysisError as error:
        places.sentence(error)
        return {}
    with st.container(border=True, gap="xsmall", key="card-lag-text"):
        st.markdown("**What the chosen head keeps**")
        eviction_text(
            shown,
            key="lag-text",
            dark=card.theme() == "dark",
            on_step=lambda step: selection.go_to_step("step", step),
        )
        st.caption(plain(shown.caption))
        figure = eviction_figure(shown, f"LagKV, step {look.step}, {shown.place}")
        card.actions(
            figure.table, key="lag-text", name="text", link_values=look.link(), figure=figure
        )
    with st.container(border=True, gap="xsmall", key="card-kinds"):
        st.markdown("**Which kinds of tokens are kept**")
        if table.empty:
            st.caption("Nothing is compressed after this step, so everything is kept.")
        else:
            _kinds(table)
        card.actions(lambda: table, key="kinds", name="kinds", link_values=look.link())
    return {"The text": shown.note, "Kinds of tokens": KINDS_NOTE}


def _kinds(table: Any) -> None:
    share = st.column_config.ProgressColumn
    st.dataframe(
        table,
        hide_index=True,
        alt="Share of each kind of token that is kept",
        column_config={
            "kind": st.column_config.TextColumn("Kind"),
            "tokens": st.column_config.NumberColumn("Tokens", format="localized"),
            "share_of_text": share("Of the ranked text", min_value=0, max_value=1, format="%.2f"),
            "share_kept": share("Kept", min_value=0, max_value=1, format="%.2f"),
            "lift": st.column_config.NumberColumn("Lift", format="%.2f"),
            "kept_often": share("Kept often", min_value=0, max_value=1, format="%.2f"),
        },
    )


PANELS = {
    "Partitions": overview,
    "Recursion": recursion,
    "Variants": variants,
    "What is kept": kept_tokens,
}


def show(look: Look) -> Notes:
    return PANELS[look.panel](look)


def _figure(look: Look, key: str, name: str, *chosen: int, **more: int) -> None:
    """A figure of the layer's scores as a card, or the sentence why there is none."""
    try:
        figure = looks_maps.lag_figure(name, look.scores, look.keep_ratio, *chosen, **more)
    except AnalysisError as error:
        places.sentence(error)
    else:
        _card(look, figure, key)


def _card(look: Look, figure: Figure, key: str) -> None:
    height = None if figure.mark == "raster" else _HEIGHT
    card.figure_card(figure, key=f"lag-{key}", link_values=look.link(), height=height)
