"""A figure sheet as data: figures in an order, on a grid, with letters, captions and one style.

Every change is a function from what the sheet says to what it says then, so that changes of several
readers can follow each other.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from analysis.errors import AnalysisError
from analysis.figure import Figure
from analysis.paper.venues import LEGENDS, VENUES, Style, style_for

MAX_FIGURES = 52
MAX_CAPTION = 2_000
MAX_TITLE = 200
MAX_COLUMNS = 4
REMOVED_KEPT = 12
GAP_IN = 0.12  # between neighbours
NARROWEST_IN = 1.2  # a panel below that shows nothing
TITLE = "Figure sheet"


def most_columns(venue: str) -> int:
    """How many columns a venue has room for."""
    width = VENUES[venue].width_in
    return max(n for n in range(1, MAX_COLUMNS + 1) if _column_in(width, n) >= NARROWEST_IN)


def _column_in(width: float, columns: int) -> float:
    return (width - GAP_IN * (columns - 1)) / columns


@dataclass(frozen=True)
class Look:
    """How all figures of a sheet are set; None is what the venue asks for."""

    venue: str = "neurips"
    columns: int = 2
    family: str | None = None
    font_pt: float | None = None
    colour_map: str = "as on screen"
    legend: str = "above"
    titles: bool = True
    captions: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.columns <= MAX_COLUMNS:
            raise AnalysisError(
                f"A sheet of {self.columns} columns cannot be set: choose 1 to {MAX_COLUMNS}."
            )
        self.style()
        if self.column_in() < NARROWEST_IN:
            raise AnalysisError(
                f"{self.columns} columns in {VENUES[self.venue].width_in:.3g} in leave "
                f"{self.column_in():.2g} in for a figure: choose fewer columns or a wider venue."
            )

    def style(self, **changes: Any) -> Style:
        """The style of a figure as wide as the sheet. Raises AnalysisError."""
        usual: dict[str, Any] = {"family": self.family, "font_pt": self.font_pt}
        usual |= {"colour_map": self.colour_map, "legend": self.legend, "title": self.titles}
        style = style_for(self.venue, **(usual | changes))
        return style if "height_in" in changes else dataclasses.replace(style, height_in=None)

    def column_in(self) -> float:
        """The width of one column, in inches."""
        return _column_in(VENUES[self.venue].width_in, self.columns)


@dataclass(frozen=True)
class Item:
    """One figure of a sheet.

    figure: the name of its file, which holds all of it; link: the address that reopens its view.
    wide: set over all columns. height_in and legend: None is what the sheet gives it.
    """

    figure: str
    title: str
    caption: str = ""
    link: str = ""
    wide: bool = False
    height_in: float | None = None
    legend: str | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(6))

    def __post_init__(self) -> None:
        if self.legend is not None and self.legend not in LEGENDS:
            raise AnalysisError(f"{self.legend!r} is no legend place: choose {', '.join(LEGENDS)}.")


@dataclass(frozen=True)
class Removed:
    """A figure that was taken from a sheet and can be put back where it was."""

    item: Item
    place: int


@dataclass(frozen=True)
class Sheet:
    """Figures in reading order. `removed`: the last one taken out comes last."""

    title: str = TITLE
    caption: str = ""
    look: Look = Look()
    items: tuple[Item, ...] = ()
    removed: tuple[Removed, ...] = ()

    def rows(self) -> list[list[Item]]:
        """The figures as they stand side by side; a wide one has a row of its own."""
        rows: list[list[Item]] = []
        room = 0
        for item in self.items:
            if item.wide or room == 0:
                rows.append([])
                room = self.look.columns
            rows[-1].append(item)
            room = 0 if item.wide else room - 1
        return rows

    def width_in(self, item: Item) -> float:
        """How wide a figure is set, in inches."""
        whole = item.wide or self.look.columns == 1
        return VENUES[self.look.venue].width_in if whole else self.look.column_in()

    def place(self, item_id: str) -> int:
        """Where a figure stands. Raises AnalysisError when it is no longer there."""
        for place, item in enumerate(self.items):
            if item.id == item_id:
                return place
        raise AnalysisError("This figure is no longer in the sheet: somebody removed it.")

    def letter(self, item: Item) -> str:
        """What a figure is called: "a", "b", …"""
        return letter(self.place(item.id))


def letter(place: int) -> str:
    """a … z, aa … az, ba …"""
    return ("" if place < 26 else letter(place // 26 - 1)) + chr(ord("a") + place % 26)


def item_of(figure: Figure, name: str, link: str) -> Item:
    """A figure on its way into a sheet: with its own caption, and the name of its file."""
    return Item(name, _line(figure.title, 300), _line(figure.caption, MAX_CAPTION), link)


def added(sheet: Sheet, item: Item) -> Sheet:
    """With one more figure at the end. Raises AnalysisError for one that is there, or too many."""
    for there in sheet.items:
        if (there.figure, there.link) == (item.figure, item.link):
            raise AnalysisError(
                f"This figure is in the sheet “{sheet.title}” already, as ({sheet.letter(there)})."
            )
    if len(sheet.items) >= MAX_FIGURES:
        raise AnalysisError(
            f"The sheet “{sheet.title}” holds {MAX_FIGURES} figures, its most: remove one or make "
            "another sheet."
        )
    return dataclasses.replace(sheet, items=(*sheet.items, item))


def moved(sheet: Sheet, item_id: str, by: int) -> Sheet:
    """With a figure `by` places later (earlier below zero), as far as there is room."""
    place = sheet.place(item_id)
    items = list(sheet.items)
    items.insert(max(0, place + by), items.pop(place))
    return dataclasses.replace(sheet, items=tuple(items))


def changed(sheet: Sheet, item_id: str, **fields: Any) -> Sheet:
    """With other fields of one figure; a caption becomes one line that is not too long."""
    place = sheet.place(item_id)
    if "caption" in fields:
        fields["caption"] = _line(fields["caption"], MAX_CAPTION)
    item = dataclasses.replace(sheet.items[place], **fields)
    sheet.look.style(width_in=sheet.width_in(item), height_in=item.height_in, legend=item.legend)
    items = (*sheet.items[:place], item, *sheet.items[place + 1 :])
    return dataclasses.replace(sheet, items=items)


def without(sheet: Sheet, item_id: str) -> Sheet:
    """Without a figure, which is kept for a while among the removed ones."""
    place = sheet.place(item_id)
    taken = Removed(sheet.items[place], place)
    return dataclasses.replace(
        sheet,
        items=sheet.items[:place] + sheet.items[place + 1 :],
        removed=(*sheet.removed, taken)[-REMOVED_KEPT:],
    )


def put_back(sheet: Sheet, item_id: str) -> Sheet:
    """With a removed figure where it was. Raises AnalysisError when it is not kept any more."""
    for taken in sheet.removed:
        if taken.item.id == item_id:
            items = (*sheet.items[: taken.place], taken.item, *sheet.items[taken.place :])
            rest = tuple(other for other in sheet.removed if other is not taken)
            return dataclasses.replace(sheet, items=items, removed=rest)
    raise AnalysisError("This figure is no longer kept: add it again from its page.")


def renamed(sheet: Sheet, title: str, caption: str) -> Sheet:
    """With another title, and another caption of the whole."""
    title = _line(title, MAX_TITLE) or TITLE
    return dataclasses.replace(sheet, title=title, caption=_line(caption, MAX_CAPTION))


def relooked(sheet: Sheet, **fields: Any) -> Sheet:
    """With other fields of the look; a narrower venue takes no more columns than it has room for.

    Raises AnalysisError for what cannot be set.
    """
    if fields.get("venue") in VENUES:
        most = most_columns(fields["venue"])
        fields = {"columns": min(sheet.look.columns, most)} | fields
    return dataclasses.replace(sheet, look=dataclasses.replace(sheet.look, **fields))


def to_dict(sheet: Sheet) -> dict[str, Any]:
    """Plain JSON values, as the store keeps them: each entry names its figure file."""
    return {
        "title": sheet.title,
        "caption": sheet.caption,
        "look": dataclasses.asdict(sheet.look),
        "items": [dataclasses.asdict(item) for item in sheet.items],
        "removed": [
            dataclasses.asdict(taken.item) | {"place": taken.place} for taken in sheet.removed
        ],
    }


def from_dict(told: Mapping[str, Any]) -> Sheet:
    """The sheet of `to_dict`; {} is an empty one. Raises AnalysisError for anything else."""
    try:
        removed = []
        for entry in told.get("removed", ()):
            parts = dict(entry)
            place = int(parts.pop("place"))
            removed.append(Removed(Item(**parts), place))
        return Sheet(
            title=str(told.get("title") or TITLE),
            caption=str(told.get("caption") or ""),
            look=Look(**told.get("look", {})),
            items=tuple(Item(**entry) for entry in told.get("items", ())),
            removed=tuple(removed),
        )
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise AnalysisError(
            f"This figure sheet cannot be read ({error}): repair its sheet.json, or delete the "
            "sheet."
        ) from None


def _line(text: str, limit: int) -> str:
    """One line of whole characters, cut where it is too long."""
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"
