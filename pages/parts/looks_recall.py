"""What the Recall page shows, computed once; every cache is bounded.

The arrays of a run are kept as they are (never changed, so they need no copy); a slider asks them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from analysis import draft_figures, lookaheads, recall, recall_figures
from analysis.colours import policy_colour
from analysis.figure import Figure
from kvpolicies import catalogue
from kvpolicies.choice import title
from pages.parts import backstage
from pages.parts.backstage import captures

if TYPE_CHECKING:
    from analysis.lookaheads import Lookahead
    from analysis.recall import RankedWindows, RecallRows

Cell = tuple[int, int]
Runs = tuple[str, ...]
LONGEST = 16  # queries of a Q-cache


def recorded(run_id: str) -> list[Lookahead]:
    """The lookahead responses beside a run; looked up again only when a file came or went."""
    folder = backstage.capture(run_id).path.parent
    return _recorded(run_id, tuple(sorted(path.name for path in folder.glob("*/*.duckdb"))))


@st.cache_resource(max_entries=16, show_spinner=False)
def _recorded(run_id: str, names: tuple[str, ...]) -> list[Lookahead]:
    return lookaheads.recorded_lookaheads(backstage.capture(run_id))


def drafted(runs: Runs) -> dict[str, Lookahead]:
    """The lookaheads that any of the runs has, by name; the first run's where it has them."""
    return {name: made for run in reversed(runs) for name, made in named(run).items()}


def named(run_id: str) -> dict[str, Lookahead]:
    """The recorded lookaheads by the name that addresses know them by."""
    return {
        lookaheads.draft_name(made.spec["policy"], made.spec["steps"]): made
        for made in recorded(run_id)
    }


@st.cache_resource(max_entries=8, show_spinner=False)
def _rows(run_id: str, weighting: str, draft: str | None) -> RecallRows:
    queries: list[np.ndarray] | None = None
    if draft is not None:
        queries = list(named(run_id)[draft].queries)
    return recall.recall_rows(
        backstage.capture(run_id),
        last_offset=max(recall.OFFSETS) + LONGEST,
        weighting=weighting,
        lookahead=queries,
    )


@st.cache_resource(max_entries=16, show_spinner=False)
def ranked(run_id: str, weighting: str, width: int, draft: str | None) -> RankedWindows:
    """The windows of a run, of its own response or of a recorded draft."""
    rows = _rows(run_id, weighting, draft)
    return recall.ranked_windows(rows, width=width, pseudo=draft is not None)


@st.cache_resource(max_entries=16, show_spinner=False)
def ranked_lengths(run_id: str, weighting: str, window: int, draft: str | None) -> RankedWindows:
    rows = _rows(run_id, weighting, draft)
    return recall.ranked_lengths(
        rows, range(1, LONGEST + 1), window=window, pseudo=draft is not None
    )


def recall_lines(
    runs: Runs, chosen: tuple[int, ...], weighting: str, width: int, drafts: Runs, where: Any
) -> Figure:
    """Recall over window start; drafts by their names, each from the runs that have it."""
    full = [ranked(run, weighting, width, None) for run in runs]
    return recall_figures.recall_lines(
        captures(runs),
        full,
        chosen,
        lookaheads={
            _short(runs, draft): [
                ranked(run, weighting, width, draft) for run in runs if draft in named(run)
            ]
            for draft in drafts
        },
        width=width,
        weighting=weighting,
        layer=where[0],
        kv_head=where[1],
    )


def _short(runs: Runs, draft: str) -> str:
    """What a legend calls a draft: its policy, budget and length, and how many of the runs have it
    where not all do."""
    specs = [named(run)[draft].spec for run in runs if draft in named(run)]
    policy, steps = specs[0]["policy"], specs[0]["steps"]
    method = catalogue().get(policy.get("key", ""))
    size = policy.get("options", {}).get("budget")
    told = title(policy) if method is None else method.title
    told += "" if size is None else f" {size:,}"
    told = f"draft on {told}" + ("" if steps == recall.WIDTH else f", {steps} tokens")
    return told + ("" if len(specs) == len(runs) else f" ({len(specs)} of {len(runs)} runs)")


def recall_by_head(
    runs: Runs, budget: int, start: int, weighting: str, width: int, selected: Cell
) -> Figure:
    windows = [ranked(run, weighting, width, None) for run in runs]
    return recall_figures.recall_by_head(captures(runs), windows, budget, start, selected=selected)


def recall_over_length(
    runs: Runs, budget: int, weighting: str, window: int, drafts: Runs
) -> Figure:
    lengths = {"full cache's response": [ranked_lengths(r, weighting, window, None) for r in runs]}
    for draft in drafts:
        lengths[_short(runs, draft)] = [
            ranked_lengths(run, weighting, window, draft) for run in runs if draft in named(run)
        ]
    return draft_figures.recall_over_length(captures(runs), lengths, budget, window=window)


@st.cache_resource(max_entries=8, show_spinner=False)
def _before(run_id: str, weighting: str) -> RankedWindows:
    """The prompt's last queries as the only window."""
    return recall.ranked_windows(_rows(run_id, weighting, None), [-recall.WIDTH])


def recall_over_draft_budget(
    runs: Runs, budget: int, weighting: str, window: int, steps: int
) -> Figure:
    """Of all recorded drafts of `steps` tokens, by the policy and budget of their cache."""
    found: dict[str, dict[int, list[RankedWindows]]] = {}
    colours = {}
    for run in runs:
        for draft_name, draft in named(run).items():
            policy = draft.spec["policy"]
            method = catalogue().get(policy.get("key", ""))
            size = policy.get("options", {}).get("budget")
            if method is None or size is None or draft.spec["steps"] != steps:
                continue
            name = method.title
            colours[name] = policy_colour(policy)
            made = ranked_lengths(run, weighting, window, draft_name)
            found.setdefault(name, {}).setdefault(int(size), []).append(made)
    return draft_figures.recall_over_draft_budget(
        captures(runs),
        found,
        budget,
        full=[ranked_lengths(run, weighting, window, None) for run in runs],
        before=[_before(run, weighting) for run in runs],
        steps=steps,
        colours=colours,
        window=window,
    )
