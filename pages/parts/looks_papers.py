"""What the Recall and Budgets pages show, computed once; every cache is bounded.

The arrays of a run are kept as they are (never changed, so they need no copy); a slider asks them.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import streamlit as st

from analysis import budgets, budgets_figures, context_scores, lookaheads, recall, recall_figures
from analysis.figure import Figure
from analysis.text import token_pieces
from pages.parts import backstage

if TYPE_CHECKING:
    from analysis.budgets import Composed
    from analysis.lookaheads import Lookahead
    from analysis.recall import RankedWindows, RecallRows
    from cache_store.reader import Capture

Cell = tuple[int, int]
Runs = tuple[str, ...]
EXCERPT = 10  # tokens on each side of one that is quoted


def captures(runs: Runs) -> list[Capture]:
    return [backstage.capture(run) for run in runs]


# Recall


def recorded(run_id: str) -> list[Lookahead]:
    """The lookahead responses beside a run; looked up again only when a file came or went."""
    folder = backstage.capture(run_id).path.parent
    return _recorded(run_id, tuple(sorted(path.name for path in folder.glob("*/*.duckdb"))))


@st.cache_resource(max_entries=4, show_spinner=False)
def _recorded(run_id: str, names: tuple[str, ...]) -> list[Lookahead]:
    return lookaheads.recorded_lookaheads(backstage.capture(run_id))


def spec_text(draft: Lookahead) -> str:
    """A draft's specification as the caches know it."""
    return json.dumps(draft.spec, sort_keys=True)


@st.cache_resource(max_entries=8, show_spinner=False)
def _rows(run_id: str, weighting: str, draft: str | None) -> RecallRows:
    queries: list[np.ndarray] | None = None
    if draft is not None:
        spec = json.loads(draft)
        capture = backstage.capture(run_id)
        queries = list(lookaheads.lookahead(capture, spec["policy"], spec["steps"]).queries)
    return recall.recall_rows(
        backstage.capture(run_id), last_offset=24, weighting=weighting, lookahead=queries
    )


@st.cache_resource(max_entries=16, show_spinner=False)
def ranked(run_id: str, weighting: str, width: int, draft: str | None) -> RankedWindows:
    """The windows of a run, of its own response or of a recorded draft."""
    rows = _rows(run_id, weighting, draft)
    return recall.ranked_windows(rows, width=width, pseudo=draft is not None)


@st.cache_resource(max_entries=16, show_spinner=False)
def ranked_lengths(run_id: str, weighting: str, window: int, draft: str | None) -> RankedWindows:
    rows = _rows(run_id, weighting, draft)
    return recall.ranked_lengths(rows, range(1, 17), window=window, pseudo=draft is not None)


def recall_lines(
    runs: Runs, chosen: tuple[int, ...], weighting: str, width: int, drafts: Runs, where: Any
) -> Figure:
    """Recall over window start; drafts by their specification, each from the runs that have it."""
    full = [ranked(run, weighting, width, None) for run in runs]
    return recall_figures.recall_lines(
        captures(runs),
        full,
        chosen,
        lookaheads={
            _titles(runs)[draft]: [
                ranked(run, weighting, width, draft) for run in runs if _has(run, draft)
            ]
            for draft in drafts
        },
        width=width,
        weighting=weighting,
        layer=where[0],
        kv_head=where[1],
    )


def _titles(runs: Runs) -> dict[str, str]:
    return {spec_text(draft): draft.title for run in runs for draft in recorded(run)}


def _has(run_id: str, draft: str) -> bool:
    return draft in _titles((run_id,))


def recall_by_head(
    runs: Runs,
    budget: int,
    start: int,
    weighting: str,
    width: int,
    draft: str | None,
    selected: Cell,
) -> Figure:
    having = tuple(run for run in runs if draft is None or _has(run, draft))
    windows = [ranked(run, weighting, width, draft) for run in having]
    named = {} if draft is None else {"what": _titles(having)[draft]}
    return recall_figures.recall_by_head(
        captures(having), windows, budget, start, selected=selected, **named
    )


def recall_over_length(
    runs: Runs, budget: int, weighting: str, window: int, drafts: Runs
) -> Figure:
    lengths = {"full cache's response": [ranked_lengths(r, weighting, window, None) for r in runs]}
    for draft in drafts:
        lengths[_titles(runs)[draft]] = [
            ranked_lengths(run, weighting, window, draft) for run in runs if _has(run, draft)
        ]
    return recall_figures.recall_over_length(captures(runs), lengths, budget, window=window)


# Budgets


@st.cache_resource(max_entries=4, show_spinner=False)
def _task(run_id: str, source: str) -> context_scores.TaskAttention:
    return context_scores.stored_task_attention(backstage.capture(run_id), source)


@dataclasses.dataclass(frozen=True)
class Operators:
    """How the task's attention becomes composite slots; the paper's defaults."""

    agg_task: str = "max"
    agg_group: str = "mean"
    agg_head: str = "mean"
    value_norm: str = "none"
    head_mean: bool = True


@st.cache_resource(max_entries=12, show_spinner=False)
def _scores(run_id: str, source: str, agg_task: str, agg_group: str, norm: str) -> np.ndarray:
    return context_scores.aggregate(
        _task(run_id, source),
        backstage.capture(run_id),
        agg_task=agg_task,
        agg_group=agg_group,
        value_norm=norm,
    )


