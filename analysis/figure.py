"""A figure as data: one description that is drawn on screen, on paper, and as a table.

`analysis` functions return a `Figure`; renderers (`plotly_renderer` on screen) draw it. A new mark
is a row in `MARKS` (which arrays it needs, and their shapes) and one drawing function per renderer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.colours import DIVERGING, SEQUENTIAL, Category

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Axis:
    """One axis.

    values: (n,) the position of each cell, point or bar; default 0 ... n-1.
    edges: (n + 1,) when cell i stands for the positions edges[i] ... edges[i+1] - 1 (pooled cells).
    ticks: (position, text) pairs to label, text shown as it is (never as HTML); default numbers.
    unit: appended to the label of the axis and to numbers in the table's column name.
    """

    label: str
    values: np.ndarray | None = None
    edges: np.ndarray | None = None
    ticks: tuple[tuple[float, str], ...] = ()
    unit: str = ""
    log: bool = False
    reversed: bool = False
    range: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        """Label with its unit in brackets."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


@dataclass(frozen=True)
class ColourScale:
    """How a heatmap's numbers become colours. `range` is fixed wherever figures are compared.

    A scale named DIVERGING has a middle colour that stands for zero; `centred` makes one.
    power: the share of the range is raised to it before it becomes a shade; of a text only.
    """

    label: str
    range: tuple[float, float]
    name: str = SEQUENTIAL
    log: bool = False
    power: float = 1.0

    @classmethod
    def centred(cls, label: str, largest: float) -> ColourScale:
        """For differences: as far below zero as above it, at least a little."""
        limit = max(abs(float(largest)), 1e-9)
        return cls(label, (-limit, limit), DIVERGING)


@dataclass(frozen=True)
class Series:
    """One line, bar or layer of bars; colour and dash default to the palette's next."""

    name: str
    colour: str | None = None
    dash: str | None = None


@dataclass(frozen=True)
class Marker:
    """A place on the axes: `kind` "cell" (x and y, outlined), "x" or "y" (a line across).

    `selected` marks the reader's own choice, which is drawn stronger than a mere border.
    """

    kind: str
    x: float | None = None
    y: float | None = None
    label: str = ""
    selected: bool = False

    def __post_init__(self) -> None:
        needed = {"cell": (self.x, self.y), "x": (self.x,), "y": (self.y,)}.get(self.kind)
        if needed is None or None in needed:
            raise ValueError(f"{self} is no marker: it needs kind cell, x or y, and its place")


@dataclass(frozen=True)
class Note:
    """The words below a figure: how to read it, its formula, and the paper figure it follows."""

    how_to_read: str
    formula: str = ""
    source: str = ""


# mark -> required arrays and their shapes; letters are sizes that must agree
MARKS: dict[str, dict[str, str]] = {
    "heatmap": {"z": "yx"},
    "raster": {"codes": "yx"},  # uint8: 0 is no such cell, c is categories[c - 1]
    "lines": {"y": "sx"},
    "area": {"y": "sx"},  # layers upon each other, without gaps
    "bars": {"y": "sx"},
    "stacked_bars": {"y": "sx"},
    "scatter": {"x": "p", "y": "p"},
    "text": {"shade": "t"},  # a number per token, which darkens its ground
}
OPTIONAL_ARRAYS: dict[str, dict[str, str]] = {
    "heatmap": {},
    "raster": {"share": "yx"},  # of each pooled cell, how much of it is its category; above 0
    # a band around each line; points upon the lines, of series that have points only
    "lines": {"low": "sx", "high": "sx", "point_x": "p", "point_y": "p", "point_series": "p"},
    "area": {},
    "bars": {},
    "stacked_bars": {},
    "scatter": {"colour": "p", "series": "p"},  # a number, or an index into `series`
    "text": {"struck": "t", "faded": "t", "evidence": "t"},  # 1 where it holds, otherwise 0
}


