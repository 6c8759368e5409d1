"""Needle heatmaps: where in the prompt, and in prompts of which length, a fact is still found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.errors import AnalysisError
from analysis.figure import Axis, ColourScale, Figure, Note
from analysis.study.rows import VALUES, Study, size_words
from analysis.words import number

MOST_DEPTHS = 11  # as many distinct depths are rows of their own; more are binned
BINS = 5

NOTE = Note(
    "Light cells are found, dark ones are lost. A dark band at some depths means that the policy "
    "forgets that part of the prompt; darker to the right means that long prompts are harder at "
    "this size.",
    "mean score over the prompts of one length and depth",
    "LAQ, Figures 4 and 8–10; LagKV, Figures 3 and 4",
)


def has_needles(study: Study) -> list[str]:
    """Tasks whose prompts say how deep their fact stands."""
    known = study.frame[study.frame["depth"].notna() & study.frame["length"].notna()]
    return [task for task in study.tasks if task in set(known["task"])]


def needle(
    study: Study, policy: str, size: float | None, task: str, value: str = "score"
) -> Figure:
    """Heatmap: mean of `value` over depth (rows, 0 at the top) and prompt length (columns).

    Depths that were drawn at random are binned. Raises AnalysisError where the task's prompts do
    not say how deep their fact stands.
    """
    if task not in has_needles(study):
        raise AnalysisError(f"The prompts of {task} do not say how deep their fact stands.")
    place = study.place(policy, size)
    frame = study.placed
    rows = frame[(frame["task"] == task) & (frame["place"] == place)]
    grid = _grid(rows)
    rows, depths, lengths = grid.rows, grid.depths, grid.lengths
    facts = VALUES[value]
    numbers = rows[value].to_numpy(np.float64) / facts.divisor
    z = np.full((len(depths), len(lengths)), np.nan, np.float32)
    counts = np.zeros(z.shape, np.int64)
    for r in range(len(depths)):
        for c in range(len(lengths)):
            cell = numbers[(grid.of_row == r) & (grid.of_column == c)]
            cell = cell[np.isfinite(cell)]
            counts[r, c] = len(cell)
            if len(cell):
                z[r, c] = cell.mean()
    each = _spread(counts[counts > 0])
    mean = number(float(np.nanmean(z))) if np.isfinite(z).any() else "none yet"
    name = "full cache" if size is None and policy == "full" else policy
    at = "" if size is None else f", {size_words(study, size)}"
    low, high = facts.range or (0.0, max(1e-9, float(np.nanmax(z, initial=0.0))))
    return Figure(
        "heatmap",
        f"{name}{at}: {facts.label} by depth and length",
        Axis(
            "prompt tokens",
            np.arange(len(lengths)),
            ticks=tuple((float(i), f"{n:,}") for i, n in enumerate(lengths)),
        ),
        Axis(
            "depth of the fact",
            np.arange(len(depths)),
            ticks=tuple((float(i), text) for i, text in enumerate(depths)),
            reversed=True,
        ),
        {"z": z},
        colour=ColourScale(facts.label, (low, high)),
        caption=f"{task}; mean {mean}; {each} a cell.{grid.binned} {study.words(task)}.",
        alt=f"{facts.label} of {name}{at} over {len(depths)} depths and {len(lengths)} lengths; "
        f"mean {mean}.",
        note=NOTE,
        provenance=study.provenance(
            figure="study_needle", policy=policy, size=size, task=task, value=value
        ),
    )


def cell(study: Study, task: str, row: int, column: int) -> tuple[str, int]:
    """The words of a cell: its depth as the axis says it, and its prompt length."""
    grid = _grid(_prompts(study, task))
    return grid.depths[row], int(grid.lengths[column])


def prompts_in(study: Study, task: str, depth: str, length: int) -> list[str]:
    """The ids of the prompts behind a cell; none where there is no such cell."""
    grid = _grid(_prompts(study, task))
    if depth not in grid.depths or length not in grid.lengths:
        return []
    inside = (grid.of_row == grid.depths.index(depth)) & (grid.lengths[grid.of_column] == length)
    return list(grid.rows["example_id"][inside])


def _prompts(study: Study, task: str) -> pd.DataFrame:
    """One row for each prompt of a task."""
    return study.frame[study.frame["task"] == task].drop_duplicates("example_id")


@dataclass(frozen=True)
class _Grid:
    """Rows whose prompt says depth and length, and the cell that each belongs to."""

    rows: pd.DataFrame
    depths: list[str]
    lengths: np.ndarray
    of_row: np.ndarray
    of_column: np.ndarray
    binned: str


def _grid(rows: pd.DataFrame) -> _Grid:
    rows = rows[rows["depth"].notna() & rows["length"].notna()]
    depths, of_row, binned = _depths(rows["depth"].to_numpy(np.float64))
    lengths, of_column = np.unique(rows["length"].to_numpy(np.int64), return_inverse=True)
    return _Grid(rows, depths, lengths, of_row, of_column, binned)


def _depths(depths: np.ndarray) -> tuple[list[str], np.ndarray, str]:
    """Labels of the rows, the row of each depth, and how they were binned."""
    distinct = np.unique(depths)
    if len(distinct) <= MOST_DEPTHS:
        return [f"{d:.0%}" for d in distinct], np.searchsorted(distinct, depths), ""
    rows = np.minimum((depths * BINS).astype(np.int64), BINS - 1)
    labels = [f"{i / BINS:.0%}–{(i + 1) / BINS:.0%}" for i in range(BINS)]
    return labels, rows, f" Depths are pooled into {BINS} bins."


def _spread(counts: np.ndarray) -> str:
    if not len(counts):
        return "no prompts"
    low, high = int(counts.min()), int(counts.max())
    words = f"{low}" if low == high else f"{low} to {high}"
    return f"{words} prompt{'' if high == 1 else 's'}"
