"""A figure sheet as files: one page as PDF or PNG, and a zip that a paper and its readers can use.

The same sheet and library versions give the same bytes.
"""

from __future__ import annotations

import ast
import io
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from analysis.errors import AnalysisError
from analysis.export import as_json, export, provenance_of, versions
from analysis.figure import Figure
from analysis.paper.venues import Style
from analysis.redraw import DRAWING
from analysis.sheet import GAP_IN, Item, Sheet
from analysis.sheet_latex import figures_tex

FORMS = ("pdf", "png", "zip")
PREVIEW_DPI = 160
CSV_ROWS = 100_000  # a longer table is in the Parquet file only
PAGE = "sheet.pdf"
ROOT = Path(__file__).resolve().parents[1]
DRAWS = ("analysis.figure_file", "analysis.paper.page", "analysis.paper.renderer")
_TIME = (1980, 1, 1, 0, 0, 0)  # of every file in a zip
_NOT_A_NAME = re.compile("[^a-z0-9]+")

README = """{title}

figures/        one PDF per figure, as wide as its column
sheet.pdf       all of them on one page, with letters
figures.tex     the same page for LaTeX, with captions
captions.txt    the captions
data/           the numbers: Parquet with every table, CSV where a table has at most {rows:,} rows,
                and a .figure.json with all of a figure
provenance.json which runs, models, policies and versions, and the link that reopens each view
redraw.py       draws every PDF again from data/; needs matplotlib only: python redraw.py
drawing/        what redraw.py draws with
"""


@dataclass(frozen=True)
class Shown:
    """A figure of a sheet on its way into files: its letter, size and names."""

    item: Item
    figure: Figure
    letter: str
    style: Style
    words: str

    @property
    def name(self) -> str:
        """What its files are called, safe in LaTeX and on every disk."""
        title = _NOT_A_NAME.sub("-", self.item.title.casefold()).strip("-")[:48].strip("-")
        return f"{self.letter}-{title}" if title else self.letter


def steps_of(sheet: Sheet, form: str) -> int:
    """How often a form of `FORMS` reports that it has come further."""
    return len(sheet.items) * (2 if form == "zip" else 1)


def make(
    sheet: Sheet,
    figures: Mapping[str, Figure],
    form: str,
    step: Callable[[], None] = lambda: None,
) -> bytes:
    """The file of a sheet: `form` is one of `FORMS`.

    figures: by the name of their file; step: called after each figure that was drawn. Raises
    AnalysisError for an empty sheet, another form, and what cannot be drawn.
    """
    if form not in FORMS:
        raise AnalysisError(f"{form!r} is no form of a sheet: choose {', '.join(FORMS)}.")
    if not sheet.items:
        raise AnalysisError("The sheet is empty: add a figure from any page first.")
    rows = _rows(sheet, figures)
    if form == "zip":
        return _zip(sheet, rows, step)
    return _page(sheet, rows, form, step)


def _rows(sheet: Sheet, figures: Mapping[str, Figure]) -> list[list[Shown]]:
    """The figures side by side, those of a row equally high."""
    from analysis.paper.page import Panel, level

    rows = []
    for row in sheet.rows():
        panels, letters = [], [sheet.letter(item) for item in row]
        for item, letter in zip(row, letters, strict=True):
            style = sheet.look.style(
                width_in=sheet.width_in(item), height_in=item.height_in, legend=item.legend
            )
            told = sheet.look.captions and item.caption
            panels.append(
                Panel(figures[item.figure], style, f"({letter}) {told}" if told else f"({letter})")
            )
        rows.append(
            [
                Shown(item, panel.figure, letter, panel.style, panel.words)
                for item, letter, panel in zip(row, letters, level(panels), strict=True)
            ]
        )
    return rows


def _page(sheet: Sheet, rows: list[list[Shown]], form: str, step: Callable[[], None]) -> bytes:
    from analysis.paper.page import Panel, render_page

    return render_page(
        [[Panel(one.figure, one.style, one.words) for one in row] for row in rows],
        replace(sheet.look.style(), dpi=PREVIEW_DPI),
        form,
        title=sheet.title,
        gap_in=GAP_IN,
        step=step,
    )


