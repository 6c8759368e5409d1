"""Figures of a run, computed once and kept for a while; every cache is bounded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import streamlit as st

from analysis import attention
from analysis.attention import TokenView
from analysis.figure import Figure
from analysis.rows import Heads, Selection
from pages.parts import backstage


@st.cache_data(max_entries=256, show_spinner=False)
def first_look(run_id: str) -> tuple[int, int]:
    return attention.first_look(backstage.capture(run_id))


@st.cache_data(max_entries=64, show_spinner=False)
def overview(
    run_id: str, measure: str, step: int | None, selected: tuple[int, int] | None
) -> Figure:
    return attention.overview(backstage.capture(run_id), measure, step, selected=selected)


@st.cache_data(max_entries=48, show_spinner=False)
def head_matrix(
    run_id: str,
    layer: Selection,
    head: Selection,
    query_range: tuple[int, int],
    key_range: tuple[int, int],
    pool: str,
    log: bool,
    hide_sink: bool,
) -> Figure:
    """Of any step; `with_step` marks one. Raises NeedsJob when it must be derived first."""
    return attention.head_matrix(
        backstage.capture(run_id),
        layer,
        head,
        query_range,
        key_range,
        pool=pool,
        log=log,
        hide_sink=hide_sink,
    )


def with_step(matrix: Figure, run_id: str, step: int) -> Figure:
    return attention.mark_step(matrix, backstage.capture(run_id), step)


@st.cache_resource(max_entries=24, show_spinner=False)  # nobody changes them: no copies
def _text_rows(run_id: str, layer: Selection, head: Heads, first: int, last: int) -> np.ndarray:
    return attention.text_rows(backstage.capture(run_id), layer, head, first, last)


def text_view(
    run_id: str, layer: Selection, head: Heads, step: int, page: int | None, window: int
) -> TokenView:
    capture = backstage.capture(run_id)
    steps = attention.text_steps(capture, step, window)
    rows = _text_rows(run_id, layer, head, int(steps[0]), int(steps[-1]))
    return attention.text_view(capture, layer, head, step, page, window=window, rows=rows)


def step_table(run_id: str, layer: Selection, head: Selection, step: int) -> pd.DataFrame:
    """Every token with the weight that one step gives it."""
    capture = backstage.capture(run_id)
    tokens = capture.tokens()[["position", "token_id", "text", "segment"]]
    return tokens.assign(weight=attention.step_row(capture, layer, head, step))


@st.cache_data(max_entries=64, show_spinner=False)
def top_tokens(run_id: str, layer: Selection, head: Selection, step: int) -> pd.DataFrame:
    return attention.top_tokens(backstage.capture(run_id), layer, head, step)


@st.cache_data(max_entries=64, show_spinner=False)
def step_statistics(
    run_id: str,
    layer: Selection,
    head: Selection,
    measures: Sequence[str],
    by_layer: bool,
    step: int,
) -> Figure:
    return attention.step_statistics(
        backstage.capture(run_id), layer, head, measures, by_layer=by_layer, step=step
    )


@st.cache_data(max_entries=32, show_spinner=False)
def received_attention(
    run_id: str, layer: Selection, kv_head: Selection, statistic: str, whole: bool
) -> Figure:
    """Raises NeedsJob when `whole` has not been derived yet."""
    return attention.received_attention(
        backstage.capture(run_id), layer, kv_head, statistic=statistic, whole=whole
    )


def window_for(length: int) -> int:
    """Steps sent to the text view at once: about two megabytes, so that playing needs no server."""
    return int(np.clip(1_000_000 // max(1, length), 8, 128))
