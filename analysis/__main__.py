"""`python -m analysis export figure.json --format pdf --venue neurips --out fig.pdf`"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.errors import AnalysisError
from analysis.export import FORMS, form_of, save
from analysis.paper.venues import COLOUR_MAPS, FAMILIES, LEGENDS, VENUES
from cache_store.errors import KVScopeError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; 0 when it worked, 1 with one sentence on stderr when not."""
    chosen = parser().parse_args(arguments)
    try:
        print(export(chosen))
    except KVScopeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def export(chosen: argparse.Namespace) -> Path:
    """Redraw a figure file and write it where it was asked for; returns that path."""
    from analysis.figure_file import read_figure

    try:
        figure = read_figure(Path(chosen.spec).read_bytes())
    except OSError as error:
        raise AnalysisError(f"{chosen.spec} cannot be read: {error.strerror}.") from None
    form = chosen.format or (form_of(chosen.out) if chosen.out else "pdf")
    out = chosen.out or f"{Path(chosen.spec).name.partition('.')[0]}.{FORMS[form].suffix}"
    return save(
        figure,
        out,
        venue=chosen.venue,
        form=form,
        width_in=chosen.width,
        height_in=chosen.height,
        font_pt=chosen.font,
        family=chosen.family,
        colour_map=chosen.colours,
        legend=chosen.legend,
        title=False if chosen.no_title else None,
        dpi=chosen.dpi,
    )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m analysis", description=__doc__)
    commands = top.add_subparsers(required=True, metavar="command")
    one = commands.add_parser("export", help="redraw a figure from its file")
    one.add_argument("spec", help="a figure file (.figure.json), or its data as Parquet")
    one.add_argument("--format", choices=FORMS, help="default: as --out ends, otherwise pdf")
    one.add_argument("--venue", choices=VENUES, default="neurips")
    one.add_argument("--out", help="where to write; default: the spec's name in this folder")
    one.add_argument("--width", type=float, help="inches; default: the venue's")
    one.add_argument("--height", type=float, help="inches; default: what the figure needs")
    one.add_argument("--font", type=float, help="points")
    one.add_argument("--family", choices=FAMILIES)
    one.add_argument("--colours", choices=COLOUR_MAPS)
    one.add_argument("--legend", choices=LEGENDS)
    one.add_argument("--no-title", action="store_true")
    one.add_argument("--dpi", type=int, help="pixels per inch of a PNG")
    return top


if __name__ == "__main__":
    sys.exit(main())