@dataclass(frozen=True)
class Figure:
    """What a figure shows, without saying how it is drawn.

    arrays: by name, with the shapes of `MARKS` (y rows, x columns, s series, p points, t tokens).
    NaN is "no such cell", drawn as nothing. Raises ValueError when parts do not fit together.

    A text has its tokens in `point_text` and their positions in `x`; a marker at a position is a
    rule before that token, with its label, and the selected one an outline around it. The ticks of
    `y` are the shades that the legend shows, and `categories` name its arrays by their keys.
    """

    mark: str
    title: str
    x: Axis
    y: Axis
    arrays: Mapping[str, np.ndarray]
    series: tuple[Series, ...] = ()
    colour: ColourScale | None = None
    categories: tuple[Category, ...] = ()  # of a raster or text; the legend lists those that occur
    markers: tuple[Marker, ...] = ()
    point_text: tuple[str, ...] = ()  # of each scatter point or token, shown as it is
    crowded: bool = False  # a scatter whose points a screen may draw as one where they cover others
    caption: str = ""
    alt: str = ""
    note: Note | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = self._sizes()
        if self.mark in ("heatmap", "text") and self.colour is None:
            raise ValueError(f"figure {self.title!r}: a {self.mark} needs a colour scale")
        if self.mark == "raster":
            self._check_codes()
        if self.mark == "text":
            self._check_tokens()
        if "s" in sizes and len(self.series) != sizes["s"]:
            raise ValueError(
                f"figure {self.title!r}: {len(self.series)} series names for {sizes['s']} series"
            )
        for name, axis in (("x", self.x), ("y", self.y)):
            size = sizes.get(name)
            if size is None:
                continue
            if axis.values is not None and len(axis.values) != size:
                raise ValueError(
                    f"figure {self.title!r}: {len(axis.values)} {name} values for {size} {name}s"
                )
            if axis.edges is not None and len(axis.edges) != size + 1:
                raise ValueError(
                    f"figure {self.title!r}: {len(axis.edges)} {name} edges for {size} {name}s, "
                    f"{size + 1} are needed"
                )
        if self.colour is not None:
            low, high = self.colour.range
            if not (np.isfinite(low) and np.isfinite(high) and low < high):
                raise ValueError(
                    f"figure {self.title!r}: colour range {self.colour.range} is not from a "
                    "smaller to a larger number"
                )
            if self.colour.name == DIVERGING and low != -high:
                raise ValueError(
                    f"figure {self.title!r}: a diverging colour range is centred on zero, not "
                    f"{self.colour.range}"
                )
            if self.colour.log and low <= 0:
                raise ValueError(
                    f"figure {self.title!r}: a logarithmic colour range cannot begin at {low}"
                )
            if self.colour.power != 1 and (self.mark != "text" or self.colour.power <= 0):
                raise ValueError(
                    f"figure {self.title!r}: the power {self.colour.power:g} of a colour scale "
                    "needs a text, and to be above 0"
                )

    def _check_tokens(self) -> None:
        tokens = len(self.arrays["shade"])
        if len(self.point_text) != tokens:
            raise ValueError(
                f"figure {self.title!r}: {len(self.point_text)} tokens for {tokens} shades"
            )
        if self.x.values is None or len(self.x.values) != tokens:
            raise ValueError(f"figure {self.title!r}: each of {tokens} tokens needs its position")

    def _check_codes(self) -> None:
        codes = self.arrays["codes"]
        if codes.dtype != np.uint8:
            raise ValueError(f"figure {self.title!r}: codes are uint8, not {codes.dtype}")
        if codes.size and codes.max() > len(self.categories):
            raise ValueError(
                f"figure {self.title!r}: code {codes.max()} for {len(self.categories)} categories"
            )

    @property
    def cells(self) -> np.ndarray | None:
        """The array (y, x) of a mark made of cells, None for the others."""
        return self.arrays.get("z", self.arrays.get("codes"))

    def _sizes(self) -> dict[str, int]:
        """The size behind each shape letter, checked against every array."""
        if self.mark not in MARKS:
            raise ValueError(
                f"figure {self.title!r}: {self.mark!r} is no mark, the marks are {', '.join(MARKS)}"
            )
        required, optional = MARKS[self.mark], OPTIONAL_ARRAYS[self.mark]
        missing = required.keys() - self.arrays.keys()
        if missing:
            raise ValueError(
                f"figure {self.title!r}: {self.mark} needs the array {sorted(missing)[0]!r}"
            )
        sizes: dict[str, int] = {}
        for name, array in self.arrays.items():
            letters = (required | optional).get(name)
            if letters is None:
                raise ValueError(
                    f"figure {self.title!r}: {self.mark} has no array {name!r}, only "
                    f"{', '.join(required | optional)}"
                )
            if array.ndim != len(letters):
                raise ValueError(
                    f"figure {self.title!r}: {name} has {array.ndim} dimensions, "
                    f"{self.mark} needs {len(letters)}"
                )
            for letter, size in zip(letters, array.shape, strict=True):
                if sizes.setdefault(letter, size) != size:
                    raise ValueError(
                        f"figure {self.title!r}: {name} has shape {array.shape}, which does not "
                        f"fit the other arrays ({letter} is {sizes[letter]} there)"
                    )
        return sizes

    def table(self) -> pd.DataFrame:
        """The data behind the figure, one row per cell, point or bar, for CSV and Parquet."""
        from analysis.figure_table import table_of

        return table_of(self)

    def save(self, path: str | Path, *, venue: str = "neurips", **options: Any) -> Path:
        """Write the figure in the form the name ends with: `figure.save("fig.pdf", venue="icml")`.

        venue and options: `analysis.paper.venues`. Raises AnalysisError for what does not exist.
        """
        from analysis.export import save

        return save(self, path, venue=venue, **options)
