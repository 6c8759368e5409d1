"""What is shown of a study: its controls, all of them in the URL, and the way to the prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import streamlit as st

from analysis.study import grids
from analysis.study.rows import ALL_TASKS, FULL, VALUES, Study
from pages.parts import selection, study_list
from pages.parts.study_list import BEHIND

PANELS = ("Score", "Needles", "Bytes", "Time", "Differences", "Options", "Prompts")
SIZED = PANELS[1:]
MEASURES = tuple(VALUES)


@dataclass(frozen=True)
class Look:
    """What is shown of a study; all of it is in the URL."""

    study_id: str
    panel: str
    measure: str
    task: str
    size: str
    policy: str
    policies: tuple[str, ...]  # those that are drawn; none: all of them

    def link(self) -> dict[str, Any]:
        return {
            "study": self.study_id,
            "study_show": self.panel,
            "study_measure": self.measure,
            "study_task": self.task,
            "study_needle": self.task if self.panel == "Needles" else None,
            "study_size": self.size,
            "study_policy": self.policy,
            "study_policies": self.policies,
            **{name: st.query_params.get(name) for name in BEHIND},
        }

    @property
    def number(self) -> float | None:
        """The size as a number; None where the study has none."""
        return float(self.size) if self.size else None

    def drawn(self, study: Study) -> tuple[str, ...]:
        """The policies that are drawn."""
        return self.policies or study.policies


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
        if panel in SIZED and sizes:
            label = "Share evicted" if study.axis == "ratio" else "Budget"
            size = selection.choice(label, "study_size", sizes, sizes[-1], width=130)
        policy = policies[min(1, len(policies) - 1)]
        if panel == "Prompts":
            policy = selection.choice(
                "Policy",
                "study_policy",
                policies,
                policy,
                format_func=lambda name: "Full cache" if name == FULL else name,
                width=220,
            )
        drawn: tuple[str, ...] = ()
        if panel in ("Score", "Needles") and len(study.policies) > 1:
            drawn = selection.several("Policies", "study_policies", study.policies, width=300)
    return Look(study.id, panel, measure, task, size, policy, drawn)


def _kept(key: str, options: list[str], default: str) -> str:
    """The URL's value while its control is not drawn."""
    value = st.query_params.get(key, default)
    return value if value in options else default


def go_to_prompts(
    policy: str,
    size: float | None,
    *,
    task: str | None = None,
    cell: tuple[str, int] | None = None,
    example: str | None = None,
) -> None:
    """From a callback: the prompts of one point, or of one needle `cell` (depth and length)."""
    values = {"study_show": "Prompts", "study_policy": policy}
    if size is not None:
        values["study_size"] = f"{size:g}"
    if task is not None:
        values["study_task"] = task
    for name, value in values.items():
        st.session_state[name] = value
        st.query_params[name] = value
    behind = dict.fromkeys(BEHIND) | {"example": example}
    if cell is not None:
        behind |= {"study_depth": cell[0], "study_length": str(cell[1])}
    for name, found in behind.items():
        if found is None:
            st.query_params.pop(name, None)
        else:
            st.query_params[name] = found


def behind_cell(study: Study, task: str) -> tuple[str, list[str]] | None:
    """The needle cell in the URL: its words and the ids of its prompts; None where there is none
    of this task (or of the study's only one)."""
    depth, length = st.query_params.get("study_depth"), st.query_params.get("study_length", "")
    needles = grids.has_needles(study)
    if task == ALL_TASKS and len(study.tasks) == 1:
        task = study.tasks[0]
    if depth is None or not length.isdecimal() or task not in needles:
        return None
    found = grids.prompts_in(study, task, depth, int(length))
    return (f"fact at {depth}, {int(length):,} tokens", found) if found else None


def forget_cell() -> None:
    """From a callback: all prompts again."""
    for name in BEHIND:
        st.query_params.pop(name, None)
