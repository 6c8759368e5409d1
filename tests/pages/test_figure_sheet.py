"""The page of a figure sheet, and "Add to sheet" of a figure card."""

from __future__ import annotations

from pathlib import Path

from streamlit.testing.v1 import AppTest

from analysis import sheet as sheets
from analysis.figure_file import read_figure
from analysis.sheet import Sheet
from analysis.sheet_job import run
from cache_store.sheets import MAIN, Sheets
from pages.parts import backstage
from tests.analysis.test_sheet_files import stored
from tests.pages.conftest import HOSTILE, RUN, Open


def now(home: Path, sheet_id: str = MAIN) -> Sheet:
    return sheets.from_dict(Sheets(home).read(sheet_id))


def titles(sheet: Sheet) -> list[str]:
    return [item.title for item in sheet.items]


def drawn(home: Path) -> None:
    """What the small worker would do."""
    queue = backstage.jobs()
    for job in queue.jobs():
        run(queue.spec(job.id).params, home, lambda _: None, lambda: False)


def clean(app: AppTest) -> AppTest:
    assert not app.exception, app.exception
    return app


def test_an_empty_sheet_says_what_to_do(two_runs: Path, open_page: Open) -> None:
    app = clean(open_page("figure_sheet"))
    assert app.title[0].value == "Which figures go into the paper?"
    assert any("Add to sheet" in text.value for text in app.markdown)
    assert not app.text_area or not backstage.jobs().jobs()


def test_a_figure_goes_into_the_sheet_with_all_of_it(two_runs: Path, open_page: Open) -> None:
    app = clean(open_page("attention", run=RUN, layer="1", head="2"))
    clean(app.button(key="sheet-overview").click().run())
    (item,) = now(two_runs).items
    assert f"run={RUN}" in item.link and "layer=1" in item.link
    figure = read_figure(Sheets(two_runs).figure(MAIN, item.figure))
    assert figure.title == item.title and figure.caption == item.caption
    (capture,) = figure.provenance["captures"]
    assert capture["id"] == RUN and len(capture["file_sha256"]) == 64
    clean(app.button(key="sheet-overview").click().run())
    assert len(now(two_runs).items) == 1
    assert any("already" in toast.value for toast in app.toast)


def test_order_captions_and_removal_reach_the_store(two_runs: Path, open_page: Open) -> None:
    sheet = stored(two_runs, "lines", "bars", "scatter")
    first, second, third = (item.id for item in sheet.items)
    app = clean(open_page("figure_sheet"))
    clean(app.button(key=f"sheet-up-{third}").click().run())
    assert [item.id for item in now(two_runs).items] == [first, third, second]
    clean(app.text_area(key=f"sheet-caption-{first}").set_value(HOSTILE).run())
    assert now(two_runs).items[0].caption == HOSTILE
    clean(app.button(key=f"sheet-remove-{third}").click().run())
    assert [item.id for item in now(two_runs).items] == [first, second]
    again = clean(open_page("figure_sheet"))  # another session, as after a restart
    clean(again.button(key=f"sheet-back-{third}").click().run())
    assert [item.id for item in now(two_runs).items] == [first, third, second]
    clean(app.button(key=f"sheet-down-{first}").click().run())
    assert [item.id for item in now(two_runs).items] == [third, first, second]


def test_the_look_is_kept_and_a_wrong_one_is_refused(two_runs: Path, open_page: Open) -> None:
    stored(two_runs, "lines", "bars")
    app = clean(open_page("figure_sheet"))
    clean(app.selectbox(key=f"sheet-columns-{MAIN}").set_value(4).run())
    clean(app.selectbox(key=f"sheet-venue-{MAIN}").set_value("icml").run())
    look = now(two_runs).look
    assert look.venue == "icml" and look.columns == 2  # four would be too narrow there
    clean(app.number_input(key=f"sheet-font-{MAIN}").set_value(1.0).run())
    assert "Letters of 1 pt" in app.error[0].value and now(two_runs).look == look
    assert app.number_input(key=f"sheet-font-{MAIN}").value == 1.0


def test_a_file_is_made_by_a_job_and_given_when_it_is_there(
    two_runs: Path, open_page: Open
) -> None:
    stored(two_runs, "lines", "bars")
    app = clean(open_page("figure_sheet"))
    clean(app.button(key="sheet-make-zip").click().run())
    waiting = {job.kind for job in backstage.jobs().jobs()}
    assert waiting == {"figure_sheet"} and len(backstage.jobs().jobs()) == 2
    assert not app.get("download_button") and not (app.get("imgs") or app.get("image"))
    drawn(two_runs)
    clean(app.run())
    assert app.get("imgs") or app.get("image")
    assert len(app.get("download_button")) == 1
    assert [button.label for button in app.button if "Make the" in button.label] == ["Make the PDF"]


def test_two_sheets_are_apart(two_runs: Path, open_page: Open) -> None:
    stored(two_runs, "lines")
    app = clean(open_page("figure_sheet"))
    clean(app.button(key="sheet-new").click().run())
    (other,) = set(Sheets(two_runs).titles()) - {MAIN}
    assert app.query_params["sheet"] in (other, [other])
    page = clean(open_page("attention", run=RUN, sheet=other))
    clean(page.button(key="sheet-overview").click().run())
    assert len(now(two_runs, other).items) == 1 and len(now(two_runs).items) == 1


def test_a_sheet_that_is_not_there_or_damaged_is_said(two_runs: Path, open_page: Open) -> None:
    app = clean(open_page("figure_sheet", sheet="0badcafe"))
    assert "no figure sheet" in app.warning[0].value
    stored(two_runs, "lines")
    (two_runs / "sheets" / MAIN / "sheet.json").write_text("{")
    app = clean(open_page("figure_sheet"))
    assert "cannot be read" in app.error[0].value
    assert app.button(key="sheet-delete-damaged")


def test_hostile_titles_are_text(two_runs: Path, open_page: Open) -> None:
    sheet = stored(two_runs, "lines")
    told = sheets.to_dict(sheets.renamed(sheet, HOSTILE, HOSTILE))
    Sheets(two_runs).change(MAIN, lambda _: told)
    app = clean(open_page("figure_sheet"))
    assert not any("<script>" in text.value for text in app.markdown)
