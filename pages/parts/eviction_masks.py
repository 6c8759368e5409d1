"""The panel "Masks": what each policy holds at every step, where, and against another policy."""

from __future__ import annotations

from functools import partial

import streamlit as st

from analysis.figure import Note
from pages.parts import card, eviction_looks, policy_replays
from pages.parts import eviction_view as view
from pages.parts.eviction_view import Look

GRID_HEIGHT = 250


def show(look: Look) -> dict[str, str | Note]:
    """Draw the panel; returns the words below it."""
    notes: dict[str, str | Note] = {}
    with st.grid(2, min_column_width=440):
        for index, seen in enumerate(look.seen):
            if not policy_replays.is_ready(seen):
                policy_replays.waiting(seen, key=str(index))  # type: ignore[arg-type]
                continue
            name = eviction_looks.name_of(seen.choice)
            figure = eviction_looks.mask(
                look.run_id, name, look.layer, look.head_of(seen), look.step, look.positions
            )
            card.figure_card(
                figure, key=f"mask-{index}", link_values=look.link(), height=view.HEIGHT
            )
            if figure.note:
                notes["Masks"] = figure.note
    notes |= _grids(look)
    notes |= _difference(look)
    return notes


def _grids(look: Look) -> dict[str, str | Note]:
    """How much each head holds after the step, one small grid per policy."""
    notes: dict[str, str | Note] = {}
    with st.grid(4, min_column_width=205):
        for index, replayed in enumerate(look.ready):
            figure = eviction_looks.kept_grid(
                look.run_id,
                eviction_looks.name_of(replayed.choice),
                look.step,
                (look.layer, look.head_of(replayed)),
            )
            group = replayed.evicted_at.shape[1] // look.info.kv_heads
            card.figure_card(
                figure,
                key=f"grid-{index}",
                link_values=look.link(),
                height=GRID_HEIGHT,
                on_cell=partial(view.go, group=group),
            )
            if figure.note:
                notes["Shares kept"] = figure.note
    return notes


def _difference(look: Look) -> dict[str, str | Note]:
    """Two of the policies against each other."""
    if len(look.seen) < 2:
        return {}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        first = view.pick(look, "Difference between", "one")
        second = view.pick(look, "and", "other", 1)
    if not (policy_replays.is_ready(first) and policy_replays.is_ready(second)):
        st.caption("The difference appears here as soon as both are replayed.")
        return {}
    if first is second or first.evicted_at.shape != second.evicted_at.shape:
        st.caption("Two different policies with a set for each of the same heads can be compared.")
        return {}
    names = (eviction_looks.name_of(first.choice), eviction_looks.name_of(second.choice))
    cell = (look.layer, look.head_of(first))
    raster = eviction_looks.mask_difference(look.run_id, names, *cell, look.step, look.positions)
    grid = eviction_looks.kept_difference(look.run_id, names, look.step, cell)
    with st.grid(2, min_column_width=440):
        card.figure_card(raster, key="difference", link_values=look.link(), height=view.HEIGHT)
        card.figure_card(
            grid,
            key="grid-difference",
            link_values=look.link(),
            height=view.HEIGHT,
            on_cell=view.go,
        )
    notes = {"Difference": raster.note, "Difference by head": grid.note}
    return {name: note for name, note in notes.items() if note}