def _scores_of(run_id: str, source: str, by: Operators) -> np.ndarray:
    return _scores(run_id, source, by.agg_task, by.agg_group, by.value_norm)


@st.cache_resource(max_entries=16, show_spinner=False)
def _slots(run_id: str, source: str, operators: tuple[Any, ...]) -> Composed:
    by = Operators(*operators)
    scores = _scores_of(run_id, source, by)
    return budgets.compose_slots(scores, agg_head=by.agg_head, head_mean=by.head_mean)


def composed(
    run_id: str, source: str, by: Operators, ratio: float, floor: int, match: str = "paper"
) -> Composed:
    slots = _slots(run_id, source, dataclasses.astuple(by))
    return budgets.at_ratio(slots, ratio, floor, match=match)


def layers_of(run_id: str) -> tuple[int, ...]:
    """The layers that KVCompose may touch."""
    return context_scores.touched(backstage.capture(run_id))


def layer_budgets(
    runs: Runs, source: str, by: Operators, ratio: float, floor: int, match: str
) -> Figure:
    made = [composed(run, source, by, ratio, floor, match) for run in runs]
    return budgets_figures.layer_budgets(captures(runs), made, layers=layers_of(runs[0]))


@st.cache_data(max_entries=32, show_spinner=False)
def _over_ratios(run_id: str, source: str, operators: tuple[Any, ...], floor: int) -> np.ndarray:
    slots = _slots(run_id, source, operators)
    return budgets.counts_over_ratios(slots, RATIOS, floor)


RATIOS = [round(0.05 * n, 2) for n in range(20)]


def budgets_over_ratios(
    run_id: str, source: str, by: Operators, ratio: float, floor: int
) -> Figure:
    counts = _over_ratios(run_id, source, dataclasses.astuple(by), floor)
    return budgets_figures.budgets_over_ratios(
        backstage.capture(run_id), RATIOS, counts, layers=layers_of(run_id), ratio=ratio
    )


@st.cache_data(max_entries=128, show_spinner=False)
def _allocated(
    run_id: str, source: str, operators: tuple[Any, ...], ratio: float, rule: str, floor: int
) -> np.ndarray:
    by = Operators(*operators)
    return budgets.allocated(
        _scores_of(run_id, source, by),
        ratio,
        rule,
        min_per_layer=floor,
        agg_head=by.agg_head,
        head_mean=by.head_mean,
    )


def allocation_lines(run_id: str, source: str, by: Operators, ratio: float, floor: int) -> Figure:
    operators = dataclasses.astuple(by)
    counts = {
        rule: _allocated(run_id, source, operators, ratio, rule, floor)
        for rule in budgets.ALLOCATIONS
    }
    return budgets_figures.allocation_lines(
        backstage.capture(run_id), counts, layers=layers_of(run_id), ratio=ratio
    )


def head_budgets(
    run_id: str, source: str, by: Operators, ratio: float, rule: str, floor: int, selected: Cell
) -> Figure:
    counts = _allocated(run_id, source, dataclasses.astuple(by), ratio, rule, floor)
    capture = backstage.capture(run_id)
    return budgets_figures.head_budgets(
        capture,
        counts,
        rule,
        layers=layers_of(run_id),
        context=capture.info.context_length,
        selected=selected if selected[0] in layers_of(run_id) else None,
    )


def composite_matrix(
    run_id: str, source: str, by: Operators, ratio: float, floor: int, layer: int, first: int
) -> Figure:
    made = composed(run_id, source, by, ratio, floor)
    return budgets_figures.composite_matrix(
        backstage.capture(run_id), made, layer, layers=layers_of(run_id), first=first
    )


def slot_table(
    run_id: str, source: str, by: Operators, ratio: float, floor: int, layer: int, slot: int
) -> pd.DataFrame:
    """One composite token: what each head puts in it, with the text around."""
    capture = backstage.capture(run_id)
    made = composed(run_id, source, by, ratio, floor)
    table = budgets_figures.composite_table(
        capture, made, layer, layers=layers_of(run_id), first=slot, rows=1
    )
    pieces = token_pieces(capture)
    around = [
        "".join(pieces[max(0, place - EXCERPT) : place + EXCERPT + 1]).replace("\n", "⏎")
        for place in table["position"]
    ]
    return table[["kv_head", "position", "token"]].assign(text=around)


def operator_effect(run_id: str, source: str, ratio: float, floor: int, variants: Runs) -> Figure:
    default = composed(run_id, source, Operators(), ratio, floor)
    others = {
        name: composed(run_id, source, Operators(**VARIANTS[name]), ratio, floor)
        for name in variants
    }
    return budgets_figures.operator_effect(
        backstage.capture(run_id), default, others, layers=layers_of(run_id)
    )


VARIANTS: dict[str, dict[str, Any]] = {
    "mean over task tokens": {"agg_task": "mean"},
    "max over the group": {"agg_group": "max"},
    "max over heads": {"agg_head": "max"},
    "without the mean term": {"head_mean": False},
    "weighted by ‖v‖": {"value_norm": "value"},
    "weighted by ‖vW_O‖": {"value_norm": "output"},
}
