"""What a policy did when it was run for real: its drift, its bytes and its time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.colours import CUSTOM
from analysis.comparison import (
    NO_POLICIES,
    NO_STEPS,
    drawn_axes,
    from_zero,
    lines_alt,
    series_of,
    step_axis,
    step_marker,
)
from analysis.figure import Axis, Figure, Note, Series
from analysis.words import OWN_MEASURE, number, provenance, source_words
from cache_store.reader import Capture

if TYPE_CHECKING:
    from analysis.replays import PolicyRun

FULL = Series("full cache", "#7F7F7F", "dot")
MEGABYTE = 1e6
STAGES = {"prefill": 0, "compress": 2, "evict": 2, "decode": 3}  # as they come; passes are 1
ON_EACH_OTHER = 0.005  # of the axis: lines that near cannot be told apart
SIMULATED = "bytes of simulated runs are computed: their heads keep unequal numbers of entries"

KL_NOTE = Note(
    "How differently the model would continue under the policy, while both read the same forced "
    "response: 0 means the same distribution. A peak is a token that the evicted entries were "
    "needed for.",
    "KL(full ‖ policy) = Σᵥ p_full(v) ln (p_full(v) / p_policy(v)) per step",
    OWN_MEASURE,
)
BYTES_NOTE = Note(
    "Policies that evict once grow with the response like the full cache, those that evict at "
    "every step stay level, and those that evict every W steps rise and fall. Compare policies at "
    "equal peak as well as at equal budget.",
    "bytes of all keys and values cached after the step",
    "LazyEviction, Figure 6: cached entries over the generated length",
)
LATENCY_NOTE = Note(
    "Time of one generated token, selection and eviction included; single steps also show what "
    "else the machine did. A smaller cache is read faster, but a policy that scores at every step "
    "pays for it at every step.",
    "wall time of each decoding step, measured once",
    "LazyEviction, Tables 5 and 7: decoding latency",
)
STAGE_NOTE = Note(
    "Where the time of a whole run went: reading the prompt, further passes, eviction, writing the "
    "response. A policy pays where its bar has a part that the full cache lacks.",
    "wall time by stage, summed over the run, measured once",
    "LAQ, Figure 6: latency by stage",
)


def kl_over_steps(
    capture: Capture, runs: Sequence[PolicyRun], *, step: int | None = None
) -> Figure:
    """Lines: KL(full ‖ policy) in nats at each step of the forced full-cache response."""
    return _over_steps(
        capture,
        runs,
        [_column(run, "kl") for run in runs],
        series_of(runs),
        "Drift from the full cache",
        Axis("KL divergence", unit="nats"),
        KL_NOTE,
        "kl_over_steps",
        step=step,
    )


def cache_bytes_over_steps(
    capture: Capture, runs: Sequence[PolicyRun], *, step: int | None = None
) -> Figure:
    """Lines: bytes cached after each step, in MB, with the full cache as the reference."""
    lines = [_column(run, "cache_bytes") / MEGABYTE for run in runs]
    series = _labelled(runs)
    if runs:
        lines.append(_column(runs[0], "full_cache_bytes") / MEGABYTE)
        series = (*series, FULL)
    return _over_steps(
        capture,
        runs,
        lines,
        series,
        "Cache size over the steps",
        Axis("cache", unit="MB"),
        BYTES_NOTE,
        "cache_bytes_over_steps",
        more=SIMULATED if any(map(_simulated, runs)) else "",
        step=step,
    )


def latency_over_steps(
    capture: Capture, runs: Sequence[PolicyRun], *, step: int | None = None
) -> Figure:
    """Lines: milliseconds of each generated token; the full cache is the mean of the runs' own
    measurements of it."""
    lines = [_column(run, "ms") for run in runs]
    series, more = series_of(runs), ""
    if runs:
        both = zip([*lines], [_column(run, "full_ms") for run in runs], strict=True)
        medians = [(_median(ms), _median(full)) for ms, full in both]
        more = "medians: " + "; ".join(
            f"{run.title} {number(ms)} ms (full cache {number(full)} ms)"
            for run, (ms, full) in zip(runs, medians, strict=True)
        )
        lines.append(_stacked([_column(run, "full_ms") for run in runs]).mean(axis=0))
        series = (*series, FULL)
    return _over_steps(
        capture,
        runs,
        lines,
        series,
        "Time per generated token",
        Axis("time", unit="ms"),
        LATENCY_NOTE,
        "latency_over_steps",
        more=more,
        step=step,
    )


def latency_by_stage(capture: Capture, runs: Sequence[PolicyRun]) -> Figure:
    """Stacked bars: seconds of each stage, one bar per policy and one for the full cache.

    The full cache's bar is the mean of what the runs measured of it.
    """
    named = dict.fromkeys(str(name) for run in runs for name in run.stage["stage"])
    stages = sorted(named, key=lambda name: STAGES.get(name, 1))
    bars = [_stage_seconds(run, stages, "seconds") for run in runs]
    names = [run.title for run in runs]
    if runs:
        full = np.stack([_stage_seconds(run, stages, "full_seconds") for run in runs])
        bars.append(full.mean(axis=0))
        names.append(FULL.name)
    heights = np.stack(bars, axis=1) if bars else np.zeros((0, 0), np.float32)
    told = "; ".join(
        f"{name} {number(float(total))} s"
        for name, total in zip(names, heights.sum(axis=0), strict=True)
    )
    return Figure(
        "stacked_bars",
        "Time by stage",
        Axis("policy", ticks=tuple((float(n), name) for n, name in enumerate(names))),
        Axis("time", unit="s"),
        {"y": heights.astype(np.float32)},
        series=tuple(Series(stage) for stage in stages),
        caption=f"{f'Totals: {told}.' if told else NO_POLICIES} {source_words(capture)}.",
        alt=f"Seconds by stage. {told or NO_POLICIES}",
        note=STAGE_NOTE,
        provenance=provenance(
            capture, figure="latency_by_stage", policies=[run.choice for run in runs]
        ),
    )


def live_summary(capture: Capture, runs: Sequence[PolicyRun]) -> pd.DataFrame:
    """One row per run with the columns LIVE_COLUMNS; NaN where a number does not exist."""
    rows = []
    for run in runs:
        kl = _column(run, "kl")
        known = kl[np.isfinite(kl)]
        row: dict[str, object] = {
            "policy": run.title,
            "simulated": _simulated(run),
            "kl_mean": float(known.mean()) if len(known) else math.nan,
            "kl_max": float(known.max()) if len(known) else math.nan,
            "ms": _median(_column(run, "ms")),
            "full_ms": _median(_column(run, "full_ms")),
            "seconds": float(np.nansum(run.stage["seconds"].to_numpy(np.float64))),
            "full_seconds": float(np.nansum(run.stage["full_seconds"].to_numpy(np.float64))),
        }
        names = [name for name in LIVE_COLUMNS if name not in row]
        rows.append(row | {name: run.facts.get(name, math.nan) for name in names})
    return pd.DataFrame(rows, columns=list(LIVE_COLUMNS))


# column -> (label, unit)
LIVE_COLUMNS: dict[str, tuple[str, str]] = {
    "policy": ("policy", ""),
    "first_difference": ("first differing token", "step"),
    "agreement": ("tokens that agree", "share"),
    "kl_mean": ("KL, mean", "nats"),
    "kl_max": ("KL, largest", "nats"),
    "forced_nll": ("NLL of the full cache's response", "nats per token"),
    "full_nll": ("NLL with the full cache", "nats per token"),
    "prefill_bytes": ("cache before eviction", "bytes"),
    "compressed_bytes": ("cache after prefill", "bytes"),
    "peak_bytes": ("cache at peak", "bytes"),
    "full_peak_bytes": ("full cache at peak", "bytes"),
    "ms": ("median time per token", "ms"),
    "full_ms": ("full cache", "ms"),
    "seconds": ("whole run", "s"),
    "full_seconds": ("full cache, whole run", "s"),
    "simulated": ("bytes are computed, not measured", ""),
}


def _over_steps(
    capture: Capture,
    runs: Sequence[PolicyRun],
    lines: Sequence[np.ndarray],
    series: tuple[Series, ...],
    title: str,
    y: Axis,
    note: Note,
    name: str,
    *,
    more: str = "",
    step: int | None = None,
) -> Figure:
    values = _stacked(lines)
    steps = values.shape[1]
    arrays = {"y": values.astype(np.float32)}
    x, y = drawn_axes(step_axis(steps), Axis(y.label, unit=y.unit, range=from_zero(arrays)), arrays)
    series, same = apart(series, values)
    empty = NO_POLICIES if not runs else "" if steps else NO_STEPS
    titles = "; ".join(run.title for run in runs)
    told = [part for part in (titles, more, same, source_words(capture)) if part]
    markers = step_marker(step, steps)
    line = "".join(f" Red line: step {mark.x:,}." for mark in markers)
    return Figure(
        "lines",
        title,
        x,
        y,
        arrays,
        series=series,
        markers=markers,
        caption=f"{empty} {'; '.join(told)}.{line}".strip(),
        alt=lines_alt(y.name, x, [line.name for line in series], values),
        note=note,
        provenance=provenance(capture, figure=name, policies=[run.choice for run in runs]),
    )


def apart(series: Sequence[Series], lines: np.ndarray) -> tuple[tuple[Series, ...], str]:
    """Series of lines (s, x) so that those lying upon each other are both seen, and a sentence part
    naming them.

    A dashed line upon a solid one shows both as long as their colours differ.
    """
    drawn, told = list(series), []
    near = ON_EACH_OTHER * float(np.nanmax(np.abs(lines), initial=0.0))
    for later in range(1, len(drawn)):
        for earlier in range(later):
            gap = np.abs(lines[later] - lines[earlier])
            if np.isfinite(gap).any() and np.nanmax(gap) <= near:
                told.append(f"{drawn[earlier].name} and {drawn[later].name} coincide")
                if drawn[later].colour == drawn[earlier].colour:
                    drawn[later] = replace(drawn[later], colour=CUSTOM[0])
                break
    return tuple(drawn), "; ".join(told)


def _column(run: PolicyRun, name: str) -> np.ndarray:
    """One column of the step table in order of step; float64 (steps,), NaN where unknown."""
    return run.step.sort_values("step")[name].to_numpy(np.float64)


def _stacked(lines: Sequence[np.ndarray]) -> np.ndarray:
    """Lines of different lengths as one array, the shorter ones filled up with NaN."""
    steps = max((len(line) for line in lines), default=0)
    stacked = np.full((len(lines), steps), np.nan)
    for row, line in zip(stacked, lines, strict=True):
        row[: len(line)] = line
    return stacked


def _stage_seconds(run: PolicyRun, stages: Sequence[str], column: str) -> np.ndarray:
    """Seconds of each stage; 0 where a run has no such stage."""
    totals = run.stage.groupby("stage")[column].sum()
    return np.array([float(totals.get(stage, 0.0)) for stage in stages], np.float64)


def _median(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else math.nan


def _simulated(run: PolicyRun) -> bool:
    return bool(run.facts.get("simulated", 0.0))


def _labelled(runs: Sequence[PolicyRun]) -> tuple[Series, ...]:
    """Lines of bytes; those that were computed, not measured, say so."""
    return tuple(
        Series(f"{line.name} (simulated)", line.colour, line.dash) if _simulated(run) else line
        for line, run in zip(series_of(runs), runs, strict=True)
    )
