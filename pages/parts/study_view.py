"""The figures of a study: what is shown, drawn again as prompts are finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import streamlit as st

from analysis.errors import AnalysisError
from analysis.figure import Figure, Note
from analysis.study import costs, curves, grids, options, summary
from analysis.study.rows import ALL_TASKS, FULL, VALUES, Place, Study, size_words
from pages.parts import card, selection, study_list, study_prompts
from pages.parts.text import plain

PANELS = ("Score", "Needles", "Bytes", "Time", "Differences", "Options", "Prompts")
HEIGHT = 380
MEASURES = tuple(VALUES)

Notes = Mapping[str, str | Note]


@dataclass(frozen=True)
class Look:
    """What is shown of a study; all of it is in the URL."""

    study_id: str
    panel: str
    measure: str
    task: str
    size: str
    policy: str

    def link(self) -> dict[str, Any]:
        return {
            "study": self.study_id,
            "study_show": self.panel,
            "study_measure": self.measure,
            "study_task": self.task,
            "study_size": self.size,
            "study_policy": self.policy,
            "example": st.query_params.get("example"),
        }


def study_of(study_id: str) -> Study:
    """The rows that are there now."""
    reader = study_list.reader(study_id)
    return Study(study_id, reader.title, reader.spec, reader.rows())


def controls(study: Study) -> Look:
    """One row of controls; those without an effect on the panel are left out and keep their
    values."""
    sizes = [f"{size:g}" for size in study.sizes]
    policies = [FULL, *study.policies]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        panel = selection.segment("Show", "study_show", PANELS, label_visibility="collapsed")
        measure = _kept("study_measure", list(MEASURES), "score")
        if panel in ("Score", "Needles", "Options"):
            measure = selection.choice(
                "Measure",
                "study_measure",
                MEASURES,
                "score",
                format_func=lambda name: VALUES[name].label,
                width=220,
            )
        tasks = [ALL_TASKS, *study.tasks]
        task = _kept("study_task", tasks, ALL_TASKS)
        if panel == "Needles":
            needles = grids.has_needles(study)
            if len(needles) > 1:
                task = selection.choice("Task", "study_needle", needles, needles[0], width=200)
            elif needles:
                task = needles[0]
        elif len(study.tasks) > 1:
            task = selection.choice("Task", "study_task", tasks, ALL_TASKS, width=200)
        size = _kept("study_size", sizes, sizes[-1]) if sizes else ""
        if panel in ("Needles", "Bytes", "Time", "Differences", "Options", "Prompts") and sizes:
            label = "Share evicted" if study.axis == "ratio" else "Budget"
            size = selection.choice(label, "study_size", sizes, sizes[-1], width=130)
        policy = policies[min(1, len(policies) - 1)]
        if panel == "Prompts":
            policy = selection.choice("Policy", "study_policy", policies, policy, width=220)
    return Look(study.id, panel, measure, task, size, policy)


def _kept(key: str, options: list[str], default: str) -> str:
    """The URL's value while its control is not drawn."""
    value = st.query_params.get(key, default)
    return value if value in options else default


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


def _size(look: Look) -> float | None:
    return float(look.size) if look.size else None


def _card(figure: Figure, key: str, look: Look, **more: Any) -> Note | None:
    more.setdefault("height", HEIGHT)
    card.figure_card(figure, key=f"study-{key}", link_values=look.link(), **more)
    return figure.note


def _score(look: Look, study: Study) -> Notes:
    figure = curves.over_size(study, look.measure, look.task)
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
        means = study.matrix(look.measure, look.task).means
        best, nearest = None, np.inf
        for place, mean in zip(study.places, means, strict=True):
            at = _x_of(study, place)
            if not np.isfinite(mean) or at is None:
                continue
            distance = abs(at - x) * 1e6 + abs(mean - y)
            if distance < nearest:
                best, nearest = place, distance
        if best is not None:
            go_to_prompts(best.policy, best.size)

    return clicked


def _x_of(study: Study, place: Place) -> float | None:
    if place.size is not None:
        return place.size
    if place.policy == FULL:
        return 0.0 if study.axis == "ratio" else None
    return study.own_ratio(place.policy)


def go_to_prompts(policy: str, size: float | None) -> None:
    """From a callback: the Prompts panel of one point."""
    values = {"study_show": "Prompts", "study_policy": policy}
    if size is not None:
        values["study_size"] = f"{size:g}"
    for name, value in values.items():
        st.session_state[name] = value
        st.query_params[name] = value
    st.query_params.pop("example", None)


def _needles(look: Look, study: Study) -> Notes:
    found = grids.has_needles(study)
    if not found:
        raise AnalysisError("No task of this study says how deep its fact stands.")
    task = look.task if look.task in found else found[0]
    size = _size(look)
    notes: dict[str, Note | None] = {}
    with st.grid(3, min_column_width=320, gap="small"):
        for index, name in enumerate([FULL, *study.policies]):
            own = Place(name, None) in study.places
            at = None if own else size
            figure = grids.needle(study, name, at, task, look.measure)

            def clicked(_row: int, _column: int, name: str = name, at: Any = at) -> None:
                go_to_prompts(name, at)

            notes["Needles"] = _card(figure, f"needle-{index}", look, height=280, on_cell=clicked)
    return _known(notes)


def _bytes(look: Look, study: Study) -> Notes:
    notes: dict[str, Note | None] = {}

    def clicked(x: float, y: float, column: str) -> None:
        scores = study.matrix("score", look.task).means
        held = study.matrix(column, look.task).means
        span = np.nanmax(held) or 1.0
        distance = np.abs(held - x) / span + np.abs(scores - y)
        if np.isfinite(distance).any():
            place = study.places[int(np.nanargmin(distance))]
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
        figure = costs.over_generated(study, "peak_bytes", _size(look), look.task)
        notes[figure.title] = _card(figure, "growth", look)
    return _known(notes)


def _time(look: Look, study: Study) -> Notes:
    notes: dict[str, Note | None] = {}
    if "latency" not in (study.spec.get("measures") or ()):
        st.caption(
            "This study did not measure latency: its policies wrote their responses side by side, "
            "so that no single one has a time for writing. Clone it and add the measure."
        )
    with st.grid(2, min_column_width=440, gap="small"):
        figure = costs.by_stage(study, _size(look), look.task)
        notes[figure.title] = _card(figure, "stages", look)
        figure = costs.over_generated(study, "decode_ms_per_step", _size(look), look.task)
        notes[figure.title] = _card(figure, "latency", look)
    return _known(notes)


def _differences(look: Look, study: Study) -> Notes:
    size = _size(look)
    figure = summary.difference_figure(study, size, look.task)
    note = _card(figure, "differences", look, height=max(HEIGHT, 60 + 34 * len(study.policies)))
    table = summary.difference_table(study, size, look.task)
    with st.expander("Every pair with its p"):
        st.dataframe(
            table,
            hide_index=True,
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
    with st.grid(2, min_column_width=440, gap="small"):
        for key, names in varied.items():
            for name in names:
                figure = options.over_option(study, key, name, _size(look), look.measure, look.task)
                notes["A measure over an option"] = _card(figure, f"option-{key}-{name}", look)
    return _known(notes)


def _prompts(look: Look, study: Study) -> Notes:
    policy = look.policy if look.policy in (FULL, *study.policies) else FULL
    own = Place(policy, None) in study.places
    size = None if own else _size(look)
    what = f"{'Full cache' if policy == FULL else policy}"
    what += f", {size_words(study, size)}" if size is not None else ""
    study_prompts.show(study, policy, size, look.task, what)
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
