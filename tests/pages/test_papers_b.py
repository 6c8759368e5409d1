"""The pages Queries, Partitions and Picks without a browser, over three kinds of captures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from analysis.heavy import run
from analysis.picks import retained
from analysis.retained import stored_retained
from backend.jobs import JobSpec
from pages.parts import backstage, sitemap
from tests.pages.conftest import ROOT, Open
from tests.synthetic import Synthetic

RUNS = [f"20261121-101112-00000{number}" for number in range(4)]  # caches know runs by their id
RUN = RUNS[0]
CAPTURES = {
    "grouped": Synthetic(run_id=RUN),
    "ungrouped": Synthetic(run_id=RUNS[1], layers=1, kv_heads=4, prompt_length=30),
    "one token": Synthetic(run_id=RUNS[2], prompt_length=12, response_length=1),
    "no response": Synthetic(run_id=RUNS[3], prompt_length=2, response_length=0),
}


@pytest.fixture(params=CAPTURES)
def made(request: pytest.FixtureRequest, home: Path) -> Synthetic:
    made = CAPTURES[request.param]
    made.write(home)
    return made


@pytest.fixture
def grouped(home: Path) -> Synthetic:
    CAPTURES["grouped"].write(home)
    return CAPTURES["grouped"]


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a page at an address, as a cold link does."""

    def open_page(page: str, /, **query: str | list[str]) -> AppTest:
        monkeypatch.setattr(sitemap, "FIRST_PAGE", f"pages/{page}.py")
        app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
        for key, value in query.items():
            app.query_params[key] = value
        return app.run()

    return open_page


def words(app: AppTest) -> str:
    """All sentences of a page as they are read."""
    kinds = (app.markdown, app.caption, app.warning, app.error, app.text, app.title)
    text = "\n".join(str(element.value) for kind in kinds for element in kind)
    return text.replace("\\", "").replace("\u200b", "")


def asked() -> list[JobSpec]:
    jobs = backstage.jobs()
    return [jobs.spec(job.id) for job in jobs.jobs()]


def test_a_library_without_runs(home: Path, open_page: Open) -> None:
    app = open_page("queries")
    assert not app.exception
    assert app.title[0].value.endswith("?")


@pytest.mark.parametrize("space", ["queries", "queries and keys"])
def test_queries_of_any_capture(made: Synthetic, open_page: Open, space: str) -> None:
    app = open_page("queries", run=made.run_id, space=space)
    assert not app.exception and not app.error and not app.warning
    there = words(app)
    assert "trustworthiness" in there
    if space == "queries":
        window = min(8, made.prompt_length)
        assert f"{window} prompt window, {made.response_length} response" in there
        assert "A recorded lookahead" in there
    else:
        assert f"{made.length} query, {made.length} key" in there


@pytest.mark.parametrize("by", ["token", "step"])
def test_points_take_every_colour(grouped: Synthetic, open_page: Open, by: str) -> None:
    app = open_page("queries", run=RUN, by=by, head="mean", layer="1", window="4")
    assert not app.exception and not app.error and not app.warning
    assert "layer 1, mean over its heads" in words(app)
    assert "4 prompt window, 12 response" in words(app)


def test_umap_is_a_job_with_its_options(grouped: Synthetic, open_page: Open) -> None:
    app = open_page(
        "queries", run=RUN, map="UMAP", layer="1", head="2", neighbours="7", metric="cosine"
    )
    assert not app.exception and not app.error
    app.button(key="compute-projection").click().run()
    (spec,) = asked()
    assert spec.params["kind"] == "projection"
    wanted = spec.params["spec"]
    assert (wanted["method"], wanted["layer"], wanted["head"]) == ("umap", 1, 2)
    assert wanted["options"] == {
        "window": 8, "neighbours": 7, "distance": 0.1, "metric": "cosine", "seed": 0
    }  # fmt: skip


def test_a_missing_lookahead_is_recorded_by_a_button(grouped: Synthetic, open_page: Open) -> None:
    app = open_page("queries", run=RUN, drafter="h2o", draft_budget="16", draft_steps="4")
    app.button(key="compute-lookahead").click().run()
    (spec,) = asked()
    assert spec.params["kind"] == "lookahead"
    assert spec.params["spec"] == {"policy": {"key": "h2o", "options": {"budget": 16}}, "steps": 4}


def test_too_few_points_for_umap_are_a_sentence(home: Path, open_page: Open) -> None:
    CAPTURES["no response"].write(home)
    app = open_page("queries", run=RUNS[3], map="UMAP")
    assert not app.exception and not app.error
    assert "UMAP needs at least 5 points and these are 2" in words(app)


@pytest.mark.parametrize(("key", "value"), [("window", "0"), ("seed", "x"), ("metric", "none")])
def test_queries_say_what_an_address_got_wrong(
    grouped: Synthetic, open_page: Open, key: str, value: str
) -> None:
    app = open_page("queries", **{"run": RUN, key: value})
    assert not app.exception and not app.error
    assert f"There is no {key} '{value}' here" in words(app)


LAG_PANELS = ["Partitions", "Recursion", "Variants", "What is kept"]


@pytest.mark.parametrize("panel", LAG_PANELS)
def test_partitions_of_any_capture(made: Synthetic, open_page: Open, panel: str) -> None:
    app = open_page("partitions", run=made.run_id, lagkv=panel)
    assert not app.exception and not app.error and not app.warning
    if made.length < 16 + 2 * 4:
        assert "Nothing is evicted" in words(app)


