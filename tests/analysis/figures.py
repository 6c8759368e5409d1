"""One figure per mark, and texts that a format might take for something else than text."""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis.colours import REASONS, SHADE, Category
from analysis.figure import Axis, ColourScale, Figure, Marker, Note, Series

HOSTILE = (
    "<script>alert(1)</script>",
    "$x^2$ and a lone $",
    r"50% of \alpha_{1} & #5 ~ {x}",
    "שלום עולם",
    "مرحبا",
    "😀 𝒳",
    "_hidden",
    "a\nb\tc\x00\x1b\ud800\uffff\u202ex",
    "%{z} &amp; <b>",
    "long " * 60,
)
LINED = ("lines", "points", "area", "bars", "stacked_bars")
PLOTTED = ("heatmap", "centred", "raster", "letters", *LINED, "scatter")
MARKS = (*PLOTTED, "text")
TOKENS = ("The", " pass", "key", " at", " position", " 9", " is", "\n\n", "40", "71", "   ", "ok.")


def figure(mark: str, **changes: Any) -> Figure:
    """A small figure of a mark; "centred" and "letters" are a heatmap and a raster."""
    rng = np.random.default_rng(3)
    names = (Series("SnapKV"), Series("H2O", "#D55E00", "dot"))
    kind = {"centred": "heatmap", "letters": "raster", "points": "lines"}.get(mark, mark)
    parts: dict[str, Any] = {
        "mark": kind,
        "title": f"Title of {mark}",
        "x": Axis("position", unit="tokens"),
        "y": Axis("step"),
        "caption": "SnapKV, budget 256",
        "note": Note("Read it.", "a = b", "Figure 1"),
        "provenance": {"run": "20261120-101112-abcdef", "policy": {"budget": np.int64(256)}},
    }
    if mark == "heatmap":
        z = np.tril(rng.random((12, 12), np.float32)) + np.triu(np.full((12, 12), np.nan), 1)
        edges = np.arange(0, 49, 4)
        parts |= {"arrays": {"z": z.astype(np.float32)}, "x": Axis("position", edges=edges)}
        parts |= {"colour": ColourScale("weight", (1e-4, 1.0), log=True)}
    elif mark == "centred":
        z = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
        parts |= {"arrays": {"z": z}, "colour": ColourScale.centred("difference", 2.0)}
    elif kind == "raster":
        shape = (4, 10) if mark == "letters" else (40, 120)
        codes = rng.integers(0, 6, shape).astype(np.uint8)
        share = np.where(codes > 0, 0.25 + 0.75 * rng.random(shape), 0).astype(np.float32)
        parts |= {"arrays": {"codes": codes, "share": share}}
        parts |= {"categories": tuple(REASONS.values())[:5], "y": Axis("step", reversed=True)}
    elif mark == "scatter":
        points = {"x": rng.random(9), "y": rng.random(9), "series": np.arange(9) % 2}
        parts |= {"arrays": points, "series": names, "point_text": tuple("abcdefghi")}
    elif mark == "text":
        flags = {"struck": [1, 2], "faded": [10, 11], "evidence": [8, 9]}
        arrays = {
            name: np.isin(np.arange(12), places).astype(np.uint8) for name, places in flags.items()
        }
        shade = np.array([0, 0.01, 0.04, 0.09, 0.16, 0.25, 0.36, 0.49, 0.64, 1, np.nan, np.nan])
        parts |= {
            "arrays": {"shade": shade, **arrays},
            "x": Axis("position", np.arange(40, 52)),
            "y": Axis("step", ticks=((0.1, "10 %"), (1.0, "100 %"))),
            "colour": ColourScale("kept by", (0.0, 1.0), SHADE, power=0.5),
            "categories": (
                Category("struck", "evicted", "#D55E00", "×"),
                Category("faded", "later", "#808080", ""),
                REASONS["evidence"],
            ),
            "markers": (Marker("x", 48, label="response"), Marker("x", 49, selected=True)),
            "point_text": TOKENS,
        }
    else:
        y = rng.random((2, 6))
        parts |= {"arrays": {"y": y}, "series": names}
        if mark == "points":  # upon the line of the other series
            points = {"point_x": np.arange(4) / 2, "point_y": y[0, :4]}
            arrays = {"y": np.stack([y[0], np.full(6, np.nan)]), "point_series": np.ones(4, int)}
            parts |= {"arrays": arrays | points, "point_text": tuple("abcd")}
        if mark == "lines":
            parts |= {
                "arrays": {"y": y, "low": y - 0.1, "high": y + 0.1},
                "markers": (Marker("x", x=2, label="step 2", selected=True), Marker("y", y=0.5)),
            }
    return Figure(**(parts | changes))


def hostile(mark: str, text: str) -> Figure:
    """The figure of a mark with `text` in every place that holds text."""
    ticks = ((0.0, text), (1.0, text))
    changes: dict[str, Any] = {
        "title": text,
        "x": Axis(text, ticks=ticks),
        "y": Axis(text, unit=text),
        "caption": text,
        "markers": (Marker("x", x=1, label=text), Marker("cell", 1, 1, text)),
    }
    if mark in (*LINED, "scatter"):
        changes["series"] = (Series(text), Series(f"other {text}"))
    if mark in ("points", "scatter"):
        changes["point_text"] = (text,) * (9 if mark == "scatter" else 4)
    if mark == "text":
        places = np.arange(40, 52)
        changes |= {"x": Axis(text, places), "y": Axis(text, ticks=((0.5, text),))}
        changes |= {"markers": (Marker("x", 48, label=text),), "point_text": (text,) * 12}
        changes["colour"] = ColourScale(text, (0.0, 1.0), SHADE, power=0.5)
    if mark == "heatmap":
        changes["colour"] = ColourScale(text, (1e-4, 1.0), log=True)
    return figure(mark, **changes)
