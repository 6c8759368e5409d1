"""The Eviction page in a real browser: replays that come by themselves, clicks and links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.app_server import AppServer
from tests.e2e.conftest import Reader

pytestmark = pytest.mark.browser


@pytest.fixture
def run_id(sample: Path) -> str:
    return sample.name


def opened(reader: Reader, run_id: str, **more: str) -> Any:
    values = {"run": run_id, "p1": "snapkv()", "p2": "streaming_llm()", "budget": "48", **more}
    page = reader.open("/eviction?" + "&".join(f"{key}={value}" for key, value in values.items()))
    page.locator(".st-key-slot-1").get_by_text("48 kept").wait_for()
    reader.settle()
    return page


def test_the_masks_come_by_themselves_and_a_click_goes_to_a_head(
    reader: Reader, run_id: str
) -> None:
    page = opened(reader, run_id, layer="0", kv_head="0")
    for index in range(2):
        page.locator(f".st-key-mask-{index} .plot-container").wait_for()
    grid = page.locator(".st-key-grid-0 .nsewdrag").first
    box = grid.bounding_box()
    grid.click(position={"x": box["width"] * 0.9, "y": box["height"] * 0.9})
    reader.wait_for_address("layer=5")
    reader.wait_for_address("kv_head=3")


def test_every_panel_opens_again_from_its_address(
    app: AppServer, browser: Any, reader: Reader, run_id: str
) -> None:
    shown = {
        "Text": ".st-key-card-text-0",
        "Evidence": ".st-key-card-survival",
        "Why and what it cost": ".st-key-card-cost-attention-mass-kept",
    }
    page = opened(reader, run_id)
    for panel, card in shown.items():
        reader.press(panel)
        page.locator(card).wait_for()
        other = Reader(browser, app.url)
        other.page.goto(page.url)
        other.page.locator(card).wait_for()
        other.settle()
        assert not other.problems
        other.close()


def test_masks_of_another_tool_stand_beside_a_policy(
    reader: Reader, run_id: str, tmp_path: Any
) -> None:
    page = opened(reader, run_id)
    layer, head, position = (
        axis.reshape(-1) for axis in np.meshgrid(range(6), range(4), range(40), indexing="ij")
    )
    file = tmp_path / "mine.npz"
    np.savez(file, layer=layer, head=head, position=position)
    reader.choose("Policy 2", "Keep-masks from another tool …")
    page.locator("input[type=file]").set_input_files(file)
    reader.wait_for_address("p2=masks")
    expect(page.get_by_role("combobox", name="Policy 2")).to_have_value(re.compile("mine.npz"))
    page.locator(".st-key-slot-1").get_by_text("40 kept").wait_for()
