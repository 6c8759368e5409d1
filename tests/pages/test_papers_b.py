"""The pages Queries, Partitions and Picks without a browser: what they show and offer."""

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
from pages.parts import backstage
from tests.pages.conftest import Open
from tests.synthetic import Synthetic

RUN = "20261121-101112-000000"  # caches know runs by their id
GROUPED = Synthetic(run_id=RUN)
SHORT = Synthetic(run_id="20261121-101112-000003", prompt_length=2, response_length=0)


@pytest.fixture
def grouped(home: Path) -> Synthetic:
    GROUPED.write(home)
    return GROUPED


def words(app: AppTest) -> str:
    """All sentences of a page as they are read."""
    kinds = (app.markdown, app.caption, app.warning, app.error, app.text, app.title)
    text = "\n".join(str(element.value) for kind in kinds for element in kind)
    return text.replace("\\", "").replace("\u200b", "")


def asked() -> list[JobSpec]:
    jobs = backstage.jobs()
    return [jobs.spec(job.id) for job in jobs.jobs()]


def test_a_library_without_runs(home: Path, open_at: Open) -> None:
    app = open_at("queries")
    assert not app.exception
    assert app.title[0].value.endswith("?")


@pytest.mark.parametrize("space", ["queries", "queries and keys"])
def test_queries_and_how_far_to_trust_their_map(
    grouped: Synthetic, open_at: Open, space: str
) -> None:
    app = open_at("queries", run=RUN, space=space)
    assert not app.exception and not app.error and not app.warning
    there = words(app)
    assert "(trustworthiness 0." in there
    if space == "queries":
        assert "8 prompt window, 12 response" in there
        assert "A recorded lookahead" in there
    else:
        assert "52 query, 52 key" in there and ", fit " in there


@pytest.mark.parametrize("by", ["token", "step"])
def test_points_take_every_colour(grouped: Synthetic, open_at: Open, by: str) -> None:
    app = open_at("queries", run=RUN, by=by, head="mean", layer="1", window="4")
    assert not app.exception and not app.error and not app.warning
    assert "layer 1, mean over its heads" in words(app)
    assert "4 prompt window, 12 response" in words(app)