def _zip(sheet: Sheet, rows: list[list[Shown]], step: Callable[[], None]) -> bytes:
    everything = [one for row in rows for one in row]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:

        def put(name: str, content: str | bytes) -> None:
            about = zipfile.ZipInfo(name, _TIME)
            about.compress_type = zipfile.ZIP_DEFLATED
            about.external_attr = 0o644 << 16
            archive.writestr(about, content)

        put("README.txt", README.format(title=sheet.title, rows=CSV_ROWS))
        for one in everything:
            put(f"figures/{one.name}.pdf", export(one.figure, "pdf", one.style))
            step()
        put(PAGE, _page(sheet, rows, "pdf", step))
        data = {one.letter: dict(_data(one)) for one in everything}
        for name, content in (file for files in data.values() for file in files.items()):
            put(name, content)
        put("captions.txt", _captions(sheet, everything))
        put("figures.tex", figures_tex(sheet, {one.item.id: one.name for one in everything}))
        put("provenance.json", as_json(_provenance(sheet, rows, data)))
        put("redraw.py", (ROOT / "analysis" / "redraw.py").read_bytes())
        for path in drawing_code():
            put(f"{DRAWING}/{path.relative_to(ROOT).as_posix()}", path.read_bytes())
    return file.getvalue()


def _data(one: Shown) -> Iterator[tuple[str, bytes]]:
    """The files of a figure's numbers, with their names."""
    yield f"data/{one.name}.figure.json", export(one.figure, "figure")
    yield f"data/{one.name}.parquet", export(one.figure, "parquet")
    if len(one.figure.table()) <= CSV_ROWS:
        yield f"data/{one.name}.csv", export(one.figure, "csv")


def _captions(sheet: Sheet, everything: list[Shown]) -> str:
    lines = [f"({one.letter}) {one.item.caption}".rstrip() for one in everything]
    return "\n\n".join([sheet.caption or sheet.title, *lines]) + "\n"


def _provenance(
    sheet: Sheet, rows: list[list[Shown]], data: Mapping[str, Mapping[str, bytes]]
) -> dict[str, Any]:
    """Where everything comes from, and what `redraw.py` needs; data: the files by letter."""
    captures: dict[str, Any] = {}
    figures = []
    for one in (shown for row in rows for shown in row):
        told = provenance_of(one.figure, one.style, one.item.link)
        told.pop("versions")
        source = dict(told["source"])
        captures |= {entry["id"]: entry for entry in source.pop("captures", ())}
        files = list(data[one.letter])
        figures.append(
            {
                "letter": one.letter,
                "pdf": f"figures/{one.name}.pdf",
                "data": files,
                "redrawn_from": files[0],
                "words": one.words,
                **told,
                "caption": one.item.caption,
                "source": source,
            }
        )
    return {
        "format": "kvscope sheet 1",
        "title": sheet.title,
        "caption": sheet.caption,
        "venue": sheet.look.venue,
        "versions": versions(),
        "captures": captures,
        "page": {
            "pdf": PAGE,
            "rows": [[one.letter for one in row] for row in rows],
            "gap_in": GAP_IN,
            "style": asdict(replace(sheet.look.style(), dpi=PREVIEW_DPI)),
        },
        "figures": figures,
    }


def drawing_code() -> list[Path]:
    """The files that `redraw.py` draws with: what the renderer imports of ours, and the licence."""
    found: dict[Path, None] = {}
    waiting = list(DRAWS)
    while waiting:
        path = _file_of(waiting.pop())
        if path is None or path in found:
            continue
        found[path] = None
        package = path.parent / "__init__.py"
        while package.is_relative_to(ROOT) and package.exists():
            found[package] = None
            package = package.parent.parent / "__init__.py"
        waiting += _imports(path)
    return [*sorted(found), ROOT / "LICENSE"]


def _file_of(module: str) -> Path | None:
    """The file of one of our modules, None for anything else."""
    path = ROOT.joinpath(*module.split("."))
    if not module.startswith(("analysis.", "cache_store.", "kvpolicies.")):
        return None
    return next(
        (file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None
    )


def _imports(path: Path) -> Iterator[str]:
    """What a module imports when it is imported itself: nothing within a function or for types."""
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
