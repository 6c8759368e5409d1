"""What the figures that compare policies share: pooling over heads, lines with bands, captions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.colours import DASHES, REFERENCE_DASHES
from analysis.figure import Axis, Figure, Marker, Note, Series
from analysis.rows import MEAN, Selection, chosen, chosen_layers
from analysis.words import number, provenance, selection_words, source_words
from cache_store.reader import Capture

if TYPE_CHECKING:
    from analysis.replays import PolicyRun, Replayed

BAND = (10, 90)  # percentiles
LABELLED = 16  # as many whole numbers stand side by side below an axis
MAX_BANDS = 2  # more bands than this cover one another
NO_STEPS = "Nothing was generated in this run, so there is no step to show."
NO_POLICIES = "No policy is chosen, so there is nothing to compare."


def is_reference(policy: Replayed | PolicyRun) -> bool:
    """Whether it is one of the references that the others are read against."""
    return policy.choice.get("key") in REFERENCE_DASHES


def series_of(policies: Sequence[Replayed | PolicyRun]) -> tuple[Series, ...]:
    """One line per policy in its own colour; references keep a dash that no policy has."""
    free = [dash for dash in DASHES if dash not in REFERENCE_DASHES.values()]
    series, count = [], 0
    for policy in policies:
        if is_reference(policy):
            dash = REFERENCE_DASHES[policy.choice["key"]]
        else:
            dash, count = free[count % len(free)], count + 1
        series.append(Series(policy.title, policy.colour, dash))
    return tuple(series)


def rows_of_head(values: np.ndarray, kv_head: int, kv_heads: int) -> np.ndarray:
    """The part of `values` (heads, ...) that belongs to a KV head.

    Heads are the KV heads themselves, or query heads, of which a group belongs to each KV head.
    """
    group = max(1, values.shape[0] // kv_heads)
    return values[kv_head * group : (kv_head + 1) * group]


def touched_layers(capture: Capture, replayed: Replayed, layer: Selection) -> list[int]:
    """The layers of a selection; the mean leaves out those that the policy does not touch."""
    layers = chosen_layers(capture, layer)
    return [n for n in layers if not replayed.exempt[n]] if layer == MEAN else layers


def pooled(
    capture: Capture, replayed: Replayed, values: np.ndarray, layer: Selection, head: Selection
) -> np.ndarray:
    """Rows of `values` (layers, heads, ...) behind a selection, one per head: (m, ...).

    `head` is a KV head; of values by query head, all of its group are taken.
    """
    kv_heads = chosen("KV head", head, capture.info.kv_heads)
    parts = [
        rows_of_head(values[number], kv_head, capture.info.kv_heads)
        for number in touched_layers(capture, replayed, layer)
        for kv_head in kv_heads
    ]
    return np.concatenate(parts) if parts else values[0, :0]


def mean_over(rows: np.ndarray) -> np.ndarray:
    """Mean over the first axis without NaN; NaN where there is nothing."""
    counts = (~np.isnan(rows)).sum(axis=0)
    sums = np.nansum(rows, axis=0, dtype=np.float64)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan).astype(np.float32)


def band_over(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The percentiles BAND over the first axis without NaN; NaN for fewer than two rows."""
    low, high = (np.full(rows.shape[1:], np.nan, np.float32) for _ in BAND)
    counts = (~np.isnan(rows)).sum(axis=0)
    if (counts > 1).any():
        low[counts > 1], high[counts > 1] = np.nanpercentile(rows[:, counts > 1], BAND, axis=0)
    return low, high


def lines_of(
    policies: Sequence[Replayed], rows: Sequence[np.ndarray], columns: int
) -> dict[str, np.ndarray]:
    """The arrays of a line figure from each policy's rows (m, columns).

    At most MAX_BANDS policies have a band around them; references have none, it would hide the
    others.
    """
    arrays = {"y": np.full((len(rows), columns), np.nan, np.float32)}
    low, high = np.full_like(arrays["y"], np.nan), np.full_like(arrays["y"], np.nan)
    banded = sum(not is_reference(policy) for policy in policies) <= MAX_BANDS
    for index, (policy, part) in enumerate(zip(policies, rows, strict=True)):
        arrays["y"][index] = mean_over(part)
        if banded and not is_reference(policy):
            low[index], high[index] = band_over(part)
    if np.isfinite(low).any():
        arrays |= {"low": low, "high": high}
    return arrays


def head_words(layer: Selection, head: Selection) -> str:
    """A layer and KV head in words, or which mean it is."""
    return selection_words(layer, head).replace("head", "KV head")


def budget_words(policies: Sequence[Replayed]) -> str:
    """Every policy, with the entries that it really kept where these are not what was asked for."""
    told = []
    for policy in policies:
        budget, realised = (policy.facts.get(n, math.nan) for n in ("budget", "realised_budget"))
        differs = not math.isnan(realised) and not abs(realised - budget) < 0.5
        told.append(policy.title + f" ({number(realised)} entries realised)" * differs)
    return "; ".join(told)


