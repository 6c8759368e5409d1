"""Exports of a sheet: the page, and a zip that redraws itself with matplotlib alone."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pypdf
import pytest
from PIL import Image

from analysis import sheet as sheets
from analysis import sheet_job
from analysis.errors import AnalysisError
from analysis.figure import Figure
from analysis.figure_file import read_figure, to_json
from analysis.heavy import Stopped
from analysis.latex import escaped
from analysis.sheet import Look, Sheet
from analysis.sheet_files import make, steps_of
from analysis.sources import with_sources
from cache_store.reader import Capture
from cache_store.sheets import MAIN, Sheets, figure_name
from tests.analysis.figures import HOSTILE, MARKS, figure, hostile
from tests.analysis.test_export import same
from tests.synthetic import Synthetic

LINK = "http://host/attention?run=20261120-101112-abcdef&layer=3"
ALONE = """
import importlib, runpy, sys
site, script, out = sys.argv[1:]
sys.path.append(site)
for name in "pandas plotly pyarrow duckdb streamlit torch kvpolicies backend".split():
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} is installed here")
sys.argv = [script, out]
runpy.run_path(script, run_name="__main__")
"""


def sheet_of(figures: list[Figure], **look: Any) -> tuple[Sheet, dict[str, Figure]]:
    sheet, files = Sheet(look=Look(**look)), {}
    for number, one in enumerate(figures):
        name = figure_name(to_json(one))
        files[name] = one
        sheet = sheets.added(sheet, sheets.item_of(one, name, f"{LINK}&n={number}"))
    return sheet, files


def page_of(content: bytes) -> pypdf.PageObject:
    pages = pypdf.PdfReader(io.BytesIO(content)).pages
    assert len(pages) == 1
    return pages[0]


def words_of(page: pypdf.PageObject) -> str:
    return " ".join(page.extract_text().split())


@pytest.mark.parametrize(
    ("venue", "columns", "width_in"),
    [("neurips", 2, 5.5), ("icml-wide", 3, 6.75), ("icml", 1, 3.25)],
)
def test_the_page_is_one_vector_page_of_the_venue(
    venue: str, columns: int, width_in: float
) -> None:
    some = [figure(mark, title=f"Title of {mark}") for mark in ("heatmap", "lines", "bars")]
    sheet, files = sheet_of(some, venue=venue, columns=columns)
    sheet = sheets.changed(sheet, sheet.items[1].id, caption="What SnapKV keeps")
    page = page_of(make(sheet, files, "pdf"))
    assert float(page.mediabox.width) / 72 == pytest.approx(width_in, abs=0.01)
    fonts = [font.get_object() for font in page["/Resources"]["/Font"].values()]
    assert fonts
    for font in fonts:
        below = font["/DescendantFonts"][0].get_object() if "/DescendantFonts" in font else font
        assert font["/Subtype"] != "/Type3" and below["/Subtype"] in ("/CIDFontType2", "/TrueType")
        assert below["/FontDescriptor"]["/FontFile2"].get_object().get_data()
    words = words_of(page)
    for mark in ("heatmap", "lines", "bars"):
        assert f"Title of {mark}" in words
    assert "(a) SnapKV, budget 256" in words and "(b) What SnapKV keeps" in words
    assert "/XObject" not in page["/Resources"] or len(page["/Resources"]["/XObject"]) < 20


def test_a_page_without_captions_keeps_its_letters() -> None:
    sheet, files = sheet_of([figure("lines"), figure("bars")], captions=False, titles=False)
    words = words_of(page_of(make(sheet, files, "pdf")))
    assert "(a)" in words and "(b)" in words
    assert "budget 256" not in words and "Title of" not in words


def test_panels_stand_where_the_grid_puts_them() -> None:
    """Letters below each panel: (a) and (b) on one line, (c) below and in the middle."""
    sheet, files = sheet_of([figure(m) for m in ("lines", "bars", "scatter")], captions=False)
    stream = page_of(make(sheet, files, "pdf")).get_contents()
    assert stream is not None
    drawn = stream.get_data().decode("latin-1")
    set_text = r"1 0 -0 1 ([\d.]+) ([\d.]+) cm\s+BT\s[^B]*?\(.\\\(\)[^(]*\(.([abc])\)"
    found = {
        hit[3]: (float(hit[1]) / 72, float(hit[2]) / 72) for hit in re.finditer(set_text, drawn)
    }
    assert found["a"][1] == pytest.approx(found["b"][1], abs=0.01) and found["c"][1] < found["a"][1]
    centres = {"a": 2.69 / 2, "b": 2.69 * 1.5 + 0.12, "c": 2.75}
    for letter, centre in centres.items():
        assert found[letter][0] == pytest.approx(centre, abs=0.12)


def test_the_preview_is_as_wide_as_the_page() -> None:
    sheet, files = sheet_of([figure("lines"), figure("raster")])
    picture = Image.open(io.BytesIO(make(sheet, files, "png")))
    assert picture.width == 5.5 * 160
    page = page_of(make(sheet, files, "pdf"))
    assert picture.height == pytest.approx(float(page.mediabox.height) / 72 * 160, abs=2)


def opened(content: bytes) -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(content))


def test_the_zip_holds_what_a_paper_needs() -> None:
    some = [figure("lines"), figure("heatmap"), hostile("bars", HOSTILE[2])]
    sheet, files = sheet_of(some, venue="icml-wide", columns=2)
    sheet = sheets.renamed(sheet, "Appendix_A", "50% of all")
    archive = opened(make(sheet, files, "zip"))
    names = set(archive.namelist())
    assert {"figures.tex", "captions.txt", "provenance.json", "redraw.py", "sheet.pdf"} <= names
    assert all(re.fullmatch(r"[A-Za-z0-9_./-]+", name) and ".." not in name for name in names)
    told = json.loads(archive.read("provenance.json"))
    assert [entry["letter"] for entry in told["figures"]] == ["a", "b", "c"]
    tex = archive.read("figures.tex").decode()
    assert tex.count(r"\begin{figure*}") == tex.count(r"\end{figure*}") == 1
    assert tex.count(r"\begin{subfigure}[t]{0.4911\linewidth}") == 3
    assert r"\caption{50\% of all}" in tex and rf"\caption{{{escaped(HOSTILE[2])}}}" in tex
    included = re.findall(r"\\includegraphics\[width=\\linewidth\]\{([^}]+)\}", tex)
    assert included == [entry["pdf"] for entry in told["figures"]] and set(included) <= names
    assert "\n\n  \\medskip\n" in tex  # the third begins a row
    captions = archive.read("captions.txt").decode()
    assert captions.startswith("50% of all\n\n(a) SnapKV, budget 256\n\n(b) ")
    for entry, before in zip(told["figures"], some, strict=True):
        assert set(entry["data"]) <= names and entry["link"].startswith(LINK)
        assert same(read_figure(archive.read(entry["redrawn_from"])), before)
        parquet = next(name for name in entry["data"] if name.endswith(".parquet"))
        assert same(read_figure(archive.read(parquet)), before)
        page = page_of(archive.read(entry["pdf"]))
        assert float(page.mediabox.width) / 72 == pytest.approx(3.315, abs=0.01)


def test_the_same_bytes_every_time() -> None:
    sheet, files = sheet_of([figure("lines"), figure("raster")])
    for form in ("pdf", "zip", "png"):
        assert make(sheet, files, form) == make(sheet, files, form)


def with_its_needs(name: str, found: dict[str, None]) -> dict[str, None]:
    """The names of a distribution and of all that it needs."""
    if name not in found:
        found[name] = None
        for need in metadata.requires(name) or ():
            if "extra ==" not in need:
                with_its_needs(re.split(r"[^A-Za-z0-9_.-]", need)[0], found)
    return found


@pytest.fixture(scope="module")
def matplotlib_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages as after `pip install matplotlib` in a new environment."""
    site = tmp_path_factory.mktemp("site")
    for name in with_its_needs("matplotlib", {}):
        files = metadata.files(name) or ()
        tops = {file.parts[0] for file in files if not file.parts[0].startswith("..")}
        for top in tops - {"__pycache__", "bin"}:
            there = Path(str(metadata.distribution(name).locate_file(top)))
            if not (site / top).exists():
                (site / top).symlink_to(there)
    return site


