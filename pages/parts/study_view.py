"""The figures of a study: what is shown, drawn again as prompts are finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from analysis.errors import AnalysisError
from analysis.figure import Figure, Note
from analysis.study import costs, curves, grids, options, summary
from analysis.study.rows import FULL, Study, size_words
from pages.parts import card, study_look, study_prompts
from pages.parts.study_look import Look, go_to_prompts
from pages.parts.text import plain

HEIGHT = 380

Notes = Mapping[str, str | Note]


def show(look: Look, study: Study) -> Notes:
    """The figures of the panel; returns how each is read."""
    if study.frame.empty:
        st.caption("The first figures appear when the first prompt is finished.")
        return {}
    try:
        return _SHOWN[look.panel](look, study)
    except AnalysisError as error:
        st.caption(plain(error))
        return {}


def _card(figure: Figure, key: str, look: Look, **more: Any) -> Note | None:
    more.setdefault("height", HEIGHT)
    card.figure_card(figure, key=f"study-{key}", link_values=look.link(), **more)
    return figure.note


def _score(look: Look, study: Study) -> Notes:
    figure = curves.over_size(study, look.measure, look.task, look.drawn(study))
    notes = {figure.title: _card(figure, "size", look, on_point=_to_prompts(look, study))}
    st.caption("Click a point to see the prompts behind it.")
    if study.axis == "ratio" and study.sizes and look.measure == "score":
        table = summary.summary(study)
        if len(table):
            notes["AUC and largest ratio"] = summary.AUC_NOTE
            with st.grid(2, min_column_width=420, gap="small"):
                _card(summary.summary_figure(study), "auc", look, height=HEIGHT - 60)
                _summary_table(table, look)
    return _known(notes)


def _known(notes: Mapping[str, Note | None]) -> Notes:
    return {name: note for name, note in notes.items() if note is not None}


def _summary_table(table: Any, look: Look) -> None:
    with st.container(border=True, gap="xsmall", key="card-study-summary"):
        st.markdown("**AUC and the largest ratio within a tolerance**")
        shown = table[[name for name in table.columns if not name.startswith("AUC, ")]]
        st.dataframe(
            shown,
            hide_index=True,
            placeholder="",
            column_config={
                name: st.column_config.NumberColumn(name, format="%.3f")
                for name in shown.columns
                if name != "policy"
            },
            alt="AUC and largest ratio of every policy",
        )
        card.actions(
            lambda: table, key="study-summary", name="study-summary", link_values=look.link()
        )


def _to_prompts(look: Look, study: Study) -> Callable[[float, float], None]:
    """From a click on a measured point: the prompts of that policy at that size."""

    def clicked(x: float, y: float) -> None:
        place = curves.place_at(study, look.measure, look.task, look.drawn(study), x, y)
        if place is not None:
            go_to_prompts(place.policy, place.size)

    return clicked


def _needles(look: Look, study: Study) -> Notes:
    found = grids.has_needles(study)
    if not found:
        raise AnalysisError("No task of this study says how deep its fact stands.")
    task = look.task if look.task in found else found[0]
    notes: dict[str, Note | None] = {}
    with st.grid(3, min_column_width=320, gap="small"):
        for index, name in enumerate([FULL, *look.drawn(study)]):
            at = study.size_of(name, look.number)
            figure = grids.needle(study, name, at, task, look.measure)

            def clicked(row: int, column: int, name: str = name, at: Any = at) -> None:
                cell = grids.cell(study, task, row, column)
                go_to_prompts(name, at, task=task, cell=cell)

            notes["Needles"] = _card(figure, f"needle-{index}", look, height=280, on_cell=clicked)
    st.caption("Click a cell to see the prompts behind it.")
    return _known(notes)


def _bytes(look: Look, study: Study) -> Notes:
    notes: dict[str, Note | None] = {}

    def clicked(x: float, y: float, column: str) -> None:
        place = curves.place_at_bytes(study, column, look.task, x, y)
        if place is not None:
            go_to_prompts(place.policy, place.size)

    with st.grid(2, min_column_width=440, gap="small"):
        for column in ("peak_bytes", "cache_bytes"):
            figure = curves.over_bytes(study, column, look.task)
            notes["Score over bytes"] = _card(
                figure,
                column,
                look,
                on_point=lambda x, y, column=column: clicked(x, y, column),
            )
        figure = costs.over_generated(study, "peak_bytes", look.number, look.task)
        clicks = _to_example(look, study, "peak_bytes")
        notes[figure.title] = _card(figure, "growth", look, on_point=clicks)
    st.caption("Click a point to see the prompts behind it.")
    return _known(notes)


def _to_example(look: Look, study: Study, value: str) -> Callable[[float, float], None]:
    """From a click on one prompt's point: that prompt under that policy."""

    def clicked(x: float, y: float) -> None:
        policy, example = costs.prompt_at(study, value, look.number, look.task, x, y)
        go_to_prompts(policy, study.size_of(policy, look.number), example=example)

    return clicked


