"""What a reader does: explore the sample, run a prompt, send a link, work beside somebody else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pypdf
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.app_server import ROOT, AppServer
from tests.e2e.conftest import TWO_PROMPTS, Reader, served

pytestmark = pytest.mark.browser

QUESTION = "Where does each head look?"
HOSTILE = (
    '<script>alert("x")</script><img src=x onerror=alert(1)> **bold** $a$ '
    "[link](javascript:alert(1)) :red[red] :material/home:"
)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppServer]:
    """An app whose library is empty, so that its first start captures the samples."""
    yield from served(tmp_path_factory.mktemp("e2e") / "home")


def wait_for_first_run(reader: Reader) -> Page:
    """The first start reads the samples; the page shows the first one by itself."""
    page: Page = reader.open("/")
    expect(page.get_by_role("heading", level=1)).to_have_text(QUESTION)
    expect(page.get_by_role("combobox", name="Layer")).to_be_visible(timeout=120_000)
    reader.settle()
    return page


def test_the_first_run_appears_in_the_picker_beside_what_is_typed(reader: Reader) -> None:
    page = reader.open("/new_run")
    text = page.get_by_role("textbox", name="Text", exact=True)
    text.click()
    page.keyboard.type("The code of the market is 87725.")
    expect(page.get_by_role("combobox", name="Run")).to_be_visible(timeout=120_000)
    assert text.input_value() == "The code of the market is 87725."
    # The click that leaves the text box starts the run.
    page.get_by_role("button", name="Start", exact=True).click()
    reader.wait_for_address("job=")
    reader.settle()
    assert page.locator("[class*=st-key-job-page-]").count() == 1


def test_a_deleted_run_comes_back_without_a_warning(reader: Reader, tmp_path: Path) -> None:
    wait_for_first_run(reader)
    page = reader.open("/library")
    expect(page.get_by_text("No job running")).to_be_visible(timeout=120_000)
    reader.tick_first_row()  # a run that arrives meanwhile makes another table
    reader.wait_for_address("pick=")
    run = page.url.split("pick=")[1].split("&")[0]
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    download.value.save_as(tmp_path / "run.zip")
    reader.settle()
    reader.press("Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.wait_for_url(lambda address: run not in address)
    reader.settle()
    alerts = page.get_by_test_id("stAlert")
    assert alerts.count() == 0
    page.get_by_role("button", name="Import").first.click()
    page.locator("input[type=file]").set_input_files(tmp_path / "run.zip")
    page.get_by_role("button", name="Import this file").click()
    expect(alerts).to_contain_text("It is the run in the sidebar now.")
    reader.wait_for_address(f"run={run}")
    expect(page.get_by_role("button", name="Import this file")).to_have_count(0)


def test_explore_the_sample(reader: Reader) -> None:
    page = wait_for_first_run(reader)
    reader.choose("Run", "Passkey of 7 digits")
    reader.wait_for_address("/attention?run=")
    reader.choose("Layer", "2")
    reader.choose("Head", "3")
    reader.wait_for_address("head=3")
    assert "layer=2" in page.url
    expect(page.get_by_text("Attention, layer 2, head 3")).to_be_visible()

    where = page.locator(".kv .where")
    expect(where).to_contain_text("Step 1 of")
    page.get_by_role("slider", name="Step").focus()
    page.keyboard.press("ArrowRight")
    reader.wait_for_address("step=2")
    expect(where).to_contain_text("Step 2 of")

    # The text by keyboard: to another token, and to look from there.
    page.locator(".kv .text").focus()
    page.keyboard.press("ArrowDown")
    reader.wait_for_address("step=3")
    page.keyboard.press("Home")
    expect(page.locator(".kv .info")).to_contain_text("position 0")
    expect(page.locator(".kv .info")).to_contain_text("rank")
    page.keyboard.press("Enter")  # the first token lies before every stored row
    reader.wait_for_address("step=-")
    expect(where).to_contain_text("Step -")
    run = page.url.split("run=")[1].split("&")[0]
    reader.open(f"/attention?run={run}&layer=2&head=3")

    page.get_by_role("button", name="Play over the steps").click()
    expect(where).to_contain_text(re.compile(r"Step [5-9] of"))
    page.get_by_role("button", name="Pause").click()
    page.wait_for_url(lambda address: bool(re.search(r"step=([5-9]|1\\d)", address)))

    # The layer x head grid is a way to choose, too.
    grid = page.locator(".st-key-card-overview .nsewdrag").first
    grid.scroll_into_view_if_needed()
    reader.settle()
    box = grid.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] * 0.5 / 8, box["y"] + box["height"] * 1.5 / 6)
    expect(page.get_by_text("Attention, layer 1, head 0")).to_be_visible()
    assert "layer=2" not in page.url
    reader.settle()
    charts = page.locator(".kv-plot")
    names = charts.evaluate_all("charts => charts.map(chart => chart.getAttribute('aria-label'))")
    assert len(names) == 4 and all(len(name) > 20 for name in names)


def test_the_text_leaves_as_a_pdf_and_its_link_gives_the_same_file(
    reader: Reader, app: AppServer, tmp_path: Path
) -> None:
    run = parse_qs(urlsplit(wait_for_first_run(reader).url).query)["run"][0]
    page = reader.open(f"/attention?run={run}&layer=2&head=1&step=3")
    expect(page.locator(".st-key-card-matrix")).to_be_visible(timeout=120_000)  # drawn last
    reader.settle()
    card = page.locator(".st-key-card-text")
    card.get_by_role("button", name="Export").click()
    expect(page.get_by_text("As it will be printed, 5.5 in (140 mm) wide.")).to_be_visible()
    with page.expect_download() as figure:
        page.get_by_role("button", name="Download pdf").click()
    printed = Path(figure.value.path()).read_bytes()
    words = pypdf.PdfReader(figure.value.path()).pages[0].extract_text()
    assert "What step 3 attends to, layer 2, head 1" in words
    out = tmp_path / "fig.pdf"
    command = ["-m", "analysis", "export", page.url, "--figure", "text", "--out", str(out)]
    subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | {"KVSCOPE_HOME": str(app.home)},
        check=True,
        timeout=180,
    )
    assert out.read_bytes() == printed


def test_upload_a_prompt_run_it_and_open_it(reader: Reader) -> None:
    page = reader.start_prompts(*TWO_PROMPTS, row=2, new_tokens=6)
    reader.wait_for_address("job=")
    job = page.url.split("job=")[1].split("&")[0]
    page.reload()
    card = page.locator(f".st-key-job-page-{job}")
    expect(card).to_contain_text("prompts.jsonl row 2")
    expect(card.get_by_text("Open", exact=True)).to_be_visible(timeout=120_000)
    assert page.get_by_role("heading", level=1).inner_text() == "What should the model read?"
    card.get_by_text("Open", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(QUESTION)
    expect(page.locator(".kv .text")).to_contain_text("The code of the harbour is 10364.")
    expect(page.locator(".kv .where")).to_contain_text("of 6")


def test_a_hostile_prompt_is_text_everywhere(reader: Reader) -> None:
    page = reader.open("/new_run")
    page.get_by_role("textbox", name="Text", exact=True).fill(HOSTILE)
    page.get_by_role("textbox", name="Question (optional, read after the text)").fill(HOSTILE)
    page.get_by_role("spinbutton", name="New tokens, at most").fill("3")
    page.get_by_role("spinbutton", name="New tokens, at most").press("Enter")
    reader.settle()
    reader.press("Start")
    card = page.locator("[class*=st-key-job-page-]")
    expect(card.get_by_text("Open", exact=True)).to_be_visible(timeout=120_000)
    expect(card).to_contain_text('<script>alert("x")</script>')
    _nothing_came_alive(page)
    card.get_by_text("Open", exact=True).click()
    expect(page.locator(".kv .text")).to_contain_text(HOSTILE)
    reader.settle()
    _nothing_came_alive(page)
    page.get_by_test_id("stSidebar").get_by_role("link", name="Library").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Which runs do I have?")
    reader.settle()
    _nothing_came_alive(page)


def _nothing_came_alive(page: Page) -> None:
    main = page.get_by_test_id("stApp")
    for made in ("img[src='x']", "strong:text-is('bold')", ".katex", "a[href^='javascript']"):
        assert main.locator(made).count() == 0, made


def test_two_readers_see_their_own_runs(browser: Browser, app: AppServer) -> None:
    readers = [Reader(browser, app.url) for _ in range(2)]
    try:
        texts = ("The code of the tower is 11111.", "The code of the bridge is 22222.")
        for reader, text in zip(readers, texts, strict=True):
            page = reader.open("/new_run")
            page.get_by_role("textbox", name="Text", exact=True).fill(text)
            page.get_by_role("spinbutton", name="New tokens, at most").fill("4")
            page.get_by_role("spinbutton", name="New tokens, at most").press("Enter")
            reader.settle()
        for reader in readers:
            reader.press("Start")
        for reader, text in zip(readers, texts, strict=True):
            card = reader.page.locator("[class*=st-key-job-page-]")
            expect(card).to_have_count(1)
            expect(card).to_contain_text(text)
            expect(card.get_by_text("Open", exact=True)).to_be_visible(timeout=120_000)
            card.get_by_text("Open", exact=True).click()
        for reader, text in zip(readers, texts, strict=True):
            expect(reader.page.locator(".kv .text")).to_contain_text(text)
            assert not reader.problems
    finally:
        for reader in readers:
            reader.close()


def test_a_link_shows_the_same_view_after_a_restart(browser: Browser, app: AppServer) -> None:
    first = Reader(browser, app.url)
    page = wait_for_first_run(first)
    first.choose("Measure", "sink mass")
    first.choose("Layer", "4")
    first.choose("Head", "mean")
    page.locator(".kv .next").click()
    first.wait_for_address("step=2")
    first.settle()
    address, shown = page.url, _shown(page)
    first.close()
    app.restart()
    second = Reader(browser, app.url)
    try:
        page = second.open(address.removeprefix(app.url))
        expect(page.locator(".kv .where")).to_contain_text("Step 2 of")
        second.settle()
        assert page.url == address
        assert _shown(page) == shown
        assert not second.problems
    finally:
        second.close()


def _shown(page: Page) -> list[Any]:
    expect(page.locator(".st-key-card-received")).to_be_visible()
    boxes = [page.get_by_role("combobox", name=name) for name in ("Measure", "Layer", "Head")]
    values = [box.input_value() or box.inner_text() for box in boxes]
    captions = page.locator("[class*=st-key-card-] [data-testid=stCaptionContainer]")
    return [values, page.locator(".kv .where").inner_text(), captions.all_inner_texts()]
