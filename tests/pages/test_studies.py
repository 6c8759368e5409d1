"""The Studies page without a browser: the form, its counts, a hand-made study, its figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from backend.jobs import Jobs
from backend.study.spec import StudySpec
from backend.study.work import make_study, study_job
from cache_store import study_files
from cache_store.study import TIMINGS
from pages.parts import backstage
from tests.pages.conftest import HOSTILE, Open
from tests.pages.plots import plots

SPEC: dict[str, Any] = {
    "title": "A small study",
    "ratios": [0.5, 0.9],
    "measures": ["score", "agreement", "latency"],
    "tasks": [{"task": "passkey", "count": 1, "options": {"length": [100, 200], "depth": [0, 1]}}],
    "policies": [
        {"policy": "snapkv"},
        {"policy": "snapkv", "options": {"window": 8}},
        {"policy": "streaming_llm"},
    ],
}


def made(
    home: Path, finished: int, title: str = SPEC["title"], values: Mapping[str, Any] = SPEC
) -> str:
    """A study of four prompts, `finished` of which have rows: SnapKV finds every second one."""
    given = {name: value for name, value in values.items() if value is not None}
    spec = StudySpec.from_dict({**given, "title": title})
    study_id = make_study(home, spec)
    folder = study_files.study_folder(home, study_id)
    examples = [
        {
            "example_id": f"passkey-{i}",
            "task": "passkey",
            "context": f"The passkey is 12345. {HOSTILE}",
            "question": "\nQuestion: What is the passkey?\nAnswer:",
            "answers": '["12345"]',
            "scoring": "digit_share",
            "max_new_tokens": 8,
            "facts": json.dumps({"length": 100 * (1 + i // 2), "depth": i % 2}),
        }
        for i in range(4)
    ]
    study_files.write_examples(folder, examples)
    for index in range(finished):
        rows = [_row(spec, cell, examples[index], index) for cell in spec.cells()]
        study_files.write_part(folder, index, rows)
    if finished == 4:
        study_files.merge(folder)
    return study_id


def _row(spec: StudySpec, cell: Any, example: dict[str, Any], index: int) -> dict[str, Any]:
    full = cell.policy is None
    score = 1.0 if full or (cell.policy.key == "snapkv" and index % 2 == 0) else 0.0
    return {
        "example_id": example["example_id"],
        "task": "passkey",
        "policy": "Full cache" if full else cell.policy.name,
        "policy_key": "full" if full else cell.policy.key,
        "options": "{}" if full else json.dumps(dict(cell.policy.choice["options"])),
        "ratio": cell.ratio or 0.0,
        "budget": cell.budget,
        "repeat": 0,
        "response": f" {HOSTILE}",
        "score": score,
        "agreement": score,
        "cache_bytes": 1e6 * (1 - (cell.ratio or 0)),
        "peak_bytes": 1.1e6 * (1 - (cell.ratio or 0)),
        "prompt_tokens": 100,
        "response_tokens": 8,
        "simulated": False,
        "error": "Out of memory." if index == 1 and not full else None,
        "depth": float(index % 2),
        "length": 100 * (1 + index // 2),
        "facts": example["facts"],
        "seed": spec.seed,
        **dict.fromkeys(TIMINGS, 2.0),
    }


def said(app: AppTest) -> str:
    elements = (*app.caption, *app.markdown, *app.warning, *app.text, *app.error)
    return "\n".join(str(element.value).replace("\\", "") for element in elements)


def fine(app: AppTest) -> bool:
    return not app.exception and not app.error and not app.warning


def test_the_form_counts_what_it_will_run(home: Path, open_at: Open) -> None:
    app = open_at("studies")
    assert fine(app)
    assert app.title[0].value == "What does compression cost, over many prompts?"
    # one task of 6 prompts; the full cache and 5 policies at 3 ratios: 16 cells
    values = [element.value for element in app.text]
    assert values[:3] == ["6", "16", "96"]
    ids = {button.key for button in app.button}
    assert "study-start" in ids


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("0.5, half", "Sizes: 'half' is not a number: write them as 0.25, 0.5."),
        ("-1", "Sizes holds -1: give shares evicted, from 0 to below 1, such as 0.5, 0.75, 0.9."),
        (
            "0.5, 2",
            "Sizes holds 2: give shares evicted, from 0 to below 1, such as 0.5, 0.75, 0.9.",
        ),
        (" ", "There are no sizes: write them as 0.5, 0.75, 0.9."),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_starts(
    home: Path, open_at: Open, typed: str, sentence: str
) -> None:
    app = open_at("studies")
    sizes = next(element for element in app.text_input if element.label == "Sizes")
    sizes.set_value(typed).run()
    assert [e.value.replace("\\", "") for e in app.error] == [sentence]
    assert app.button(key="study-start").disabled


def test_a_study_that_measures_nothing_is_refused(home: Path, open_at: Open) -> None:
    app = open_at("studies")
    app.button_group[0].set_value([]).run()
    assert "measures nothing" in app.error[0].value
    assert app.button(key="study-start").disabled


def test_lengths_beyond_the_models_context_are_refused(home: Path, open_at: Open) -> None:
    app = open_at("studies")
    length = next(element for element in app.text_input if element.label == "Length")
    length.set_value("600, 5000").run()
    assert "exceed the model's context of 4,096" in app.error[0].value.replace("\\", "")
    assert app.button(key="study-start").disabled


def use_text(app: AppTest, text: str) -> None:
    next(area for area in app.text_area if area.label == "Specification").set_value(text).run()
    app.button(key="study-use-text").click().run()


def test_a_set_that_is_named_before_it_is_there(home: Path, open_at: Open) -> None:
    text = """model = "demo"
