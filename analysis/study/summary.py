"""A study in one number per policy: area under the curve, largest ratio within a tolerance, and
which differences are more than chance (KVCompose, Tables 2 and 3; docs/methods.md, section 6)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.errors import AnalysisError
from analysis.figure import Axis, ColourScale, Figure, Marker, Note
from analysis.study.rows import ALL_TASKS, FULL, RESAMPLES, Study, size_words
from analysis.words import number

TOLERANCES = (0.1, 0.2)
SIGNIFICANT = 0.05

AUC_NOTE = Note(
    "How much of the score a policy keeps over all ratios: 1 would be a perfect score everywhere. "
    "The largest ratio says how much can be evicted before the score falls by a tenth or a fifth.",
    "AUC = trapezoid of the score over the ratios from 0 (full cache) to the largest, divided by "
    "the largest; ε(r) = mean over tasks of (R_full − R_r) / R_full; largest r with ε ≤ ε₀: first "
    "crossing, linear between measured ratios",
    "KVCompose, Tables 2 and 3",
)
PAIRED_NOTE = Note(
    "A cell is the row's score minus the column's, over the same prompts. Outlined cells differ by "
    "more than chance; with many policies some outlines are chance as well.",
    "two-sided p = 2 min(share of resampled differences ≤ 0, share ≥ 0) of "
    f"{RESAMPLES:,} paired bootstrap draws of prompts",
)


def area(ratios: np.ndarray, scores: np.ndarray) -> float:
    """Area under scores over ascending ratios, divided by their span; NaN with any gap."""
    if len(ratios) < 2 or not np.isfinite(scores).all():
        return float("nan")
    return float(np.trapezoid(scores, ratios) / (ratios[-1] - ratios[0]))


def largest_ratio(ratios: np.ndarray, errors: np.ndarray, tolerance: float) -> float:
    """The ratio at which the error first crosses the tolerance, linear between measured ones; the
    largest ratio where it never does; NaN with any gap before."""
    for i in range(len(ratios)):
        if not np.isfinite(errors[i]):
            return float("nan")
        if errors[i] > tolerance:
            if i == 0:
                return float("nan")
            share = (tolerance - errors[i - 1]) / (errors[i] - errors[i - 1])
            return float(ratios[i - 1] + share * (ratios[i] - ratios[i - 1]))
    return float(ratios[-1])


def curve(study: Study, policy: str, task: str = ALL_TASKS) -> tuple[np.ndarray, np.ndarray]:
    """Ratios from 0 and the mean score at each; ratio 0 is the full cache."""
    means = study.matrix("score", task).means
    places = [study.place(FULL, None), *(study.place(policy, size) for size in study.sizes)]
    return np.array([0.0, *study.sizes]), means[places]


def errors(study: Study, policy: str) -> np.ndarray:
    """ε at 0 and every ratio: mean over tasks of the relative loss; tasks that the full cache
    fails entirely have no relative loss and are left out."""
    losses = []
    for task in study.tasks:
        _, scores = curve(study, policy, task)
        if scores[0] > 0:
            losses.append((scores[0] - scores) / scores[0])
    return np.mean(losses, axis=0) if losses else np.full(len(study.sizes) + 1, np.nan)


def summary(study: Study) -> pd.DataFrame:
    """One row per policy: AUC over all tasks and of each, and the largest ratio at each tolerance.

    Raises AnalysisError for a study over budgets, which has no ratios to go over.
    """
    if study.axis != "ratio":
        raise AnalysisError(
            "AUC and largest ratios go over ratios; this study was made over budgets."
        )
    rows = []
    for policy in _sized(study):
        ratios, scores = curve(study, policy)
        row: dict[str, object] = {"policy": policy, "AUC": area(ratios, scores)}
        lost = errors(study, policy)
        for tolerance in TOLERANCES:
            name = f"largest ratio, ε ≤ {tolerance:.0%}"
            row[name] = largest_ratio(ratios, lost, tolerance)
        if len(study.tasks) > 1:
            row |= {f"AUC, {task}": area(*curve(study, policy, task)) for task in study.tasks}
        rows.append(row)
    return pd.DataFrame(rows)


def _sized(study: Study) -> list[str]:
    """Policies that were run at every ratio."""
    return [
        p for p in study.policies if any(q.policy == p and q.size is not None for q in study.places)
    ]


def summary_figure(study: Study) -> Figure:
    """Heatmap: AUC of every policy over all tasks and each of them."""
    table = summary(study)
    names = [c for c in table.columns if c.startswith("AUC")]
    z = table[names].to_numpy(np.float32) if len(table) else np.zeros((0, 0), np.float32)
    labels = [c.removeprefix("AUC, ") if c != "AUC" else "all tasks" for c in names]
    best = ""
    if len(table) and table["AUC"].notna().any():
        areas = table["AUC"].to_numpy(np.float64)
        top = int(np.nanargmax(areas))
        best = f" Highest: {table['policy'].iloc[top]} ({number(float(areas[top]))})."
    span = f"0 to {study.sizes[-1]:g}" if study.sizes else "no ratios"
    return Figure(
        "heatmap",
        "Area under score over ratio",
        _named_axis("task", labels),
        _named_axis("policy", list(table["policy"]) if len(table) else [], reversed=True),
        {"z": z},
        colour=ColourScale("AUC", (0.0, 1.0)),
        caption=f"Trapezoid over ratios {span}.{best} {study.words()}.",
        alt="Area under the curve by policy and task: "
        + "; ".join(f"{p} {number(v)}" for p, v in zip(table["policy"], table["AUC"], strict=True))
        if len(table)
        else "Area under the curve: nothing to show yet.",
        note=AUC_NOTE,
        provenance=study.provenance(figure="study_auc"),
    )


def _named_axis(label: str, names: Sequence[str], reversed: bool = False) -> Axis:
    ticks = tuple((float(i), name) for i, name in enumerate(names))
    return Axis(label, np.arange(len(names)), ticks=ticks, reversed=reversed)


def differences(
    study: Study, size: float | None, task: str = ALL_TASKS, *, seed: int = 0
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Names (full cache first), mean score differences row − column, and paired bootstrap p.

    `size` None takes each prompt's mean over all sizes. Both matrices are (names, names); NaN where
    two policies share no prompt.
    """
    matrix = study.matrix("score", task)
    names, columns = [FULL], [matrix.values[:, 0]]
    for policy in study.policies:
        places = [i for i, p in enumerate(study.places) if p.policy == policy]
        if size is not None and study.places[places[0]].size is not None:
            places = [study.place(policy, size)]
        names.append(policy)
        columns.append(matrix.values[:, places].mean(axis=1))
    scores = np.stack(columns, axis=1)
    pairs = scores[:, :, None] - scores[:, None, :]  # (examples, row, column)
    flat = type(matrix)(pairs.reshape(len(scores), len(names) ** 2), matrix.groups)
    shape = (len(names), len(names))
    drawn = flat.resampled(seed=seed).reshape(RESAMPLES, *shape)
    known = np.isfinite(drawn)
    count = np.maximum(known.sum(axis=0), 1)
    below, above = ((known & part).sum(axis=0) / count for part in (drawn <= 0, drawn >= 0))
    p = np.clip(2 * np.minimum(below, above), 1 / RESAMPLES, 1.0)
    means = flat.means.reshape(shape)
    return names, means, np.where(np.isfinite(means), p, np.nan)


