"""Tables for a paper: digits, alignment, and texts that LaTeX or Markdown would obey."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from analysis.tables import MOST_ROWS, to_latex, to_markdown
from tests.analysis.figures import HOSTILE


@pytest.fixture
def table() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "token_id": [12345, 7],
            "weight": [0.012345, 1.2e-7],
            "kept": [True, False],
            "score": pd.array([-1234.5, None], dtype="Float64"),
            "token": ["50 % & more", "⏎␣x"],
        }
    )


def rows_of(latex: str) -> list[str]:
    body = latex.split("\\midrule\n")[1].split("    \\bottomrule")[0]
    return [line.strip().removesuffix(" \\\\") for line in body.splitlines()]


def test_latex_uses_booktabs_and_three_significant_digits(table: pd.DataFrame) -> None:
    latex = to_latex(table, "Costs of 100 %").decode()
    assert "\\begin{tabular}{rrlrl}" in latex and "\\caption{Costs of 100 \\%}" in latex
    for rule in ("\\toprule", "\\midrule", "\\bottomrule"):
        assert latex.count(rule) == 1
    assert "token\\_id & weight & kept & score & token \\\\" in latex
    first, second = rows_of(latex)
    assert first == "12,345 & 0.0123 & yes & $-1,234$ & 50 \\% \\& more"
    assert second.startswith("7 & $1.2 \\times 10^{-7}$ & no & -- & ")
    assert to_latex(table) == to_latex(table.copy())


def test_markdown_aligns_numbers_to_the_right(table: pd.DataFrame) -> None:
    lines = to_markdown(table, "Costs").decode().splitlines()
    assert lines[:4] == [
        "**Costs**",
        "",
        "| token\\_id | weight | kept | score | token |",
        "| ---: | ---: | :--- | ---: | :--- |",
    ]
    assert lines[4:] == [
        "| 12,345 | 0.0123 | yes | -1,234 | 50 % \\& more |",
        "| 7 | 1.2e-07 | no | – | ⏎ x |",
    ]


@pytest.mark.parametrize("text", [*HOSTILE, "a|b", "[0.5em] x", "\\\\ \\end{tabular}", "a -- b"])
def test_hostile_texts_stay_in_their_cell(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()  # a table cannot hold half a character
    table = pd.DataFrame({text: [text, text], "n": [1, 2]})
    latex = to_latex(table, text).decode()
    body = latex.split("\\toprule")[1].split("\\bottomrule")[0]
    rows = [line for line in body.splitlines() if line.endswith(" \\\\")]
    assert len(rows) == 3
    for row in rows:
        cells = row.removesuffix(" \\\\").strip()
        assert len(re.findall(r"(?<!\\)&", cells)) == 1  # between the two columns
        assert not re.search(r"(?<!\\)[%#$_](?![{}])", re.sub(r"\$[^$]*\$", "", cells))
        assert not cells.startswith("[") and cells.count("{") == cells.count("}")
        assert "\\end{" not in cells and "\\alpha" not in cells.replace("\\textbackslash", "")
    lines = to_markdown(table, text).decode().splitlines()[2:]
    assert len(lines) == 4
    for line in lines:
        assert len(re.findall(r"(?<!\\)\|", line)) == 3 and "<script>" not in line.replace(
            "\\", "<"
        )


def test_a_long_table_says_what_it_leaves_out() -> None:
    table = pd.DataFrame({"n": np.arange(MOST_ROWS + 1234)})
    for made in (to_latex(table), to_markdown(table)):
        assert "1,234 of 1,734 rows are left out" in made.decode()
    assert len(rows_of(to_latex(table).decode())) == MOST_ROWS


def test_an_empty_table_has_its_head() -> None:
    table = pd.DataFrame({"rank": np.zeros(0, int), "token": np.zeros(0, object)})
    assert rows_of(to_latex(table).decode()) == []
    assert to_markdown(table).decode() == "| rank | token |\n| ---: | :--- |\n"


@pytest.mark.parametrize(
    ("value", "latex", "markdown"),
    [
        (float("inf"), "$\\infty$", "∞"),
        (float("-inf"), "$-\\infty$", "−∞"),
        (1e20, "$1 \\times 10^{20}$", "1e+20"),
        (0.99999, "1", "1"),
        (123.456, "123", "123"),
        (-0.5, "$-0.5$", "-0.5"),
        (0.0, "0", "0"),
    ],
)
def test_numbers_as_they_are_written(value: float, latex: str, markdown: str) -> None:
    table = pd.DataFrame({"n": [value]})
    assert rows_of(to_latex(table).decode()) == [latex]
    assert to_markdown(table).decode().splitlines()[2] == f"| {markdown} |"


def test_two_columns_of_one_name_are_both_there() -> None:
    table = pd.DataFrame([[1, "a"]], columns=["x", "x"])
    assert "| 1 | a |" in to_markdown(table).decode()
