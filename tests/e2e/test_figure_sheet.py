"""From a prompt that is uploaded to a sheet zip on disk, and what is inside it."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path

import pypdf
import pytest
from playwright.sync_api import Browser, Page, expect

from analysis.figure_file import read_figure
from tests.app_server import AppServer
from tests.e2e.conftest import TWO_PROMPTS, Reader

pytestmark = pytest.mark.browser

QUESTION = "Which figures go into the paper?"
CAPTION = "50% of <b>all</b> heads_1"


def upload_and_open(reader: Reader) -> Page:
    """A prompt from a file, run and opened on the Attention page."""
    page: Page = reader.start_prompts(*TWO_PROMPTS, row=2, new_tokens=6)
    card = page.locator("[class*=st-key-job-page-]")
    expect(card.get_by_text("Open", exact=True)).to_be_visible(timeout=180_000)
    card.get_by_text("Open", exact=True).click()
    expect(page.locator(".kv .text")).to_contain_text("The code of the harbour is 10364.")
    reader.settle()
    return page


def add(reader: Reader, card: str, letter: str) -> None:
    """Press "Add to sheet" of a card; the app says which letter the figure has."""
    button = reader.page.locator(f".st-key-card-{card}").get_by_role("button", name="Add to sheet")
    button.click()
    expect(reader.page.get_by_test_id("stToast").last).to_contain_text(f"as ({letter})")
    reader.settle()


def test_from_an_upload_to_a_sheet_on_disk(
    app: AppServer, browser: Browser, reader: Reader, tmp_path: Path
) -> None:
    page = upload_and_open(reader)
    run = page.url.split("run=")[1].split("&")[0]
    add(reader, "overview", "a")
    add(reader, "matrix", "b")
    page.get_by_test_id("stSidebar").get_by_role("link", name="Figure sheet").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(QUESTION)
    expect(page.get_by_test_id("stImage")).to_be_visible(timeout=120_000)

    caption = page.get_by_role("textbox", name="Caption of (b)")
    caption.fill(CAPTION)
    caption.press("Control+Enter")
    reader.settle()
    page.get_by_role("button", name="Up").last.click()  # (b) before (a)
    reader.settle()
    expect(page.get_by_role("textbox", name="Caption of (a)")).to_have_value(CAPTION)
    page.reload()
    expect(page.get_by_role("textbox", name="Caption of (a)")).to_have_value(CAPTION)
    reader.settle()
    page.get_by_role("button", name="Make the zip for LaTeX").click()
    download = page.get_by_role("button", name="Download the zip for LaTeX")
    expect(download).to_be_visible(timeout=120_000)
    reader.settle()
    with page.expect_download() as given:
        download.click()
    given.value.save_as(tmp_path / "sheet.zip")

    with zipfile.ZipFile(tmp_path / "sheet.zip") as archive:
        assert archive.testzip() is None
        told = json.loads(archive.read("provenance.json"))
        tex = archive.read("figures.tex").decode()
        first, second = told["figures"]
        assert first["caption"] == CAPTION
        assert r"\caption{50\% of \textless{}b\textgreater{}all" in tex
        assert tex.index(first["pdf"]) < tex.index(second["pdf"])
        capture = (app.home / run / "capture.duckdb").read_bytes()
        assert told["captures"][run]["file_sha256"] == hashlib.sha256(capture).hexdigest()
        assert "torch" in told["captures"][run]["versions"]
        for entry in told["figures"]:
            assert f"run={run}" in entry["link"] and entry["source"]["run"] == run
            figure = read_figure(archive.read(entry["redrawn_from"]))
            (sheet_page,) = pypdf.PdfReader(io.BytesIO(archive.read(entry["pdf"]))).pages
            assert figure.title.split(",")[0] in sheet_page.extract_text()
        (whole,) = pypdf.PdfReader(io.BytesIO(archive.read("sheet.pdf"))).pages
        assert float(whole.mediabox.width) / 72 == pytest.approx(5.5, abs=0.01)
        assert f"(a) {CAPTION}" in " ".join(whole.extract_text().split())

    page.goto("about:blank")
    app.restart()
    second = Reader(browser, app.url)
    try:
        page = second.open(first["link"].removeprefix(app.url))
        expect(page.get_by_role("heading", level=1)).to_have_text("Where does each head look?")
        page = second.open("/figure_sheet")
        caption = page.get_by_role("textbox", name="Caption of (a)")
        expect(caption).to_have_value(CAPTION)
        expect(page.get_by_role("button", name="Download the zip for LaTeX")).to_be_visible()
        page.get_by_role("button", name="Remove").first.click()
        expect(page.get_by_role("textbox", name="Caption of (b)")).to_have_count(0)
        second.settle()
        page.get_by_role("button", name="1 figure removed").click()
        page.get_by_role("button", name="Put back").click()
        expect(caption).to_have_value(CAPTION)
        second.settle()
        assert not second.problems
    finally:
        second.close()
