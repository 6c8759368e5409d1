"""A page of the text as a figure: what the text view shows at one step, ready for paper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.colours import REASONS, SHADE, Category
from analysis.eviction_codes import Code
from analysis.figure import Axis, ColourScale, Figure, Marker
from analysis.text import TokenView

if TYPE_CHECKING:
    from analysis.eviction_text import EvictionView

FULL_SHADE = 0.5  # the weight that gets the full shade
LOG_FLOOR = 1e-3  # with logarithmic shades, the weight that gets none
WEIGHTS, LOG_WEIGHTS = (0.01, 0.05, 0.2, FULL_SHADE), (0.003, 0.01, 0.1, 1.0)  # in the legend
SHARES = (0.1, 0.5, 1.0)
FADED = Category("faded", "comes after this step", "#808080", "")


def attention_figure(
    view: TokenView, title: str, *, log: bool = False, hide_sink: bool = False, sink: int = 0
) -> Figure:
    """The tokens shaded by the attention of the view's step, whose own token is outlined.

    log: logarithmic shades, otherwise those of the square root; hide_sink: no shade for the first
    `sink` positions.
    """
    positions = _positions(view)
    row = view.rows[view.step - int(view.steps[0])].astype(np.float32)[positions]
    row[(positions > view.position) | (hide_sink & (positions < sink))] = np.nan
    ticks = tuple((weight, f"{weight:g}") for weight in (LOG_WEIGHTS if log else WEIGHTS))
    if not log:
        ticks = (*ticks[:-1], (FULL_SHADE, f"≥ {FULL_SHADE:g}"))
    scale = ColourScale("attention", (0.0, FULL_SHADE), SHADE, power=0.5)
    if log:
        scale = ColourScale("attention", (LOG_FLOOR, 1.0), SHADE, log=True)
    return Figure(
        "text",
        title,
        Axis("position", positions),
        Axis("attention", ticks=ticks),
        {"shade": row, "faded": (positions > view.position).astype(np.uint8)},
        colour=scale,
        categories=(FADED,),
        **_shared(view),
    )


def eviction_figure(view: EvictionView, title: str) -> Figure:
    """The tokens under a policy at the view's step: struck where the chosen head lost them, shaded
    by the share of layers and heads that hold them."""
    positions, at = _positions(view), view.step - int(view.steps[0])
    codes = view.codes.at(at)
    later = positions > view.prompt_length + view.step - 1
    share = (view.holders.at(at) / view.sets).astype(np.float32)
    share[later] = np.nan
    evidence = np.zeros(len(positions), np.uint8)
    for first, stop in view.evidence:
        evidence[(positions >= first) & (positions < stop)] = 1
    by = "attended by" if view.chooses else "kept by"
    gone = Category(
        "struck",
        "not attended" if view.chooses else "evicted",
        REASONS["evicted"].colour,
        REASONS["evicted"].letter,
    )
    return Figure(
        "text",
        title,
        Axis("position", positions),
        Axis(by, ticks=tuple((share, f"{100 * share:g} %") for share in SHARES)),
        {
            "shade": share,
            "struck": np.isin(codes, (Code.EVICTED, Code.UNSEEN)).astype(np.uint8),
            "faded": later.astype(np.uint8),
            "evidence": evidence,
        },
        colour=ColourScale(f"{by}, share of heads", (0.0, 1.0), SHADE, power=0.5),
        categories=(gone, FADED, REASONS["evidence"]),
        **_shared(view),
    )


def _positions(view: TokenView | EvictionView) -> np.ndarray:
    return np.arange(view.first, view.first + len(view.pieces))


def _shared(view: TokenView | EvictionView) -> dict[str, Any]:
    """Tokens, the rules between the parts of the text, the outlined token, words and source."""
    stop = view.first + len(view.pieces)
    rules = [
        Marker("x", first, label=name)
        for name, first, _ in view.segments
        if view.first <= first < stop and first > 0
    ]
    query = view.prompt_length + view.step - 1
    if view.first <= query < stop:
        rules.append(Marker("x", query, selected=True))
    return {
        "point_text": view.pieces,
        "markers": tuple(rules),
        "caption": view.caption,
        "alt": view.alt,
        "note": view.note,
        "provenance": view.provenance,
    }
