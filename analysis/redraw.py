"""Draws every figure of this folder again, from the data beside it: `python redraw.py [folder]`.

It needs matplotlib, with the numpy that comes with it, and nothing else. The code that draws lies
in `drawing/`: it is KVScope's own (Apache-2.0), so the files are those of the folder; with the
library versions of provenance.json they are the same bytes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
DRAWING = "drawing"


def main(out: Path) -> None:
    """Write figures/*.pdf and sheet.pdf into `out`."""
    sys.path.insert(0, str(HERE / DRAWING))
    from analysis.figure_file import read_figure
    from analysis.paper.page import Panel, render_page
    from analysis.paper.renderer import render
    from analysis.paper.venues import Style

    told = json.loads((HERE / "provenance.json").read_bytes())
    panels = {}
    for entry in told["figures"]:
        figure = read_figure((HERE / entry["redrawn_from"]).read_bytes())
        style = Style(**entry["style"])
        panels[entry["letter"]] = Panel(figure, style, entry["words"])
        path = out / entry["pdf"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(render(figure, style, "pdf"))
        print(path)
    page = told["page"]
    rows = [[panels[letter] for letter in row] for row in page["rows"]]
    drawn = render_page(
        rows, Style(**page["style"]), "pdf", title=told["title"], gap_in=page["gap_in"]
    )
    (out / page["pdf"]).write_bytes(drawn)
    print(out / page["pdf"])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "redrawn")
