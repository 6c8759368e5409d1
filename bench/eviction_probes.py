"""How long the Eviction page takes: `python -m bench.eviction_probes interactions '{…}'`."""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.probes import prepared

APP = str(Path(__file__).resolve().parents[1] / "app.py")
PANELS = ("Masks", "Text", "Evidence", "Why and what it cost")


def interactions(tokens: int = 4096, new_tokens: int = 256, rounds: int = 3) -> dict[str, Any]:
    """The four default policies, all replayed: median seconds of the server's work in each panel
    after another step, layer or head was chosen."""
    from backend.capture import capture

    with prepared("demo", tokens, new_tokens) as (loaded, spec, home):
        run_id = capture(spec, home, loaded=loaded)
        replay_defaults(home, run_id)
        return {"seconds": {panel: _panel(home, run_id, panel, rounds) for panel in PANELS}}


def replay_defaults(home: Path, run_id: str) -> None:
    """The page's default policies with its own budget, their oracles and random references."""
    from analysis.costs import oracle_choice, random_choice
    from analysis.replays import replayed
    from backend.derive import derive
    from cache_store.reader import Capture
    from pages.parts.policy_slots import DEFAULT

    with Capture.open(home / run_id / "capture.duckdb") as run:
        budget = run.info.prompt_length // 4  # the page's own
        for key in DEFAULT:
            choice: dict[str, Any] = {"key": key, "options": {"budget": budget}}
            derive(home, run_id, "replay", {"policy": choice})
            realised = replayed(run, choice).facts["realised_budget"]
            for reference in (oracle_choice, random_choice):
                derive(home, run_id, "replay", {"policy": reference(choice, realised)})


def _panel(home: Path, run_id: str, panel: str, rounds: int) -> float:
    import torch
    from streamlit.testing.v1 import AppTest

    from backend.jobs import Jobs
    from pages.parts import backstage, sitemap

    torch.set_num_threads(1)  # as the app does
    os.environ["KVSCOPE_HOME"] = str(home)
    with (
        patch.object(backstage, "Jobs", functools.partial(Jobs, workers=False)),
        patch.object(sitemap, "FIRST_PAGE", "pages/eviction.py"),
        patch("backend.first_start.samples", lambda: ()),
    ):
        app = AppTest.from_file(APP, default_timeout=120)
        for name, words in {"run": run_id, "panel": panel, "span": "100-107"}.items():
            app.query_params[name] = words
        app.run()
        missing = [button.key for button in app.button if str(button.key).startswith("ask")]
        if app.exception or missing:
            raise RuntimeError(f"the panel {panel} does not show its figures: {missing}")
        times = []
        for turn in range(1, rounds + 1):
            for key, value in (("step", 40 * turn), ("layer", turn % 4), ("kv_head", turn % 4)):
                if key == "step":
                    app.slider(key=key).set_value(value)
                else:
                    app.selectbox(key=key).select(str(value))
                start = time.perf_counter()
                app.run()
                times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    print(json.dumps({"interactions": interactions}[sys.argv[1]](**json.loads(sys.argv[2]))))
