"""The text of a run as a figure: tokens shaded by one query's attention, played over the steps."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from analysis.attention import TokenView

_HERE = Path(__file__).parent
_HTML = """
<div class="kv">
  <div class="bar">
    <button class="play" type="button" aria-label="Play over the steps">▶</button>
    <button class="back" type="button" aria-label="One step back">‹</button>
    <button class="next" type="button" aria-label="One step on">›</button>
    <span class="where" aria-live="off"></span>
    <span class="legend"></span>
  </div>
  <div class="frame">
    <button class="edge above" type="button" hidden></button>
    <div class="text" tabindex="0" role="group"></div>
    <button class="edge below" type="button" hidden></button>
  </div>
  <div class="info" role="status"></div>
</div>
"""
_component = st.components.v2.component(
    "kvscope_token_text",
    html=_HTML,
    css=(_HERE / "token_text.css").read_text("utf-8"),
    js=(_HERE / "token_text.js").read_text("utf-8"),
)


def token_text(
    view: TokenView,
    *,
    key: str,
    log: bool,
    hide_sink: bool,
    sink: int,
    dark: bool,
    on_step: Callable[[int], None],
) -> None:
    """Show one page of text; `on_step` is called with the step the reader moved to."""

    def moved() -> None:
        step = getattr(st.session_state.get(key), "step", None)
        if step is not None:
            on_step(int(step))

    _component(key=key, data=_data(view, log, hide_sink, sink, dark), on_step_change=moved)


def _data(view: TokenView, log: bool, hide_sink: bool, sink: int, dark: bool) -> dict[str, Any]:
    signature = hashlib.sha256(
        repr((view.first, view.pieces, view.segments)).encode("utf-8", "surrogatepass")
    ).hexdigest()[:16]
    return {
        "signature": signature,
        "pieces": list(view.pieces),
        "ids": _base64(view.token_ids.astype("<i4")),
        "first": int(view.first),
        "length": int(view.length),
        "prompt": int(view.prompt_length),
        "segments": [[name, int(first)] for name, first, _ in view.segments],
        "step": int(view.step),
        "firstStep": int(view.steps[0]),
        "count": len(view.steps),
        "lowest": int(view.first_step),
        "highest": int(view.last_step),
        "rows": _base64(view.rows.astype("<f2")),
        "log": log,
        "hideSink": hide_sink,
        "sink": int(sink),
        "dark": dark,
        "alt": view.alt,
    }


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
