"""Recurrence, Recall and Budgets over several runs: what is pooled, counted, and left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from analysis.figure import Figure
from pages.parts import backstage, drawn
from tests.pages.conftest import Open
from tests.pages.test_papers_a import draft, fine, said
from tests.synthetic import Synthetic

# Runs of their own: what a server remembers of a run, it remembers for all tests of a process.
SMALL: dict[str, Any] = {"prompt_length": 28, "response_length": 6, "window": 8}
FIRST, SECOND, THIRD, SILENT, STRANGER = (
    Synthetic(run_id=f"20261121-131313-00000{seed}", title=title, seed=seed, **SMALL | changes)
    for seed, (title, changes) in enumerate(
        {
            "first": {},
            "second": {"prompt_length": 20},
            "third": {"response_length": 9},
            "silent": {"response_length": 0},
            "stranger": {"query_heads": 2},
        }.items()
    )
)
SAME = (FIRST, SECOND, THIRD)
# page -> what its address holds, and the figures that pool; a star has a band
POOLING: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "recurrence": (
        {"recurrence": "Which window", "alpha": "0.05"},
        ("mri-histogram", "mri-cdf*", "mri-share", "mri-window"),
    ),
    "recall": ({"budgets": "4", "b": "7"}, ("recall*", "recall-grid", "recall-length*")),
    "budgets": (
        {"ratio": "0.5"},
        ("layer-budgets*", "over-ratios", "splits*", "head-budgets", "operators"),
    ),
}
pages = pytest.mark.parametrize("page", POOLING)


@pytest.fixture
def library(home: Path) -> Path:
    for made in (*SAME, SILENT, STRANGER):
        made.write(home)
    return home


def figures(open_at: Open, page: str, *runs: Synthetic) -> tuple[AppTest, dict[str, Figure]]:
    """The page over the runs, and its figures by the key of their card."""
    with drawn.listening() as seen:
        app = open_at(page, run=runs[0].run_id, **POOLING[page][0], **addressed(*runs[1:]))
    return app, {key: figure for key, (figure, _) in seen.figures.items()}


def addressed(*runs: Synthetic) -> dict[str, Any]:
    return {"with": [made.run_id for made in runs]} if runs else {}


@pages
@pytest.mark.parametrize("many", [2, 3])
def test_every_figure_says_how_many_runs_it_pools(
    library: Path, open_at: Open, page: str, many: int
) -> None:
    app, shown = figures(open_at, page, *SAME[:many])
    assert fine(app)
    for name in POOLING[page][1]:
        figure = shown[name.rstrip("*")]
        assert f"{many} runs of " in figure.caption, name
        assert ("low" in figure.arrays and "band: " in figure.caption) == name.endswith("*"), name
        assert figure.provenance["runs"] == [made.run_id for made in SAME[:many]]


@pytest.mark.parametrize(
    ("page", "name"),
    [("recurrence", "mri-share"), ("recurrence", "mri-window"), ("recall", "recall-grid")],
)
def test_a_grid_is_the_mean_of_the_runs_grids(
    library: Path, open_at: Open, page: str, name: str
) -> None:
    alone = [figures(open_at, page, made)[1][name].arrays["z"] for made in SAME]
    _, shown = figures(open_at, page, *SAME)
    np.testing.assert_allclose(shown[name].arrays["z"], np.nanmean(alone, axis=0), atol=1e-6)


def test_intervals_of_all_runs_are_counted_together(library: Path, open_at: Open) -> None:
    alone = [figures(open_at, "recurrence", made)[1]["mri-histogram"].arrays["y"] for made in SAME]
    _, shown = figures(open_at, "recurrence", *SAME)
    total = shown["mri-histogram"].arrays["y"]
    expected = np.zeros(max(part.shape[1] for part in alone))
    for part in alone:
        expected[: part.shape[1]] += part[0]
    assert total[0].tolist() == expected.tolist()


def test_heads_keep_the_mean_of_their_shares(library: Path, open_at: Open) -> None:
    contexts = {made.run_id: made.segments.count("context") for made in SAME}
    assert [*contexts.values()] == [20, 12, 20]
    alone = [
        figures(open_at, "budgets", made)[1]["head-budgets"].arrays["z"] / contexts[made.run_id]
        for made in SAME
    ]
    _, shown = figures(open_at, "budgets", *SAME)
    np.testing.assert_allclose(shown["head-budgets"].arrays["z"], np.mean(alone, axis=0), atol=1e-6)
    assert shown["over-ratios"].arrays["y"].sum(axis=0)[[0, 25]].tolist() == [1.0, 0.5]


@pages
def test_only_runs_that_can_be_pooled_are_offered(library: Path, open_at: Open, page: str) -> None:
    app = open_at(page, run=FIRST.run_id, **POOLING[page][0])
    offered = app.multiselect(key="pooled_runs").options
    expected = ["second", "third"] + (["silent"] if page == "budgets" else [])
    assert sorted(offered) == sorted(expected)
    app.multiselect(key="pooled_runs").set_value([THIRD.run_id]).run()
    assert fine(app) and "2 runs of" in said(app)
    assert app.query_params["with"] in (THIRD.run_id, [THIRD.run_id])


@pages
def test_other_runs_in_the_address_are_refused_in_a_sentence(
    library: Path, open_at: Open, page: str
) -> None:
    asked = [SECOND.run_id, STRANGER.run_id, "nothing", *([SILENT.run_id] * (page != "budgets"))]
    app = open_at(page, run=FIRST.run_id, **POOLING[page][0], **{"with": asked})
    assert not app.exception and not app.error
    (warning,) = (str(element.value).replace("\\", "") for element in app.warning)
    assert warning.startswith("Not pooled with this run: ")
    assert f"{STRANGER.run_id} (of another model); nothing (not in this library)" in warning
    assert (f"{SILENT.run_id} (it has no response)" in warning) == (page != "budgets")
    assert "2 runs of" in said(app)


def test_what_a_pooled_run_lacks_is_computed_for_it(
    library: Path, open_at: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A context of 12 is attended to at once, one of 20 only as a job."""
    monkeypatch.setattr("analysis.context_scores.DIRECT_CELLS", 2 * 4 * 8 * 12)
    late = Synthetic(run_id="20261121-131313-000005", **SMALL)
    late.write(library)
    app, shown = figures(open_at, "budgets", SECOND, late)
    assert not app.exception and not app.error
    assert "1 of 2 runs are pooled" in said(app)
    assert "runs of" not in shown["layer-budgets"].caption
    app.button(key="ask-n").click().run()
    (job,) = backstage.jobs().jobs()
    spec = backstage.jobs().spec(job.id)
    assert (spec.params["kind"], spec.params["run_id"]) == ("context_attention", late.run_id)


def test_drafts_are_recorded_in_every_run_that_lacks_them(library: Path, open_at: Open) -> None:
    draft(FIRST, library, {"key": "snapkv", "options": {"budget": 7}})
    app, shown = figures(open_at, "recall", *SAME)
    assert fine(app)
    names = [series.name for series in shown["recall"].series]
    assert names == ["B = 4", "B = 4, draft on SnapKV 7 (1 of 3 runs)"]
    assert "not recorded yet in 2 of 3 runs" in said(app)
    app.button(key="ask-draft").click().run()
    specs = [backstage.jobs().spec(job.id).params for job in backstage.jobs().jobs()]
    assert {spec["run_id"] for spec in specs} == {SECOND.run_id, THIRD.run_id}
    assert {spec["kind"] for spec in specs} == {"lookahead"}
