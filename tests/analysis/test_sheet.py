"""A figure sheet as data: order, letters, grid, and changes that follow each other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from analysis import sheet as sheets
from analysis.errors import AnalysisError
from analysis.sheet import Item, Look, Sheet, letter
from tests.analysis.figures import HOSTILE, figure, hostile


def filled(count: int, **look: Any) -> Sheet:
    sheet = Sheet(look=Look(**look))
    for number in range(count):
        sheet = sheets.added(sheet, Item(f"f{number}", f"t{number}", id=f"i{number}"))
    return sheet


def ids(sheet: Sheet) -> str:
    return "".join(item.id[1:] for item in sheet.items)


def test_letters_go_on_after_z() -> None:
    assert [letter(place) for place in (0, 1, 25, 26, 27, 51, 52)] == [
        *("a", "b", "z", "aa", "ab", "az", "ba")
    ]


def test_figures_move_as_far_as_there_is_room() -> None:
    sheet = filled(4)
    assert ids(sheets.moved(sheet, "i2", -1)) == "0213"
    assert ids(sheets.moved(sheet, "i0", 1)) == "1023"
    assert ids(sheets.moved(sheet, "i0", -1)) == "0123"
    assert ids(sheets.moved(sheet, "i3", 5)) == "0123"
    assert ids(sheets.moved(sheet, "i0", 9)) == "1230"


def test_a_removed_figure_goes_back_where_it_was() -> None:
    sheet = sheets.without(sheets.without(filled(4), "i1"), "i2")
    assert ids(sheet) == "03"
    assert ids(sheets.put_back(sheet, "i2")) == "023"
    assert ids(sheets.put_back(sheets.put_back(sheet, "i2"), "i1")) == "0123"
    with pytest.raises(AnalysisError, match="no longer kept"):
        sheets.put_back(sheet, "i3")


def test_only_the_last_removed_figures_are_kept() -> None:
    sheet = filled(20)
    for number in range(15):
        sheet = sheets.without(sheet, f"i{number}")
    assert [taken.item.id for taken in sheet.removed] == [f"i{number}" for number in range(3, 15)]


def test_a_wide_figure_has_a_row_of_its_own() -> None:
    sheet = sheets.changed(filled(6), "i1", wide=True)
    assert [[item.id for item in row] for row in sheet.rows()] == [
        *(["i0"], ["i1"], ["i2", "i3"], ["i4", "i5"])
    ]
    assert sheet.width_in(sheet.items[1]) == 5.5
    assert sheet.width_in(sheet.items[0]) == pytest.approx((5.5 - 0.12) / 2)
    assert [len(row) for row in filled(7, columns=3).rows()] == [3, 3, 1]


def test_the_same_view_is_added_once() -> None:
    sheet = Sheet()
    item = sheets.item_of(figure("lines"), "f" * 24, "http://host/?run=1")
    sheet = sheets.added(sheet, item)
    again = sheets.item_of(figure("lines"), "f" * 24, "http://host/?run=1")
    with pytest.raises(AnalysisError, match=r"already, as \(a\)"):
        sheets.added(sheet, again)
    other = sheets.item_of(figure("lines"), "f" * 24, "http://host/?run=2")
    assert len(sheets.added(sheet, other).items) == 2
    with pytest.raises(AnalysisError, match="holds 52 figures"):
        filled(53)


def test_a_change_of_a_figure_that_is_gone_is_refused() -> None:
    sheet = sheets.without(filled(2), "i0")
    for change in (
        lambda: sheets.moved(sheet, "i0", 1),
        lambda: sheets.changed(sheet, "i0", caption="x"),
        lambda: sheets.without(sheet, "i0"),
    ):
        with pytest.raises(AnalysisError, match="no longer in the sheet"):
            change()


@pytest.mark.parametrize(
    ("look", "sentence"),
    [
        ({"columns": 0}, "0 columns"),
        ({"columns": 5}, "5 columns"),
        ({"columns": 3, "venue": "icml"}, "choose fewer columns"),
        ({"venue": "nips"}, "'nips' is no venue"),
        ({"font_pt": 1.0}, "Letters of 1 pt"),
        ({"legend": "away"}, "no legend place"),
    ],
)
def test_a_look_that_cannot_be_set_is_refused(look: dict[str, Any], sentence: str) -> None:
    with pytest.raises(AnalysisError, match=sentence):
        Look(**look)


def test_a_height_that_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(AnalysisError, match=r"height of 0\.2 in"):
        sheets.changed(filled(1), "i0", height_in=0.2)


@pytest.mark.parametrize("text", HOSTILE)
def test_every_text_survives_the_store(text: str) -> None:
    item = sheets.item_of(hostile("lines", text), "f" * 24, "http://host/")
    sheet = sheets.changed(sheets.added(filled(2), item), item.id, caption=text, wide=True)
    sheet = sheets.without(sheets.renamed(sheet, text, text), "i1")
    assert sheets.from_dict(json.loads(json.dumps(sheets.to_dict(sheet)))) == sheet
    assert "\n" not in sheet.title + sheet.items[-1].caption


def test_an_empty_store_is_an_empty_sheet() -> None:
    assert sheets.from_dict({}) == Sheet()


@pytest.mark.parametrize(
    "told",
    [
        {"items": 3},
        {"items": [{"figure": "f"}]},
        {"items": [{"figure": "f", "title": "t", "colour": "red"}]},
        {"look": {"columns": "two"}},
        {"removed": [{"figure": "f", "title": "t"}]},
    ],
)
def test_another_file_is_refused_in_one_sentence(told: dict[str, Any]) -> None:
    with pytest.raises(AnalysisError, match="sheet cannot be read"):
        sheets.from_dict(told)
