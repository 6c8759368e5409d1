"""What the pages of the papers share: their controls, and figures that may be missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from analysis.errors import NeedsJob
from analysis.figure import Figure, Note
from backend.jobs import derive_job
from cache_store.errors import KVScopeError
from cache_store.reader import CaptureInfo
from kvpolicies import PolicyError
from pages.parts import backstage, card, frame, policy_replays, policy_slots, selection
from pages.parts.policy_replays import Pending
from pages.parts.text import plain, shorten

HEIGHT = 380
_VERBS = {"context_attention": "Compute it", "policy_run": "Run it"}
_JOBS = {
    "second_reading": "A second reading of the context",
    "context_attention": "Attention over the whole context",
    "lookahead": "Lookahead response",
    "policy_run": "Run for real",
}


def held(key: str, default: str, valid: Callable[[str], bool], says: str) -> str:
    """The URL's value of a control that may have values no list holds, or the default."""
    asked = st.query_params.get(key)
    if asked is None:
        return default
    if not valid(asked):
        selection.notice(
            key, f"There is no {key} {shorten(asked, 20)!r} here: {says}. Shown is {default}."
        )
        return default
    selection.forget_notice(key)
    return asked


def hold(key: str, widget: str, value: Any) -> Callable[[], None]:
    """Before a control is drawn: it shows `value`; what it returns writes the URL on a change."""
    policy_slots.hold(widget, value)

    def changed() -> None:
        now = st.session_state[widget]
        selection.forget_notice(key)
        st.query_params[key] = [str(item) for item in now] if isinstance(now, list) else str(now)

    return changed


def pooled_runs(run_id: str, info: CaptureInfo, needs: str) -> tuple[str, ...]:
    """This run and the other runs of the same model that the reader pools with it.

    needs: "response" or "context", which a run must have for anything to be pooled.
    """
    runs = frame.listed_runs()
    readable = runs[runs["error"].isna() & (runs["id"] != run_id)]
    shape = [getattr(info, name) for name in _SHAPE]
    same = readable[(readable[list(_SHAPE)] == shape).all(axis=1)]
    whole = same[same[f"{needs}_length"] > 0]
    names = frame.names([str(run) for run in whole["id"]], [str(title) for title in whole["title"]])
    asked = [run for run in dict.fromkeys(st.query_params.get_all("with")) if run != run_id]
    known = [run for run in asked if run in names]
    left_out = [
        f"{shorten(run, 24)} ({_why_not(run, readable, same, needs)})"
        for run in asked
        if run not in names
    ]
    if left_out:
        selection.notice("with", f"Not pooled with this run: {'; '.join(left_out)}.")
    else:
        selection.forget_notice("with")
    if not names:
        return (run_id,)
    changed = hold("with", "pooled_runs", known)
    st.multiselect(
        "Pool with other runs of this model",
        list(names),
        format_func=lambda run: names.get(run, run),
        key="pooled_runs",
        on_change=changed,
        placeholder="This run alone",
    )
    return (run_id, *known)


_SHAPE = ("model_id", "layers", "query_heads", "kv_heads")  # what runs of one model share


def _why_not(run: str, readable: pd.DataFrame, same: pd.DataFrame, needs: str) -> str:
    """Why a run that the address names is not pooled."""
    if run not in set(readable["id"]):
        return "not in this library"
    return f"it has no {needs}" if run in set(same["id"]) else "of another model"


def ready(
    runs: Sequence[str], make: Callable[[str], Any], *, title: str, key: str
) -> tuple[str, ...]:
    """The runs that `make` can draw; in the place of the others what they need, or why not."""
    found: list[str] = []
    missing: list[Pending] = []
    for run in runs:
        try:
            make(run)
            found.append(run)
        except (KVScopeError, PolicyError) as error:
            if len(runs) == 1:
                instead(error, title=title, key=key, run_id=run)
            else:
                missing.append(pending(error, backstage.library().title(run), run))
    if missing:
        words = f"{title}: {len(found)} of {len(runs)} runs are pooled"
        policy_replays.waiting_for(missing, words, key=key, verb="Compute them")
    return tuple(found)


def pending(error: Exception, title: str, run_id: str) -> Pending:
    """What stands between a run and a figure: the job it needs, or the sentence why not."""
    if not isinstance(error, NeedsJob):
        return Pending(title, None, None, str(error))
    name = _JOBS.get(error.kind, title)
    return Pending(title, derive_job(run_id, error.kind, error.spec, name), error)


def attempt(
    make: Callable[[], Figure],
    *,
    title: str,
    key: str,
    run_id: str,
    link: dict[str, Any],
    height: int = HEIGHT,
    on_cell: Callable[[int, int], None] | None = None,
) -> Figure | None:
    """The figure as a card; in its place the job that it needs, or the sentence why it is not."""
    try:
        figure = make()
    except (KVScopeError, PolicyError) as error:
        instead(error, title=title, key=key, run_id=run_id)
        return None
    card.figure_card(figure, key=key, link_values=link, height=height, on_cell=on_cell)
    return figure


def instead(error: Exception, *, title: str, key: str, run_id: str) -> None:
    """In the place of something that cannot be shown yet, or not at all."""
    if isinstance(error, NeedsJob):
        verb = _VERBS.get(error.kind, "Record it")
        policy_replays.waiting(pending(error, title, run_id), key=key, verb=verb)
        return
    with st.container(border=True, gap="xsmall", key=f"card-{key}"):
        st.markdown(f"**{plain(title)}**")
        st.caption(plain(str(error)))


def notes_of(figures: dict[str, Figure | None]) -> dict[str, str | Note]:
    """Two sentences for each figure that is shown; figures with one note share them."""
    notes: dict[str, str | Note] = {}
    for name, figure in figures.items():
        if figure is not None and figure.note and figure.note not in notes.values():
            notes[name] = figure.note
    return notes


def numbers(texts: Sequence[str], lowest: int, highest: int) -> list[int]:
    """The whole numbers from `lowest` to `highest` among what a reader typed, in order."""
    found = {int(text) for text in texts if str(text).isdecimal()}
    return sorted(value for value in found if lowest <= value <= highest)
