"""The Partitions page's panels: the sequence, the recursion, the variants, and what is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamlit as st

from analysis.errors import AnalysisError
from analysis.figure import Figure, Note
from analysis.partitions import compressing_steps, kept_per_partition, layout
from analysis.partitions_figures import LENGTH_NOTE, SCORE_NOTE, STRIP_NOTE
from pages.parts import card, looks_maps, places, selection
from pages.parts.text import plain
from pages.parts.text_card import text_card

if TYPE_CHECKING:
    from pages.parts.partitions_view import Look

Notes = dict[str, str | Note]

NAMES = {"LagKV": "lag_relative", "LocalKV": "local_relative", "key norm": "key_norm"}
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
    newest = _through(look)
    _figure(look, "recursion", "recursion", look.layer, look.kv_head, step=look.step)
    if newest is not None:
        _figure(look, "newest", "partition_scores", look.layer, look.kv_head, newest)
    try:
        figure = looks_maps.lag_score_map(look.scores)
    except AnalysisError as error:
        places.sentence(error)
    else:
        _card(look, figure, "score-map")
    return {"Recursion": STRIP_NOTE, "Scores": SCORE_NOTE}


def _through(look: Look) -> int | None:
    """Buttons from one compression to the next; returns the partition compressed last."""
    parts = layout(look.info.length, look.sink, look.lag)
    steps = compressing_steps(parts, look.info.prompt_length)
    before = [step for step in steps if step < look.step]
    after = [step for step in steps if step > look.step]
    done = [step for step in steps if step <= look.step]
    with st.container(horizontal=True, vertical_alignment="center"):
        for label, key, to in (
            ("Previous compression", "lag-back", before[-1:]),
            ("Next compression", "lag-next", after[:1]),
        ):
            st.button(
                label,
                key=key,
                disabled=not to,
                on_click=selection.go_to_step,
                args=("step", to[0] if to else look.step),
            )
        st.caption(plain(_compressed(look, steps, done)), width="stretch")
    return steps[done[-1]][-1] if done else None


def _compressed(look: Look, steps: dict[int, list[int]], done: list[int]) -> str:
    """What the newest compression until the chosen step did."""
    if not done:
        first = min(steps, default=None)
        if first is None:
            return "No partition of this text is ever compressed."
        return f"Nothing is compressed yet; the first partition is after step {first:,}."
    at, numbers = done[-1], steps[done[-1]]
    which = f"partition {numbers[0]}"
    if len(numbers) > 1:
        which = f"partitions {numbers[0]} to {numbers[-1]}"
    when = "At the end of prefill" if at == 0 else f"After step {at:,}"
    kept = kept_per_partition(look.lag, look.keep_ratio)
    return (
        f"{when} partition {numbers[-1] + 1} is complete, so {which} shrank to {kept} of "
        f"{look.lag} entries each."
    )


def variants(look: Look) -> Notes:
    """The lag-relative score against its two variants."""
    try:
        figure = looks_maps.lag_variants(look.variants, look.keep_ratio, look.kv_head, look.step)
        table = looks_maps.lag_overlap(look.variants, look.keep_ratio, look.step)
    except AnalysisError as error:
        places.sentence(error)
        return {}
    _card(look, figure, "variants")
    named = {key: name for name, key in NAMES.items()}
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
                placeholder="",
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
    text_card(
        shown,
        "What the chosen head keeps",
        key="lag-text",
        figure_title=f"LagKV, step {look.step}, {shown.place}",
        link_values=look.link(),
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
        placeholder="",
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
