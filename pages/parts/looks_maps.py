"""What the pages Queries, Partitions and Picks show, computed once and kept for a while."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import streamlit as st

from analysis import partitions, picks, projections, queries, retained_figures, role_texts
from analysis import partitions_figures as lag_figures
from analysis import picks_figures as sage_figures
from analysis import queries_figures as query_figures
from analysis.figure import Figure
from analysis.queries import Points
from analysis.retained import stored_retained
from pages.parts import backstage

if TYPE_CHECKING:
    from analysis.eviction_text import EvictionView
    from analysis.partitions import LagScores
    from analysis.picks import Partition, Retained
    from analysis.projections import Projection
    from analysis.queries import JointSpace

Lag = tuple[str, int, str, int, int]  # run, layer, variant, sinks, L


def as_name(spec: dict[str, Any]) -> str:
    """A specification as the text that the caches know it by."""
    return json.dumps(spec, sort_keys=True)


def points(run_id: str, name: str) -> tuple[Points, JointSpace | None]:
    """The points of a projection, the same for every method. Raises NeedsJob for a lookahead."""
    spec = json.loads(name)
    window = {"window": spec["options"]["window"]} if spec["what"] == "queries" else {}
    return _points(run_id, as_name({**spec, "method": "", "options": window}))


@st.cache_resource(max_entries=12, show_spinner=False)
def _points(run_id: str, name: str) -> tuple[Points, JointSpace | None]:
    return projections.points_of(backstage.capture(run_id), json.loads(name))


@st.cache_resource(max_entries=24, show_spinner=False)
def projection(run_id: str, name: str) -> Projection:
    """Raises NeedsJob for a UMAP or t-SNE that was not computed."""
    spec = json.loads(name)
    if spec["method"] == "pca":
        there, _ = points(run_id, name)
        return projections.pca(there.vectors, spec["options"]["neighbours"])
    return projections.stored_projection(backstage.capture(run_id), spec)


@st.cache_data(max_entries=32, show_spinner=False)
def query_map(run_id: str, name: str, by: str, highlight: int) -> Figure:
    spec = json.loads(name)
    there, space = points(run_id, name)
    return query_figures.projection_map(
        backstage.capture(run_id),
        there,
        projection(run_id, name),
        spec["layer"],
        spec["head"],
        by=by,
        joint=space,
        highlight=highlight,
    )


@st.cache_data(max_entries=32, show_spinner=False)
def centroids(run_id: str, name: str) -> pd.DataFrame:
    return queries.centroid_distances(points(run_id, name)[0])


@st.cache_resource(max_entries=24, show_spinner=False)
def lag_scores(run_id: str, layer: int, variant: str, sink: int, lag: int) -> LagScores:
    return partitions.lag_scores(backstage.capture(run_id), layer, variant, sink=sink, lag=lag)


@st.cache_data(max_entries=48, show_spinner=False)
def lag_figure(figure: str, lag: Lag, keep_ratio: float, *selection: int, **more: int) -> Figure:
    """A figure of `analysis.partitions_figures` over one layer's scores."""
    draw = getattr(lag_figures, figure)
    return draw(backstage.capture(lag[0]), lag_scores(*lag), keep_ratio, *selection, **more)


@st.cache_data(max_entries=16, show_spinner=False)
def lag_score_map(lag: Lag) -> Figure:
    return lag_figures.score_map(backstage.capture(lag[0]), lag_scores(*lag), lag[1])


@st.cache_data(max_entries=32, show_spinner=False)
def lag_variants(lags: tuple[Lag, ...], keep_ratio: float, kv_head: int, step: int) -> Figure:
    scores = [lag_scores(*lag) for lag in lags]
    return lag_figures.variant_strip(
        backstage.capture(lags[0][0]), scores, keep_ratio, lags[0][1], kv_head, step=step
    )


@st.cache_data(max_entries=32, show_spinner=False)
def lag_overlap(lags: tuple[Lag, ...], keep_ratio: float, step: int) -> pd.DataFrame:
    scores = [lag_scores(*lag) for lag in lags]
    return partitions.variant_overlap(scores, keep_ratio, scores[0].prompt_length + step)