def test_the_zip_redraws_itself_with_matplotlib_alone(
    tmp_path: Path, matplotlib_alone: Path
) -> None:
    some = [figure(mark) for mark in MARKS] + [hostile("lines", HOSTILE[0])]
    sheet, files = sheet_of(some, columns=3, colour_map="cividis", legend="below")
    sheet = sheets.changed(sheet, sheet.items[0].id, wide=True, legend="none", height_in=2.0)
    archive = opened(make(sheet, files, "zip"))
    archive.extractall(tmp_path / "sheet")
    out = tmp_path / "again"
    command = [sys.executable, "-I", "-S", "-c", ALONE, str(matplotlib_alone)]
    command += [str(tmp_path / "sheet" / "redraw.py"), str(out)]
    subprocess.run(command, check=True, timeout=200, cwd=tmp_path)
    drawn = [name for name in archive.namelist() if name.endswith(".pdf")]
    assert len(drawn) == len(some) + 1
    for name in drawn:
        assert (out / name).read_bytes() == archive.read(name), name


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_text_on_the_page(text: str) -> None:
    sheet, files = sheet_of([hostile("lines", text)], columns=1)
    sheet = sheets.renamed(sheet, text, text)
    page = page_of(make(sheet, files, "pdf"))
    assert not page.annotations and "(a)" in words_of(page)