def compared(
    capture: Capture,
    policies: Sequence[Replayed],
    arrays: dict[str, np.ndarray],
    *,
    title: str,
    x: Axis,
    y: Axis,
    what: str,
    note: Note,
    spread: str = "heads",
    more: str = "",
    markers: Sequence[Marker] = (),
    **selection: Any,
) -> Figure:
    """A line figure over policies with its caption, alternative text and provenance.

    what: the selection in words, for the caption; spread: what a band is taken over; more: a
    further sentence of the caption.
    """
    band = f"; band: {BAND[0]}th to {BAND[1]}th percentile of the {spread}"
    step = "".join(f" Red line: step {mark.x:,}." for mark in markers if mark.selected)
    exempt = sorted({int(n) for policy in policies for n in np.flatnonzero(policy.exempt)})
    left_out = f"Layers {', '.join(map(str, exempt))} attend in a sliding window and are exempt."
    empty = NO_POLICIES if not policies else "" if arrays["y"].shape[1] else NO_STEPS
    caption = (
        f"{what[0].upper()}{what[1:]}{band if 'low' in arrays else ''}. "
        f"{budget_words(policies) + '; ' if policies else ''}{source_words(capture)}.{step}"
    )
    x, y = drawn_axes(x, y, arrays)
    return Figure(
        "lines",
        title,
        x,
        y,
        arrays,
        series=series_of(policies),
        markers=tuple(markers),
        caption=" ".join(
            part for part in (empty, caption, more, left_out if exempt else "") if part
        ),
        alt=lines_alt(f"{y.label}, {what}", x, [p.title for p in policies], arrays["y"]),
        note=note,
        provenance=provenance(
            capture, policies=[policy.choice for policy in policies], **selection
        ),
    )


def lines_alt(what: str, x: Axis, names: Sequence[str], lines: np.ndarray) -> str:
    """Mean, lowest and highest point of each line in words."""
    told = []
    places = np.arange(lines.shape[1]) if x.values is None else x.values
    for name, line in zip(names, lines, strict=True):
        if not np.isfinite(line).any():
            told.append(f"{name} has no values")
            continue
        low, high = np.nanargmin(line), np.nanargmax(line)
        told.append(
            f"{name} mean {number(float(np.nanmean(line)))}, lowest {number(float(line[low]))} at "
            f"{x.label} {places[low]:,}, highest {number(float(line[high]))} at {x.label} "
            f"{places[high]:,}"
        )
    return f"{what[0].upper()}{what[1:]}: {'; '.join(told) if told else 'nothing to show'}."


def share_range(arrays: dict[str, np.ndarray]) -> tuple[float, float]:
    """From the tenth below the lowest point to 1, so that good policies can be told apart."""
    finite = np.concatenate([part[np.isfinite(part)] for part in arrays.values()])
    lowest = math.floor(float(finite.min()) * 10) / 10 if len(finite) else 0.0
    low = min(0.9, max(0.0, lowest))
    return low, 1 + 0.02 * (1 - low)


def step_marker(step: int | None, steps: int) -> tuple[Marker, ...]:
    """The reader's step as a line across, where the figure has it."""
    shown = step is not None and 1 <= step <= steps
    return (Marker("x", x=step, selected=True),) if shown else ()


def from_zero(arrays: dict[str, np.ndarray]) -> tuple[float, float]:
    """From 0 to a little above the highest point."""
    finite = np.concatenate([part[np.isfinite(part)] for part in arrays.values()])
    highest = float(finite.max()) if len(finite) else 0.0
    return 0.0, 1.05 * highest if highest > 0 else 1.0


def drawn_axes(x: Axis, y: Axis, arrays: dict[str, np.ndarray]) -> tuple[Axis, Axis]:
    """The axes of a line figure; one without any point spans 0 to 1."""
    if any(np.isfinite(part).any() for part in arrays.values()):
        return x, y
    return replace(x, range=(0.0, 1.0)), replace(y, range=(0.0, 1.0))


def step_axis(steps: int, first: int = 1) -> Axis:
    """Steps first ... steps; few of them are labelled one by one, so that no half step is."""
    few = steps - first < LABELLED
    ticks = tuple((float(n), str(n)) for n in range(first, steps + 1)) if few else ()
    return Axis("step", np.arange(first, steps + 1), ticks=ticks)


def layer_axis(layers: int) -> Axis:
    """Layers as whole numbers; at most LABELLED of them are labelled."""
    every = math.ceil(layers / LABELLED)
    ticks = tuple((float(n), str(n)) for n in range(0, layers, every))
    return Axis("layer", np.arange(layers), ticks=ticks)