@st.cache_data(max_entries=32, show_spinner=False)
def lag_kinds(lag: Lag, keep_ratio: float, step: int) -> pd.DataFrame:
    """What distinguishes the tokens that are kept after a step."""
    scores = lag_scores(*lag)
    length = scores.prompt_length + step
    ranked = partitions.layout(length, scores.sink, scores.lag).roles() == 2
    keep = scores.keep(keep_ratio, length)
    return partitions.what_is_kept(backstage.capture(lag[0]), keep, ranked)


@st.cache_data(max_entries=24, show_spinner=False)
def lag_text(
    lag: Lag, keep_ratio: float, kv_head: int, step: int, page: int | None
) -> EvictionView:
    capture = backstage.capture(lag[0])
    return role_texts.lag_text(capture, lag_scores(*lag), keep_ratio, lag[1], kv_head, step, page)


@st.cache_resource(max_entries=4, show_spinner=False)
def last_rows(run_id: str) -> np.ndarray:
    return picks.last_rows(backstage.capture(run_id))


def sage_partition(run_id: str, budget: int) -> Partition:
    info = backstage.capture(run_id).info
    return picks.partition(budget, info.group, info.prompt_length)


@st.cache_resource(max_entries=8, show_spinner=False)
def picked(run_id: str, budget: int) -> np.ndarray:
    return picks.picks(last_rows(run_id), sage_partition(run_id, budget))


@st.cache_data(max_entries=48, show_spinner=False)
def sage_figure(
    figure: str, run_id: str, budget: int, layer: int, *selection: int, **more: int
) -> Figure:
    """A figure of `analysis.picks_figures` over one layer's picks."""
    draw = getattr(sage_figures, figure)
    parts = sage_partition(run_id, budget)
    chosen = picked(run_id, budget)[layer]
    return draw(backstage.capture(run_id), chosen, parts, layer, *selection, **more)


@st.cache_data(max_entries=32, show_spinner=False)
def union_sizes(run_id: str, budget: int, selected: tuple[int, int]) -> Figure:
    parts = sage_partition(run_id, budget)
    capture = backstage.capture(run_id)
    return sage_figures.union_sizes(capture, picked(run_id, budget), parts, selected=selected)


@st.cache_data(max_entries=32, show_spinner=False)
def picks_table(run_id: str, budget: int, layer: int) -> pd.DataFrame:
    chosen, rows = picked(run_id, budget)[layer], last_rows(run_id)[layer]
    return sage_figures.picks_table(backstage.capture(run_id), chosen, rows)


@st.cache_data(max_entries=24, show_spinner=False)
def sage_text(
    run_id: str, budget: int, layer: int, head: int, step: int, page: int | None
) -> EvictionView:
    parts = sage_partition(run_id, budget)
    chosen, rows = picked(run_id, budget)[layer], last_rows(run_id)[layer]
    capture = backstage.capture(run_id)
    return role_texts.sage_text(capture, rows, chosen, parts, layer, head, step, page)


@st.cache_resource(max_entries=8, show_spinner=False)
def _retained(run_id: str, layer: int, budgets: tuple[int, ...]) -> dict[str, Retained]:
    return stored_retained(backstage.capture(run_id), layer, budgets)


@st.cache_data(max_entries=16, show_spinner=False)
def over_budgets(
    run_id: str, measure: str, layer: int, budgets: tuple[int, ...], budget: int
) -> Figure:
    """Raises NeedsJob where the measure takes long and was not computed."""
    capture = backstage.capture(run_id)
    measured = _retained(run_id, layer, budgets)
    return retained_figures.retained_over_budget(capture, measured, measure, layer, budget=budget)


@st.cache_data(max_entries=32, show_spinner=False)
def position_schemes(run_id: str, budget: int, step: int) -> Figure:
    return retained_figures.position_schemes(backstage.capture(run_id), budget, step)