def test_provenance_names_the_file_the_policy_and_both_sets_of_versions(tmp_path: Path) -> None:
    path = Synthetic().write(tmp_path)
    told = {
        "run": "20261120-101112-abcdef",
        "runs": ["20261120-101112-abcdef", "20261120-101213-0a1b2c"],
        "policies": [{"key": "snapkv", "options": {"budget": 64, "window": 16}}, {"masks": "ab12"}],
    }

    def open_capture(run_id: str) -> Capture:
        return Capture.open(tmp_path / run_id / path.name)

    one = with_sources(figure("lines", provenance=told), open_capture)
    sheet, files = sheet_of([one])
    found = json.loads(opened(make(sheet, files, "zip")).read("provenance.json"))
    capture = found["captures"]["20261120-101112-abcdef"]
    assert capture["file_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    with Capture.open(path) as run:
        assert capture["versions"] == run.info.versions
        assert capture["model_revision"] == run.info.model_revision
    assert found["captures"]["20261120-101213-0a1b2c"] == {"id": "20261120-101213-0a1b2c"}
    assert found["versions"]["matplotlib"] == metadata.version("matplotlib")
    parameters = found["figures"][0]["source"]["parameters"]
    assert parameters["masks(ab12)"] == {}
    snapkv = parameters["snapkv(budget=64,window=16)"]
    assert snapkv["budget"] == 64 and snapkv["window"] == 16 and snapkv["recent"] == 16
    assert {"kernel", "pool", "sink", "scope", "granularity", "group_reduce"} <= snapkv.keys()
    assert found["figures"][0]["link"] == f"{LINK}&n=0"
    again = read_figure(to_json(one))
    assert again.provenance["captures"] == one.provenance["captures"]


def stored(home: Path, *marks: str) -> Sheet:
    store = Sheets(home)
    for mark in marks:
        content = to_json(figure(mark))
        item = sheets.item_of(figure(mark), figure_name(content), LINK)

        def edit(told: dict[str, Any], item: sheets.Item = item) -> dict[str, Any]:
            return sheets.to_dict(sheets.added(sheets.from_dict(told), item))

        store.change(MAIN, edit, content)
    return sheets.from_dict(store.read(MAIN))


def test_the_job_writes_the_file_once_and_reports_each_figure(tmp_path: Path) -> None:
    sheet = stored(tmp_path, "lines", "bars")
    reports: list[Any] = []
    params = json.loads(json.dumps(sheet_job.params_of(MAIN, sheet, "zip")))
    summary = sheet_job.run(params, tmp_path, reports.append, lambda: False)
    path = Sheets(tmp_path).export_path(MAIN, summary["export"])
    files = {
        item.figure: figure(mark) for item, mark in zip(sheet.items, ("lines", "bars"), strict=True)
    }
    assert path.read_bytes() == make(sheet, files, "zip")
    assert [report.done for report in reports] == [0, 1, 2, 3, 4, 4]
    assert {report.total for report in reports} == {steps_of(sheet, "zip")} == {4}
    before = path.stat().st_mtime_ns
    assert sheet_job.run(params, tmp_path, reports.append, lambda: False) == summary
    assert path.stat().st_mtime_ns == before and len(reports) == 6
    other = sheets.changed(sheet, sheet.items[0].id, caption="other")
    assert sheet_job.export_name(sheet_job.params_of(MAIN, other, "zip")) != summary["export"]


def test_a_cancelled_export_leaves_nothing(tmp_path: Path) -> None:
    sheet = stored(tmp_path, "lines", "bars")
    asked = iter([False, True])
    params = sheet_job.params_of(MAIN, sheet, "pdf")
    with pytest.raises(Stopped):
        sheet_job.run(params, tmp_path, lambda _: None, lambda: next(asked))
    assert not (tmp_path / "sheets" / MAIN / "exports").exists()


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    sheet, files = sheet_of([figure("lines")])
    with pytest.raises(AnalysisError, match="sheet is empty"):
        make(dataclasses.replace(sheet, items=()), {}, "pdf")
    with pytest.raises(AnalysisError, match="'doc' is no form"):
        make(sheet, files, "doc")
    tall = sheet
    for number in range(4):
        item = dataclasses.replace(sheet.items[0], id=str(number), link=str(number), height_in=59.0)
        tall = sheets.added(tall, dataclasses.replace(item, wide=True))
    with pytest.raises(AnalysisError, match="at most 200 in"):
        make(tall, files, "pdf")
