"""What policies cost in a study: bytes over the generated length, time per token and by stage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.figure import Axis, Figure, Note, Series
from analysis.study.rows import ALL_TASKS, FULL, VALUES, Place, Study, size_words
from analysis.words import number

STAGES = {
    "prefill_ms": "reading the prompt",
    "lookahead_ms": "lookahead or second reading",
    "score_ms": "scoring and compression",
    "decode_ms": "writing the response",
}
GROWTH_NOTE = Note(
    "Each point is a prompt under a policy. Policies that evict while they write stay level; those "
    "that compressed once after the prompt grow with the response.",
    "largest cache while the response was written",
    "LazyEviction, Figure 6",
)
LATENCY_NOTE = Note(
    "Each point is a prompt under a policy: the mean time of its generated tokens, scoring and "
    "eviction included.",
    "decoding time divided by generated tokens, measured once per prompt",
    "LazyEviction, Tables 7 and 8",
)
STAGE_NOTE = Note(
    "Where the time of a prompt goes. The prompt is read once for all policies of a study; its "
    "time is shown with each of them, as a run on its own would pay it.",
    "mean wall time by stage",
    "LAQ, Figure 6",
)


def over_generated(study: Study, value: str, size: float | None, task: str = ALL_TASKS) -> Figure:
    """Points: `value` of each prompt over its generated tokens, a colour per policy.

    value: "peak_bytes" or "decode_ms_per_step".
    """
    facts = VALUES[value]
    names, points = generated_points(study, value, size, task)
    x, y, owner = (points[name].to_numpy() for name in ("tokens", "value", "owner"))
    series = _series(study, names)
    at = "every policy at its own size" if size is None else size_words(study, size)
    means = "; ".join(
        f"{line.name} {number(float(np.mean(y[owner == n])))} {facts.unit}"
        for n, line in enumerate(series)
        if (owner == n).any()
    )
    highest = float(y.max()) if len(y) else 1.0
    return Figure(
        "scatter",
        f"{facts.label[0].upper()}{facts.label[1:]} over the generated length",
        Axis("generated tokens", range=(0.0, 1.05 * float(x.max()) if len(x) else 1.0)),
        Axis(facts.label, unit=facts.unit, range=(0.0, 1.05 * highest)),
        {
            "x": x.astype(np.float32),
            "y": y.astype(np.float32),
            "series": owner,
        },
        series=series,
        point_text=tuple(
            f"{series[n].name}, {example}"
            for n, example in zip(owner, points["example_id"], strict=True)
        ),
        caption=f"{task[0].upper()}{task[1:]}, {at}. Means: {means or 'nothing measured yet'}. "
        f"{study.words(task)}.",
        alt=f"{facts.label} over generated tokens. {means or 'Nothing measured yet'}.",
        note=GROWTH_NOTE if value == "peak_bytes" else LATENCY_NOTE,
        provenance=study.provenance(figure=f"study_{value}", size=size, task=task),
    )


def generated_points(
    study: Study, value: str, size: float | None, task: str = ALL_TASKS
) -> tuple[list[str], pd.DataFrame]:
    """The policies of `over_generated`, and its points: owner (an index into them), example_id,
    tokens and value, without those that have no number."""
    frame = study.placed
    if task != ALL_TASKS:
        frame = frame[frame["task"] == task]
    names, chosen = chosen_at(study, size)
    frame = frame[frame["place"].isin(chosen)]
    index = {place: n for n, place in enumerate(chosen)}
    points = pd.DataFrame(
        {
            "owner": frame["place"].map(index).astype(np.int64),
            "example_id": frame["example_id"],
            "tokens": frame["response_tokens"].astype(np.float64),
            "value": frame[value].astype(np.float64) / VALUES[value].divisor,
        }
    )
    return names, points.dropna().reset_index(drop=True)


def prompt_at(
    study: Study, value: str, size: float | None, task: str, x: float, y: float
) -> tuple[str, str]:
    """The policy and the example_id of the point of `over_generated` nearest to (x, y)."""
    names, points = generated_points(study, value, size, task)
    span = points["value"].max() or 1.0
    away = (points["tokens"] - x).abs() + (points["value"] - y).abs() / span
    nearest = points.iloc[int(np.argmin(away.to_numpy()))]
    return names[int(nearest["owner"])], str(nearest["example_id"])


def by_stage(study: Study, size: float | None, task: str = ALL_TASKS) -> Figure:
    """Stacked bars: mean milliseconds of each stage, the full cache first, then each policy."""
    names, places = chosen_at(study, size)
    stages = [
        column for column in STAGES if np.isfinite(study.frame[column].to_numpy(np.float64)).any()
    ]
    heights = np.zeros((len(stages), len(names)), np.float32)
    for row, column in enumerate(stages):
        heights[row] = np.nan_to_num(study.matrix(column, task).means[places])
    labels = ["full cache" if name == FULL else name for name in names]
    told = "; ".join(
        f"{name} {number(float(total))} ms"
        for name, total in zip(labels, heights.sum(axis=0), strict=True)
    )
    missing = [words for column, words in STAGES.items() if column not in stages]
    more = f" Not measured: {', '.join(missing)}." if missing else ""
    at = "every policy at its own size" if size is None else size_words(study, size)
    return Figure(
        "stacked_bars",
        "Time by stage",
        Axis("policy", ticks=tuple((float(n), name) for n, name in enumerate(labels))),
        Axis("time per prompt", unit="ms"),
        {"y": heights},
        series=tuple(Series(STAGES[column]) for column in stages),
        caption=f"{task[0].upper()}{task[1:]}, {at}. Totals: {told}.{more} {study.words(task)}.",
        alt=f"Milliseconds by stage. {told}.",
        note=STAGE_NOTE,
        provenance=study.provenance(figure="study_stages", size=size, task=task),
    )


def chosen_at(study: Study, size: float | None) -> tuple[list[str], list[int]]:
    """The full cache and every policy at a size (or its own), with their places."""
    names, places = [FULL], [study.place(FULL, None)]
    for name in study.policies:
        if Place(name, None) in study.places or size is not None:
            names.append(name)
            places.append(study.place(name, study.size_of(name, size)))
    return names, places


def _series(study: Study, names: Sequence[str]) -> tuple[Series, ...]:
    others = [name for name in names if name != FULL]
    return (Series("full cache", "#7F7F7F"), *study.series(others))
