"""The texts behind a map of queries: pointing at a token rings its point, and the other way."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from pages.parts.token_text import CSS

if TYPE_CHECKING:
    from analysis.figure import Figure
    from analysis.queries import Points

_HERE = Path(__file__).parent
_HTML = """
<div class="kv">
  <div class="text" tabindex="0" role="group"></div>
  <div class="info" role="status"></div>
</div>
"""
_component = st.components.v2.component(
    "kvscope_query_texts",
    html=_HTML,
    css=CSS + (_HERE / "query_texts.css").read_text("utf-8"),
    js=(_HERE / "query_texts.js").read_text("utf-8"),
)


def query_texts(points: Points, figure: Figure, *, key: str, chart: str, dark: bool) -> None:
    """The text of each group, token by token; `chart` is the key of the map's card, which shows
    `figure`."""
    _component(key=key, data=texts_of(points, figure, chart) | {"dark": dark})


def texts_of(points: Points, figure: Figure, chart: str) -> dict[str, Any]:
    """What the component is sent; every token names its trace and its place within it."""
    traces = np.asarray(figure.arrays.get("series", np.zeros(len(points.texts), np.int64)))
    within = np.zeros(len(traces), np.int64)
    for trace in np.unique(traces):
        own = np.flatnonzero(traces == trace)
        within[own] = np.arange(len(own))
    groups = []
    for index, name in enumerate(points.groups):
        own = np.flatnonzero(points.group == index)
        groups.append(
            {
                "name": name.capitalize(),
                "pieces": [points.texts[place] for place in own],
                "positions": points.positions[own].tolist(),
                "points": np.stack([traces[own], within[own]], 1).tolist(),
            }
        )
    return {
        "groups": groups,
        "chart": f".st-key-{chart} .js-plotly-plot",
        "alt": "The texts of " + ", ".join(points.groups),
    }
