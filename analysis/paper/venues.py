"""The widths and letter sizes that conferences and journals ask for, and a figure's paper style."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.colours import DIVERGING, SERIES, SHADE
from analysis.errors import AnalysisError

if TYPE_CHECKING:
    from analysis.figure import Figure

MM = 1 / 25.4
INK = "#222222"
FAMILIES = ("sans", "serif")
LEGENDS = ("above", "right", "below", "inside", "none")
COLOUR_MAPS = ("as on screen", "viridis", "cividis", "diverging", "okabe-ito", "grey")
LARGEST_IN, SMALLEST_IN = 60.0, 1.0


@dataclass(frozen=True)
class Venue:
    """Where a figure is printed: width in inches, letters in points, and the usual typeface."""

    label: str
    width_in: float
    font_pt: float = 8.0
    family: str = "serif"


VENUES: dict[str, Venue] = {
    "neurips": Venue("NeurIPS, text width", 5.5),
    "iclr": Venue("ICLR, text width", 5.5),
    "icml": Venue("ICML, one column", 3.25),
    "icml-wide": Venue("ICML, two columns", 6.75),
    "acl": Venue("ACL, one column", 3.03),
    "acl-wide": Venue("ACL, two columns", 6.3),
    "cvpr": Venue("CVPR, one column", 3.25),
    "cvpr-wide": Venue("CVPR, two columns", 6.875),
    "ieee": Venue("IEEE, one column", 3.5),
    "ieee-wide": Venue("IEEE, two columns", 7.16),
    "nature": Venue("Nature, one column", 89 * MM, 7.0, "sans"),
    "nature-wide": Venue("Nature, two columns", 183 * MM, 7.0, "sans"),
    "slides": Venue("Slides, 16:9", 10.0, 16.0, "sans"),
}


def colour_maps(figure: Figure) -> tuple[str, ...]:
    """Those of COLOUR_MAPS that change a figure: of its numbers, or of its lines and categories."""
    scale = figure.colour
    if scale is None:
        palette = [SERIES[index % len(SERIES)] for index in range(len(figure.series))]
        own = [one.colour or usual for one, usual in zip(figure.series, palette, strict=True)]
        return tuple(
            name
            for name in ("as on screen", "okabe-ito", "grey")
            if name != "okabe-ito" or own != palette
        )
    same = ["okabe-ito"]  # as another choice
    if scale.log or scale.name in (DIVERGING, SHADE):
        same.append("diverging")
    if scale.name == DIVERGING:
        same.append("viridis")
    return tuple(name for name in COLOUR_MAPS if name not in same)


@dataclass(frozen=True)
class Style:
    """How a figure is set on paper; lengths in inches, letters in points.

    height_in: None is what the mark needs at that width. dpi: pixels per inch of a PNG.
    Raises AnalysisError, one sentence, for a value nothing can be drawn with.
    """

    width_in: float = 5.5
    height_in: float | None = None
    font_pt: float = 8.0
    family: str = "sans"
    colour_map: str = "as on screen"
    title: bool = True
    legend: str = "above"
    dpi: int = 300

    def __post_init__(self) -> None:
        for name, value in (("width", self.width_in), ("height", self.height_in)):
            if value is not None and not SMALLEST_IN <= value <= LARGEST_IN:
                raise AnalysisError(
                    f"A {name} of {value:g} in cannot be drawn: choose {SMALLEST_IN:g} to "
                    f"{LARGEST_IN:g} in."
                )
        if not 4 <= self.font_pt <= 48:
            raise AnalysisError(
                f"Letters of {self.font_pt:g} pt cannot be drawn: choose 4 to 48 pt."
            )
        if not 50 <= self.dpi <= 1200:
            raise AnalysisError(f"{self.dpi} dpi cannot be drawn: choose 50 to 1,200 dpi.")
        for name, chosen, known in (
            ("typeface", self.family, FAMILIES),
            ("colour map", self.colour_map, COLOUR_MAPS),
            ("legend place", self.legend, LEGENDS),
        ):
            if chosen not in known:
                raise AnalysisError(f"{chosen!r} is no {name}: choose {', '.join(known)}.")


def style_for(venue: str = "neurips", **changes: object) -> Style:
    """The style of a venue of `VENUES`, with whatever is changed (None: unchanged).

    Raises AnalysisError for a venue, an option or a value that does not exist.
    """
    if venue not in VENUES:
        raise AnalysisError(f"{venue!r} is no venue: choose {', '.join(VENUES)}.")
    chosen = VENUES[venue]
    unknown = sorted(changes.keys() - Style.__dataclass_fields__.keys())
    if unknown:
        raise AnalysisError(
            f"{unknown[0]!r} is no option of a figure: choose "
            f"{', '.join(Style.__dataclass_fields__)}."
        )
    options: dict[str, object] = {
        "width_in": chosen.width_in,
        "font_pt": chosen.font_pt,
        "family": chosen.family,
    }
    if venue == "slides":
        options["height_in"] = 5.625
    options |= {name: value for name, value in changes.items() if value is not None}
    return Style(**options)  # type: ignore[arg-type]
