"""How long a reader waits for a slider, in a real browser: `python -m bench.browser_probes waits
'{…}'`.

Counted from the key press until the script has run to its end and the page has been drawn. The
browser gathers key presses for a fifth of a second before it tells the server: that part is
Streamlit's own and is reported as well.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from bench.eviction_probes import PANELS, replay_defaults
from bench.page_probes import DRAFT, SLIDERS, with_question
from bench.probes import prepared
from tests.app_server import AppServer
from tests.chromium import SETTLED, chromium

ROUNDS = 5
IMPORTED_MS = 15_000
# The script has ended, nothing on the screen waits to be drawn, and two frames have passed.
WAIT = """() => {
  const app = document.querySelector('[data-testid=stApp]');
  const state = () => app.getAttribute('data-test-script-state');
  const roots = () => [...document.querySelectorAll('[data-testid=stBidiComponentIsolated]')]
    .flatMap(node => node.shadowRoot ?? []);
  const undrawn = () => [document, ...roots()]
    .flatMap(root => [...root.querySelectorAll('[data-waiting]')]).some(part => {
      const {top, bottom} = part.getBoundingClientRect();
      return bottom > 0 && top < innerHeight;
    });
  window.waited = new Promise(resolve => {
    let pressed = null, told = null;
    const press = () => { pressed = performance.now(); };
    document.addEventListener('keydown', press, {once: true, capture: true});
    const drawn = () => undrawn() ? requestAnimationFrame(drawn)
      : requestAnimationFrame(() => requestAnimationFrame(() =>
        resolve({before: told - pressed, all: performance.now() - pressed})));
    const seen = new MutationObserver(() => {
      if (pressed === null) return;
      if (told === null && state() !== 'notRunning') told = performance.now();
      if (told !== null && state() === 'notRunning') {
        seen.disconnect();
        requestAnimationFrame(drawn);
      }
    });
    seen.observe(app, {attributes: true, attributeFilter: ['data-test-script-state']});
  });
}"""


def waits(tokens: int, new_tokens: int) -> dict[str, Any]:
    """Median seconds from the key press to the drawn page, for each slider of the papers' pages
    and the step of each Eviction panel, and what of it passed before the server was told."""
    from backend.capture import capture
    from backend.passes import lookahead_spec, record_pass

    with prepared("demo", tokens, new_tokens) as (loaded, spec, home):
        run_id = capture(with_question(spec), home, loaded=loaded)
        record_pass(home, run_id, "lookahead", lookahead_spec(DRAFT, 8), loaded=loaded)
        replay_defaults(home, run_id)
        places = [
            ("eviction", {"panel": panel, "span": "100-107"}, "step", "ArrowLeft")
            for panel in PANELS
        ]
        # towards what was not asked for yet; a wide slider goes from its start to the right
        places += [
            (page, dict([panel]), key, "ArrowLeft" if key == "step" else "ArrowRight")
            for page, panel, _, key, _ in SLIDERS
        ]
        each, before = {}, {}
        with chromium() as browser, _server(home) as url:
            _warm_up(browser, url)
            for page, query, key, press in dict.fromkeys(
                (page, tuple(query.items()), key, press) for page, query, key, press in places
            ):
                name = f"{page}, {dict(query).get('panel') or query[0][1]}, {key}"
                link = f"{url}/{page}?{urlencode({'run': run_id} | dict(query))}"
                each[name], before[name] = _wait(browser, link, key, press)
    return {"seconds": max(each.values()), "each": each, "before": before}


def _warm_up(browser: Any, url: str) -> None:
    """Behind its first page an app imports torch, once."""
    page = browser.new_page()
    page.goto(url)
    page.wait_for_timeout(IMPORTED_MS)
    page.close()


def _wait(browser: Any, link: str, key: str, press: str) -> tuple[float, float]:
    page = browser.new_page(viewport={"width": 1440, "height": 1000})
    page.set_default_timeout(120_000)
    page.goto(link)
    thumb = page.locator(f".st-key-{key}").get_by_role("slider").first
    thumb.wait_for(state="attached")
    page.wait_for_timeout(3000)  # jobs that start by themselves and figures that come late
    page.wait_for_function(SETTLED)
    thumb.focus()
    found = []
    for _ in range(ROUNDS + 1):
        page.evaluate(WAIT)
        page.keyboard.press(press)
        found.append(page.evaluate("() => window.waited"))
        page.wait_for_timeout(300)
    page.close()
    rest = found[1:]  # the first turn fills what a run keeps in memory
    return (
        statistics.median(turn["all"] for turn in rest) / 1000,
        statistics.median(turn["before"] for turn in rest) / 1000,
    )


@contextmanager
def _server(home: Path) -> Iterator[str]:
    server = AppServer(home)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()
        server.log.unlink(missing_ok=True)


if __name__ == "__main__":
    print(json.dumps({"waits": waits}[sys.argv[1]](**json.loads(sys.argv[2]))))
