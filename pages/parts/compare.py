"""Two runs side by side: the facts that differ first, and the overview with one colour range."""

from __future__ import annotations

import dataclasses

import pandas as pd
import streamlit as st

from analysis.figure import Figure
from analysis.rows import MEASURES
from cache_store.reader import CaptureInfo
from pages.parts import backstage, card, looks, run_table, selection
from pages.parts.text import duration, shorten, size

_WORDS = {"length": "the token limit", "stop": "the model ended it"}


def show(run_ids: list[str]) -> None:
    """Facts as a table with one column per run, then both overview grids."""
    st.subheader("How do the two differ?", anchor=False)
    titles = backstage.runs().set_index("id")["title"]
    infos = [backstage.capture(run_id).info for run_id in run_ids]
    names = [shorten(titles.get(run_id) or run_id, 40) for run_id in run_ids]
    if names[0] == names[1]:
        names = [f"{name} ({run_id[-6:]})" for name, run_id in zip(names, run_ids, strict=True)]
    sizes = [backstage.capture(run_id).file_bytes for run_id in run_ids]
    facts = pd.DataFrame(
        {name: _facts(info, count) for name, info, count in zip(names, infos, sizes, strict=True)}
    )
    facts.index.name = "Fact"
    st.dataframe(
        facts.reset_index(),
        hide_index=True,
        placeholder="",
        height="content",
        alt="Facts of both runs",
    )
    link = {"run": st.session_state.get("run"), run_table.PICK: run_ids}
    card.actions(facts.reset_index, key="facts", name="comparison", link_values=link)
    label = selection.choice(
        "Measure", "measure", list(MEASURES.values()), MEASURES["entropy"], width=170
    )
    measure = next(key for key, words in MEASURES.items() if words == label)
    figures = _same_colours([looks.overview(run_id, measure, None, None) for run_id in run_ids])
    with st.grid(2, min_column_width=440):
        for name, run_id, figure in zip(names, run_ids, figures, strict=True):
            card.figure_card(
                dataclasses.replace(figure, title=f"{name}: {figure.title.lower()}"),
                key=f"compare-{run_id}",
                link_values={**link, "measure": label},
                height=360,
            )


def _facts(info: CaptureInfo, count: int) -> dict[str, str]:
    seconds = sum(info.timings.values()) if info.timings else None
    settings = info.settings
    return {
        "Model": f"{info.model_id} ({info.architecture})",
        "Revision": str(info.model_revision or "")[:12],
        "Layers × heads": f"{info.layers} × {info.query_heads} ({info.kv_heads} KV)",
        "Prompt tokens": f"{info.prompt_length:,} ({info.context_length:,} context)",
        "Response tokens": f"{info.response_length:,}",
        "Ended by": _WORDS.get(str(info.finish_reason), str(info.finish_reason or "")),
        "Choice of tokens": "sampled, seed " + str(info.seed)
        if settings.get("sample")
        else "greedy",
        "Number format": f"{info.dtype} on {info.device}",
        "Time": duration(seconds),
        "Peak memory": size(info.peak_memory_bytes) if info.peak_memory_bytes else "",
        "File": size(count),
    }


def _same_colours(figures: list[Figure]) -> list[Figure]:
    """Figures that are compared share their colour range."""
    ranges = [figure.colour.range for figure in figures if figure.colour is not None]
    both = (min(low for low, _ in ranges), max(high for _, high in ranges))
    return [
        dataclasses.replace(figure, colour=dataclasses.replace(figure.colour, range=both))
        if figure.colour is not None
        else figure
        for figure in figures
    ]
