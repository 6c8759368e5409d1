"""`python -m analysis export <link or figure file> --format pdf --venue neurips --out fig.pdf`"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.errors import AnalysisError
from analysis.export import FORMS, form_of, save
from analysis.figure import Figure
from analysis.paper.venues import COLOUR_MAPS, FAMILIES, LEGENDS, MM, VENUES
from cache_store.errors import KVScopeError

DONE, FAILED, CANCELLED = 0, 1, 130  # 2 is argparse's, for wrong usage
UNITS = {"in": 1.0, "mm": MM, "cm": 10 * MM, "pt": 1 / 72}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status, with one sentence on standard error unless it is
    0: 0 done, 1 refused or failed, 130 cancelled."""
    chosen = parser().parse_args(arguments)
    try:
        if chosen.list:
            print("\n".join(figures(chosen)))
        else:
            print(export(chosen))
    except KVScopeError as error:
        print(f"kvscope: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("kvscope: cancelled, nothing was written", file=sys.stderr)
        return CANCELLED
    return DONE


def export(chosen: argparse.Namespace) -> Path:
    """Draw a figure again and write it where it was asked for; returns that path."""
    form = chosen.format or (form_of(chosen.out) if chosen.out else "pdf")
    figure = _figure(chosen)
    return save(
        figure,
        chosen.out or f"{_name(chosen)}.{FORMS[form].suffix}",
        venue=chosen.venue,
        form=form,
        link=chosen.spec if _is_link(chosen.spec) else "",
        width_in=chosen.width,
        height_in=chosen.height,
        font_pt=chosen.font,
        family=chosen.family,
        colour_map=chosen.colours,
        legend=chosen.legend,
        title=False if chosen.no_title else None,
        dpi=chosen.dpi,
    )


def figures(chosen: argparse.Namespace) -> list[str]:
    """What there is to export: the figures of a link, or the one of a file."""
    if _is_link(chosen.spec):
        from pages.parts.from_link import figures_at

        return figures_at(chosen.spec, home=chosen.home)
    return [_figure(chosen).title]


def _is_link(spec: str) -> bool:
    return "://" in spec or "?" in spec


def _figure(chosen: argparse.Namespace) -> Figure:
    if _is_link(chosen.spec):
        # The one way from here to the pages (pyproject.toml): only a page knows what a link shows.
        from pages.parts.from_link import figure_at

        return figure_at(chosen.spec, chosen.figure, home=chosen.home)
    from analysis.figure_file import read_figure

    try:
        return read_figure(Path(chosen.spec).read_bytes())
    except OSError as error:
        raise AnalysisError(f"{chosen.spec} cannot be read: {error.strerror}.") from None


def _name(chosen: argparse.Namespace) -> str:
    """The file's name where none is given: the figure file's own, or "figure" for a link."""
    return "figure" if _is_link(chosen.spec) else Path(chosen.spec).name.partition(".")[0]


def length(text: str) -> float:
    """Inches of "5.5", "5.5in", "89mm", "8.9cm" or "250pt". Raises argparse's error."""
    number, unit = text.strip(), "in"
    for name in UNITS:
        if number.endswith(name):
            number, unit = number.removesuffix(name), name
    try:
        inches = float(number) * UNITS[unit]
    except ValueError:
        inches = math.nan
    if not math.isfinite(inches):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no length: write 5.5, 89mm or 250pt")
    return inches


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m analysis", description="Figures of KVScope without the app."
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser(
        "export",
        help="write a figure as a file, from the link of its view or from its figure file",
        description="Write a figure as a file. A link is that of a view, as the address bar or "
        "the Link button shows it: its page is computed here, without a browser and without a "
        "running app, over the same runs (KVSCOPE_HOME). Jobs that the figure still needs are run "
        "first.",
        epilog="Exit status: 0 done, 1 refused or failed, 2 wrong usage, 130 cancelled (Ctrl-C).",
    )
    one.add_argument(
        "spec", metavar="LINK|FILE", help="a link, a figure file (.figure.json) or Parquet data"
    )
    one.add_argument(
        "--figure", default="", help="which one, by key or title, where a link shows several"
    )
    one.add_argument("--list", action="store_true", help="say what the link shows, write nothing")
    one.add_argument(
        "--home", default="", help="folder of the runs (default: KVSCOPE_HOME or ./runs)"
    )
    one.add_argument("--out", help="where to write (default: beside you, named as the figure file)")
    one.add_argument("--format", choices=FORMS, help="default: as --out ends, otherwise pdf")
    looks = one.add_argument_group("looks, each by default the venue's own")
    looks.add_argument(
        "--venue",
        choices=VENUES,
        default="neurips",
        metavar="VENUE",
        help=f"{', '.join(VENUES)} (default: neurips)",
    )
    looks.add_argument("--width", type=length, help="in inches, or as 89mm")
    looks.add_argument("--height", type=length, help="the same; default: what the figure needs")
    looks.add_argument("--font", type=float, help="size of the letters in points")
    looks.add_argument("--family", choices=FAMILIES, help="typeface")
    looks.add_argument("--colours", choices=COLOUR_MAPS, help="colour map")
    looks.add_argument("--legend", choices=LEGENDS, help="place of the legend")
    looks.add_argument("--no-title", action="store_true", help="leave the title out")
    looks.add_argument("--dpi", type=int, help="pixels per inch of a PNG")
    return top


if __name__ == "__main__":
    sys.exit(main())