def test_umap_is_a_job_with_its_options(grouped: Synthetic, open_at: Open) -> None:
    app = open_at(
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


def test_a_missing_lookahead_is_recorded_by_a_button(grouped: Synthetic, open_at: Open) -> None:
    app = open_at("queries", run=RUN, drafter="h2o", draft_budget="16", draft_steps="4")
    app.button(key="compute-lookahead").click().run()
    (spec,) = asked()
    assert spec.params["kind"] == "lookahead"
    assert spec.params["spec"] == {"policy": {"key": "h2o", "options": {"budget": 16}}, "steps": 4}


def test_too_few_points_for_umap_are_a_sentence(home: Path, open_at: Open) -> None:
    SHORT.write(home)
    app = open_at("queries", run=SHORT.run_id, map="UMAP")
    assert not app.exception and not app.error
    assert "UMAP needs at least 5 points and these are 2" in words(app)


@pytest.mark.parametrize(("key", "value"), [("window", "0"), ("seed", "x"), ("metric", "none")])
def test_queries_say_what_an_address_got_wrong(
    grouped: Synthetic, open_at: Open, key: str, value: str
) -> None:
    app = open_at("queries", **{"run": RUN, key: value})
    assert not app.exception and not app.error
    assert f"There is no {key} '{value}' here" in words(app)


LAG_PANELS = ["Partitions", "Recursion", "Variants", "What is kept"]


def test_from_one_compression_to_the_next(grouped: Synthetic, open_at: Open) -> None:
    """40 + 12 tokens, 4 sinks, L = 8: 0 to 2 shrink at prefill, 3 and 4 after steps 4 and 12."""
    app = open_at("partitions", run=RUN, S="4", L="8", r="0.25", step="0", lagkv="Recursion")
    assert not app.exception and not app.error and not app.warning
    shrank = "shrank to 2 of 8 entries each"
    assert f"At the end of prefill partition 3 is complete, so partitions 0 to 2 {shrank}" in words(
        app
    )
    assert app.button(key="lag-back").disabled
    app.button(key="lag-next").click().run()
    assert app.slider(key="step").value == 4
    assert f"After step 4 partition 4 is complete, so partition 3 {shrank}" in words(app)
    app.button(key="lag-next").click().run()
    assert app.slider(key="step").value == 12 and app.button(key="lag-next").disabled
    app.button(key="lag-back").click().run()
    assert app.slider(key="step").value == 4


def test_the_length_of_the_cache_after_a_step(grouped: Synthetic, open_at: Open) -> None:
    """40 + 6 tokens, 4 sinks, L = 8: five partitions, four of them compressed to two entries."""
    app = open_at("partitions", run=RUN, S="4", L="8", r="0.25", step="6", layer="1")
    assert not app.exception and not app.error and not app.warning
    expected = 4 + 4 * 2 + 8 + (46 - 4) % 8
    assert f"{expected} of 46 entries per head, the formula gives {expected}" in words(app)
    assert "Partitions of layer 1 after step 6" in words(app)
    app.slider(key="box-r").set_value(0.5).run()
    assert app.query_params["r"] in ("0.5", ["0.5"])
    assert "22 of 46" not in words(app) and f"{4 + 4 * 4 + 8 + 2} of 46" in words(app)


def test_a_partition_is_chosen_by_the_address(grouped: Synthetic, open_at: Open) -> None:
    app = open_at("partitions", run=RUN, S="4", L="8", partition="3", variant="key norm")
    assert not app.exception and not app.error and not app.warning
    assert "Scores of partition 3" in words(app)
    assert "key norm by partitions" in words(app)


def test_the_papers_own_partitions_are_too_long_here(grouped: Synthetic, open_at: Open) -> None:
    app = open_at("partitions", run=RUN, L="128")
    assert not app.exception and not app.error
    assert "takes at least S + 2L = 272 tokens" in words(app)


def test_a_layer_in_a_sliding_window_is_a_sentence(home: Path, open_at: Open) -> None:
    run = "20261121-101112-0000aa"
    Synthetic(run_id=run, sliding_window=(8, None)).write(home)
    for panel in LAG_PANELS:
        app = open_at("partitions", run=run, layer="0", lagkv=panel)
        assert not app.exception and not app.error
        assert "attends within a sliding window of 8 tokens" in words(app)


def test_position_schemes_are_run_for_real_by_one_button(grouped: Synthetic, open_at: Open) -> None:
    app = open_at("picks", run=RUN, sage="Sliding window", budget="16")
    assert not app.exception and not app.error and not app.warning
    app.button(key="ask-drift").click().run()
    wanted = [spec.params["spec"]["policy"]["options"] for spec in asked()]
    assert sorted(options.get("positions", "absolute") for options in wanted) == [
        "absolute", "cache",
    ]  # fmt: skip


def test_the_partition_by_hand(grouped: Synthetic, open_at: Open) -> None:
    """B = 16, G = 2: S = 4, k = 4 for each of two heads, R = 16 - 4 - 8 = 4."""
    app = open_at("picks", run=RUN, budget="16", layer="1", head="3", step="2")
    assert not app.exception and not app.error and not app.warning
    there = words(app)
    assert "4 sinks, 4 picks for each of 2 query heads, 4 recent and the last token" in there
    assert "31 candidates" in there and "G = 2" in there
    # sinks, the head's own picks, and the window of R + 1 after two more tokens
    assert f"{4 + 4 + 5} of 42 tokens after step 2 in layer 1, query head 3" in there


def test_a_budget_beyond_the_prompt_selects_nothing(grouped: Synthetic, open_at: Open) -> None:
    app = open_at("picks", run=RUN, budget="48")
    assert not app.exception and not app.error
    assert "Nothing is selected: 40 prompt tokens fit a budget of 48" in words(app)
    assert "so nothing is picked" in words(app)


def test_the_mean_of_another_page_leads_to_a_head(grouped: Synthetic, open_at: Open) -> None:
    for page in ("picks", "partitions"):
        app = open_at(page, run=RUN, layer="mean", head="mean", step="-3")
        assert not app.exception and not app.error and not app.warning
        assert app.selectbox(key="layer").value == str(grouped.first_look()[0])
        assert app.slider(key="step").value == 0


def test_a_kv_head_leads_to_its_query_heads(grouped: Synthetic, open_at: Open) -> None:
    other = 1 - grouped.first_look()[1] // 2
    app = open_at("picks", run=RUN, kv_head=str(other))
    assert int(app.selectbox(key="head").value) // 2 == other


def test_budgets_of_a_long_run_are_measured_by_a_job(
    grouped: Synthetic, open_at: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analysis.retained.DIRECT_CELLS", 0)
    st.cache_data.clear()
    st.cache_resource.clear()
    app = open_at("picks", run=RUN, sage="Over budgets", layer="1")
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
