"""How long a slider of the papers' pages takes: `python -m bench.page_probes sliders '{…}'`.

The whole page is run as a browser's session would run it, without one: script, figures, and the
elements that would be sent. A first turn fills what a run keeps in memory; every later value is
one that nobody asked for before.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.probes import prepared

APP = str(Path(__file__).resolve().parents[1] / "app.py")
DRAFT = {"key": "snapkv", "options": {"budget": 1024}}
# page, panel as (key, value), kind of control, its key, and the values it is moved to
SLIDERS: tuple[tuple[str, tuple[str, str], str, str, tuple[Any, ...]], ...] = (
    ("recurrence", ("recurrence", "Tokens that come back"), "select_slider", "alpha_number",
     ("0.0007", "0.001", "0.0015", "0.002")),
    ("recurrence", ("recurrence", "Tokens that come back"), "slider", "step", (200, 150, 100, 50)),
    ("recurrence", ("recurrence", "Which window"), "select_slider", "alpha_number",
     ("0.0003", "0.003", "0.005", "0.007")),
    ("recurrence", ("recurrence", "The score"), "slider", "step", (210, 160, 110, 60)),
    ("recurrence", ("recurrence", "What is evicted"), "select_slider", "alpha_number",
     ("0.0002", "0.00015", "0.00007", "0.01")),
    ("recall", ("over", "all heads"), "slider", "recall_budget", (512, 700, 1500, 2000)),
    ("recall", ("over", "all heads"), "slider", "recall_start", (-4, 0, 2, 5)),
    ("queries", ("space", "queries"), "slider", "step", (200, 150, 100, 50)),
    ("queries", ("space", "queries and keys"), "slider", "step", (205, 155, 105, 55)),
    ("budgets", ("source", "question"), "slider", "compression_ratio", (0.5, 0.6, 0.8, 0.9)),
    ("partitions", ("lagkv", "Partitions"), "slider", "box-r", (0.3, 0.4, 0.5, 0.6)),
    ("partitions", ("lagkv", "Partitions"), "slider", "step", (200, 150, 100, 50)),
    ("partitions", ("lagkv", "What is kept"), "slider", "step", (205, 155, 105, 55)),
    ("picks", ("sage", "Picks"), "slider", "step", (200, 150, 100, 50)),
    ("picks", ("sage", "Sliding window"), "slider", "step", (205, 155, 105, 55)),
)  # fmt: skip


def with_question(spec: Any) -> Any:
    """The same prompt with a question of a few tokens, so that every source of task tokens is
    there."""
    cut = len(spec.context) - 80
    return replace(spec, context=spec.context[:cut], question=spec.context[cut:])


def sliders(tokens: int, new_tokens: int) -> dict[str, Any]:
    """Median seconds of server work for each of SLIDERS."""
    import torch
    from streamlit.runtime.pages_manager import PagesManager
    from streamlit.testing.v1 import AppTest

    from backend.capture import capture
    from backend.jobs import Jobs
    from backend.passes import lookahead_spec, record_pass
    from pages.parts import backstage, sitemap

    made = PagesManager.__init__

    def named(self: PagesManager, *arguments: Any, **options: Any) -> None:
        """A test of the app forgets before every run that `app.py` names the pages."""
        made(self, *arguments, **options)
        PagesManager.uses_pages_directory = False

    with prepared("demo", tokens, new_tokens) as (loaded, spec, home):
        run_id = capture(with_question(spec), home, loaded=loaded)
        record_pass(home, run_id, "lookahead", lookahead_spec(DRAFT, 8), loaded=loaded)
        os.environ["KVSCOPE_HOME"] = str(home)
        torch.set_num_threads(1)  # as the app does
        seconds: dict[str, float] = {}
        with (
            patch.object(PagesManager, "__init__", named),
            patch.object(backstage, "Jobs", functools.partial(Jobs, workers=False)),
            patch("backend.first_start.samples", lambda: ()),
        ):
            for page, (panel_key, panel), kind, key, values in SLIDERS:
                with patch.object(sitemap, "FIRST_PAGE", f"pages/{page}.py"):
                    app = AppTest.from_file(APP, default_timeout=600)
                    app.query_params["run"] = run_id
                    app.query_params[panel_key] = panel
                    app.run()
                    times = []
                    for value in values:
                        control = getattr(app, kind)(key=key).set_value(value)
                        start = time.perf_counter()
                        control.run()
                        times.append(time.perf_counter() - start)
                    problems = [str(found.value) for found in (*app.exception, *app.error)]
                    if problems:
                        raise RuntimeError(f"{page}, {panel}, {key}: {problems[0]}")
                    seconds[f"{page}, {panel}, {key}"] = statistics.median(times)
    return {"seconds": max(seconds.values()), "each": seconds}


if __name__ == "__main__":
    print(json.dumps({"sliders": sliders}[sys.argv[1]](**json.loads(sys.argv[2]))))
