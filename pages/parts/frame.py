"""The frame around every page: the run, its facts, the pages and the jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from pages.parts import backstage, jobs_view, selection, sitemap
from pages.parts.text import clock, number, plain, shorten, size

ICON = Path(__file__).with_name("icon.png")
TITLES_SHOWN = 48
LINK_GAP = 6  # pixels; with less, the chosen page covers part of the names beside it
# While a page runs, Streamlit fades what is not yet known to be as it was: every element becomes a
# layer of its own, which costs the browser more than the figures of most pages do.
_STILL = "<style>.stElementContainer, [data-stale] {transition: none; opacity: 1;}</style>"
_FRAMED = "framed"
_LISTED = "listed_runs"
_UNKNOWN = "unknown_run"


def show(sections: Mapping[str, Sequence[Any]]) -> None:
    """Draw the sidebar; afterwards `current_run()` names the run that the page shows."""
    st.session_state[_FRAMED] = True
    st.html(_STILL)
    with st.sidebar:
        st.markdown("### KVScope")
        seen = jobs_view.ended()
        _pick_run()
        for name, pages in sections.items():
            if name == sitemap.START:
                continue
            with st.container(gap=LINK_GAP):
                st.caption(name)
                for page in pages:
                    st.page_link(page, icon=sitemap.ICONS[page.title], query_params=_carried())
        jobs_view.indicator(seen)


def current_run() -> str | None:
    """The id of the chosen run, or None when the library has no readable run.

    The first address that a fresh server sees may name a page; Streamlit then runs that page's
    file without `app.py`, because the folder is called `pages`. Naming any navigation ends that,
    and the next run is a whole one."""
    if not st.session_state.get(_FRAMED):
        st.navigation(sitemap.sections(), position="hidden")
        st.rerun()
    run = st.session_state.get("run")
    return str(run) if run else None


def listed_runs() -> pd.DataFrame:
    """The runs as the sidebar of this page names them: read once for a page."""
    listed: pd.DataFrame = st.session_state[_LISTED]
    return listed


def heading(question: str, link_values: dict[str, Any] | None = None) -> None:
    """The page's question, the link that reopens this view, and what the URL could not get."""
    title(question, link_values)
    selection.show_notices()


def title(question: str, link_values: dict[str, Any] | None = None) -> None:
    """The page's question and the link that reopens this view."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.title(question, anchor=False, width="stretch")
        if link_values is not None:
            with st.popover("Link", icon=":material/link:", type="tertiary", help="Copy the link"):
                st.caption("This address opens exactly this view.")
                st.code(selection.link(link_values), language=None, wrap_lines=True)


def _pick_run() -> None:
    """The run picker. The URL holds the run's id, so a renamed run keeps its links."""
    runs = st.session_state[_LISTED] = backstage.runs()
    readable = runs[runs["error"].isna()] if "error" in runs else runs
    ids = [str(run_id) for run_id in readable["id"]]
    asked = st.query_params.get("run")
    _forget_untrue(ids, asked)
    if not ids:
        st.session_state["run"] = None
        st.caption("No run yet")
        if asked:
            _say_unknown(asked, "", "The library is empty.")
        return
    if asked in ids:
        run = asked
    else:
        run = ids[0]
        if asked:
            _say_unknown(asked, run, "The newest run is shown.")
        st.query_params["run"] = run
    st.session_state["run"] = st.session_state["run_choice"] = run
    called = names(ids, [str(title) for title in readable["title"]])
    st.selectbox(
        "Run",
        ids,
        format_func=lambda run_id: called.get(run_id, run_id),
        key="run_choice",
        on_change=_run_chosen,
    )
    _facts(readable[readable["id"] == run].iloc[0])


def names(ids: list[str], titles: list[str]) -> dict[str, str]:
    """What the picker calls each run. Names must differ: the browser answers with a name."""
    short = [shorten(title, TITLES_SHOWN) for title in titles]
    return {
        run_id: name if short.count(name) == 1 else f"{name} ({run_id[-6:]})"
        for run_id, name in zip(ids, short, strict=True)
    }


def _run_chosen() -> None:
    show_run(str(st.session_state["run_choice"]))


def show_run(run_id: str | None) -> None:
    """Make this the run of every page; None takes the newest. What was said of another ends."""
    if run_id is None:
        st.query_params.pop("run", None)
    else:
        st.query_params["run"] = run_id
    selection.forget_notices()


def _say_unknown(asked: str, shown: str, instead: str) -> None:
    st.session_state[_UNKNOWN] = (asked, shown)
    selection.notice("run", f"This library has no run {shorten(asked, 40)!r}. {instead}")


def _forget_untrue(ids: list[str], now: str | None) -> None:
    """The sentence about an unknown run holds while that run is missing and its stand-in shown."""
    asked, shown = st.session_state.get(_UNKNOWN, ("", ""))
    stands_in = shown == (ids[0] if ids else "") and now in (asked, shown or asked)
    if asked in ids or not stands_in:
        selection.forget_notice("run")


def _facts(run: pd.Series) -> None:
    tokens = f"{number(run['prompt_length'])} + {number(run['response_length'])} tokens"
    lines = [
        [str(run["model_id"]), tokens],
        [size(run["file_bytes"]), clock(run["created_at"])],
    ]
    with st.container(gap=None):
        for line in lines:
            st.caption(" · ".join(plain(fact, 40) for fact in line))


def _carried() -> dict[str, str | list[str]]:
    """The URL's values, so that moving to another page keeps them."""
    params = st.query_params
    return {key: params.get_all(key) for key in params if key != "job"}