def _time(look: Look, study: Study) -> Notes:
    notes: dict[str, Note | None] = {}
    if "latency" not in (study.spec.get("measures") or ()):
        st.caption(
            "This study did not measure latency: its policies wrote their responses side by side "
            "and shared what they could, so that no single one has a time for writing and only the "
            "first size of a policy has one for scoring. Clone it and add the measure."
        )
    with st.grid(2, min_column_width=440, gap="small"):
        figure = costs.by_stage(study, look.number, look.task)
        notes[figure.title] = _card(figure, "stages", look)
        if "latency" in (study.spec.get("measures") or ()):
            value = "decode_ms_per_step"
            figure = costs.over_generated(study, value, look.number, look.task)
            clicks = _to_example(look, study, value)
            notes[figure.title] = _card(figure, "latency", look, on_point=clicks)
    return _known(notes)


def _differences(look: Look, study: Study) -> Notes:
    size = look.number
    figure = summary.difference_figure(study, size, look.task)
    names = [FULL, *study.policies]

    def clicked(row: int, _column: int) -> None:
        go_to_prompts(names[row], study.size_of(names[row], size))

    height = max(HEIGHT, 60 + 34 * len(study.policies))
    note = _card(figure, "differences", look, height=height, on_cell=clicked)
    st.caption("Click a cell to see the prompts of its row.")
    table = summary.difference_table(study, size, look.task)
    with st.expander("Every pair with its p"):
        st.dataframe(
            table,
            hide_index=True,
            placeholder="",
            column_config={
                name: st.column_config.NumberColumn(name, format="%.3f")
                for name in ("difference", "p")
            },
        )
        card.downloads(lambda: table, key="study-pairs", name="study-pairs")
    return _known({figure.title: note})


def _options(look: Look, study: Study) -> Notes:
    varied = options.varied(study)
    if not varied:
        raise AnalysisError(
            "No two policies of this study differ in one option only: clone it and vary an option."
        )
    notes: dict[str, Note | None] = {}
    seen = (look.number, look.measure, look.task)
    with st.grid(2, min_column_width=440, gap="small"):
        for key, names in varied.items():
            for name in names:
                figure = options.over_option(study, key, name, *seen)

                def clicked(x: float, y: float, key: str = key, name: str = name) -> None:
                    policy = options.policy_at(study, key, name, x, y, *seen)
                    go_to_prompts(policy, study.size_of(policy, look.number))

                notes["A measure over an option"] = _card(
                    figure, f"option-{key}-{name}", look, on_point=clicked
                )
    st.caption("Click a point to see the prompts behind it.")
    return _known(notes)


def _prompts(look: Look, study: Study) -> Notes:
    policy = look.policy if look.policy in (FULL, *study.policies) else FULL
    size = study.size_of(policy, look.number)
    what = f"{'Full cache' if policy == FULL else policy}"
    what += f", {size_words(study, size)}" if size is not None else ""
    cell = study_look.behind_cell(study, look.task)
    study_prompts.show(study, policy, size, look.task, what, cell)
    return {}


_SHOWN: dict[str, Callable[[Look, Study], Notes]] = {
    "Score": _score,
    "Needles": _needles,
    "Bytes": _bytes,
    "Time": _time,
    "Differences": _differences,
    "Options": _options,
    "Prompts": _prompts,
}
