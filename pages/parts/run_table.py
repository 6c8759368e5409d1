"""The table of runs: search, order, and which rows are ticked. The ticked runs are in the URL."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import pandas as pd
import streamlit as st

from pages.parts import card, selection
from pages.parts.text import plain, shorten, size, some

SORTS = {
    "newest": "created",
    "title": "title",
    "model": "model",
    "longest": "length",
    "largest": "size",
}
PICK = "pick"
_WIDTHS = {  # pixels; all but tags and notes fit beside the sidebar at 900, and grow from there
    "Title": 92,
    "Model": 54,
    "Prompt": 60,
    "Response": 75,
    "Made (UTC)": 94,
    "Size": 64,
    "Tags": 120,
    "Note": 300,
}


def link_values() -> dict[str, Any]:
    picks = picked()
    measure = st.session_state.get("measure") or st.query_params.get("measure")
    return {
        "run": st.session_state.get("run"),
        "search": st.session_state.get("search") or st.query_params.get("search"),
        "sort": st.session_state.get("sort") or st.query_params.get("sort"),
        PICK: picks or None,
        "measure": measure if len(picks) == 2 else None,
    }


def picked() -> list[str]:
    """The ids of the ticked runs."""
    return st.query_params.get_all(PICK)


def pick(run_ids: list[str]) -> None:
    """Tick these runs and no others."""
    if run_ids:
        st.query_params[PICK] = run_ids
    else:
        st.query_params.pop(PICK, None)


def settle(runs: pd.DataFrame) -> None:
    """Untick the runs of the address that the library does not have, and say so."""
    known = set(runs["id"])
    missing = [run_id for run_id in picked() if run_id not in known]
    if missing:
        pick([run_id for run_id in picked() if run_id in known])
        names = ", ".join(repr(shorten(run_id, 40)) for run_id in missing[:3])
        selection.notice(PICK, f"This library has no run {names}, so it is not compared.")


def controls() -> tuple[str, str]:
    """The search text and the order, both in the URL."""
    search = st.text_input(
        "Search", key="search", bind="query-params", placeholder="title, tag or model", width=320
    )
    words = selection.choice("Order", "sort", list(SORTS), "newest", width=150)
    return str(search or ""), SORTS[words]


def table(runs: pd.DataFrame, search: str) -> pd.DataFrame:
    """Draw the runs; returns the selected ones (with an unreadable run's `error`)."""
    if runs.empty:
        st.caption(plain(f"No run matches '{search}'. Clear the search to see all of them."))
        return runs
    shown = pd.DataFrame(
        {
            "Title": [
                title or run_id for title, run_id in zip(runs["title"], runs["id"], strict=True)
            ],
            "Model": runs["model_id"],
            "Prompt": runs["prompt_length"],
            "Response": runs["response_length"],
            "Made (UTC)": runs["created_at"],
            "Size": [size(value) for value in runs["file_bytes"]],
            "Tags": [", ".join(tags) for tags in runs["tags"]],
            "Note": runs["error"].fillna(""),
        }
    )
    rare = ("Tags", "Note")
    columns: list[str] = [str(name) for name in shown if name not in rare or shown[name].any()]
    ids = [str(run_id) for run_id in runs["id"]]
    ticked = [ids.index(run_id) for run_id in picked() if run_id in ids]
    key = f"runs-{hashlib.sha256(' '.join(ids).encode()).hexdigest()[:12]}"
    event = st.dataframe(
        shown,
        hide_index=True,
        placeholder="",
        column_order=columns,
        key=key,
        on_select=functools.partial(_ticked, key, ids),
        selection_mode="multi-row",
        selection_default={"selection": {"rows": ticked, "columns": [], "cells": []}},
        alt=f"{some(len(shown), 'run')} with title, tags, model, tokens, time and size",
        column_config={
            **{name: st.column_config.TextColumn(width=width) for name, width in _WIDTHS.items()},
            "Prompt": st.column_config.NumberColumn(
                format="localized", help="tokens", width=_WIDTHS["Prompt"]
            ),
            "Response": st.column_config.NumberColumn(
                format="localized", help="generated tokens", width=_WIDTHS["Response"]
            ),
            "Made (UTC)": st.column_config.DatetimeColumn(
                "Made",
                format="MM-DD HH:mm",
                help="UTC, month and day",
                width=_WIDTHS["Made (UTC)"],
            ),
        },
    )
    card.actions(lambda: shown[columns], key="runs", name="runs", link_values=link_values())
    rows = [row for row in event["selection"]["rows"] if row < len(runs)]
    return runs.iloc[rows].reset_index(drop=True)


def _ticked(key: str, ids: list[str]) -> None:
    """Into the address; the key belongs to these rows in this order."""
    rows = st.session_state[key]["selection"]["rows"]
    pick([ids[row] for row in rows if row < len(ids)])
    selection.forget_notice(PICK)
