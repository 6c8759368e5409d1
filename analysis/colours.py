"""Every colour of a figure, in one place (UX.md, 'Colour'): categories never rest on hue alone."""

from __future__ import annotations

from dataclasses import dataclass

SEQUENTIAL = "viridis"


@dataclass(frozen=True)
class Category:
    """A named state of a token or entry: its colour, and the letter shown with it."""

    key: str
    label: str
    colour: str
    letter: str


REASONS: dict[str, Category] = {
    category.key: category
    for category in (
        Category("sink", "sink", "#0072B2", "S"),
        Category("recent", "recent", "#56B4E9", "R"),
        Category("selected", "selected", "#009E73", "K"),
        Category("evicted", "evicted", "#D55E00", "×"),
        Category("never_scored", "never scored", "#808080", "·"),
        Category("evidence", "evidence", "#E69F00", "E"),
    )
}

# Okabe and Ito's palette in an order whose neighbours stay apart on light and dark ground.
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#7F7F7F")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
PATTERNS = ("", "/", ".", "\\", "x", "-", "|", "+")
SELECTED = "#E3342F"  # outline of the reader's own choice: seen on viridis, on white and on black


def series_colour(index: int) -> str:
    """The colour of the index-th line or bar that has no colour of its own."""
    return SERIES[index % len(SERIES)]


def series_dash(index: int) -> str:
    """The dash that sets lines of one figure apart besides their colour."""
    return DASHES[index % len(DASHES)]


def series_pattern(index: int) -> str:
    """The hatch that sets stacked bars of one figure apart besides their colour."""
    return PATTERNS[index % len(PATTERNS)]