ratios = [0.5]
tasks = [{ set = "mine.jsonl" }, { set = "other.jsonl", count = 20 }]
policies = [{ policy = "snapkv" }]
"""
    app = open_at("studies")
    use_text(app, text)
    assert not app.exception
    assert app.error[0].value.replace("\\", "") == (
        "The set 'mine.jsonl' is missing: give its file."
    )
    assert app.button(key="study-start").disabled and "This file is not here" in said(app)
    rows = [
        {"context": f"Text {number}.", "question": "?", "answers": ["x"]} for number in range(3)
    ]
    lines = "\n".join(json.dumps(row) for row in rows).encode()
    app.session_state["study_sets"] = {"mine.jsonl": lines, "other.jsonl": lines}
    app.run()
    assert not app.exception and not app.error
    fields = [field for field in app.number_input if field.label == "Prompts, of 3"]
    assert [field.value for field in fields] == [3, 3]  # all of them, and not more than there are
    assert "Scored by F1; answers of at most 128 tokens." in said(app).replace("\\", "")
    shorter = json.dumps(rows[0]).encode()
    app.session_state["study_sets"] = {"mine.jsonl": shorter, "other.jsonl": lines}
    app.run()
    assert not app.exception and not app.error
    assert [field.value for field in app.number_input if field.label == "Prompts, of 1"] == [1]


def test_as_many_prompts_as_a_specification_may_have(home: Path, open_at: Open) -> None:
    app = open_at("studies")
    text = """model = "demo"