def test_the_length_of_the_cache_after_a_step(grouped: Synthetic, open_page: Open) -> None:
    """40 + 6 tokens, 4 sinks, L = 8: five partitions, four of them compressed to two entries."""
    app = open_page("partitions", run=RUN, S="4", L="8", r="0.25", step="6", layer="1")
    assert not app.exception and not app.error and not app.warning
    expected = 4 + 4 * 2 + 8 + (46 - 4) % 8
    assert f"{expected} of 46 entries per head, the formula gives {expected}" in words(app)
    assert "Partitions of layer 1 after step 6" in words(app)
    app.slider(key="box-r").set_value(0.5).run()
    assert app.query_params["r"] in ("0.5", ["0.5"])
    assert "22 of 46" not in words(app) and f"{4 + 4 * 4 + 8 + 2} of 46" in words(app)


def test_a_partition_is_chosen_by_the_address(grouped: Synthetic, open_page: Open) -> None:
    app = open_page("partitions", run=RUN, S="4", L="8", partition="3", variant="key norm")
    assert not app.exception and not app.error and not app.warning
    assert "Scores of partition 3" in words(app)
    assert "key norm by partitions" in words(app)


def test_the_papers_own_partitions_are_too_long_here(grouped: Synthetic, open_page: Open) -> None:
    app = open_page("partitions", run=RUN, L="128")
    assert not app.exception and not app.error
    assert "takes at least S + 2L = 272 tokens" in words(app)


def test_a_layer_in_a_sliding_window_is_a_sentence(home: Path, open_page: Open) -> None:
    run = "20261121-101112-0000aa"
    Synthetic(run_id=run, sliding_window=(8, None)).write(home)
    for panel in LAG_PANELS:
        app = open_page("partitions", run=run, layer="0", lagkv=panel)
        assert not app.exception and not app.error
        assert "attends within a sliding window of 8 tokens" in words(app)


SAGE_PANELS = ["Picks", "Overlap", "Sliding window", "Over budgets"]


@pytest.mark.parametrize("panel", SAGE_PANELS)
def test_picks_of_any_capture(made: Synthetic, open_page: Open, panel: str) -> None:
    app = open_page("picks", run=made.run_id, sage=panel, budget="1")
    assert not app.exception and not app.error and not app.warning
    if panel == "Over budgets" and made.response_length == 0:
        assert "Nothing was generated in this run" in words(app)


def test_the_partition_by_hand(grouped: Synthetic, open_page: Open) -> None:
    """B = 16, G = 2: S = 4, k = 4 for each of two heads, R = 16 - 4 - 8 = 4."""
    app = open_page("picks", run=RUN, budget="16", layer="1", head="3", step="2")
    assert not app.exception and not app.error and not app.warning
    there = words(app)
    assert "4 sinks, 4 picks for each of 2 query heads, 4 recent and the last token" in there
    assert "31 candidates" in there and "G = 2" in there
    # sinks, the head's own picks, and the window of R + 1 after two more tokens
    assert f"{4 + 4 + 5} of 42 tokens after step 2 in layer 1, query head 3" in there


def test_a_budget_beyond_the_prompt_selects_nothing(grouped: Synthetic, open_page: Open) -> None:
    app = open_page("picks", run=RUN, budget="48")
    assert not app.exception and not app.error
    assert "Nothing is selected: 40 prompt tokens fit a budget of 48" in words(app)
    assert "so nothing is picked" in words(app)


def test_the_mean_of_another_page_leads_to_a_head(grouped: Synthetic, open_page: Open) -> None:
    for page in ("picks", "partitions"):
        app = open_page(page, run=RUN, layer="mean", head="mean", step="-3")
        assert not app.exception and not app.error and not app.warning
        assert app.selectbox(key="layer").value == str(grouped.first_look()[0])
        assert app.slider(key="step").value == 0


def test_a_kv_head_leads_to_its_query_heads(grouped: Synthetic, open_page: Open) -> None:
    other = 1 - grouped.first_look()[1] // 2
    app = open_page("picks", run=RUN, kv_head=str(other))
    assert int(app.selectbox(key="head").value) // 2 == other


def test_budgets_of_a_long_run_are_measured_by_a_job(
    grouped: Synthetic, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analysis.retained.DIRECT_CELLS", 0)
    st.cache_data.clear()
    st.cache_resource.clear()
    app = open_page("picks", run=RUN, sage="Over budgets", layer="1")
    assert not app.exception and not app.error
    app.button(key="compute-retained").click().run()
    (spec,) = asked()
    assert (spec.params["kind"], spec.params["spec"]["layer"]) == ("retained", 1)

    at_once = retained(backstage.capture(RUN), 1, [8, 20], method="streaming_llm")
    wanted = {"layer": 1, "budgets": [8, 20]}
    home = backstage.home()
    run({"run_id": RUN, "kind": "retained", "spec": wanted}, home, lambda _: None, lambda: False)
    stored = stored_retained(backstage.capture(RUN), 1, [8, 20])["StreamingLLM"]
    np.testing.assert_array_equal(stored.mass, at_once.mass)
    np.testing.assert_array_equal(stored.error, at_once.error)
