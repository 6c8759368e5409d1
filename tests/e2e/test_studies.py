"""A small study in a real browser: built, run, watched, and read down to its prompts."""

from __future__ import annotations

import zipfile
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.e2e.conftest import Reader

pytestmark = pytest.mark.browser
RUN_MS = 180_000


def typed(reader: Reader, label: str, value: str) -> None:
    """Type into a field of the form and leave it."""
    field = reader.page.get_by_test_id("stMain").get_by_label(label, exact=True).first
    field.fill(value)
    field.press("Tab")
    reader.settle()


def downloaded(page: Any, popover: str, name: str) -> Path:
    """The file that a button of a popover gives."""
    page.get_by_role("button", name=popover, exact=True).click()
    with page.expect_download() as file:
        page.get_by_role("button", name=name, exact=True).click()
    page.keyboard.press("Escape")
    return Path(file.value.path())


def counted(page: Any, rows: int) -> None:
    expect(page.locator(".st-key-study-fact-rows")).to_contain_text(str(rows))


def test_a_study_is_built_run_and_watched(reader: Reader) -> None:
    page = reader.open("/studies?study=new")
    counted(page, 96)  # 6 prompts × (the full cache and 5 policies × 3 ratios)
    typed(reader, "Title", f"Two small prompts {token_hex(4)}")  # the same study has its captures
    typed(reader, "Sizes", "0.5, 0.8")
    typed(reader, "Prompts", "2")
    typed(reader, "Length", "200")
    for name in ("LAQ++", "KVCompose"):
        page.get_by_role("button", name=f"Remove {name}").click()
        reader.settle()
    counted(page, 14)  # 2 × (1 + 3 policies × 2)

    reader.press("Start the study")
    reader.wait_for_address("study=")
    page.get_by_text("Complete: 2 prompts, 14 rows.").wait_for(timeout=RUN_MS)
    page.locator(".st-key-card-study-size .plot-container").wait_for()
    reader.settle()

    with zipfile.ZipFile(downloaded(page, "Download", "Everything (zip)")) as whole:
        assert "study.duckdb" in {Path(name).name for name in whole.namelist()}
    figure = page.locator(".st-key-card-study-size")
    figure.get_by_role("button", name="Export", exact=True).click()
    reader.settle()
    with page.expect_download() as paper:
        page.get_by_role("button", name="Download pdf").click()
    assert Path(paper.value.path()).read_bytes().startswith(b"%PDF")
    page.keyboard.press("Escape")

    reader.press("Prompts")
    reader.wait_for_address("study_show=Prompts")
    reader.choose("Policy", "SnapKV")
    reader.tick_first_row()
    reader.wait_for_address("example=")
    card = page.locator(".st-key-card-study-prompt")
    expect(card).to_contain_text("Full cache, score")
    card.get_by_role("button", name="Capture this prompt").click()
    way = card.get_by_role("link", name="Open on the Eviction page")
    way.wait_for(timeout=RUN_MS)
    way.click()
    reader.wait_for_address("p1=snapkv")
    expect(page.get_by_role("heading", level=1)).to_contain_text("evict")


def test_a_cancelled_study_goes_on_and_is_followed_in_two_windows(reader: Reader) -> None:
    page = reader.open("/studies?study=new")
    counted(page, 96)
    typed(reader, "Title", f"Cancelled and resumed {token_hex(4)}")
    typed(reader, "Sizes", "0.5")
    typed(reader, "Prompts", "12")  # enough for a press of Cancel to come in time
    typed(reader, "Length", "300")
    for name in ("LAQ++", "KVCompose"):
        page.get_by_role("button", name=f"Remove {name}").click()
        reader.settle()
    counted(page, 48)  # 12 × (the full cache and 3 policies)
    reader.press("Start the study")
    reader.wait_for_address("study=")
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_text("cancelled ·").wait_for(timeout=RUN_MS)
    other = page.context.new_page()
    other.goto(page.url)
    other.get_by_text("cancelled ·").wait_for()
    page.get_by_role("button", name="Resume", exact=True).click()
    for window in (page, other):
        window.get_by_text("Complete: 12 prompts, 48 rows.").wait_for(timeout=RUN_MS)
    other.close()
