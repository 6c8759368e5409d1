"""A figure by its link, as `python -m analysis export` makes it: the page run without a browser."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
import pypdf
import pytest

from analysis.__main__ import main
from analysis.errors import AnalysisError
from analysis.export import export
from analysis.figure_file import read_figure
from backend.jobs.states import JOBS_FOLDER
from cache_store.files import CAPTURE_FILE
from pages.parts.from_link import figure_at
from tests.pages.conftest import FIRST, RUN


def test_a_link_gives_the_figure_that_its_reader_saw(two_runs: Path) -> None:
    shown = figure_at(f"attention?run={RUN}&layer=1&head=2&step=5", "text")
    seen = FIRST.prompt_length + 5  # generated token 5 is at position P + 4
    row = FIRST.row(1, 2, seen - 1)
    np.testing.assert_allclose(shown.arrays["shade"][:seen], row[:seen], atol=2e-3)
    assert np.isnan(shown.arrays["shade"][seen:]).all()
    assert "layer 1, head 2" in shown.title and shown.provenance["run"] == RUN


@pytest.mark.parametrize(
    ("link", "key"),
    [
        ("partitions?lagkv=What is kept", "lag-text"),
        ("picks?step=3&budget=16&unit=entries", "sage-text"),
        ("recurrence?step=3", "recurring-text"),
    ],
)
def test_every_text_of_a_page_is_a_figure(two_runs: Path, link: str, key: str) -> None:
    shown = figure_at(f"{link}&run={RUN}", key)
    assert shown.mark == "text" and len(shown.point_text) == FIRST.length
    assert shown.provenance["run"] == RUN and len(shown.provenance) > 5
    assert b"%PDF" in export(shown, "pdf")[:8]


def test_a_replay_that_a_figure_needs_is_made_first(
    two_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = f"/eviction?run={RUN}&p1=streaming_llm()&panel=Text&step=4"
    assert main(["export", link, "--list"]) == 0
    assert "not there yet: Replay of StreamingLLM" in capsys.readouterr().out
    out = two_runs / "text.figure.json"
    assert main(["export", link, "--figure", "StreamingLLM", "--out", str(out)]) == 0
    shown = read_figure(out.read_bytes())
    assert shown.mark == "text" and shown.arrays["struck"].any()
    assert shown.provenance["policies"][0]["key"] == "streaming_llm"
    file = two_runs / RUN / CAPTURE_FILE
    assert shown.provenance["captures"][0]["file_sha256"] == sha256(file.read_bytes()).hexdigest()
    assert not (two_runs / JOBS_FOLDER).exists()  # nothing is left in the queue of an app


def test_the_command_line_writes_a_pdf_for_a_venue_and_lists_what_there_is(
    two_runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    link = f"http://127.0.0.1:8501/attention?run={RUN}&layer=1&head=2&step=5"
    assert main(["export", link, "--list"]) == 0
    listed = capsys.readouterr().out
    assert "overview: " in listed and "matrix: Attention, layer 1, head 2" in listed
    out = tmp_path / "fig.pdf"
    asked = ["--figure", "overview", "--venue", "nature", "--height", "60mm", "--out", str(out)]
    assert main(["export", link, *asked]) == 0
    box = pypdf.PdfReader(out).pages[0].mediabox
    assert float(box.width) / 72 == pytest.approx(89 / 25.4, abs=0.01)
    assert float(box.height) / 72 == pytest.approx(60 / 25.4, abs=0.01)
    assert main(["export", link]) == 1
    assert "choose with --figure: overview (" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("link", "wanted", "sentence"),
    [
        ("/nowhere?run=1", "", "names no page: 'nowhere'"),
        ("/attention?run=20200101-000000-000000", "", "no run '20200101-000000-000000'"),
        (f"/attention?run={RUN}&layer=99", "", "There is no layer '99' here"),
        (f"/attention?run={RUN}", "piechart", "no figure 'piechart', but overview"),
        ("/library?x=1", "", "shows no figure"),
    ],
)
def test_a_link_that_leads_nowhere_is_refused_in_one_sentence(
    two_runs: Path, link: str, wanted: str, sentence: str
) -> None:
    with pytest.raises(AnalysisError, match=sentence):
        figure_at(link, wanted)


def test_a_folder_that_is_not_there_is_not_made(home: Path) -> None:
    with pytest.raises(AnalysisError, match=r"no folder .*nowhere with runs"):
        figure_at("/attention?x=1", home=str(home / "nowhere"))
    assert not (home / "nowhere").exists()
