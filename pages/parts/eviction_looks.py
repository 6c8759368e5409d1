"""What the Eviction page shows, computed once and kept for a while; every cache is bounded.

Policies are named by the text of their choice, so that a cache can tell them apart.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pandas as pd
import streamlit as st

from analysis import eviction
from analysis.figure import Figure
from cache_store.derived_writer import derived_path
from pages.parts import backstage

if TYPE_CHECKING:
    from analysis.eviction import EvictionView, Span
    from analysis.replays import PolicyRun, Replayed
    from analysis.responses import ResponseDiff
    from analysis.rows import Selection

Positions = tuple[int, int] | None
Cell = tuple[int, int]


def name_of(choice: dict[str, Any]) -> str:
    """A choice as the text that the caches know it by. Raises PolicyError for a choice that is
    none."""
    from kvpolicies.choice import canonical

    return json.dumps(canonical(choice), sort_keys=True)


def replayed(run_id: str, name: str) -> Replayed:
    """A stored replay. Raises NeedsJob when it, or a pass that it needs, is missing."""
    from analysis.replays import replayed

    return replayed(backstage.capture(run_id), json.loads(name))


def policy_run(run_id: str, name: str) -> PolicyRun:
    """A stored live run. Raises NeedsJob when there is none."""
    from analysis.replays import policy_run

    return policy_run(backstage.capture(run_id), json.loads(name))


@st.cache_data(max_entries=64, show_spinner=False)
def mask(run_id: str, name: str, layer: int, head: int, step: int, positions: Positions) -> Figure:
    return eviction.mask(
        backstage.capture(run_id), replayed(run_id, name), layer, head, step, positions
    )


@st.cache_data(max_entries=32, show_spinner=False)
def mask_difference(
    run_id: str,
    names: tuple[str, str],
    layer: int,
    head: int,
    step: int,
    positions: Positions,
) -> Figure:
    first, second = (replayed(run_id, name) for name in names)
    return eviction.mask_difference(
        backstage.capture(run_id), first, second, layer, head, step, positions
    )


@st.cache_data(max_entries=128, show_spinner=False)
def kept_grid(run_id: str, name: str, step: int, selected: Cell) -> Figure:
    return eviction.kept_grid(
        backstage.capture(run_id), replayed(run_id, name), step, selected=selected
    )


@st.cache_data(max_entries=32, show_spinner=False)
def kept_difference(run_id: str, names: tuple[str, str], step: int, selected: Cell) -> Figure:
    first, second = (replayed(run_id, name) for name in names)
    return eviction.kept_difference(
        backstage.capture(run_id), first, second, step, selected=selected
    )


@st.cache_data(max_entries=24, show_spinner=False)
def eviction_text(
    run_id: str,
    name: str,
    layer: int,
    head: int,
    step: int,
    page: int | None,
    evidence: tuple[Span, ...],
) -> EvictionView:
    return eviction.eviction_text(
        backstage.capture(run_id),
        replayed(run_id, name),
        layer,
        head,
        step,
        page,
        evidence=evidence,
    )


def eviction_table(run_id: str, name: str, layer: int, head: int, step: int) -> pd.DataFrame:
    capture = backstage.capture(run_id)
    return eviction.eviction_table(capture, replayed(run_id, name), layer, head, step)


@st.cache_data(max_entries=32, show_spinner=False)
def evidence_survival(
    run_id: str,
    names: tuple[str, ...],
    span: Span,
    step: int,
    layer: int | None,
    head: int | None,
) -> Figure:
    return eviction.evidence_survival(
        backstage.capture(run_id),
        [replayed(run_id, name) for name in names],
        span,
        step,
        layer=layer,
        head=head,
    )


@st.cache_data(max_entries=64, show_spinner=False)
def evidence_grid(run_id: str, name: str, span: Span, step: int, selected: Cell) -> Figure:
    return eviction.evidence_grid(
        backstage.capture(run_id), replayed(run_id, name), span, step, selected=selected
    )


def is_replayed(run_id: str, name: str) -> bool:
    """Whether a replay is there, without reading it."""
    folder = backstage.capture(run_id).path.parent
    return derived_path(folder, "replay", {"policy": json.loads(name)}).exists()


@st.cache_data(max_entries=32, show_spinner=False)
def survival_over_budget(
    run_id: str, names: tuple[tuple[str, ...], ...], span: Span, step: int
) -> Figure:
    capture, policies = backstage.capture(run_id), _swept(run_id, names)
    return eviction.survival_over_budget(capture, policies, span, step)


@st.cache_data(max_entries=32, show_spinner=False)
def budget_of_loss(
    run_id: str, names: tuple[tuple[str, ...], ...], span: Span, step: int
) -> pd.DataFrame:
    capture, policies = backstage.capture(run_id), _swept(run_id, names)
    return eviction.budget_of_loss(capture, policies, span, step)


def _swept(run_id: str, names: tuple[tuple[str, ...], ...]) -> list[list[Replayed]]:
    return [[replayed(run_id, name) for name in policy] for policy in names]


@st.cache_data(max_entries=64, show_spinner=False)
def cost(
    run_id: str, figure: str, names: tuple[str, ...], *selection: Any, **options: Any
) -> Figure:
    """A figure of `analysis.costs` over the named replays; `selection` are its own arguments."""
    from analysis import costs

    policies = [replayed(run_id, name) for name in names]
    return getattr(costs, figure)(backstage.capture(run_id), policies, *selection, **options)


@st.cache_data(max_entries=32, show_spinner=False)
def distance(
    run_id: str, names: tuple[str, ...], reference: str, layer: Selection, step: int
) -> Figure:
    """How much each of the named replays has in common with the reference."""
    from analysis import costs

    policies = [replayed(run_id, name) for name in names if name != reference]
    capture = backstage.capture(run_id)
    return costs.distance_over_steps(
        capture, policies, replayed(run_id, reference), layer, step=step
    )


@st.cache_data(max_entries=32, show_spinner=False)
def cost_summary(run_id: str, names: tuple[str, ...]) -> pd.DataFrame:
    from analysis import costs

    policies = [replayed(run_id, name) for name in names]
    return costs.cost_summary(backstage.capture(run_id), policies)


@st.cache_data(max_entries=64, show_spinner=False)
def score_distribution(run_id: str, name: str, layer: int, head: int, step: int) -> Figure:
    from analysis import costs

    capture = backstage.capture(run_id)
    return costs.score_distribution(capture, replayed(run_id, name), layer, head, step)


@st.cache_data(max_entries=32, show_spinner=False)
def most_regretted(run_id: str, name: str, layer: Selection, head: Selection) -> pd.DataFrame:
    from analysis import costs

    return costs.most_regretted(backstage.capture(run_id), replayed(run_id, name), layer, head)


@st.cache_data(max_entries=32, show_spinner=False)
def live(run_id: str, figure: str, names: tuple[str, ...], **options: Any) -> Figure:
    """A figure of `analysis.costs` over the named live runs."""
    from analysis import costs

    runs = [policy_run(run_id, name) for name in names]
    return getattr(costs, figure)(backstage.capture(run_id), runs, **options)


@st.cache_data(max_entries=16, show_spinner=False)
def live_summary(run_id: str, names: tuple[str, ...]) -> pd.DataFrame:
    from analysis import costs

    runs = [policy_run(run_id, name) for name in names]
    return costs.live_summary(backstage.capture(run_id), runs)


@st.cache_data(max_entries=16, show_spinner=False)
def response_diff(run_id: str, name: str) -> ResponseDiff:
    from analysis import costs

    return costs.response_diff(backstage.capture(run_id), policy_run(run_id, name))
