"""Every colour of a figure, in one place: categories never rest on hue alone."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SEQUENTIAL = "viridis"
SHADE = "shade"  # from the paper's white to a blue on which letters can be read
SHADED = "#6AABF3"
DIVERGING = "PuOr"  # orange below, purple above the middle: apart for every kind of colour vision


@dataclass(frozen=True)
class Category:
    """A named state of a token or entry: its colour, and the letter shown with it.

    hatch: how a cell too small for the letter is told apart: "" full, "/" diagonals,
    "-" lines, "." dots, in the colour itself on a paler ground of it.
    """

    key: str
    label: str
    colour: str
    letter: str
    hatch: str = ""


REASONS: dict[str, Category] = {
    category.key: category
    for category in (
        Category("sink", "sink", "#0072B2", "S"),
        Category("recent", "recent", "#56B4E9", "R", "-"),
        Category("selected", "selected", "#009E73", "K"),
        Category("evicted", "evicted", "#D55E00", "×", "/"),
        Category("never_scored", "never scored", "#808080", "·", "."),
        Category("evidence", "evidence", "#E69F00", "E"),
    )
}

# Okabe and Ito's palette in an order whose neighbours stay apart on light and dark ground.
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#7F7F7F")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
REFERENCE_DASHES = {"oracle": "longdash", "belady": "longdash", "random": "dot"}
PATTERNS = ("", "/", ".", "\\", "x", "-", "|", "+")
SELECTED = "#E3342F"  # outline of the reader's own choice: seen on viridis, on white and on black

# A colour per row of the policy catalogue, the same on all pages. Chosen one after the other,
# common policies first, each as far as possible (CIELAB) from those before it among the colours
# with a contrast of at least 3 on white and on the dark ground.
POLICIES = {
    "full": "#7F7F7F",
    "snapkv": "#0072B2",
    "h2o": "#D55E00",
    "streaming_llm": "#009E73",
    "lagkv": "#CC79A7",
    "laq_pp": "#8800F8",
    "kvcompose": "#989800",
    "lazyeviction": "#F818C8",
    "sage_kv": "#F80058",
    "random": "#3068F8",
    "oracle": "#00A800",
    "tova": "#985038",
    "pyramidkv": "#9040A8",
    "kvzip": "#586828",
    "expected_attention": "#F80010",
    "r_kv": "#C00070",
    "raas": "#00A0B0",
    "quest": "#C850F8",
    "laq": "#C08838",
    "ada_snapkv": "#9088E8",
    "knorm": "#F06860",
    "belady": "#187818",
    "infllm": "#705888",
    "duo_attention": "#E860C0",
    "localkv": "#307060",
    "kvcompose_unstructured": "#B04058",
    "ada_expected_attention": "#A89068",
    "l2_lag": "#C02018",
    "h2o_window": "#6048F8",
    "tova_window": "#C08080",
    "raas_window": "#F800F8",
}
CUSTOM = (
    "#206880",
    "#78A048",
    "#8090B8",
    "#F85888",
    "#0060C8",
)  # built by the reader, or imported masks


def series_colour(index: int) -> str:
    """The colour of the index-th line or bar that has no colour of its own."""
    return SERIES[index % len(SERIES)]


def series_dash(index: int) -> str:
    """The dash that sets lines of one figure apart besides their colour."""
    return DASHES[index % len(DASHES)]


def series_pattern(index: int) -> str:
    """The hatch that sets stacked bars of one figure apart besides their colour."""
    return PATTERNS[index % len(PATTERNS)]


def policy_colour(choice: Mapping[str, Any]) -> str:
    """The one colour of a policy on all pages: its catalogue row's, or one of `CUSTOM` by hash.

    choice: a canonical choice (`kvpolicies.choice`). Budget and options do not change the colour,
    nor does the schedule of a reference, which is that of the policy it stands beside.
    """
    key = choice.get("key", "")
    if key in POLICIES and (key in REFERENCE_DASHES or not {"allocate", "schedule"} & set(choice)):
        return POLICIES[key]
    what = [choice.get(part) for part in ("key", "score", "allocate", "schedule", "masks")]
    return CUSTOM[zlib.crc32(repr(what).encode()) % len(CUSTOM)]