def difference_table(study: Study, size: float | None, task: str = ALL_TASKS) -> pd.DataFrame:
    """Every pair once: row, column, difference and p."""
    names, means, p = differences(study, size, task)
    return pd.DataFrame(
        [
            {"policy": a, "against": b, "difference": means[i, j], "p": p[i, j]}
            for i, a in enumerate(names)
            for j, b in enumerate(names)
            if i < j
        ]
    )


def difference_figure(study: Study, size: float | None, task: str = ALL_TASKS) -> Figure:
    """Heatmap: the row's score minus the column's; cells with p < 0.05 are outlined."""
    names, means, p = differences(study, size, task)
    shown = np.where(np.eye(len(names), dtype=bool), np.nan, means)
    finite = np.abs(shown[np.isfinite(shown)])
    outlined = tuple(
        Marker("cell", x=j, y=i)
        for i in range(len(names))
        for j in range(len(names))
        if i != j and p[i, j] < SIGNIFICANT
    )
    labels = ["full cache", *names[1:]]
    at = "mean over all sizes" if size is None else size_words(study, size)
    count = len(outlined) // 2
    told = f"{count} of {len(names) * (len(names) - 1) // 2} pairs differ with p < {SIGNIFICANT:g}"
    return Figure(
        "heatmap",
        "Which differences are more than chance",
        _named_axis("minus", labels),
        _named_axis("score of", labels, reversed=True),
        {"z": shown.astype(np.float32)},
        colour=ColourScale.centred("difference", finite.max() if len(finite) else 1.0),
        markers=outlined,
        caption=f"{task[0].upper()}{task[1:]}, {at}. {told}, outlined. {study.words(task)}.",
        alt=f"Score differences between {len(names)} policies, {at}: {told}.",
        note=PAIRED_NOTE,
        provenance=study.provenance(figure="study_differences", size=size, task=task),
    )
