"""What the Budgets page shows, computed once; every cache is bounded.

The arrays of a run are kept as they are (never changed, so they need no copy); a slider asks them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import streamlit as st

from analysis import budgets, budgets_figures, composite_figures, context_scores
from analysis.figure import Figure
from analysis.text import token_pieces
from analysis.words import visible
from pages.parts import backstage
from pages.parts.backstage import captures

if TYPE_CHECKING:
    from analysis.budgets import Composed

Cell = tuple[int, int]
Runs = tuple[str, ...]
EXCERPT = 4  # tokens on each side of one that is quoted in a table
LONG_EXCERPT = 40  # and of the chosen one


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


RATIOS = [round(0.02 * n, 2) for n in range(51)]


def budgets_over_ratios(runs: Runs, source: str, by: Operators, ratio: float, floor: int) -> Figure:
    counts = [_over_ratios(run, source, dataclasses.astuple(by), floor) for run in runs]
    return budgets_figures.budgets_over_ratios(
        captures(runs), RATIOS, counts, layers=layers_of(runs[0]), ratio=ratio
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


def allocation_lines(runs: Runs, source: str, by: Operators, ratio: float, floor: int) -> Figure:
    operators = dataclasses.astuple(by)
    counts = [
        {
            rule: _allocated(run, source, operators, ratio, rule, floor)
            for rule in budgets.ALLOCATIONS
        }
        for run in runs
    ]
    return budgets_figures.allocation_lines(
        captures(runs), counts, layers=layers_of(runs[0]), ratio=ratio
    )


def head_budgets(
    runs: Runs, source: str, by: Operators, ratio: float, floor: int, rule: str, selected: Cell
) -> Figure:
    operators = dataclasses.astuple(by)
    counts = [_allocated(run, source, operators, ratio, rule, floor) for run in runs]
    return budgets_figures.head_budgets(
        captures(runs),
        counts,
        rule,
        layers=layers_of(runs[0]),
        selected=selected if selected[0] in layers_of(runs[0]) else None,
    )


def composite_matrix(
    run_id: str,
    source: str,
    by: Operators,
    ratio: float,
    floor: int,
    layer: int,
    first: int,
    chosen: int,
) -> Figure:
    made = composed(run_id, source, by, ratio, floor)
    return composite_figures.composite_matrix(
        backstage.capture(run_id),
        made,
        layer,
        layers=layers_of(run_id),
        first=first,
        chosen=chosen,
    )


def slot_table(
    run_id: str, source: str, by: Operators, ratio: float, floor: int, layer: int, slot: int
) -> pd.DataFrame:
    """One composite token: what each head puts in it, with the text around."""
    capture = backstage.capture(run_id)
    made = composed(run_id, source, by, ratio, floor)
    table = composite_figures.composite_table(
        capture, made, layer, layers=layers_of(run_id), first=slot, rows=1
    )
    pieces = token_pieces(capture)
    around = [
        "".join(pieces[max(0, place - EXCERPT) : place + EXCERPT + 1]).replace("\n", "⏎")
        for place in table["position"]
    ]
    return table[["kv_head", "position", "token"]].assign(text=around)


def excerpt(run_id: str, position: int) -> tuple[str, str, str]:
    """The text before a token, the token, and the text after it; line ends as ⏎."""
    pieces = token_pieces(backstage.capture(run_id))
    first, stop = max(0, position - LONG_EXCERPT), position + LONG_EXCERPT + 1
    before, after = pieces[first:position], pieces[position + 1 : stop]
    told = ("".join(part).replace("\n", "⏎") for part in (before, after))
    left, right = told
    return left, visible(pieces[position]), right


def operator_effect(runs: Runs, source: str, ratio: float, floor: int, variants: Runs) -> Figure:
    """Each variant against the default operators over the same task tokens, or the same operators
    over others. Raises NeedsJob where those were not computed."""
    default = [composed(run, source, Operators(), ratio, floor) for run in runs]
    others = {name: [variant(run, source, ratio, floor, name) for run in runs] for name in variants}
    return budgets_figures.operator_effect(
        captures(runs), default, others, layers=layers_of(runs[0])
    )


def variant(run_id: str, source: str, ratio: float, floor: int, name: str) -> Composed:
    """One of VARIANTS. Raises NeedsJob where its attention was not computed."""
    other = TASKS.get(name)
    if other is not None:
        return composed(run_id, other, Operators(), ratio, floor)
    return composed(run_id, source, Operators(**OPERATORS[name]), ratio, floor)


OPERATORS: dict[str, dict[str, Any]] = {
    "mean over task tokens": {"agg_task": "mean"},
    "max over the group": {"agg_group": "max"},
    "max over heads": {"agg_head": "max"},
    "without the mean term": {"head_mean": False},
    "weighted by ‖v‖": {"value_norm": "value"},
    "weighted by ‖vW_O‖": {"value_norm": "output"},
}
TASKS = {
    "question's attention": "question",
    "second reading's attention": "context",
    "prompt's own attention": "self",
}
VARIANTS = (*OPERATORS, *TASKS)
