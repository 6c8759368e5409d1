"""The text of a run as a figure, played over the steps: shaded by one query's attention, or with
what a policy has evicted."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from pages.parts import sent_once

if TYPE_CHECKING:
    from analysis.attention import TokenView
    from analysis.eviction_text import Changes, EvictionView

_HERE = Path(__file__).parent
_HTML = """
<div class="kv">
  <div class="bar">
    <button class="play" type="button" aria-label="Play over the steps">▶</button>
    <button class="back" type="button" aria-label="One step back">‹</button>
    <button class="next" type="button" aria-label="One step on">›</button>
    <span class="where" aria-live="off"></span>
    <button class="mark" type="button" hidden></button>
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
CSS = (_HERE / "token_text.css").read_text("utf-8")
_component = st.components.v2.component(
    "kvscope_token_text",
    html=_HTML,
    css=CSS,
    js="\n".join((_HERE / name).read_text("utf-8") for name in ("token_looks.js", "token_text.js")),
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
    """Show one page of text shaded by attention; `on_step` is called with the step the reader
    moved to."""
    data = _page(view, dark) | {
        "look": "attention",
        "rows": _address(view.rows.astype("<f2", copy=False), key),
        "log": log,
        "hideSink": hide_sink,
        "sink": int(sink),
    }
    _component(key=key, data=data, on_step_change=lambda: _tell(key, "step", on_step))


def eviction_text(
    view: EvictionView,
    *,
    key: str,
    dark: bool,
    on_step: Callable[[int], None],
    on_span: Callable[[tuple[int, int]], None] | None = None,
) -> None:
    """Show one page of text under a policy; `on_step` is called with the step the reader moved to.

    With `on_span` a reader may mark tokens of the prompt as evidence: it is called with their
    positions [first, last + 1).
    """
    data = _page(view, dark) | {
        "look": "eviction",
        "codes": _changes(view.codes, "<u1"),
        "holders": _changes(view.holders, "<i4"),
        "sets": int(view.sets),
        "kept": _base64(view.kept.astype("<i4")),
        "score": _base64(view.score.astype("<f4")),
        "rank": _base64(view.rank.astype("<i4")),
        "evictedAt": _base64(view.evicted_at.astype("<i4")),
        "evidence": [[int(first), int(stop)] for first, stop in view.evidence],
        "chooses": view.chooses,
        "place": view.place,
        "words": ["not there yet", *(category.label for category in view.categories)],
        "marks": on_span is not None,
    }
    _component(
        key=key,
        data=data,
        on_step_change=lambda: _tell(key, "step", on_step),
        on_span_change=lambda: _tell(
            key, "span", lambda span: on_span and on_span((int(span[0]), int(span[1])))
        ),
    )


def _tell(key: str, name: str, told: Callable[[Any], Any]) -> None:
    value = getattr(st.session_state.get(key), name, None)
    if value is not None:
        told(int(value) if name == "step" else value)


def _page(view: TokenView | EvictionView, dark: bool) -> dict[str, Any]:
    """What both looks need: the tokens of the page and the steps that are sent."""
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
        "dark": dark,
        "alt": view.alt,
    }


def _changes(changes: Changes, kind: str) -> dict[str, str]:
    return {
        "base": _base64(changes.base.astype(kind)),
        "offsets": _base64(changes.offsets.astype("<i4")),
        "tokens": _base64(changes.tokens.astype("<u2")),
        "values": _base64(changes.values.astype(kind)),
    }


def _address(array: np.ndarray, key: str) -> str:
    """Where the browser fetches numbers that stay the same over many steps."""
    found = sent_once.address(array.tobytes(), key)
    return found or f"data:application/octet-stream;base64,{_base64(array)}"


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
