"""The text with what a policy keeps and evicts, as a card with its actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import streamlit as st

from analysis.eviction_text import EvictionView
from analysis.text_figures import eviction_figure
from pages.parts import card, selection
from pages.parts.text import plain
from pages.parts.token_text import eviction_text

if TYPE_CHECKING:
    import pandas as pd


def text_card(
    shown: EvictionView,
    title: str,
    *,
    key: str,
    figure_title: str,
    link_values: dict[str, Any],
    name: str = "text",
    table: Callable[[], pd.DataFrame] | None = None,
    on_span: Callable[[tuple[int, int]], None] | None = None,
) -> None:
    """Draw the text; a click on a token goes to its step. `table` (default: the figure's) is what
    Data gives, `on_span` hears of a marked span."""
    with st.container(border=True, gap="xsmall", key=f"card-{key}"):
        st.markdown(f"**{plain(title)}**")
        eviction_text(
            shown,
            key=key,
            dark=card.theme() == "dark",
            on_step=lambda step: selection.go_to_step("step", step),
            on_span=on_span,
        )
        st.caption(plain(shown.caption))
        figure = eviction_figure(shown, figure_title)
        card.actions(
            table or figure.table, key=key, name=name, link_values=link_values, figure=figure
        )
