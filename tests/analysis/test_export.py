"""Files of a figure: the data that redraws it, its provenance, its page, and the command line."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.__main__ import length, main
from analysis.errors import AnalysisError
from analysis.export import FORMS, export, form_of
from analysis.figure import Figure
from analysis.figure_file import from_dict, read_figure, to_dict, to_json
from analysis.paper.venues import style_for
from tests.analysis.figures import HOSTILE, MARKS, figure, hostile


def same(first: Any, second: Any) -> bool:
    """Equal in every part, arrays with their dtype and NaN."""
    if isinstance(first, np.ndarray):
        return bool(first.dtype == second.dtype and np.array_equal(first, second, equal_nan=True))
    if dataclasses.is_dataclass(first):
        names = [field.name for field in dataclasses.fields(first)]
        return type(first) is type(second) and all(
            same(getattr(first, name), getattr(second, name)) for name in names
        )
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


@pytest.mark.parametrize("form", ["figure", "parquet"])
@pytest.mark.parametrize("mark", MARKS)
def test_the_data_file_redraws_to_the_same_figure(mark: str, form: str) -> None:
    before = hostile(mark, HOSTILE[3]) if form == "figure" else figure(mark)
    after = read_figure(export(before, form))
    assert same(before, after)
    assert export(after, form) == export(before, form)


@pytest.mark.parametrize("text", HOSTILE)
def test_every_text_survives_the_figure_file(text: str) -> None:
    assert same(hostile("scatter", text), read_figure(to_json(hostile("scatter", text))))


@pytest.mark.parametrize("form", ["html", "csv", "parquet", "figure", "provenance"])
@pytest.mark.parametrize("mark", MARKS)
def test_no_text_stops_a_data_file(mark: str, form: str) -> None:
    for text in HOSTILE:
        content = export(hostile(mark, text), form)
        assert content and (form != "html" or b"<script>alert(1)" not in content)


def test_the_tables_are_the_figures_table() -> None:
    table = figure("raster").table()
    csv = pd.read_csv(io.BytesIO(export(figure("raster"), "csv")))
    parquet = pd.read_parquet(io.BytesIO(export(figure("raster"), "parquet")))
    assert csv.columns.tolist() == parquet.columns.tolist() == table.columns.tolist()
    assert csv["category"].tolist() == parquet["category"].tolist() == table["category"].tolist()


@pytest.mark.parametrize("form", ["html", "csv", "parquet", "figure", "provenance"])
def test_the_same_bytes_every_time(form: str) -> None:
    assert export(figure("lines"), form) == export(figure("lines"), form)


def test_the_page_holds_its_script_and_no_other() -> None:
    page = export(hostile("lines", HOSTILE[0]), "html").decode()
    assert "<script>alert(1)" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert 'src="http' not in page and "Plotly.newPlot" in page


def test_provenance_says_where_the_numbers_come_from() -> None:
    style = style_for("icml", title=False)
    told = json.loads(export(figure("lines"), "provenance", style, "http://host/?run=1"))
    assert told["source"] == {"run": "20261120-101112-abcdef", "policy": {"budget": 256}}
    assert told["link"] == "http://host/?run=1"
    assert told["style"]["width_in"] == 3.25 and told["style"]["title"] is False
    assert told["versions"]["numpy"] == np.__version__ and "matplotlib" in told["versions"]
    other = json.loads(export(figure("lines", arrays={"y": np.zeros((2, 6))}), "provenance"))
    assert len(told["data_sha256"]) == 64 and told["data_sha256"] != other["data_sha256"]


def broken(**changes: Any) -> bytes:
    return json.dumps(to_dict(figure("lines")) | changes).encode()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1]", "no figure file"),
        (b'{"format": "other"}', "no figure file"),
        (b"PAR1 nothing", "carries no figure"),
        (broken(mark="pie"), "'pie' is no mark"),
        (broken(arrays={"y": 3}), "cannot be drawn"),
        (broken(arrays={"y": {"dtype": "O", "shape": [1], "zlib": ""}}), "not made of numbers"),
        (broken(arrays={"y": {"dtype": "<f8", "shape": [10**9, 9], "zlib": ""}}), "too large"),
        (broken(series=[{"nome": "a"}]), "cannot be drawn"),
    ],
)
def test_another_file_is_refused_in_one_sentence(content: bytes, sentence: str) -> None:
    with pytest.raises(AnalysisError, match=sentence):
        read_figure(content)


def test_a_missing_part_is_refused() -> None:
    told = to_dict(figure("lines"))
    del told["x"]
    with pytest.raises(AnalysisError, match="cannot be drawn"):
        from_dict(told)


@pytest.mark.parametrize("key", FORMS)
def test_the_end_of_a_file_name_names_its_form(key: str) -> None:
    assert form_of(f"Fig.{FORMS[key].suffix.upper()}") == key


def test_a_figure_saves_itself(tmp_path: Path) -> None:
    path = figure("bars").save(tmp_path / "fig.svg", venue="icml", title=False)
    assert path.read_bytes() == export(figure("bars"), "svg", style_for("icml", title=False))
    with pytest.raises(AnalysisError, match="names no format"):
        figure("bars").save(tmp_path / "fig.doc")
    with pytest.raises(AnalysisError, match="cannot be written"):
        figure("bars").save(tmp_path / "none" / "fig.csv")


def saved(folder: Path, shown: Figure) -> str:
    (folder / "spec.json").write_bytes(to_json(shown))
    return str(folder / "spec.json")


def test_the_command_line_writes_what_the_page_does(tmp_path: Path) -> None:
    spec, out = saved(tmp_path, figure("lines")), tmp_path / "fig.pdf"
    asked = ["export", spec, "--format", "pdf", "--venue", "neurips", "--out", str(out)]
    assert main(asked) == 0
    assert out.read_bytes() == export(figure("lines"), "pdf", style_for("neurips"))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--out", "fig.doc"], "names no format"),
        (["--width", "0.1", "--out", "fig.pdf"], "width of 0.1 in"),
    ],
)
def test_the_command_line_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], sentence: str
) -> None:
    assert main(["export", saved(tmp_path, figure("lines")), *more]) == 1
    assert sentence in capsys.readouterr().err
    assert main(["export", str(tmp_path / "nothing.json")]) == 1
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "inches"),
    [("5.5", 5.5), ("5.5in", 5.5), ("89mm", 3.5039), ("8.9 cm", 3.5039), ("252pt", 3.5)],
)
def test_lengths_are_read_in_the_units_of_journals(text: str, inches: float) -> None:
    assert length(text) == pytest.approx(inches, abs=1e-4)


@pytest.mark.parametrize("text", ["wide", "mm", "nan", "1e999"])
def test_another_length_is_wrong_usage(tmp_path: Path, text: str) -> None:
    with pytest.raises(SystemExit) as error:
        main(["export", saved(tmp_path, figure("lines")), "--width", text])
    assert error.value.code == 2


def test_a_figure_file_lists_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", saved(tmp_path, figure("lines")), "--list"]) == 0
    assert capsys.readouterr().out == "Title of lines\n"
    assert not list(tmp_path.glob("*.pdf"))
