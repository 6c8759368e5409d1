"""What the Recurrence page shows, computed once; every cache is bounded.

The arrays of a run are kept as they are (never changed, so they need no copy); a slider asks them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import streamlit as st

from analysis import (
    lazy_decisions,
    lazy_figures,
    lazy_scores,
    mri_figures,
    recurrence,
    recurrence_figures,
)
from analysis.figure import Figure
from analysis.text import token_pieces
from analysis.traces import layers_within, trace_from
from analysis.words import visible
from pages.parts import backstage, eviction_looks, looks
from pages.parts.backstage import captures

if TYPE_CHECKING:
    from analysis.attention import TokenView
    from analysis.recurrence import Distribution, Recurring, Tracked
    from kvpolicies import Trace

Alpha = float | str
Cell = tuple[int, int]
Runs = tuple[str, ...]
CELLS = 32_000_000  # attention weights of a run kept in memory: 128 MB


@st.cache_resource(max_entries=3, show_spinner=False)
def _response(run_id: str) -> tuple[tuple[int, ...], np.ndarray]:
    """The layers that fit, and the full cache's attention of the response in them."""
    capture = backstage.capture(run_id)
    layers = layers_within(capture, CELLS)
    return tuple(layers), recurrence.response_attention(capture, layers)


def response_layers(run_id: str) -> tuple[int, ...]:
    """Which layers the distributions are over: all that fit."""
    return _response(run_id)[0]


@st.cache_resource(max_entries=3, show_spinner=False)
def _one_layer(run_id: str, layer: int) -> np.ndarray:
    return recurrence.response_attention(backstage.capture(run_id), [layer])[0]


def layer_attention(run_id: str, layer: int) -> np.ndarray:
    """Attention of the response in one layer; float32 (kv_heads, T, P + T)."""
    layers, attention = _response(run_id)
    if layer in layers:
        return attention[layers.index(layer)]
    return _one_layer(run_id, layer)


@st.cache_resource(max_entries=3, show_spinner=False)
def _tracked(run_id: str, alpha: Alpha, count: str) -> Tracked:
    attention = _response(run_id)[1]
    prompt = backstage.capture(run_id).info.prompt_length
    return recurrence.track(attention, alpha, prompt, count=count)


@st.cache_resource(max_entries=16, show_spinner=False)
def head_tracked(run_id: str, layer: int, kv_head: int, alpha: Alpha, count: str) -> Tracked:
    """The tracking of one head; cheap, so that the map follows α before the distribution does."""
    attention = layer_attention(run_id, layer)[kv_head]
    prompt = backstage.capture(run_id).info.prompt_length
    return recurrence.track(attention, alpha, prompt, count=count)


@st.cache_data(max_entries=256, show_spinner=False)
def mri_distribution(run_id: str, alpha: Alpha, count: str) -> Distribution:
    return recurrence.distribution([_tracked(run_id, alpha, count)])


@st.cache_data(max_entries=64, show_spinner=False)
def _head_values(
    run_id: str, alpha: Alpha, count: str, share: float
) -> tuple[np.ndarray, np.ndarray]:
    return recurrence.head_distributions(_tracked(run_id, alpha, count), share)


def pooled(runs: Runs, alpha: Alpha, count: str) -> Distribution:
    return recurrence.pooled_distribution([mri_distribution(run, alpha, count) for run in runs])


@st.cache_data(max_entries=64, show_spinner=False)
def mri(runs: Runs, figure: str, alpha: Alpha, count: str, share: float) -> Figure:
    """`mri_histogram` or `mri_cdf` over the runs; share: of the tokens that W covers."""
    parts = [mri_distribution(run, alpha, count) for run in runs]
    return getattr(mri_figures, figure)(captures(runs), parts, alpha=alpha, share=share)


@st.cache_data(max_entries=64, show_spinner=False)
def mri_by_head(
    runs: Runs, measure: str, alpha: Alpha, count: str, share: float, selected: Cell
) -> Figure:
    which = list(mri_figures.MEASURES).index(measure)
    own = [response_layers(run) for run in runs]
    layers = [layer for layer in own[0] if all(layer in others for others in own)]
    values = [
        _head_values(run, alpha, count, share)[which][[there.index(layer) for layer in layers]]
        for run, there in zip(runs, own, strict=True)
    ]
    return mri_figures.mri_by_head(
        captures(runs), values, measure, layers=layers, share=share, selected=selected
    )


@st.cache_data(max_entries=64, show_spinner=False)
def recurring(run_id: str, layer: int, kv_head: int, alpha: Alpha, count: str) -> list[Recurring]:
    return recurrence.recurring_tokens(
        head_tracked(run_id, layer, kv_head, alpha, count),
        layer_attention(run_id, layer)[kv_head],
    )


