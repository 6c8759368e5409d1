"""A measure over one option of a policy, all others kept: ablations and sensitivity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.comparison import lines_alt
from analysis.errors import AnalysisError
from analysis.figure import Axis, Figure, Note, Series
from analysis.study.curves import MOST_BANDS, drawn_range
from analysis.study.rows import ALL_TASKS, FULL, VALUES, Study, size_words
from analysis.words import number
from kvpolicies.methods import catalogue
from kvpolicies.parameters import PARAMETERS

OPTION_NOTE = Note(
    "The same policy with one option changed and all others kept.",
    "mean over prompts, then over tasks",
    "LagKV, Figure 2; LAQ, Figure 5; LazyEviction, Tables 4, 9 and 10",
)
KEPT_PER_LAG = "lag × keep_ratio"
SMALL_CACHE = "lookahead_budget"  # of the cache that a lookahead is written on
_SIZES = ("budget", "compression_ratio")


@dataclass(frozen=True)
class _Point:
    """A policy, its value of the option, its other options in words, and mean, low and high."""

    policy: str
    value: Any
    others: str
    measured: tuple[float, float, float]


def option_value(policy_key: str, options: Mapping[str, Any], option: str) -> Any:
    """What an option is under a policy: its own value, or the method's default.

    "lag × keep_ratio" is the number of entries kept per partition, rL (LagKV, Figure 2).
    """
    if option == KEPT_PER_LAG:
        lag = option_value(policy_key, options, "lag")
        ratio = option_value(policy_key, options, "keep_ratio")
        return None if lag is None or ratio is None else lag * ratio
    if option in options:
        return options[option]
    method = catalogue().get(policy_key)
    defaults = method.defaults if method else {}
    shared = PARAMETERS[option].default if option in PARAMETERS else None
    return defaults.get(option, shared)


def varied(study: Study) -> dict[str, list[str]]:
    """Options that differ between policies of one method: method key -> option names.

    Where both the partition and the share kept vary, the entries kept (rL) are offered too.
    """
    found: dict[str, list[str]] = {}
    by_key: dict[str, list[Mapping[str, Any]]] = {}
    for name in study.policies:
        choice = study.choice(name)
        by_key.setdefault(choice["key"], []).append(choice["options"])
    for key, variants in by_key.items():
        names = sorted({name for options in variants for name in options} - set(_SIZES))
        differ = [
            name
            for name in names
            if len({repr(option_value(key, options, name)) for options in variants}) > 1
        ]
        if {"lag", "keep_ratio"} & set(differ) and all(
            option_value(key, options, KEPT_PER_LAG) is not None for options in variants
        ):
            differ.insert(0, KEPT_PER_LAG)
        if differ:
            found[key] = differ
    return found


def over_option(
    study: Study,
    key: str,
    option: str,
    size: float | None = None,
    value: str = "score",
    task: str = ALL_TASKS,
) -> Figure:
    """A measure over one option of a method, a line for each setting of its other options.

    Numbers are an axis, words (such as H1 off) are bars. size: one of the study's sizes, for
    policies that take one. Settings of other options that were run with one value only are left
    out. Raises AnalysisError where the option does not vary.
    """
    points = option_points(study, key, option, size, value, task)
    values, numeric = _sorted_values(points)
    lines = list(dict.fromkeys(point.others for point in points))
    shape = (len(lines), len(values))
    arrays = {name: np.full(shape, np.nan, np.float32) for name in ("y", "low", "high")}
    for point in points:
        for name, measured in zip(("y", "low", "high"), point.measured, strict=True):
            arrays[name][lines.index(point.others), values.index(point.value)] = measured
    title = catalogue()[key].title if key in catalogue() else key
    words = _option_words(option)
    facts = VALUES[value]
    full = study.matrix(value, task).means[study.place(FULL, None)]
    if numeric:
        span = max(values) / min(values) if min(values) > 0 else 1.0
        x = Axis(words, np.array(values, np.float64), log=span >= 16)
        if not np.isfinite(arrays["low"]).any() or len(lines) > MOST_BANDS:
            del arrays["low"], arrays["high"]
    else:
        x = Axis(words, ticks=tuple((float(i), _word(v)) for i, v in enumerate(values)))
        del arrays["low"], arrays["high"]
    where = size_words(study, size) if size is not None else "every policy at its own size"
    return Figure(
        "lines" if numeric else "bars",
        f"{title}: {facts.label} over {words}",
        x,
        Axis(facts.label, unit=facts.unit, range=drawn_range(value, arrays)),
        arrays,
        series=tuple(Series(line) for line in lines),
        caption=f"{task[0].upper()}{task[1:]}, {where}; full cache {number(float(full))}. "
        f"{study.words(task)}.",
        alt=lines_alt(
            f"{facts.label} over {words}",
            Axis(words, np.array(values, np.float64) if numeric else None),
            lines,
            arrays["y"],
        ),
        note=OPTION_NOTE,
        provenance=study.provenance(
            figure="study_over_option", policy=key, option=option, size=size, value=value, task=task
        ),
    )


def option_points(
    study: Study,
    key: str,
    option: str,
    size: float | None = None,
    value: str = "score",
    task: str = ALL_TASKS,
) -> list[_Point]:
    """What `over_option` draws. Raises AnalysisError where the option does not vary."""
    if option not in varied(study).get(key, []):
        raise AnalysisError(f"The policies of this study do not differ in {option}.")
    matrix = study.matrix(value, task)
    means, (low, high) = matrix.means, matrix.band()
    points = []
    for name in study.policies:
        choice = study.choice(name)
        if choice["key"] != key:
            continue
        place = study.place(name, study.size_of(name, size))
        others = {k: v for k, v in choice["options"].items() if k not in (option, *_SIZES)}
        if option == KEPT_PER_LAG:  # a line per partition length, over the share kept
            others.pop("keep_ratio", None)
            others["lag"] = option_value(key, choice["options"], "lag")
        set_to = option_value(key, choice["options"], option)
        if set_to is None and option == SMALL_CACHE and study.axis == "budget":
            set_to = size  # as large as the cache that is kept
        points.append(
            _Point(name, set_to, _others(others), (means[place], low[place], high[place]))
        )
    return points if option == KEPT_PER_LAG else _compared(points)


def _compared(points: list[_Point]) -> list[_Point]:
    """Without settings of the other options that were run with one value only."""
    values: dict[str, set[str]] = {}
    for point in points:
        values.setdefault(point.others, set()).add(repr(point.value))
    kept = [point for point in points if len(values[point.others]) > 1]
    return kept or points


def policy_at(
    study: Study,
    key: str,
    option: str,
    at: float,
    height: float,
    size: float | None = None,
    value: str = "score",
    task: str = ALL_TASKS,
) -> str:
    """The policy whose point of `over_option` is nearest to a value of the option (the place of
    its bar where it is a word) and a height."""
    points = option_points(study, key, option, size, value, task)
    values, numeric = _sorted_values(points)
    places = [float(p.value) if numeric else float(values.index(p.value)) for p in points]
    away = [
        (abs(place - at), abs(p.measured[0] - height))
        for place, p in zip(places, points, strict=True)
    ]
    return points[away.index(min(away))].policy


def _sorted_values(points: Sequence[_Point]) -> tuple[list[Any], bool]:
    """The option's values in order, and whether all are numbers; words come after numbers."""
    values = list(dict.fromkeys(point.value for point in points))
    numbers = [isinstance(v, int | float) and not isinstance(v, bool) for v in values]
    if all(numbers):
        return sorted(values), True
    is_number = dict(zip(values, numbers, strict=True))
    return sorted(values, key=lambda v: (0, v, "") if is_number[v] else (1, 0, str(v))), False


def _others(options: Mapping[str, Any]) -> str:
    words = [f"{name.replace('_', ' ')} {value}" for name, value in sorted(options.items())]
    return ", ".join(words) or "defaults otherwise"


def _option_words(option: str) -> str:
    if option == KEPT_PER_LAG:
        return "entries kept per partition rL"
    symbol = PARAMETERS[option].symbol if option in PARAMETERS else ""
    name = option.replace("_", " ")
    return name if symbol in ("", "own") or symbol.lower() == option.lower() else f"{name} {symbol}"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "default" if value is None else str(value)
