"""The panel "Text": prompt and response with what each policy has evicted at the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from analysis.figure import Note
from pages.parts import eviction_evidence, eviction_looks, places, policy_replays, selection
from pages.parts import eviction_view as view
from pages.parts.eviction_view import Look
from pages.parts.text_card import text_card

if TYPE_CHECKING:
    from analysis.replays import Replayed

MODES = ("one policy", "side by side")


def show(look: Look) -> dict[str, str | Note]:
    """Draw the panel; returns the words below it."""
    view.pending(look)
    if not look.ready:
        return {}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        mode = selection.segment("Show the text of", "texts", MODES)
        shown = look.ready
        if mode == MODES[0]:
            shown = [view.focus(look, "Policy")]
        page = places.text_page(look.run_id, look.info, look.step)
    notes: dict[str, str | Note] = {}
    with st.grid(1 if len(shown) == 1 else 2, min_column_width=440):
        for index, replayed in enumerate(shown):
            notes["The text"] = one(look, replayed, page, key=f"text-{index}")
    return notes


def one(look: Look, replayed: Replayed, page: int | None, *, key: str) -> Note:
    """The text under one policy as a card; a marked span becomes the evidence."""
    span = eviction_evidence.marked(look.run_id, look.info.prompt_length)
    name, head = eviction_looks.name_of(replayed.choice), look.head_of(replayed)
    shown = eviction_looks.eviction_text(
        look.run_id, name, look.layer, head, look.step, page, () if span is None else (span,)
    )
    text_card(
        shown,
        policy_replays.short_name(replayed.title),
        key=key,
        figure_title=f"{replayed.title}, step {look.step}, {shown.place}",
        link_values=look.link(),
        name=f"text-step-{look.step}",
        table=lambda: eviction_looks.eviction_table(look.run_id, name, look.layer, head, look.step),
        on_span=eviction_evidence.take,
    )
    return shown.note
