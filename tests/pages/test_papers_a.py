"""Recurrence, Recall and Budgets without a browser: what they show, and their addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from cache_store.writer import DerivedWriter
from kvpolicies.choice import canonical
from pages.parts import backstage
from tests.pages.conftest import Open
from tests.pages.plots import plots
from tests.synthetic import Synthetic

# Runs of their own: what a server remembers of a run, it remembers for all tests of a process.
SMALL: dict[str, Any] = {"prompt_length": 28, "response_length": 6, "window": 8}
GROUPED = Synthetic(run_id="20261120-111111-00000a", **SMALL)
OTHER = Synthetic(run_id="20261120-111111-00000c", **(SMALL | {"response_length": 1}), seed=4)
PANELS = ("Tokens that come back", "Which window", "The score", "What is evicted")


@pytest.fixture
def made(home: Path) -> Synthetic:
    GROUPED.write(home)
    return GROUPED


def said(app: AppTest) -> str:
    elements = (*app.caption, *app.markdown, *app.warning)
    return "\n".join(str(element.value).replace("\\", "") for element in elements)


def fine(app: AppTest) -> bool:
    return not app.exception and not app.error and not app.warning


def test_every_panel_of_recurrence_shows_something(made: Synthetic, open_at: Open) -> None:
    app = open_at("recurrence", run=made.run_id, alpha="0.05")
    assert app.title[0].value == "Which tokens come back after a silence?"
    for panel in PANELS:
        app.segmented_control(key="recurrence").set_value(panel).run()
        assert fine(app)
        assert plots(app)
        assert app.metric[0].label == "Proposed W"


def test_recall_shows_lines_and_offers_a_draft(made: Synthetic, open_at: Open) -> None:
    asked = {"budgets": ["4", "9"], "b": "7", "start": "0", "drafter": "streaming_llm"}
    app = open_at("recall", run=made.run_id, **asked)
    assert fine(app)
    assert app.title[0].value == "Which queries know what the response will need?"
    assert len(plots(app)) == 3
    assert app.multiselect(key="recall_budgets").value == ["4", "9"]
    assert app.selectbox(key="recall_draft").value == "streaming_llm"
    assert "B = 7, window from 0" in said(app)
    app.button(key="ask-draft").click().run()
    (job,) = backstage.jobs().jobs()
    assert backstage.jobs().spec(job.id).params["kind"] == "lookahead"
    assert fine(app)


def draft(made: Synthetic, home: Path, policy: dict[str, Any], steps: int = 8) -> None:
    """A lookahead as a job would have recorded it."""
    spec = {"policy": canonical(policy), "steps": steps}
    shape = (made.layers, made.query_heads, steps, made.head_dim)
    queries = np.random.default_rng(steps).standard_normal(shape).astype(np.float16)
    texts = [f"w{number} " for number in range(steps)]
    with DerivedWriter(home / made.run_id, "lookahead", spec) as writer:
        writer.add_array("queries", queries)
        writer.add_array("tokens", np.arange(steps))
        writer.add(
            "token", {"step": np.arange(1, steps + 1), "token_id": np.arange(steps), "text": texts}
        )
        writer.finish()


def test_recorded_drafts_are_drawn_compared_and_measured(
    made: Synthetic, home: Path, open_at: Open
) -> None:
    draft(made, home, {"key": "snapkv", "options": {"budget": 7}})
    draft(made, home, {"key": "h2o", "options": {"budget": 3}})
    app = open_at("recall", run=made.run_id, budgets="4", b="7")
    assert fine(app)
    assert len(plots(app)) == 4  # the quality of the drafts as well
    assert "lookahead of 8 on SnapKV, budget 7: “w0 w1" in said(app)
    assert "on H2O" not in said(app)
    app.multiselect(key="recall_compared").set_value(["h2o(budget=3):8"]).run()
    assert fine(app)
    assert "lookahead of 8 on H2O, budget 3: “w0 w1" in said(app)
    assert app.query_params["compared"] == "h2o(budget=3):8"
    # three policies at four budgets, of which SnapKV at a quarter of the prompt is there
    app.button(key="ask-quality").click().run()
    specs = [backstage.jobs().spec(job.id).params["spec"] for job in backstage.jobs().jobs()]
    wanted = {(spec["policy"]["key"], spec["policy"]["options"]["budget"]) for spec in specs}
    sizes = {max(1, 28 // part) for part in (32, 16, 8, 4)}
    everything = {(key, size) for key in ("snapkv", "streaming_llm", "h2o") for size in sizes}
    assert wanted == everything - {("snapkv", 7), ("h2o", 3)}
    assert fine(app)


def test_the_draft_that_was_recorded_first_is_the_one_shown(
    made: Synthetic, home: Path, open_at: Open
) -> None:
    draft(made, home, {"key": "h2o", "options": {"budget": 5}}, steps=4)
    draft(made, home, {"key": "snapkv", "options": {"budget": 7}})
    app = open_at("recall", run=made.run_id)
    assert fine(app) and "lookahead of 4 on H2O, budget 5: “w0 w1" in said(app)
    assert app.number_input(key="recall_draft_budget").value == 5
    app = open_at("recall", run=made.run_id, drafter="snapkv", draft_budget="7", draft_steps="8")
    assert "lookahead of 8 on SnapKV, budget 7: “w0 w1" in said(app)


def test_the_share_that_w_covers_moves_w(made: Synthetic, open_at: Open) -> None:
    app = open_at("recurrence", run=made.run_id, alpha="0.05", recurrence="Which window")
    windows = []
    for share in ("0.5", "0.8", "0.99"):
        app.selectbox(key="share").set_value(share).run()
        assert fine(app)
        windows.append(int(app.metric[0].value.split()[0]))
        covered = f"{100 * float(share):.0f} % have an MRI of at most W = {windows[-1]} steps"
        assert covered in said(app)
    assert windows == sorted(windows)
    assert "counted from first activation" in said(app)


def test_other_task_tokens_are_compared_or_offered(made: Synthetic, open_at: Open) -> None:
    own, other = "prompt's own attention", "second reading's attention"
    app = open_at("budgets", run=made.run_id, versus=[own, other])
    assert fine(app)
    assert f"default: {own} " in said(app)
    assert "A second reading of the context is computed once" in said(app)
    app.button(key="ask-variant-7").click().run()
    (job,) = backstage.jobs().jobs()
    assert backstage.jobs().spec(job.id).params["kind"] == "second_reading"


def test_budgets_follow_the_ratio(made: Synthetic, open_at: Open) -> None:
    app = open_at("budgets", run=made.run_id, ratio="0.5")
    assert fine(app)
    assert app.title[0].value == "How much does each layer deserve to keep?"
    assert len(plots(app)) == 6
    # 20 tokens are context; half of all layers' slots stay
    assert f"{made.layers * 10} slots of 20 per layer" in said(app)
    app.slider(key="compression_ratio").set_value(0.75).run()
    assert f"{made.layers * 5} slots of 20 per layer" in said(app)
    assert app.query_params["ratio"] == "0.75"


def test_alpha_follows_the_slider_into_the_address(home: Path, open_at: Open) -> None:
    made = GROUPED
    made.write(home)
    app = open_at("recurrence", run=made.run_id, alpha="0.0123", step="2", layer="1")
    slider = app.select_slider(key="alpha_number")
    assert slider.value == "0.0123"
    slider.set_value("0.05").run()
    assert app.query_params["alpha"] == "0.05"
    app.button(key="alpha-kind").click().run()
    assert app.query_params["alpha"] == "3/n"
    assert app.select_slider(key="alpha_multiple").value == "3/n"
    assert fine(app)
    assert app.slider(key="step").value == 2
    assert app.selectbox(key="layer").value == "1"


def test_a_total_below_the_floor_is_a_sentence(home: Path, open_at: Open) -> None:
    made = GROUPED
    made.write(home)
    app = open_at("budgets", run=made.run_id, ratio="1")
    assert not app.exception and not app.error
    assert not plots(app)


WRONG = {
    "recurrence": {"alpha": "much", "w": "0", "recurrence": "What is evicted"},
    "recall": {
        "b": "0",
        "start": "-99",
        "budgets": "x",
        "draft_budget": "a",
        "draft_steps": "99",
        "drafter": "x",
    },
    "budgets": {"ratio": "2", "slot": "-1"},
}


@pytest.mark.parametrize("page", WRONG)
def test_an_address_that_cannot_be_says_so(home: Path, open_at: Open, page: str) -> None:
    made = GROUPED
    made.write(home)
    app = open_at(page, run=made.run_id, **WRONG[page], **{"with": "nothing"})
    assert not app.exception and not app.error
    values = len(WRONG[page]) - ("recurrence" in WRONG[page])
    assert len(app.warning) == values + 1


def test_runs_of_one_model_are_pooled(home: Path, open_at: Open) -> None:
    first, second = GROUPED, OTHER
    first.write(home)
    second.write(home)
    for page in ("recurrence", "recall", "budgets"):
        app = open_at(page, run=first.run_id, **{"with": second.run_id})
        assert fine(app)
        assert "2 runs of" in said(app)