ratios = [0.5]
tasks = [{ task = "passkey", count = 200000, options = { length = [200] } }]
policies = [{ policy = "snapkv" }]
"""
    use_text(app, text)
    assert not app.exception
    assert [field.value for field in app.number_input if field.label == "Prompts"] == [200_000]


def test_a_study_starts_as_a_job_and_shows_itself(home: Path, open_at: Open) -> None:
    app = open_at("studies")
    app.button(key="study-start").click().run()
    assert not app.exception and not app.error
    study_id = app.query_params["study"]
    study_id = study_id[0] if isinstance(study_id, list) else study_id
    jobs: Jobs = backstage.jobs()
    assert study_job(home, study_id).id in {job.id for job in jobs.jobs()}
    assert "The first figures appear when the first prompt is finished." in said(app)
    app.button(key="study-pause").click().run()
    assert "paused" in jobs.get(study_job(home, study_id).id).status
    app.button(key="study-resume").click().run()
    assert not jobs.get(study_job(home, study_id).id).finished


@pytest.mark.parametrize("finished", [1, 4])
def test_every_panel_shows_something(home: Path, open_at: Open, finished: int) -> None:
    study_id = made(home, finished)
    app = open_at("studies", study=study_id)
    for panel in ("Score", "Needles", "Bytes", "Time", "Differences", "Options"):
        app.segmented_control(key="study_show").set_value(panel).run()
        assert fine(app), (panel, app.exception, app.error)
        assert plots(app), panel


def test_failures_are_listed_with_their_reasons(home: Path, open_at: Open) -> None:
    app = open_at("studies", study=made(home, 4))
    reasons = next(frame.value for frame in app.dataframe if "reason" in frame.value)
    assert set(reasons["reason"]) == {"Out of memory."}
    assert reasons["rows"].tolist() == [2, 2, 2]


def test_a_prompt_shows_both_responses_and_can_be_captured(home: Path, open_at: Open) -> None:
    study_id = made(home, 4)
    app = open_at(
        "studies", study=study_id, study_show="Prompts", study_policy="SnapKV", example="passkey-0"
    )
    assert fine(app)
    assert "reference: 12345" in said(app)
    app.button(key="study-capture").click().run()
    assert fine(app)
    job = next(job for job in backstage.jobs().jobs() if job.kind == "capture")
    assert job.title == "passkey-0 of A small study"
    spec = backstage.jobs().spec(job.id).params["spec"]
    assert spec["context"].startswith("The passkey is 12345.") and spec["max_new_tokens"] == 8


def test_a_capture_belongs_to_its_own_study(home: Path, open_at: Open) -> None:
    first, second = (made(home, 4, values={**SPEC, "seed": seed}) for seed in (1, 2))
    at = {"study_show": "Prompts", "study_policy": "SnapKV", "example": "passkey-0"}
    open_at("studies", study=first, **at).button(key="study-capture").click().run()
    asked = open_at("studies", study=first, **at)
    assert "The prompt is being captured" in said(asked)
    assert "study-capture" not in [button.key for button in asked.button]
    other = open_at("studies", study=second, **at)
    assert "The prompt is being captured" not in said(other)
    other.button(key="study-capture").click().run()
    assert fine(other)
    captures = [job for job in backstage.jobs().jobs() if job.kind == "capture"]
    assert len(captures) == 2


def test_a_needle_cell_shows_its_own_prompts(home: Path, open_at: Open) -> None:
    study_id = made(home, 4)
    at = {"study": study_id, "study_show": "Prompts", "study_policy": "SnapKV"}
    app = open_at("studies", **at, study_depth="100%", study_length="200")
    assert fine(app)
    assert "fact at 100%, 200 tokens" in said(app)
    assert list(app.dataframe[-1].value["example_id"]) == ["passkey-3"]
    app.button(key="study-cell-forget").click().run()
    assert fine(app)
    assert len(app.dataframe[-1].value) == 4


def test_some_of_the_policies_are_drawn(home: Path, open_at: Open) -> None:
    app = open_at("studies", study=made(home, 4), study_show="Needles")
    assert len(plots(app)) == 4  # the full cache and three policies
    app.multiselect(key="study_policies").set_value(["SnapKV"]).run()
    assert fine(app)
    assert len(plots(app)) == 2


def test_a_run_that_is_captured_for_laq_has_its_lookahead(home: Path, open_at: Open) -> None:
    spec = {**SPEC, "policies": [{"policy": "laq"}], "ratios": None, "budgets": [24]}
    study_id = made(home, 4, values=spec)
    at = {"study": study_id, "study_show": "Prompts", "study_policy": "LAQ"}
    app = open_at("studies", **at, example="passkey-0")
    app.button(key="study-capture").click().run()
    assert fine(app)
    job = next(job for job in backstage.jobs().jobs() if job.kind == "capture")
    asked = backstage.jobs().spec(job.id).params["spec"]
    assert asked["lookaheads"] == ["snapkv(budget=24)"] and asked["lookahead_steps"] == 8


def test_cloning_fills_the_form_with_the_study(home: Path, open_at: Open) -> None:
    app = open_at("studies", study=made(home, 4, HOSTILE))
    assert not app.exception
    app.button(key="study-clone").click().run()
    assert fine(app)
    title = next(element.value for element in app.text_input if element.label == "Title")
    assert title == f"{HOSTILE}, changed"
    values = [element.value for element in app.text]
    assert values[:3] == ["4", "7", "28"]  # 2 lengths × 2 depths; 1 + 3 policies × 2 ratios


def test_an_unknown_study_is_said(home: Path, open_at: Open) -> None:
    app = open_at("studies", study="0123456789abcdef")
    assert not app.exception
    assert "no study" in said(app)


def test_a_specification_can_be_pasted(home: Path, open_at: Open) -> None:
    app = open_at("studies")
    area = app.text_area[0]
    area.set_value(StudySpec.from_dict({**SPEC, "title": "Pasted"}).to_toml()).run()
    app.button(key="study-use-text").click().run()
    assert fine(app)
    assert [e.value for e in app.text][:3] == ["4", "7", "28"]
    app.text_area[0].set_value("title = ").run()
    app.button(key="study-use-text").click().run()
    assert "not TOML" in said(app)
