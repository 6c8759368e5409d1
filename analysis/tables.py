"""A table of a page for a paper: LaTeX with booktabs, or Markdown.

Numbers have at most three significant digits and thousands separated; whatever a text says is set
as it is. A long table is cut, and its last line says how much is missing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from analysis.latex import escaped
from analysis.words import visible

MOST_ROWS = 500
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|~$&#])")


def to_latex(table: pd.DataFrame, title: str = "") -> bytes:
    """A `table` environment that needs the package booktabs; `title` becomes its caption."""
    columns, rows = _cells(table, _latex_number, escaped)
    names = " & ".join(escaped(name) for name in columns)
    sides = "".join("r" if _numeric(table[name]) else "l" for name in table.columns)
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "  \\centering",
        *([f"  \\caption{{{escaped(title)}}}"] if title else []),
        f"  \\begin{{tabular}}{{{sides}}}",
        "    \\toprule",
        f"    {_guarded(names)} \\\\",
        "    \\midrule",
        *(f"    {_guarded(' & '.join(row))} \\\\" for row in rows),
        "    \\bottomrule",
        "  \\end{tabular}",
        *([f"  % {_missing(table)}"] if len(table) > MOST_ROWS else []),
        "\\end{table}",
    ]
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def to_markdown(table: pd.DataFrame, title: str = "") -> bytes:
    """A pipe table as GitHub, Pandoc and Jupyter read it, below its title."""
    columns, rows = _cells(table, _plain_number, _markdown)
    sides = ["---:" if _numeric(table[name]) else ":---" for name in table.columns]
    lines = [
        *([f"**{_markdown(title)}**", ""] if title else []),
        *(f"| {' | '.join(row)} |" for row in (map(_markdown, columns), sides, *rows)),
        *(["", _missing(table)] if len(table) > MOST_ROWS else []),
    ]
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def _missing(table: pd.DataFrame) -> str:
    return (
        f"{len(table) - MOST_ROWS:,} of {len(table):,} rows are left out; CSV and Parquet have all."
    )


def _cells(
    table: pd.DataFrame, number: Callable[[float], str], text: Callable[[object], str]
) -> tuple[list[str], list[list[str]]]:
    """Column names, and each row's cells as they are written."""
    shown = table.head(MOST_ROWS)
    columns = [
        [_cell(value, number, text) for value in shown.iloc[:, place].tolist()]
        for place in range(shown.shape[1])
    ]
    return [str(name) for name in table.columns], [list(row) for row in zip(*columns, strict=True)]


def _cell(value: Any, number: Callable[[float], str], text: Callable[[object], str]) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | np.ndarray):
        return text(", ".join(str(item) for item in value))
    if value is None or value is pd.NA or value is pd.NaT or value != value:
        return text("–")
    if isinstance(value, int | float | np.number):
        return number(float(value))
    return text(_signs(str(value)))


def _signs(value: str) -> str:
    """Signs for what no reader can see, but for spaces between words."""
    return visible(value, len(value) + 1).replace("␣", " ") if value else value


def _numeric(column: pd.Series | pd.DataFrame) -> bool:
    if isinstance(column, pd.DataFrame):  # two columns of one name
        column = column.iloc[:, 0]
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _plain_number(value: float) -> str:
    """1,234 · 0.0123 · 1.2e-07."""
    if math.isinf(value):
        return "−∞" if value < 0 else "∞"
    if abs(value) < 1e15 and (value == int(value) or abs(value) >= 100):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _latex_number(value: float) -> str:
    """As `_plain_number`, with a minus sign and powers of ten as LaTeX sets them."""
    if math.isinf(value):
        return f"${'-' if value < 0 else ''}\\infty$"
    digits, _, exponent = _plain_number(value).partition("e")
    if exponent:
        return f"${digits} \\times 10^{{{int(exponent)}}}$"
    return f"${digits}$" if digits.startswith("-") else digits


def _guarded(row: str) -> str:
    """A row whose first cell begins with a bracket is no option of the rule or row before it."""
    return f"{{}}{row}" if row.startswith("[") else row


def _markdown(text: object) -> str:
    """One line of text in which nothing is markup."""
    return _MARKDOWN.sub(r"\\\1", " ".join(str(text).split()))
