"""Numbers, tokens and selections in words: what captions, labels and alternative texts share."""

from __future__ import annotations

from typing import Any

from analysis.rows import MEAN, Heads, Selection
from cache_store.reader import Capture

_BIDIRECTIONAL = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], "◌")
_CONTROLS = {code: chr(0x2400 + code) for code in range(32)} | {127: "␡"}
_VISIBLE = _CONTROLS | _BIDIRECTIONAL | {10: "⏎", 9: "⇥", 13: "␍", 32: "␣"}
OWN_MEASURE = "KVScope's own (docs/methods.md, section 7): no figure of the papers shows it"


def visible(piece: str, limit: int = 24) -> str:
    """A token as a label: spaces and line ends as signs, "◌" for a part of a character."""
    text = piece.translate(_VISIBLE) if piece else "◌"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def number(value: float) -> str:
    """At most three significant digits, thousands separated: 1,234 · 0.0123 · 1.2e-07."""
    if value != value:
        return "none"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def span(first: int, stop: int) -> str:
    """Positions first ... stop - 1 in words."""
    return f"{first:,}" if stop - first == 1 else f"{first:,}–{stop - 1:,}"


def selection_words(layer: Selection, head: Heads) -> str:
    """A layer and head in words: "layer 3, head 1", or which mean it is."""
    if layer == MEAN and head == MEAN:
        return "mean over all layers and heads"
    if layer == MEAN:
        return f"head {head}, mean over all layers"
    if head == MEAN:
        return f"layer {layer}, mean over its heads"
    if isinstance(head, tuple):
        return f"layer {layer}, mean over heads {', '.join(map(str, head))}"
    return f"layer {layer}, head {head}"


def step_words(capture: Capture, step: int) -> str:
    """A step in words, prompt tokens told from generated ones: "step 4 (position 103)"."""
    position = f"position {capture.info.prompt_length + step - 1:,}"
    return f"prompt {position}" if step <= 0 else f"step {step:,} ({position})"


def source_words(capture: Capture) -> str:
    """Which model and run a caption speaks of."""
    info = capture.info
    return f"{info.model_id}, {info.prompt_length:,}+{info.response_length:,} tokens, run {info.id}"


def provenance(capture: Capture, **selection: Any) -> dict[str, Any]:
    """Where a figure's numbers come from: run, model, and the selection behind it."""
    info = capture.info
    return {
        "run": info.id,
        "model": info.model_id,
        "model_revision": info.model_revision,
        "schema_version": info.schema_version,
        **selection,
    }
