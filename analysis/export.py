"""A figure as a file: on paper, on a page of its own, as data, and where it came from.

Heavy libraries are loaded when a file is made, never before. The same figure, options and library
versions give the same bytes.
"""

from __future__ import annotations

import hashlib
import html
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from analysis.errors import AnalysisError
from analysis.figure import Figure
from analysis.paper.venues import Style, style_for

LIBRARIES = ("matplotlib", "numpy", "pandas", "plotly", "pyarrow", "torch", "transformers")


@dataclass(frozen=True)
class Form:
    """A kind of file: its name for the reader, the end of its file name, and its media type."""

    label: str
    suffix: str
    mime: str
    paper: bool = False


FORMS: dict[str, Form] = {
    "pdf": Form("PDF", "pdf", "application/pdf", True),
    "svg": Form("SVG", "svg", "image/svg+xml", True),
    "png": Form("PNG", "png", "image/png", True),
    "html": Form("HTML, interactive", "html", "text/html"),
    "csv": Form("CSV, the data", "csv", "text/csv"),
    "parquet": Form("Parquet, the data", "parquet", "application/vnd.apache.parquet"),
    "figure": Form("Figure file, redraws it", "figure.json", "application/json"),
    "provenance": Form("Provenance", "provenance.json", "application/json"),
}


def export(figure: Figure, form: str, style: Style | None = None, link: str = "") -> bytes:
    """The file of a figure.

    form: a key of `FORMS`; style: sizes and letters of the three paper forms; link: the address
    that reopens the view, for the provenance. Raises AnalysisError for another form.
    """
    style = style or style_for()
    if form not in FORMS:
        raise AnalysisError(f"{form!r} is no format: choose {', '.join(FORMS)}.")
    if FORMS[form].paper:
        from analysis.paper.renderer import render

        return render(figure, style, form)
    make: dict[str, Callable[[], bytes]] = {
        "html": lambda: to_html(figure),
        "csv": lambda: figure.table().to_csv(index=False, lineterminator="\n").encode(),
        "parquet": lambda: _figure_file().to_parquet(figure),
        "figure": lambda: _figure_file().to_json(figure),
        "provenance": lambda: as_json(provenance_of(figure, style, link)),
    }
    return make[form]()


def _figure_file() -> Any:
    from analysis import figure_file

    return figure_file


def save(
    figure: Figure, path: str | Path, *, venue: str = "neurips", form: str = "", **options: Any
) -> Path:
    """Write a figure to `path`, in the form its name ends with, for a venue of `VENUES`.

    options: fields of `paper.venues.Style`, such as width_in or title, and link. Raises
    AnalysisError for what does not exist or cannot be written.
    """
    path = Path(path)
    form = form or form_of(path.name)
    link = str(options.pop("link", ""))
    content = export(figure, form, style_for(venue, **options), link)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise AnalysisError(f"{path} cannot be written: {error.strerror}.") from None
    return path


def form_of(name: str) -> str:
    """The form a file name ends with; AnalysisError when there is none."""
    for key, form in FORMS.items():
        if name.lower().endswith("." + form.suffix):
            return key
    raise AnalysisError(
        f"The end of the file name {name!r} names no format: choose "
        f"{', '.join('.' + form.suffix for form in FORMS.values())}, or say --format."
    )


def to_html(figure: Figure) -> bytes:
    """A page of its own with the interactive figure; it needs no network."""
    plot = _plot(figure)
    title, caption = (html.escape(_one_line(text)) for text in (figure.title, figure.caption))
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{title}</title>\n<style>body{{font-family:sans-serif;max-width:60rem;"
        "margin:2rem auto;color:#31333F}</style>\n</head>\n<body>\n"
        f"<h1>{title}</h1>\n{plot}\n<p>{caption}</p>\n</body>\n</html>\n"
    )
    return page.encode("utf-8", "replace")


def _plot(figure: Figure) -> str:
    """The figure as HTML: a text is its tokens, everything else what Plotly draws."""
    if figure.mark == "text":
        from analysis.text_html import to_html

        return to_html(figure)
    from analysis.plotly_renderer import to_plotly

    drawn = to_plotly(figure)
    drawn.update_layout(paper_bgcolor="#FFFFFF", plot_bgcolor="#FFFFFF")
    return str(
        drawn.to_html(
            full_html=False,
            include_plotlyjs=True,
            include_mathjax=False,
            div_id="figure",
            config={"displaylogo": False, "responsive": True},
        )
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def provenance_of(figure: Figure, style: Style, link: str = "") -> dict[str, Any]:
    """Where a figure's numbers come from, and what draws it again.

    run, model, revision and selection (policy and parameters) as the figure tells them; the hash
    of its arrays; library versions; the link that reopens the view.
    """
    note = figure.note
    return {
        "title": figure.title,
        "mark": figure.mark,
        "caption": figure.caption,
        "formula": note.formula if note else "",
        "paper": note.source if note else "",
        "source": dict(figure.provenance),
        "link": link,
        "data_sha256": data_hash(figure),
        "style": asdict(style),
        "versions": versions(),
    }


def data_hash(figure: Figure) -> str:
    """SHA-256 over the figure's arrays with their names, types and shapes."""
    digest = hashlib.sha256()
    for name, array in sorted(figure.arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """The installed versions of the libraries that compute and draw."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def as_json(told: Mapping[str, Any]) -> bytes:
    """JSON for people: indented, the same bytes every time; numbers of numpy become plain."""

    def plain(value: Any) -> Any:
        return value.tolist() if hasattr(value, "tolist") else str(value)

    return (json.dumps(told, indent=2, default=plain) + "\n").encode()
