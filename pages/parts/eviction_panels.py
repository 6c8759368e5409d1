"""The panels of the Eviction page by name; only the chosen one is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from analysis.figure import Note
from pages.parts import (
    eviction_cost,
    eviction_evidence,
    eviction_live,
    eviction_masks,
    eviction_texts,
)
from pages.parts.eviction_view import Look

PANELS: Mapping[str, Callable[[Look], Mapping[str, str | Note]]] = {
    "Masks": eviction_masks.show,
    "Text": eviction_texts.show,
    "Evidence": eviction_evidence.show,
    "Why and what it cost": eviction_cost.show,
    "Run it for real": eviction_live.show,
}


def show(look: Look) -> Mapping[str, str | Note]:
    return PANELS[look.panel](look)
