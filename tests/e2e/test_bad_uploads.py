"""Files that cannot be read: one clear sentence each, and the page goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.conftest import Reader

pytestmark = pytest.mark.browser

BAD = [
    ("empty.txt", b"", "empty.txt is empty: upload a file with text in it."),
    ("blank.txt", b" \n\t", "blank.txt holds only white space"),
    ("binary.txt", bytes(range(256)) * 8, "binary.txt is not UTF-8 text"),
    ("broken.json", b'{"prompt": "a",', "broken.json is not valid JSON"),
    ("list.json", b"[1, 2]", "Entry 1 of list.json is the number 1"),
    ("empty.json", b"[{}]", "empty.json has no fields"),
    ("gap.jsonl", b'{"prompt": "a"}\n{"other": "b"}', "Row 2 of gap.jsonl has no field 'prompt'"),
    ("number.csv", b"prompt,n\nhello,1,2\n", "number.csv has 3 cells"),
    ("not.parquet", b"PAR1 but not really", "not.parquet is not a readable Parquet file"),
    ("long.txt", b"word " * 6_000, "more than the model's context of 4,096"),
]


def test_each_bad_file_gives_one_sentence(reader: Reader, tmp_path: Path) -> None:
    page = reader.open("/new_run")
    reader.press("a file")
    alerts = page.get_by_test_id("stMain").get_by_test_id("stAlert")
    for name, data, sentence in BAD:
        (tmp_path / name).write_bytes(data)
        page.locator("input[type=file]").set_input_files(tmp_path / name)
        if name.startswith("gap"):
            page.get_by_role("textbox", name="Rows (1 to 2), each becomes a run").fill("2")
            page.keyboard.press("Enter")
        expect(alerts.filter(has_text=sentence)).to_be_visible()
        reader.settle()
        assert alerts.count() == 1, name
        assert "Traceback" not in page.get_by_test_id("stApp").inner_text()
    reader.press("Start")
    expect(alerts.filter(has_text=BAD[-1][2])).to_be_visible()
    assert "job=" not in page.url


def test_a_file_far_too_large_is_not_sent(reader: Reader, tmp_path: Path) -> None:
    page = reader.open("/new_run")
    reader.press("a file")
    uploader = page.get_by_test_id("stFileUploader")
    expect(uploader).to_contain_text("20MB per file")
    (tmp_path / "huge.txt").write_bytes(b"word " * 10_000_000)
    page.locator("input[type=file]").set_input_files(tmp_path / "huge.txt")
    expect(uploader).to_contain_text("File must be 20.0MB or smaller")


def test_a_file_that_is_no_run_is_not_imported(reader: Reader) -> None:
    page = reader.open("/library")
    page.get_by_role("button", name="Import").first.click()
    for name, data in (("run.zip", b"PK nothing"), ("run.duckdb", b"no database at all")):
        page.locator("input[type=file]").set_input_files(
            {"name": name, "mimeType": "application/octet-stream", "buffer": data}
        )
        expect(page.get_by_test_id("stFileChipName")).to_contain_text(name)
        reader.settle()
        page.get_by_role("button", name="Import this file").click()
        expect(page.get_by_test_id("stAlert")).to_contain_text(name)
        assert page.get_by_test_id("stAlert").count() == 1
