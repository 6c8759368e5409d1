"""Figure sheets on disk: nothing is lost between sessions, processes and restarts."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cache_store.errors import StoreError
from cache_store.hashing import file_sha256
from cache_store.sheets import EXPORTS_KEPT, MAIN, Sheets, figure_name

ADD = """
import sys
from cache_store.sheets import Sheets
from tests.cache_store.test_sheets import add
for number in range(5):
    add(Sheets(sys.argv[1]), f"{sys.argv[2]}{number}")
"""


def add(sheets: Sheets, text: str, sheet_id: str = MAIN) -> str:
    """A figure whose file is just a text."""
    content = text.encode()
    name = figure_name(content)

    def edit(told: dict[str, Any]) -> dict[str, Any]:
        items = [*told.get("items", []), {"figure": name, "title": text}]
        return {"title": "", "removed": [], **told, "items": items}

    sheets.change(sheet_id, edit, content)
    return name


def titles(sheets: Sheets, sheet_id: str = MAIN) -> list[str]:
    return [item["title"] for item in sheets.read(sheet_id)["items"]]


def test_nothing_was_added_yet(tmp_path: Path) -> None:
    assert Sheets(tmp_path).read(MAIN) == {} and Sheets(tmp_path).titles() == {MAIN: ""}
    assert not list(tmp_path.iterdir())


def test_sessions_and_processes_keep_each_others_figures(tmp_path: Path) -> None:
    others = [
        subprocess.Popen([sys.executable, "-c", ADD, str(tmp_path), name]) for name in ("p", "q")
    ]
    with ThreadPoolExecutor(4) as sessions:
        list(sessions.map(lambda number: add(Sheets(tmp_path), f"s{number}"), range(20)))
    assert [other.wait(60) for other in others] == [0, 0]
    sheets = Sheets(tmp_path)  # as after a restart
    expected = {f"{name}{number}" for name in "pq" for number in range(5)}
    assert set(titles(sheets)) == expected | {f"s{number}" for number in range(20)}
    assert len(titles(sheets)) == 30
    for item in sheets.read(MAIN)["items"]:
        assert sheets.figure(MAIN, item["figure"]) == item["title"].encode()


def test_a_figure_file_goes_with_the_last_entry_that_names_it(tmp_path: Path) -> None:
    sheets = Sheets(tmp_path)
    first, second = add(sheets, "one"), add(sheets, "two")
    sheets.change(MAIN, lambda told: told | {"items": [], "removed": told["items"][:1]})
    assert sheets.figure(MAIN, first) == b"one"
    with pytest.raises(StoreError, match="removed meanwhile"):
        sheets.figure(MAIN, second)


def test_sheets_are_apart_and_can_be_deleted(tmp_path: Path) -> None:
    sheets = Sheets(tmp_path)
    other = sheets.create({"title": "Appendix", "items": [], "removed": []})
    add(sheets, "one")
    add(sheets, "two", other)
    assert sheets.titles() == {MAIN: "", other: "Appendix"}
    sheets.delete(other)
    assert sheets.titles() == {MAIN: ""} and titles(sheets) == ["one"]
    with pytest.raises(StoreError, match="no figure sheet"):
        sheets.read(other)
    with pytest.raises(StoreError, match="no figure sheet"):
        add(sheets, "late", other)
    sheets.delete(MAIN)
    sheets.delete(MAIN)
    assert sheets.read(MAIN) == {}


def test_a_failed_change_leaves_the_sheet_as_it_was(tmp_path: Path) -> None:
    sheets = Sheets(tmp_path)
    add(sheets, "one")

    def fails(_: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        sheets.change(MAIN, fails, b"two")
    assert titles(sheets) == ["one"]
    assert len(list((tmp_path / "sheets" / MAIN / "figures").iterdir())) == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_a_damaged_sheet_is_named_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    sheets = Sheets(tmp_path)
    add(sheets, "one")
    (tmp_path / "sheets" / MAIN / "sheet.json").write_bytes(content)
    with pytest.raises(StoreError, match=r"figure sheet main cannot be read"):
        sheets.read(MAIN)
    assert MAIN in sheets.titles()


def test_a_damaged_figure_is_not_taken_for_the_figure(tmp_path: Path) -> None:
    sheets = Sheets(tmp_path)
    name = add(sheets, "one")
    (tmp_path / "sheets" / MAIN / "figures" / name).write_bytes(b"other")
    with pytest.raises(StoreError, match="damaged"):
        sheets.figure(MAIN, name)


@pytest.mark.parametrize("name", ["../main", "", "main/..", "MAIN", "0" * 9])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    sheets = Sheets(tmp_path)
    with pytest.raises(StoreError, match="not the id"):
        sheets.read(name)
    with pytest.raises(StoreError, match="not the name"):
        sheets.figure(MAIN, name)
    with pytest.raises(StoreError, match="not the name"):
        sheets.export_path(MAIN, f"{name}.pdf")


def test_the_oldest_exports_go(tmp_path: Path) -> None:
    sheets = Sheets(tmp_path)
    for number in range(EXPORTS_KEPT + 3):
        path = sheets.keep_export(MAIN, f"{number:024x}.pdf", b"x")
        assert path.read_bytes() == b"x"
    assert len(list(path.parent.iterdir())) == EXPORTS_KEPT


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "sheets").write_bytes(b"a file")
    with pytest.raises(StoreError, match="cannot be saved"):
        add(Sheets(tmp_path), "one")


def test_the_hash_is_that_of_the_bytes_and_follows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "capture.duckdb"
    for content in (b"abc", b"abcd"):
        path.write_bytes(content)
        assert file_sha256(path) == hashlib.sha256(content).hexdigest()
    path.unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        file_sha256(path)
