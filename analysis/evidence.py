"""A span of the prompt that the answer rests on: who keeps it, for how long, at which budget.

Spans are position ranges [first, last + 1) of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.comparison import compared, series_of, step_axis
from analysis.errors import AnalysisError
from analysis.eviction_codes import (
    attended,
    check_eviction_step,
    check_head,
    gone_over_steps,
)
from analysis.eviction_grids import layer_head_grid
from analysis.figure import Axis, ColourScale, Figure, Marker, Note, Series
from analysis.spans import Span, check_span, span_words
from analysis.words import number, provenance, source_words
from cache_store.reader import Capture
from kvpolicies.choice import title

if TYPE_CHECKING:
    from analysis.replays import Replayed

_CHOOSING = "Of policies that choose at every step, what the step attends to counts as cached."
_BUDGETS = ("budget", "compression_ratio")

SURVIVAL_NOTE = Note(
    "Each line is one policy: how much of the marked span its caches still hold after each step. "
    "A line that falls below the others before the answer is written lost what the answer needs.",
    "share = mean over layers, heads and i in the span of [evicted_at(i) > t]",
    "LagKV, Figures 3–4: the needle at each depth and length",
)
GRID_NOTE = Note(
    "Each cell is one head: the share of the marked span that it still holds after the step. One "
    "head that keeps all of it can be enough to copy it; a click on a cell shows that head.",
    "share = |{ i in the span : evicted_at(i) > t }| / length of the span",
    "LagKV, Figure 2: the needle's score over the budget",
)
BUDGET_NOTE = Note(
    "Each line is one policy, replayed at several budgets: the share of the span that survives. "
    "The further left a line is still high, the less memory the policy needs to keep the span.",
    "share = mean over layers, heads and i in the span of [evicted_at(i) > t]",
    "SAGE-KV, Figure 2: score over the budget",
)


def span_held(replayed: Replayed, marked: Span) -> np.ndarray:
    """Share of a span that is cached after each step; float32 (layers, heads, T + 1).

    Of policies that choose at every step, the share that the step attends to. NaN in layers that
    the policy does not touch, unless it touches none.
    """
    first, stop = marked
    if replayed.visible is not None:
        seen = attended(replayed, slice(None), first, stop)
        gone = replayed.evicted_at[:, :, None, first:stop] <= np.arange(seen.shape[2])[:, None]
        shares = (seen & ~gone).mean(3, dtype=np.float32)
    else:
        shares = 1 - gone_over_steps(replayed, first, stop) / np.float32(stop - first)
    if not replayed.exempt.all():
        shares[replayed.exempt] = np.nan
    return shares.astype(np.float32)


def evidence_survival(
    capture: Capture,
    replays: Sequence[Replayed],
    span: Span,
    step: int | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
) -> Figure:
    """Lines over steps, one per policy: share of the span's entries that are cached after a step.

    Over all layers and heads, or those of `layer`, or one `head` of it (a KV head; of policies
    with a set for each query head, the mean over its group). `step` is marked.
    """
    marked = check_span(capture, span)
    shares = np.empty((len(replays), capture.info.response_length + 1), np.float32)
    for row, replayed in zip(shares, replays, strict=True):
        held = span_held(replayed, marked)
        if layer is not None:
            check_head(replayed, layer, 0)
            held = held[layer : layer + 1]
        if head is not None:
            group = replayed.evicted_at.shape[1] // capture.info.kv_heads
            check_head(replayed, 0, head * group)
            held = held[:, head * group : (head + 1) * group]
        row[:] = np.nan if np.isnan(held).all() else np.nanmean(held, axis=(0, 1))
    where = _where(layer, head)
    at = () if step is None else (Marker("x", x=step, label=f"step {step:,}", selected=True),)
    return compared(
        capture,
        replays,
        {"y": shares},
        title="How much of the span survives, step by step",
        x=step_axis(capture.info.response_length, 0),
        y=Axis("share of the span cached", range=(-0.02, 1.04)),
        what=f"{span_words(capture, marked)}, {where}",
        note=SURVIVAL_NOTE,
        more=_CHOOSING if any(one.visible is not None for one in replays) else "",
        markers=at,
        figure="evidence_survival",
        span=list(marked),
        layer=layer,
        head=head,
        step=step,
    )


def evidence_grid(
    capture: Capture,
    replayed: Replayed,
    span: Span,
    step: int,
    *,
    selected: tuple[int, int] | None = None,
) -> Figure:
    """Clickable heatmap layer x head: share of the span that is cached after `step`."""
    marked = check_span(capture, span)
    check_eviction_step(replayed, step)
    return layer_head_grid(
        capture,
        (replayed,),
        span_held(replayed, marked)[:, :, step],
        ColourScale("share of the span kept", (0.0, 1.0)),
        step,
        selected,
        title=f"{replayed.title}: where the span survives",
        what=f"share of {span_words(capture, marked)} that is kept",
        note=GRID_NOTE,
        figure="evidence_grid",
        span=list(marked),
    )


def survival_over_budget(
    capture: Capture,
    policies: Sequence[Sequence[Replayed]],
    span: Span,
    step: int | None = None,
) -> Figure:
    """Lines over the budget, one per policy: share of the span's entries cached after `step`.

    policies: for each policy its replays at several budgets, in any order; `step` defaults to the
    last. Where a policy was not replayed at a budget of another, its line has a gap.
    """
    marked = check_span(capture, span)
    at = capture.info.response_length if step is None else step
    budgets = sorted({_budget(one) for replays in policies for one in replays})
    shares = np.full((len(policies), len(budgets)), np.nan, np.float32)
    for row, replays in zip(shares, policies, strict=True):
        for one in replays:
            check_eviction_step(one, at)
            row[budgets.index(_budget(one))] = np.nanmean(span_held(one, marked)[:, :, at])
    firsts = [replays[0] for replays in policies if replays]
    series = series_of(firsts)
    return Figure(
        "lines",
        "How much of the span survives each budget",
        Axis(
            "budget",
            np.array(budgets),
            ticks=tuple((float(budget), f"{budget:,}") for budget in budgets),
            unit="entries per head",
            log=True,
        ),
        Axis("share of the span cached", range=(-0.02, 1.04)),
        {"y": shares[[bool(replays) for replays in policies]]},
        series=tuple(
            Series(policy_name(one), line.colour, line.dash)
            for one, line in zip(firsts, series, strict=True)
        ),
        caption=(
            f"Span: {span_words(capture, marked)}; mean over "
            f"all layers and heads after step {at:,}, at the requested budgets; "
            f"{source_words(capture)}."
        ),
        alt=_budget_alt(policies, marked, at),
        note=BUDGET_NOTE,
        provenance=provenance(
            capture,
            figure="survival_over_budget",
            policies=[[one.choice for one in replays] for replays in policies],
            span=list(marked),
            step=at,
        ),
    )


def budget_of_loss(
    capture: Capture,
    policies: Sequence[Sequence[Replayed]],
    span: Span,
    step: int | None = None,
    *,
    heads: float = 0.5,
) -> pd.DataFrame:
    """The smallest replayed budget at which each policy still keeps the span after `step`.

    Columns: policy, keeps_all, keeps_half (budgets in entries at which all, or at least half, of
    the span's entries are cached in at least the share `heads` of all layers and heads, there and
    at every larger replayed budget; NA if not even at the largest), and smallest, largest (the
    budgets looked at). `step` defaults to the last.
    """
    marked = check_span(capture, span)
    if not 0 < heads <= 1:
        raise AnalysisError(f"The share of heads is above 0 and at most 1, not {heads}.")
    at = capture.info.response_length if step is None else step
    rows = []
    for replays in policies:
        if not replays:
            continue
        ordered = sorted(replays, key=_budget, reverse=True)
        row: dict[str, object] = {"policy": policy_name(ordered[0])}
        for column, part in (("keeps_all", 1.0), ("keeps_half", 0.5)):
            row[column] = _smallest(
                ordered, marked, check_eviction_step(ordered[0], at), part, heads
            )
        rows.append(row | {"smallest": _budget(ordered[-1]), "largest": _budget(ordered[0])})
    frame = pd.DataFrame(rows, columns=["policy", "keeps_all", "keeps_half", "smallest", "largest"])
    return frame.astype({"keeps_all": "Int64", "keeps_half": "Int64"})


def _smallest(
    ordered: Sequence[Replayed], marked: Span, step: int, part: float, heads: float
) -> int | None:
    """The last budget, from the largest down, at which enough heads keep enough of the span."""
    found = None
    for one in ordered:
        held = span_held(one, marked)[:, :, check_eviction_step(one, step)]
        held = held[~np.isnan(held)]
        if (held >= part - 1e-6).mean() < heads - 1e-9:
            break
        found = _budget(one)
    return found


def _budget(replayed: Replayed) -> int:
    """Entries per head that were asked for; what was kept where no budget was given."""
    budget = replayed.facts.get("budget", np.nan)
    if np.isnan(budget):
        budget = replayed.facts.get("realised_budget", np.nan)
    if np.isnan(budget):
        budget = float(replayed.counts(0).mean())
    return round(budget)


def policy_name(replayed: Replayed) -> str:
    """A policy without its budget, for figures whose axis is the budget."""
    options = replayed.choice.get("options", {})
    rest = {name: options[name] for name in options if name not in _BUDGETS}
    return title(replayed.choice | {"options": rest}) if options else replayed.title


def _where(layer: int | None, head: int | None) -> str:
    if layer is None:
        return "mean over all layers and heads" if head is None else f"KV head {head} of all layers"
    return f"mean over layer {layer}" if head is None else f"layer {layer}, KV head {head}"


def _budget_alt(policies: Sequence[Sequence[Replayed]], marked: Span, step: int) -> str:
    told = []
    for replays in policies:
        for one in sorted(replays, key=_budget)[:1] + sorted(replays, key=_budget)[-1:]:
            share = float(np.nanmean(span_held(one, marked)[:, :, step]))
            told.append(f"{policy_name(one)} keeps {number(share)} at budget {_budget(one):,}")
    return f"Share of the span that survives over the budget: {'; '.join(told) or 'no replays'}."
