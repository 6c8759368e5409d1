"""The pages over synthetic captures: what they show, what the address does, what they refuse."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from backend.jobs import JobSpec, JobState
from pages.parts import backstage, jobs_view
from pages.parts.text import plain
from tests.pages.conftest import FIRST, HOSTILE, OTHER, ROOT, RUN, Open
from tests.pages.plots import plots
from tests.synthetic import Synthetic


def words(app: AppTest) -> str:
    """All text of the page that Markdown reads, and the sentences of alerts."""
    kinds = (app.markdown, app.caption, app.warning, app.error, app.text, app.title)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


def warnings(app: AppTest) -> str:
    return "\n".join(str(element.value).replace("\\", "") for element in app.warning)


def test_importing_the_app_brings_in_nothing_heavy() -> None:
    heavy = ("torch", "umap", "transformers", "distributed", "matplotlib")
    code = f"import sys, app; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr[-2000:]


@pytest.mark.parametrize("page", ["attention", "library", "new_run"])
def test_every_page_opens_on_an_empty_library(home: Path, open_page: Open, page: str) -> None:
    app = open_page(page)
    assert not app.exception
    assert app.title[0].value.endswith("?")


@pytest.mark.parametrize("page", ["attention", "library", "new_run"])
def test_every_page_opens_with_runs(two_runs: Path, open_page: Open, page: str) -> None:
    app = open_page(page, run=RUN)
    assert not app.exception and not app.error
    assert app.query_params["run"] == RUN


def test_the_bare_address_shows_the_newest_run(two_runs: Path) -> None:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60).run()
    assert not app.exception
    assert app.title[0].value == "Where does each head look?"
    assert app.query_params["run"] == OTHER


def test_a_link_opens_its_layer_head_and_step(two_runs: Path, open_page: Open) -> None:
    app = open_page("attention", run=OTHER, layer="2", head="3", step="5", measure="sink mass")
    assert app.selectbox(key="layer").value == "2"
    assert app.selectbox(key="head").value == "3"
    assert app.slider(key="step").value == 5
    assert app.selectbox(key="measure").value == "sink mass"
    assert not app.warning


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("layer", "99", "There is no layer '99' here: Layer is one of mean, 0, 1. Shown is {0}."),
        ("head", "x", "There is no head 'x' here: Head is one of mean, 0, 1, 2, 3. Shown is {1}."),
        ("step", "500", "There is no step '500' here: Step goes from -39 to 12. Shown is 1."),
        ("step", "two", "There is no step 'two' here: Step goes from -39 to 12. Shown is 1."),
        ("pool", "sum", "There is no pool 'sum' here"),
        ("page", "7", "There is no page '7' here: the text has 1 page."),
        ("q", ["3", "900"], "There are no positions 3 to 900 here: this run has 0 to 51."),
        ("run", "20200101-000000-000000", "This library has no run '20200101-000000-000000'."),
        ("run", "../../etc/passwd", "This library has no run '../../etc/passwd'."),
    ],
)
def test_an_address_that_names_nothing_falls_back_with_a_sentence(
    two_runs: Path, open_page: Open, key: str, value: str | list[str], sentence: str
) -> None:
    app = open_page("attention", **{"run": RUN, key: value})
    assert not app.exception and not app.error
    assert sentence.format(*FIRST.first_look()) in warnings(app)


def test_the_first_look_is_at_the_head_that_looks_far(two_runs: Path, open_page: Open) -> None:
    app = open_page("attention", run=RUN)
    shown = (app.selectbox(key="layer").value, app.selectbox(key="head").value)
    assert shown == tuple(str(number) for number in FIRST.first_look())


def test_a_prompt_step_far_back_is_reached_by_its_link(two_runs: Path, open_page: Open) -> None:
    app = open_page("attention", run=RUN, step="-39")
    assert app.slider(key="step").value == -39
    assert not app.warning and not app.error


def test_the_selection_survives_another_page(two_runs: Path, open_page: Open) -> None:
    app = open_page("attention", run=OTHER)
    app.selectbox(key="layer").select("2").run()
    app.slider(key="step").set_value(7).run()
    app.switch_page("pages/library.py").run()
    assert not app.exception
    app.switch_page("pages/attention.py").run()
    assert app.selectbox(key="layer").value == "2"
    assert app.slider(key="step").value == 7
    assert app.query_params["run"] == OTHER


def test_another_run_falls_back_where_it_has_no_such_layer(two_runs: Path, open_page: Open) -> None:
    app = open_page("attention", run=OTHER, layer="2")
    app.sidebar.selectbox(key="run_choice").select(RUN).run()
    assert not app.exception
    assert app.query_params["run"] == RUN
    assert app.selectbox(key="layer").value == str(FIRST.first_look()[0])
    assert "There is no layer '2' here" in warnings(app)


def test_means_are_shown_at_once_where_they_are_cheap(two_runs: Path, open_page: Open) -> None:
    for measure in ("entropy", "sink mass"):
        app = open_page("attention", run=RUN, layer="mean", head="mean", measure=measure)
        assert not app.exception and not app.error
        assert len(plots(app)) == 4


def test_a_hostile_title_is_shown_as_it_was_typed(two_runs: Path, open_page: Open) -> None:
    for page in ("attention", "library", "new_run"):
        app = open_page(page, run=OTHER)
        shown = words(app)
        assert HOSTILE not in shown
        for active in ("**x**", "$a$", ":red[x]", "](javascript", ":material/home:"):
            assert active not in shown


def test_hidden_sink_and_ranges_are_in_the_link(two_runs: Path, open_page: Open) -> None:
    app = open_page("attention", run=RUN, sink="hidden", q=["10", "40"], scale="linear")
    assert not app.exception and not app.error and not app.warning
    link = app.code[0].value
    for part in ("sink=hidden", "q=10&q=40", "scale=linear", f"run={RUN}", "layer=", "step=1"):
        assert part in link


def test_typing_a_prompt_queues_a_run(home: Path, open_page: Open) -> None:
    app = open_page("new_run")
    # The click that takes the focus from the text boxes arrives together with what is in them.
    app.text_area(key="context").set_value("The code of the market is 87725.")
    app.text_area(key="question").set_value("What is the code of the market?")
    app.button(key="start").click().run()
    assert not app.error, words(app)
    (job,) = backstage.jobs().jobs()
    assert app.query_params["job"] == job.id
    assert job.status == "queued"
    spec = backstage.jobs().spec(job.id).params["spec"]
    assert spec["context"] == "The code of the market is 87725.\n\n"
    assert spec["question"] == "What is the code of the market?"
    assert app.text_area(key="context").value == "The code of the market is 87725."


def test_start_says_what_is_missing_and_starts_nothing(home: Path, open_page: Open) -> None:
    app = open_page("new_run")
    assert not app.button(key="start").disabled
    app.button(key="start").click().run()
    assert "There is nothing to read yet" in app.error[0].value
    app.text_area(key="question").set_value("What is the code?")
    app.button(key="start").click().run()
    assert "There is a question but no text" in app.error[0].value
    assert backstage.jobs().jobs() == []


def test_one_click_starts_one_run(home: Path, open_page: Open) -> None:
    app = open_page("new_run")
    app.text_area(key="context").set_value("The code of the market is 87725.")
    app.button(key="start").click().run()
    app.text_area(key="context").set_value("The code of the harbour is 10364.").run()
    assert len(backstage.jobs().jobs()) == 1


def test_a_job_of_the_address_is_followed_after_a_reload(home: Path, open_page: Open) -> None:
    open_page("new_run")
    spec = {"context": HOSTILE}
    job = backstage.jobs().submit(JobSpec("capture", {"spec": spec, "run_id": RUN}, HOSTILE))
    app = open_page("new_run", job=job)
    assert not app.exception
    assert any(str(element.value).startswith("<script>") for element in app.text)
    assert "Waiting, number 1 in the queue" in words(app).replace("\\", "")


@pytest.mark.parametrize(
    ("context", "sentence"),
    [
        ("only\n---question---\n", "There is no text after the line ---question---"),
        ("word " * 6000, "more than the model's context of 4,096"),
        ("x" * 400_000, "The prompt has 400,000 characters"),
    ],
)
def test_a_prompt_that_cannot_run_keeps_what_was_typed(
    home: Path, open_page: Open, context: str, sentence: str
) -> None:
    app = open_page("new_run")
    app.text_area(key="context").set_value(context).run()
    assert not app.exception
    assert sentence in "\n".join(str(error.value).replace("\\", "") for error in app.error)
    assert app.text_area(key="context").value == context
    app.button(key="start").click().run()
    assert app.error and backstage.jobs().jobs() == []


def test_search_finds_and_says_when_nothing_matches(two_runs: Path, open_page: Open) -> None:
    app = open_page("library", search="first")
    assert list(app.dataframe[0].value["Title"]) == ["first"]
    app.text_input(key="search").set_value("nothing like it").run()
    assert not app.exception
    assert plain("No run matches 'nothing like it'.") in words(app)


def test_sql_answers_and_refuses_in_one_sentence(two_runs: Path, open_page: Open) -> None:
    app = open_page("library", search="first")
    app.text_area(key="sql").set_value("SELECT count(*) AS n FROM token").run()
    app.button(key="run_sql").click().run()
    assert list(app.dataframe[1].value["n"]) == [52]
    app.text_area(key="sql").set_value("DROP TABLE token").run()
    app.button(key="run_sql").click().run()
    assert not app.exception
    assert len(app.error) == 1
    assert "\n" not in app.error[0].value


def test_sql_asks_the_run_of_the_sidebar_and_drops_old_answers(
    two_runs: Path, open_page: Open
) -> None:
    app = open_page("library", run=RUN)
    assert "A query reads “first”, the run in the sidebar." in words(app).replace("\\", "")
    app.text_area(key="sql").set_value("SELECT id FROM capture").run()
    app.button(key="run_sql").click().run()
    assert list(app.dataframe[1].value["id"]) == [RUN]
    app.sidebar.selectbox(key="run_choice").select(OTHER).run()
    assert "id" not in app.dataframe[1].value
    app.button(key="run_sql").click().run()
    assert list(app.dataframe[1].value["id"]) == [OTHER]


def test_a_link_reopens_the_comparison(two_runs: Path, open_page: Open) -> None:
    app = open_page("library", run=RUN, pick=[OTHER, RUN], measure="sink mass")
    assert not app.exception and not app.error and not app.warning
    assert "How do the two differ?" in [element.value for element in app.subheader]
    assert app.selectbox(key="measure").value == "sink mass"
    assert f"pick={OTHER}&pick={RUN}&measure=sink+mass" in app.code[0].value
    app.text_input(key="search").set_value("first").run()
    assert [element.value for element in app.subheader] == ["What else can I ask?"]


def test_a_ticked_run_that_is_not_there_is_named(two_runs: Path, open_page: Open) -> None:
    app = open_page("library", run=RUN, pick=[RUN, "20200101-000000-000000"])
    assert "This library has no run '20200101-000000-000000'" in warnings(app)
    assert app.query_params["pick"] == RUN


def test_a_warning_ends_when_it_is_no_longer_true(home: Path, open_page: Open) -> None:
    Synthetic(run_id=OTHER).write(home)
    app = open_page("attention", run=RUN)
    assert f"This library has no run '{RUN}'. The newest run is shown." in warnings(app)
    FIRST.write(home)
    app.run()
    assert not app.warning
    app = open_page("attention", run=RUN, layer="99")
    assert "There is no layer '99' here" in warnings(app)
    app.selectbox(key="layer").select("mean").run()
    assert not app.warning


def test_a_finished_run_is_news_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_jobs = backstage.jobs()
    job = JobState("a" * 16, "capture", "first", RUN, "running")
    monkeypatch.setattr(open_jobs, "jobs", lambda: [job])
    seen = jobs_view.ended()
    assert seen == frozenset()
    job = dataclasses.replace(job, status="done", finished_at=datetime.now(UTC))
    assert len(jobs_view.ended() - seen) == 1
    assert not jobs_view.ended() - jobs_view.ended()


def test_an_unreadable_run_is_listed_with_its_reason(two_runs: Path, open_page: Open) -> None:
    broken = two_runs / "20261120-101314-ffffff"
    broken.mkdir()
    (broken / "capture.duckdb").write_bytes(b"not a database")
    app = open_page("library")
    assert not app.exception
    notes = list(app.dataframe[0].value["Note"])
    assert sum(bool(note) for note in notes) == 1
    assert len(notes) == 3
