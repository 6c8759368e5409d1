"""LazyEviction's decisions in figures: what it evicts, and the sawtooth of its cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.comparison import budget_words, from_zero, series_of
from analysis.figure import Axis, Figure, Marker, Note, Series
from analysis.lazy_decisions import FORMS
from analysis.live import FULL
from analysis.text import token_pieces
from analysis.words import number, provenance, source_words, visible
from cache_store.reader import Capture

if TYPE_CHECKING:
    from analysis.replays import Replayed

EVICTION_NOTE = Note(
    "Each point is an entry that a decision evicts, at its position and step; pale ones are never "
    "needed again. Strong ones return: the full cache would have attended to them again, which is "
    "the price of evicting them.",
    "evicted every W steps: the lowest I among all but the last W; returns: A(t′, i) ≥ α at a "
    "later step t′ under the full cache",
    "LazyEviction, Figures 1 and 4(a)",
)
SAWTOOTH_NOTE = Note(
    "LazyEviction's cache grows for W steps and is cut back to its budget, a sawtooth; policies "
    "that evict at every step stay level. Those that evict once after the prompt grow like the "
    "full cache from a lower start.",
    "entries cached after each step, the mean over layers and heads",
    "LazyEviction, Figure 6",
)


def evictions(
    capture: Capture, table: pd.DataFrame, layer: int, kv_head: int, *, step: int | None = None
) -> Figure:
    """Scatter of `evictions_table`: position (x) by decision (y), by form and what comes back.

    An entry that both forms evict at the same decision is one point.
    """
    keys = table.groupby(["step", "position"])["form"].transform("nunique")
    shared = (keys > 1).to_numpy()
    back = (table["recurs_at"] > 0).to_numpy()
    printed = (table["form"] == FORMS["printed"]).to_numpy()
    shown = ~(shared & printed)
    which = np.where(shared, 0, np.where(printed, 2, 1)) * 2 + back
    pieces, drawn = token_pieces(capture), table[shown]
    positions, longest, returns = (
        drawn[name].tolist() for name in ("position", "mri", "recurs_at")
    )
    text = [
        f"{position:,} {visible(pieces[position])} · MRI {mri}"
        + (f", returns at step {again:,}" if again else "")
        for position, mri, again in zip(positions, longest, returns, strict=True)
    ]
    names = ("both forms", "released only", "printed only")
    returned = int((back & shown).sum())
    return Figure(
        "scatter",
        f"What LazyEviction evicts, layer {layer}, KV head {kv_head}",
        Axis("position", range=(0.0, float(capture.info.length))),
        Axis("step of the decision", reversed=True),
        {
            "x": table["position"].to_numpy(np.float32)[shown],
            "y": table["step"].to_numpy(np.float32)[shown],
            "series": which[shown].astype(np.int64),
        },
        series=tuple(
            Series(f"{name}{told}", colour)
            for name, pair in zip(names, _EVICTED, strict=True)
            for told, colour in zip(("", ", return"), pair, strict=True)
        ),
        markers=() if step is None else (Marker("y", y=step, selected=True),),
        point_text=tuple(text),
        crowded=True,
        caption=(
            f"Evictions in KV head {kv_head} of layer {layer}, released against printed form; "
            f"{returned:,} of {int(shown.sum()):,} return later."
            f"{'' if step is None else f' Red line: step {step:,}.'} {source_words(capture)}."
        ),
        alt=f"{int(shown.sum()):,} evictions, {returned:,} of entries that return later.",
        note=EVICTION_NOTE,
        provenance=provenance(capture, figure="evictions", layer=layer, kv_head=kv_head),
    )


_EVICTED = (("#C9A6DB", "#8A4FB0"), ("#9CC8E8", "#0072B2"), ("#F0B48C", "#D55E00"))


def cached_over_steps(
    capture: Capture, replays: Sequence[Replayed], *, step: int | None = None, full: bool = True
) -> Figure:
    """Lines: entries cached after each step, mean over layers and heads.

    full: with the full cache's line, from 0; without it the axis spans what the policies hold once
    they evict, so that their rise and fall is seen, and the caption says where the full cache is.
    """
    info = capture.info
    steps = np.arange(info.response_length + 1)
    lines = [_mean_counts(policy, len(steps)) for policy in replays]
    series, axis = series_of(replays), Axis("entries per layer and KV head")
    whole = (info.prompt_length + steps).astype(np.float32)
    more = ""
    if full or not lines:
        lines.append(whole)
        series = (*series, FULL)
        axis = replace(axis, range=from_zero({"y": np.stack(lines)}))
    else:
        axis = replace(axis, range=_once_evicting(lines, whole))
        more = (
            " The axis spans what is held once something is evicted and does not begin at 0; the "
            f"full cache grows from {int(whole[0]):,} to {int(whole[-1]):,} entries."
        )
    lowest = min(float(np.nanmin(line)) for line in lines)
    told = f"{budget_words(replays)}; " if replays else ""
    return Figure(
        "lines",
        "Entries cached over the generated length",
        Axis("step", steps),
        axis,
        {"y": np.stack(lines)},
        series=series,
        markers=() if step is None else (Marker("x", x=step, label="step", selected=True),),
        caption=f"Mean over layers and heads. {told}{source_words(capture)}.{more}",
        alt=f"Cached entries of {len(lines)} caches over {len(steps) - 1:,} steps, lowest "
        f"{number(lowest)}.",
        note=SAWTOOTH_NOTE,
        provenance=provenance(
            capture, figure="cached_over_steps", policies=[policy.choice for policy in replays]
        ),
    )


def _once_evicting(lines: Sequence[np.ndarray], whole: np.ndarray) -> tuple[float, float] | None:
    """What the lines span where they hold less than the full cache, with a margin; None if they
    never do."""
    evicting = [line[line < whole - 0.5] for line in lines]
    held = np.concatenate(evicting)
    if not len(held):
        return None
    low, high = float(held.min()), float(held.max())
    margin = max(1.0, 0.08 * (high - low))
    return max(0.0, low - margin), high + margin


def _mean_counts(policy: Replayed, steps: int) -> np.ndarray:
    """Entries cached after each step; float32 (T + 1,). Exempt layers are left out."""
    evicted_at = policy.evicted_at[~policy.exempt] if not policy.exempt.all() else policy.evicted_at
    heads = evicted_at.shape[0] * evicted_at.shape[1]
    gone = np.bincount(evicted_at.reshape(-1), minlength=steps + 1)[:steps].cumsum()
    born = policy.prompt_length + np.arange(steps)
    return (born - gone / heads).astype(np.float32)
