"""`figures.tex` of a sheet: one LaTeX figure with a subfigure for each, on the same grid."""

from __future__ import annotations

from collections.abc import Mapping

from analysis.latex import escaped
from analysis.paper.venues import VENUES
from analysis.sheet import GAP_IN, Item, Sheet

HEAD = r"""% \usepackage[T1]{fontenc}
% \usepackage{graphicx}
% \usepackage{subcaption}
"""


def figures_tex(sheet: Sheet, names: Mapping[str, str]) -> str:
    """names: what each figure's files are called, by the id of its item."""
    kind = "figure*" if sheet.look.venue.endswith("-wide") else "figure"  # over both columns
    rows = [
        "\n".join(_subfigure(sheet, item, names[item.id]) for item in row) for row in sheet.rows()
    ]
    body = "\n\n  \\medskip\n".join(rows)
    return (
        f"{HEAD}\\begin{{{kind}}}[t]\n  \\centering\n{body}\n"
        f"  \\caption{{{escaped(sheet.caption or sheet.title)}}}\n"
        f"  \\label{{fig:sheet}}\n\\end{{{kind}}}\n"
    )


def _subfigure(sheet: Sheet, item: Item, name: str) -> str:
    """A column as wide as it is in the sheet; what follows it on the line ends with %."""
    whole = VENUES[sheet.look.venue].width_in
    share, gap = _floor(sheet.width_in(item) / whole), _floor(GAP_IN / whole)
    row = next(row for row in sheet.rows() if item in row)
    space = "" if item is row[-1] else f"\\hspace{{{gap:.4f}\\linewidth}}"
    return (
        f"  \\begin{{subfigure}}[t]{{{share:.4f}\\linewidth}}\n    \\centering\n"
        f"    \\includegraphics[width=\\linewidth]{{figures/{name}.pdf}}\n"
        f"    \\caption{{{escaped(item.caption)}}}\n"
        f"    \\label{{fig:sheet-{sheet.letter(item)}}}\n  \\end{{subfigure}}{space}%"
    )


def _floor(share: float) -> float:
    """Four digits, never more than it is: a row that is too wide by a hair would break."""
    return int(share * 10_000) / 10_000
