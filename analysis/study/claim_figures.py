"""Figures of the findings: every comparison of a claim, and recall over window starts."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.figure import Axis, Figure, Marker, Note, Series
from analysis.study.claims import RECALL_BUDGET, Measured
from analysis.study.curves import BAND
from analysis.study.rows import Matrix
from analysis.words import number

NOTE = Note(
    "Each row is a comparison that a paper makes: the middle mark is the difference of mean scores "
    "over the same prompts and all sizes of the study, the outer ones the ends of its 95% "
    "interval. Right of the line the claim holds here, left of it the opposite does, and an "
    "interval across the line says nothing.",
    "paired bootstrap over prompts, 1,000 draws, percentiles 2.5 and 97.5",
)


def forest(title: str, measured: list[Measured], source: str) -> Figure:
    """Scatter: difference and interval of every comparison, one row each."""
    rows = np.arange(len(measured))
    ends = np.array([[one.low, one.difference, one.high] for one in measured])
    limit = 1.08 * max(0.1, float(np.abs(ends).max())) if len(measured) else 1.0
    told = "; ".join(
        f"{one.comparison.words} {number(one.difference)} ({number(one.low)} to {number(one.high)})"
        for one in measured
    )
    return Figure(
        "scatter",
        title,
        Axis("difference of mean scores", range=(-limit, limit)),
        Axis(
            "",
            rows.astype(np.float64),
            ticks=tuple((float(i), one.comparison.words) for i, one in enumerate(measured)),
            reversed=True,
            range=(-0.5, len(measured) - 0.5),
        ),
        {
            "x": ends.T.reshape(-1).astype(np.float32),
            "y": np.tile(rows, 3).astype(np.float32),
            "series": np.repeat(np.arange(3), len(measured)),
        },
        series=(
            Series("lower end", "#7F7F7F"),
            Series("difference", "#0072B2"),
            Series("upper end", "#7F7F7F"),
        ),
        markers=(Marker("x", x=0.0, label="no difference"),),
        caption=f"Measured on the embedded model against {source}.",
        alt=f"{title}: {told}.",
        note=NOTE,
        provenance={"figure": "findings", "claim": title},
    )


RECALL_NOTE = Note(
    "How much of what the response needs most a window of queries finds, over the position of the "
    "window's first query: 0 is the first token of the response, to the left are the prompt's own "
    "queries.",
    f"share of the {RECALL_BUDGET} entries with the largest attention from the whole response that "
    "are among those of 8 queries; mean over layers, KV heads and prompts",
    "LAQ, Figure 2",
)


def recall_over_offsets(recall: pd.DataFrame) -> Figure:
    """Lines: mean recall of a window over its first query, with a bootstrap band.

    recall: columns prompt, offset and recall.
    """
    by_prompt = recall.pivot(index="prompt", columns="offset", values="recall")
    values = by_prompt.to_numpy(np.float64)
    matrix = Matrix(values, np.zeros(len(values), np.int64))
    low, high = matrix.band()
    offsets = by_prompt.columns.to_numpy(np.float64)
    peak = int(np.argmax(matrix.means))
    told = f"Highest at {offsets[peak]:.0f}: {number(float(matrix.means[peak]))}"
    return Figure(
        "lines",
        "Recall over the start of the window",
        Axis("first query of the window, from the response's first token", offsets),
        Axis("recall", range=(0.0, 1.0)),
        {
            "y": matrix.means[None].astype(np.float32),
            "low": low[None].astype(np.float32),
            "high": high[None].astype(np.float32),
        },
        series=(Series("recall", "#0072B2"),),
        markers=(Marker("x", x=0.0, label="response begins"),),
        caption=f"{told}. {len(values):,} prompts; {BAND}.",
        alt=f"Recall of windows of queries over where they begin. {told}.",
        note=RECALL_NOTE,
        provenance={"figure": "findings_recall"},
    )
