"""A Plotly figure on the page, which stays where it is when its numbers change: what the reader
zoomed into is kept, and a slider's answer is one drawing of what is on the screen."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st
from streamlit.components.v1 import declare_component

from pages.parts import sent_once

if TYPE_CHECKING:
    from analysis.plotly_spec import Spec

SHORT = 40_000  # characters of traces that are sent with every run
_HTML = '<div class="kv-plot" role="figure"></div>'
_component = st.components.v2.component(
    "kvscope_plot",
    html=_HTML,
    css=Path(__file__).with_suffix(".css").read_text("utf-8"),
    js=Path(__file__).with_suffix(".js").read_text("utf-8"),
    isolate_styles=False,
)


def plot(
    spec: Spec,
    *,
    key: str,
    alt: str,
    on_point: Callable[[float, float], None] | None = None,
) -> None:
    """Show a figure under `key`; `on_point` is called with x and y of a point or cell that the
    reader clicks. `alt` says in words what it shows."""
    from analysis.plotly_spec import to_json

    layout = dict(spec.layout)
    height, shapes = layout.pop("height"), layout.pop("shapes")
    traces = to_json(spec.traces)
    where = sent_once.address(traces.encode(), key) if len(traces) > SHORT else None
    data = {
        "library": _library(),
        "traces": None if where else traces,
        "address": where,
        "layout": to_json(layout),
        "shapes": to_json(shapes),
        "height": height,
        "alt": alt,
        "clicks": on_point is not None,
    }

    def clicked() -> None:
        point = st.session_state[key].point
        if point is not None and on_point is not None:
            on_point(float(point["x"]), float(point["y"]))

    _component(key=key, data=data, on_point_change=clicked)


@functools.cache
def _library() -> str:
    """The address of Plotly's script, which the server gives out as it was installed."""
    package = importlib.util.find_spec("plotly")
    assert package is not None and package.submodule_search_locations
    folder = Path(package.submodule_search_locations[0]) / "package_data"
    return f"component/{declare_component('plotly', path=str(folder)).name}/plotly.min.js"
