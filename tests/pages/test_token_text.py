"""The text component in a real browser, without Streamlit: what it shows of the data it is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.attention import text_view
from analysis.eviction import eviction_text
from cache_store.reader import Capture
from pages.parts import token_text as component
from tests.analysis.replaying import by_hand
from tests.synthetic import Synthetic

PARTS = Path(component.__file__).parent
CODE = "\n".join((PARTS / name).read_text("utf-8") for name in ("token_looks.js", "token_text.js"))
MOUNT = """async ([code, data]) => {
  const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }))
  window.component ??= await import(url)
  window.sent ??= []
  window.component.default({
    data, parentElement: document.body, setTriggerValue: (...sent) => window.sent.push(sent),
  })
}"""
HOSTILE = 13  # the position of "<script>alert(1)</script>"
CAPTURE = Synthetic(prompt_length=20, response_length=6, window=4)
LENGTH = 26

Show = Callable[[dict[str, Any]], Any]


@pytest.fixture
def show(browser: Any) -> Iterator[Show]:
    """Mounts the component with data; a second call is what a rerun of the page sends."""
    page = browser.new_page(viewport={"width": 900, "height": 700})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    css = (PARTS / "token_text.css").read_text("utf-8")
    page.set_content(f"<meta charset=utf-8><style>{css}</style>{component._HTML}")

    def mount(data: dict[str, Any]) -> Any:
        page.evaluate(MOUNT, [CODE, data])
        return page

    yield mount
    page.close()
    assert not problems


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Capture]:
    capture = Capture.open(CAPTURE.write(tmp_path_factory.mktemp("text")))
    yield capture
    capture.close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The data of every call of the component."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(component, "_component", lambda **given: calls.append(given["data"]))
    return calls


@pytest.fixture
def eviction(capture: Capture, sent: list[dict[str, Any]]) -> dict[str, Any]:
    """Two heads; the first loses positions 0-4 at prefill, 5-9 after step 3, the other nothing."""
    evicted_at = np.full((2, 2, LENGTH), 7)
    evicted_at[0, 0, :5], evicted_at[0, 0, 5:10] = 0, 3
    score = np.full(evicted_at.shape, np.nan, np.float32)
    score[0, 0, :20] = np.arange(20) / 10
    replayed = by_hand(evicted_at, 20, group=2, score=score)
    view = eviction_text(capture, replayed, 0, 0, 1, evidence=[(4, 7)])
    component.eviction_text(
        view, key="t", dark=False, on_step=lambda step: None, on_span=lambda span: None
    )
    return sent[-1]


def gone(page: Any) -> list[int]:
    return [
        int(at)
        for at in page.locator(".token.gone").evaluate_all(
            "tokens => tokens.map(token => token.dataset.index)"
        )
    ]


@pytest.mark.browser
def test_evicted_tokens_are_struck_at_their_step(show: Show, eviction: dict[str, Any]) -> None:
    page = show(eviction)
    assert gone(page) == [0, 1, 2, 3, 4]
    page.locator(".next").click()
    page.locator(".next").click()
    assert gone(page) == list(range(10))
    assert "keeps 13 of 23" in page.locator(".where").inner_text()
    page.locator(".back").click()
    assert gone(page) == [0, 1, 2, 3, 4]
    assert page.locator(".token.future").count() == 4  # of six generated tokens, two are there
    page.wait_for_function("window.sent.at(-1)?.join() == 'step,2'")


@pytest.mark.browser
def test_hover_tells_score_rank_reason_and_who_keeps_it(
    show: Show, eviction: dict[str, Any]
) -> None:
    page = show(eviction)
    page.locator(".token").nth(5).hover()
    told = page.locator(".info").inner_text()
    assert "position 5" in told and "selected, goes after step 3" in told
    assert "kept by 4 of 4 heads" in told and "score 0.5" in told and "evidence" in told
    page.locator(".token").nth(2).hover()
    told = page.locator(".info").inner_text()
    assert "evicted at the end of prefill" in told and "kept by 3 of 4 heads" in told
    shades = page.locator(".token:not(.future)").evaluate_all(
        r"all => all.map(token => Number(/([\d.]+)\)$/.exec(token.style.backgroundColor)[1]))"
    )
    assert 0 < shades[2] < shades[5]
    assert page.locator(".token.evidence").count() == 3


@pytest.mark.browser
def test_a_click_on_an_evicted_token_goes_to_the_step_at_which_it_goes(
    show: Show, eviction: dict[str, Any]
) -> None:
    page = show(eviction)
    page.locator(".token").nth(7).click()
    assert "Step 3 of 6" in page.locator(".where").inner_text()


@pytest.mark.browser
def test_dragging_over_the_prompt_marks_evidence(show: Show, eviction: dict[str, Any]) -> None:
    page = show(eviction)
    page.locator(".token").nth(3).hover()
    page.mouse.down()
    page.locator(".token").nth(21).hover()  # beyond the prompt
    page.mouse.up()
    page.locator(".mark").click()
    assert page.evaluate("window.sent") == [["span", [3, 20]]]
    assert page.locator(".mark").is_hidden()


@pytest.mark.browser
def test_text_stays_text_and_line_ends_are_seen(show: Show, eviction: dict[str, Any]) -> None:
    page = show(eviction)
    pieces = CAPTURE.pieces
    assert page.locator(".token").all_text_contents() == pieces
    assert page.locator(".token.line").count() == sum(piece == "\n" for piece in pieces)
    page.locator(".token").nth(HOSTILE).hover()
    assert "<script>alert(1)</script>" in page.locator(".info").inner_text()


@pytest.mark.browser
def test_the_attention_look_still_shades_and_ranks(
    show: Show, capture: Capture, sent: list[dict[str, Any]]
) -> None:
    view = text_view(capture, 1, 2, 3)
    component.token_text(
        view, key="t", log=False, hide_sink=False, sink=4, dark=True, on_step=lambda step: None
    )
    page = show(sent[-1])
    row = CAPTURE.row(1, 2, 22)
    best = int(row.argmax())
    page.locator(".token").nth(best).hover()
    assert "rank 1 of 23" in page.locator(".info").inner_text()
    assert page.locator(".token.query").get_attribute("data-index") == "22"
    page.locator(".token").nth(18).click()
    assert "prompt token at position 18" in page.locator(".where").inner_text()
