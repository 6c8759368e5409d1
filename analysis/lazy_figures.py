"""LazyEviction's scores and decisions in figures: H1, H2 and I, evictions, the sawtooth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.comparison import budget_words, series_of
from analysis.errors import AnalysisError
from analysis.figure import Axis, Figure, Marker, Note, Series
from analysis.lazy_decisions import FORMS
from analysis.live import FULL
from analysis.text import token_pieces
from analysis.words import number, provenance, source_words, visible
from cache_store.reader import Capture

if TYPE_CHECKING:
    from analysis.replays import Replayed

PAUSES = 200  # grid of the curves over the pause
EXAMPLE_MRIS = (1, 5, 20, 80)
TERMS = ("H1", "H2", "I")

CURVE_NOTE = Note(
    "H1 falls while a token stays silent, the slower the longer its MRI; H2 is what its MRI alone "
    "is worth. The printed H2 grows with MRI, against the paper's own text; the released falls.",
    "released: H1 = 2σ(−(1 + (t − TS)/(MRI + 10⁻⁵))), H2 = 2σ(−(MRI − 1)); printed: "
    "H1 = 2σ(−(t − TS)/MRI), H2 = 2σ(−1/(MRI − 1)); I = H1 + H2; H2 = 0 at MRI 0",
    "LazyEviction, Figure 4(d), Eqs. 2 and 3, Tables 4 and 5",
)
EVICTION_NOTE = Note(
    "Each point is an entry that a decision evicts, at its position and step. Strong points are "
    "those the full cache would have attended to again: the price of evicting them.",
    "evicted every W steps: the lowest I among all but the last W; returns: A(t′, i) ≥ α at a "
    "later step t′ under the full cache",
    "LazyEviction, Figures 1 and 4(a)",
)
SAWTOOTH_NOTE = Note(
    "Policies that evict at every step stay level, LazyEviction's cache grows for W steps and is "
    "cut back to its budget; the full cache grows on. Policies that evict once after the prompt "
    "grow like the full cache from a lower start.",
    "entries cached after each step, the mean over layers and heads",
    "LazyEviction, Figure 6",
)


def score_terms(
    pause: np.ndarray, mri: np.ndarray, form: str, h1: str = "sigmoid", h2: str = "sigmoid"
) -> dict[str, np.ndarray]:
    """H1, H2 and I = H1 + H2 of entries by their pause t - TS and MRI; float32 (n,) each."""
    import torch

    from kvpolicies.scores.recency import recurrence_score

    if form not in FORMS:
        raise AnalysisError(f"LazyEviction's forms are {' and '.join(FORMS)}, not {form!r}.")
    waited, longest = (torch.from_numpy(np.asarray(v, np.float32)) for v in (pause, mri))
    terms = {
        "H1": recurrence_score(waited, longest, form, h1, "off"),
        "H2": recurrence_score(waited, longest, form, "off", h2),
        "I": recurrence_score(waited, longest, form, h1, h2),
    }
    return {name: values.numpy() for name, values in terms.items()}


def score_curves(
    term: str, *, h1: str = "sigmoid", h2: str = "sigmoid", longest: int = PAUSES
) -> Figure:
    """Lines of both forms: H1 or I over the pause for a few MRIs, or H2 over the MRI itself."""
    if term not in TERMS:
        raise AnalysisError(f"The score has the terms {', '.join(TERMS)}, not {term!r}.")
    over_mri = term == "H2"
    places = np.arange(0, max(2, longest) + 1)
    lines, series = [], []
    for form, dash in (("released", "solid"), ("printed", "dash")):
        for index, mri in enumerate((0,) if over_mri else EXAMPLE_MRIS):
            pause, own = (np.zeros_like(places), places) if over_mri else (places, None)
            mris = own if own is not None else np.full_like(places, mri)
            lines.append(score_terms(pause, mris, form, h1, h2)[term])
            name = FORMS[form] if over_mri else f"{FORMS[form]}, MRI {mri}"
            series.append(Series(name, _COLOURS[index], dash))
    return Figure(
        "lines",
        f"{term} over the {'recurrence interval' if over_mri else 'pause'}",
        Axis("MRI" if over_mri else "pause t − TS", places, unit="steps"),
        Axis(term, range=(0.0, 2.05 if term == "I" else 1.05)),
        {"y": np.stack(lines)},
        series=tuple(series),
        caption=f"{term} in both forms; curve of H1: {h1}, of H2: {h2}.",
        alt=f"{term} in its released and its printed form.",
        note=CURVE_NOTE,
        provenance={"figure": "score_curves", "term": term, "h1": h1, "h2": h2},
    )


_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")


def score_points(
    capture: Capture,
    pause: np.ndarray,
    mri: np.ndarray,
    term: str,
    *,
    step: int,
    layer: int,
    kv_head: int,
    h1: str = "sigmoid",
    h2: str = "sigmoid",
) -> Figure:
    """Scatter: the tokens of one head on the curves of both forms, at their pause (H2: MRI).

    pause, mri: (P + step,) of `state_at`. Entries that were never active have MRI 0.
    """
    if term not in TERMS:
        raise AnalysisError(f"The score has the terms {', '.join(TERMS)}, not {term!r}.")
    places = mri if term == "H2" else pause
    values = [score_terms(pause, mri, form, h1, h2)[term] for form in FORMS]
    pieces = token_pieces(capture)
    text = [
        f"{place:,} {visible(pieces[place])} · pause {pause[place]}, MRI {mri[place]}"
        for place in range(len(pause))
    ]
    return Figure(
        "scatter",
        f"{term} of the tokens at step {step:,}, layer {layer}, KV head {kv_head}",
        Axis("MRI" if term == "H2" else "pause t − TS", unit="steps"),
        Axis(term, range=(0.0, 2.05 if term == "I" else 1.05)),
        {
            "x": np.tile(places, 2).astype(np.float32),
            "y": np.concatenate(values),
            "series": np.repeat(np.arange(2), len(places)),
        },
        series=tuple(Series(name) for name in FORMS.values()),
        point_text=tuple(text * 2),
        caption=(
            f"{len(places):,} entries of KV head {kv_head} in layer {layer} after step {step:,}, "
            f"under the full cache; curve of H1: {h1}, of H2: {h2}. {source_words(capture)}."
        ),
        alt=f"{term} of {len(places):,} entries in both forms.",
        note=CURVE_NOTE,
        provenance=provenance(
            capture, figure="score_points", term=term, step=step, layer=layer, kv_head=kv_head
        ),
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
    pieces = token_pieces(capture)
    text = [
        f"{position:,} {visible(pieces[position])} · MRI {mri}"
        + (f", returns at step {again:,}" if again else "")
        for position, mri, again in zip(
            table["position"], table["mri"], table["recurs_at"], strict=True
        )
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
            Series(f"{name}, {told}", colour)
            for name, pair in zip(names, _EVICTED, strict=True)
            for told, colour in zip(("never needed again", "returns"), pair, strict=True)
        ),
        markers=() if step is None else (Marker("y", y=step, label="step", selected=True),),
        point_text=tuple(word for word, there in zip(text, shown, strict=True) if there),
        caption=(
            f"Evictions in KV head {kv_head} of layer {layer}, released against printed form; "
            f"{returned:,} of {int(shown.sum()):,} return later. {source_words(capture)}."
        ),
        alt=f"{int(shown.sum()):,} evictions, {returned:,} of entries that return later.",
        note=EVICTION_NOTE,
        provenance=provenance(capture, figure="evictions", layer=layer, kv_head=kv_head),
    )


_EVICTED = (("#B0B0B0", "#404040"), ("#9CC8E8", "#0072B2"), ("#F0B48C", "#D55E00"))


def cached_over_steps(
    capture: Capture, replays: Sequence[Replayed], *, step: int | None = None
) -> Figure:
    """Lines: entries cached after each step, mean over layers and heads, and the full cache's."""
    info = capture.info
    steps = np.arange(info.response_length + 1)
    lines = [_mean_counts(policy, len(steps)) for policy in replays]
    lines.append((info.prompt_length + steps).astype(np.float32))
    lowest = min(float(np.nanmin(line)) for line in lines)
    told = f"{budget_words(replays)}; " if replays else ""
    return Figure(
        "lines",
        "Entries cached over the generated length",
        Axis("step", steps),
        Axis("entries per layer and KV head"),
        {"y": np.stack(lines)},
        series=(*series_of(replays), FULL),
        markers=() if step is None else (Marker("x", x=step, label="step", selected=True),),
        caption=f"Mean over layers and heads. {told}{source_words(capture)}.",
        alt=f"Cached entries of {len(lines)} caches over {len(steps) - 1:,} steps, lowest "
        f"{number(lowest)}.",
        note=SAWTOOTH_NOTE,
        provenance=provenance(
            capture, figure="cached_over_steps", policies=[policy.choice for policy in replays]
        ),
    )


def _mean_counts(policy: Replayed, steps: int) -> np.ndarray:
    """Entries cached after each step; float32 (T + 1,). Exempt layers are left out."""
    evicted_at = policy.evicted_at[~policy.exempt] if not policy.exempt.all() else policy.evicted_at
    heads = evicted_at.shape[0] * evicted_at.shape[1]
    gone = np.bincount(evicted_at.reshape(-1), minlength=steps + 1)[:steps].cumsum()
    born = policy.prompt_length + np.arange(steps)
    return (born - gone / heads).astype(np.float32)