@st.cache_data(max_entries=48, show_spinner=False)
def step_map(
    figure: str, run_id: str, layer: int, kv_head: int, alpha: Alpha, count: str, step: int
) -> Figure:
    """`attention_map` or `important_map` of one head."""
    return getattr(recurrence_figures, figure)(
        backstage.capture(run_id),
        layer_attention(run_id, layer)[kv_head],
        recurring(run_id, layer, kv_head, alpha, count),
        layer,
        kv_head,
        step=step,
    )


def recurring_table(
    run_id: str, layer: int, kv_head: int, alpha: Alpha, count: str
) -> pd.DataFrame:
    found = recurring(run_id, layer, kv_head, alpha, count)
    return recurrence_figures.recurring_table(backstage.capture(run_id), found)


@st.cache_data(max_entries=48, show_spinner=False)
def activation_raster(run_id: str, layer: int, kv_head: int, alpha: Alpha, count: str) -> Figure:
    return recurrence_figures.activation_raster(
        backstage.capture(run_id),
        head_tracked(run_id, layer, kv_head, alpha, count),
        layer,
        kv_head,
        alpha=alpha,
    )


def numbered_text(
    run_id: str, layer: int, kv_head: int, alpha: Alpha, count: str, step: int, page: int | None
) -> TokenView:
    """The text shaded by the KV head's attention; recurring tokens carry their numbers."""
    info = backstage.capture(run_id).info
    heads = tuple(range(kv_head * info.group, (kv_head + 1) * info.group))
    view = looks.text_view(run_id, layer, heads, step, page, looks.window_for(info.length))
    found = recurring(run_id, layer, kv_head, alpha, count)
    return recurrence_figures.numbered_text(view, found, layer, kv_head)


@st.cache_data(max_entries=16, show_spinner=False)
def _state(
    run_id: str, layer: int, kv_head: int, alpha: Alpha, step: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pause and MRI of the head's entries after the step, which all three curves are drawn of."""
    tracked = head_tracked(run_id, layer, kv_head, alpha, "from_birth")
    return recurrence.state_at(tracked, step, backstage.capture(run_id).info.prompt_length)


@st.cache_data(max_entries=32, show_spinner=False)
def score_curves(
    run_id: str, layer: int, kv_head: int, alpha: Alpha, term: str, step: int, h1: str, h2: str
) -> Figure:
    pause, longest = _state(run_id, layer, kv_head, alpha, step)
    return lazy_scores.score_curves(
        backstage.capture(run_id),
        pause,
        longest,
        term,
        step=step,
        layer=layer,
        kv_head=kv_head,
        h1=h1,
        h2=h2,
    )


@st.cache_resource(max_entries=2, show_spinner=False)
def _layer_trace(run_id: str, layer: int) -> Trace:
    """The states of one layer, read once for both forms and every α."""
    return trace_from(backstage.capture(run_id), [layer])


@st.cache_resource(max_entries=16, show_spinner=False)
def _decisions(
    run_id: str, layer: int, form: str, budget: int, window: int, alpha: Alpha
) -> lazy_decisions.LazyDecisions:
    own = _layer_trace(run_id, layer)
    exempt = own.window_of(0) is not None  # the capture then knows the layer by its own number
    source, number = (backstage.capture(run_id), layer) if exempt else (own, 0)
    return lazy_decisions.lazy_decisions(
        source, number, form, budget=budget, window=window, alpha=alpha
    )


@st.cache_data(max_entries=32, show_spinner=False)
def evictions_table(
    run_id: str, layer: int, kv_head: int, alpha: Alpha, budget: int, window: int
) -> pd.DataFrame:
    """Both forms' evictions in one head."""
    made = {
        form: _decisions(run_id, layer, form, budget, window, alpha)
        for form in lazy_decisions.FORMS
    }
    tracked = head_tracked(run_id, layer, kv_head, alpha, "from_birth")
    return lazy_decisions.evictions_table(made, tracked, kv_head)


def decision_at(
    run_id: str, layer: int, kv_head: int, alpha: Alpha, budget: int, window: int, step: int
) -> tuple[int, pd.DataFrame]:
    """The decision that a step follows, with the tokens it evicted; not where there is none."""
    table = evictions_table(run_id, layer, kv_head, alpha, budget, window)
    at, rows = lazy_decisions.decision_at(table, step)
    pieces = token_pieces(backstage.capture(run_id))
    rows.insert(1, "token", [visible(pieces[place]) for place in rows["position"]])
    return at, rows


def evictions(
    run_id: str, layer: int, kv_head: int, alpha: Alpha, budget: int, window: int, step: int
) -> Figure:
    table = evictions_table(run_id, layer, kv_head, alpha, budget, window)
    return lazy_figures.evictions(backstage.capture(run_id), table, layer, kv_head, step=step)


@st.cache_data(max_entries=32, show_spinner=False)
def cached_over_steps(run_id: str, names: Runs, step: int, full: bool) -> Figure:
    replays = [eviction_looks.replayed(run_id, name) for name in names]
    return lazy_figures.cached_over_steps(backstage.capture(run_id), replays, step=step, full=full)
