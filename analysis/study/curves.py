"""Curves of a study: a measure over ratio or budget, and the score over measured bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from analysis.comparison import lines_alt
from analysis.figure import Axis, Figure, Note, Series
from analysis.study.rows import ALL_TASKS, FULL, VALUES, Place, Study, size_words
from analysis.words import number

FULL_SERIES = Series("full cache", "#7F7F7F", "dot")
BAND = "band: 95% of means over prompts drawn again (bootstrap)"
MOST_BANDS = 4  # more of them cover one another
LITTLE = 0.5  # a full cache that scores less leaves little to lose

SIZE_NOTE = Note(
    "How much is lost as more is evicted. A line that stays up longer keeps more; where bands "
    "overlap widely, the prompts do not tell the policies apart.",
    "mean over prompts, then over tasks; band: percentiles 2.5 and 97.5 of 1,000 bootstrap means",
    "KVCompose, Figure 5; SAGE-KV, Figure 2; LazyEviction, Figure 5",
)
BYTES_NOTE = Note(
    "Policies that evict once after the prompt keep growing while they write; compared at equal "
    "peak, they have to be better. The line joins what nothing else beats: a higher score with as "
    "few bytes.",
    "Pareto front: no other point has at least the score with fewer bytes",
    "LazyEviction, Figure 5; SAGE-KV, Figure 2",
)


def over_size(
    study: Study,
    value: str = "score",
    task: str = ALL_TASKS,
    policies: Sequence[str] | None = None,
) -> Figure:
    """Lines: the mean of `value` over ratio or budget, a policy each, with bootstrap bands.

    Over ratios every line begins at the full cache (0 evicted); over budgets it is a line of its
    own. A policy that takes no size is a point.
    """
    shown = list(policies if policies is not None else study.policies)
    matrix = study.matrix(value, task)
    means, (low, high) = matrix.means, matrix.band()
    sized = [p for p in shown if Place(p, None) not in study.places]
    own = [p for p in shown if p not in sized]
    whole = study.place(FULL, None)
    x = np.array([0.0, *study.sizes] if study.axis == "ratio" else study.sizes)

    def line(numbers: np.ndarray, policy: str) -> np.ndarray:
        at = [study.place(policy, size) for size in study.sizes]
        return numbers[[whole, *at]] if study.axis == "ratio" else numbers[at]

    lines = [line(means, policy) for policy in sized]
    bands = [(line(low, policy), line(high, policy)) for policy in sized]
    series = list(study.series(shown))
    ordered = [series[shown.index(p)] for p in sized]
    if study.axis == "budget":
        lines.append(np.full(len(x), means[whole]))
        bands.append((np.full(len(x), np.nan), np.full(len(x), np.nan)))
        ordered.append(FULL_SERIES)
    arrays: dict[str, np.ndarray] = {"y": _stack(lines, len(x))}
    if len(sized) <= MOST_BANDS and any(np.isfinite(part).any() for part, _ in bands):
        arrays |= {
            "low": _stack([b[0] for b in bands], len(x)),
            "high": _stack([b[1] for b in bands], len(x)),
        }
    if own:
        arrays["y"] = _padded(arrays["y"], len(own))
        for name in ("low", "high"):
            if name in arrays:
                arrays[name] = _padded(arrays[name], len(own))
        arrays |= {
            "point_x": np.array([study.own_ratio(p) for p in own], np.float32),
            "point_y": np.array([means[study.place(p, None)] for p in own], np.float32),
            "point_series": np.arange(len(ordered), len(ordered) + len(own)),
        }
        ordered += [series[shown.index(p)] for p in own]
    facts = VALUES[value]
    told = BAND[0].upper() + BAND[1:] if "low" in arrays else ""
    if not told and len(sized) > MOST_BANDS:
        told = f"Bands appear with at most {MOST_BANDS} policies"
    failed = _failures(study, task, shown)
    little = ""
    if value == "score" and means[whole] < LITTLE:
        little = f"The full cache itself scores {number(means[whole])}: little can be lost here"
    parts = [f"{task[0].upper()}{task[1:]}", told, little, failed, study.words(task)]
    return Figure(
        "lines",
        f"{facts.label[0].upper()}{facts.label[1:]} over {_size_label(study)}",
        Axis(_size_label(study), x, log=study.axis == "budget" and len(x) > 2),
        Axis(facts.label, unit=facts.unit, range=drawn_range(value, arrays)),
        arrays,
        series=tuple(ordered),
        point_text=tuple(own),
        caption=". ".join(part for part in parts if part) + ".",
        alt=lines_alt(
            f"{facts.label}, {task}",
            Axis(_size_label(study), x),
            [s.name for s in ordered],
            arrays["y"],
        ),
        note=SIZE_NOTE,
        provenance=study.provenance(figure="study_over_size", value=value, task=task),
    )


def place_at(
    study: Study, value: str, task: str, policies: Sequence[str], x: float, y: float
) -> Place | None:
    """The place whose mark in `over_size` is nearest to (x, y), at equal sizes by height."""
    means = study.matrix(value, task).means
    best, nearest = None, np.inf
    for place, mean in zip(study.places, means, strict=True):
        at = _x_of(study, place)
        if place.policy not in (FULL, *policies) or not np.isfinite(mean) or at is None:
            continue
        distance = abs(at - x) * 1e6 + abs(mean - y)
        if distance < nearest:
            best, nearest = place, distance
    return best


def _x_of(study: Study, place: Place) -> float | None:
    if place.size is not None:
        return place.size
    if place.policy == FULL:
        return 0.0 if study.axis == "ratio" else None
    return study.own_ratio(place.policy)


def _size_label(study: Study) -> str:
    return "share evicted" if study.axis == "ratio" else "budget"


def _stack(lines: Sequence[np.ndarray], columns: int) -> np.ndarray:
    if not lines:
        return np.full((0, columns), np.nan, np.float32)
    return np.stack(lines).astype(np.float32)


def _padded(lines: np.ndarray, more: int) -> np.ndarray:
    """Empty lines for the series that have points only."""
    return np.concatenate([lines, np.full((more, lines.shape[1]), np.nan, np.float32)])


def drawn_range(value: str, arrays: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """The natural range, or from 0 to a little above the highest number."""
    natural = VALUES[value].range
    if natural is not None:
        return natural[0] - 0.02, natural[1] + 0.02
    drawn = [arrays[name] for name in ("y", "high", "point_y") if name in arrays]
    finite = np.concatenate([part[np.isfinite(part)] for part in drawn])
    highest = float(finite.max()) if len(finite) else 0.0
    return 0.0, 1.05 * highest if highest > 0 else 1.0


def _failures(study: Study, task: str, policies: Sequence[str]) -> str:
    frame = study.frame[study.frame["policy"].isin(policies)]
    if task != ALL_TASKS:
        frame = frame[frame["task"] == task]
    failed = int(frame["error"].notna().sum())
    return f"{failed:,} of {len(frame):,} rows have no number" if failed else ""


def over_bytes(study: Study, bytes_column: str = "peak_bytes", task: str = ALL_TASKS) -> Figure:
    """Points: mean score over mean measured bytes of every policy and size, and the Pareto front.

    bytes_column: "cache_bytes" (after compression) or "peak_bytes" (while decoding).
    """
    scores, held = study.matrix("score", task).means, study.matrix(bytes_column, task).means
    known = np.flatnonzero(np.isfinite(scores) & np.isfinite(held))
    best = front(held[known], scores[known])
    at = known[best]
    names = [FULL, *study.policies]
    series = [Series("Pareto front", "#7F7F7F", "dot"), FULL_SERIES, *study.series(study.policies)]
    places = [study.places[i] for i in known]
    text = tuple(_place_words(study, place) for place in places)
    computed = study.frame[study.frame["simulated"].fillna(False).astype(bool)]
    simulated = sorted(set(computed["policy"]))
    facts = VALUES[bytes_column]
    y = np.full((len(series), len(at)), np.nan, np.float32)
    y[0] = scores[at]
    told = ", ".join(text[i] for i in best[:6]) + (" and others" if len(best) > 6 else "")
    more = f" Computed, not measured: {', '.join(simulated)}." if simulated else ""
    return Figure(
        "lines",
        f"Score over {facts.label}",
        Axis(facts.label, held[at].astype(np.float64), unit=facts.unit),
        Axis("score", range=(-0.02, 1.02)),
        {
            "y": y,
            "point_x": held[known].astype(np.float32),
            "point_y": scores[known].astype(np.float32),
            "point_series": np.array([1 + names.index(p.policy) for p in places], np.int64),
        },
        series=tuple(series),
        point_text=text,
        caption=f"{task[0].upper()}{task[1:]}. On the front: {told or 'nothing yet'}.{more} "
        f"{study.words(task)}.",
        alt=f"Score over {facts.label} of "
        f"{len(known)} policies and sizes; on the Pareto front: {told or 'nothing'}.",
        note=BYTES_NOTE,
        provenance=study.provenance(figure="study_over_bytes", bytes=bytes_column, task=task),
    )


def place_at_bytes(study: Study, bytes_column: str, task: str, x: float, y: float) -> Place | None:
    """The place whose point of `over_bytes` is nearest to (x, y)."""
    scores, held = study.matrix("score", task).means, study.matrix(bytes_column, task).means
    span = np.nanmax(held) or 1.0
    distance = np.abs(held - x) / span + np.abs(scores - y)
    return study.places[int(np.nanargmin(distance))] if np.isfinite(distance).any() else None


def _place_words(study: Study, place: Place) -> str:
    if place.policy == FULL:
        return "full cache"
    return (
        place.policy if place.size is None else f"{place.policy}, {size_words(study, place.size)}"
    )


def front(costs: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Indices of the points that no other has at least the score of with fewer costs, by cost."""
    kept, best = [], -np.inf
    for i in np.lexsort((-scores, costs)):
        if scores[i] > best:
            kept.append(int(i))
            best = float(scores[i])
    return np.array(kept, np.int64)
