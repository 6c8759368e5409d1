"""The export of a figure sheet as a job: the small worker draws, and no session waits for another.

A job names `analysis.sheet_job:run`; only the sheet's own few lines travel, figures are read from
their files.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from analysis.export import versions
from analysis.figure_file import read_figure
from analysis.heavy import Report, Stopped
from analysis.sheet import Sheet, from_dict, to_dict
from analysis.sheet_files import make, steps_of
from cache_store.sheets import Sheets

KIND = "figure_sheet"  # of the job
_versions = functools.cache(versions)  # a page asks again every second


def params_of(sheet_id: str, sheet: Sheet, form: str) -> dict[str, Any]:
    """Everything that decides the file: what is in the sheet now, its form, and the libraries."""
    told = to_dict(sheet) | {"removed": []}
    return {"sheet_id": sheet_id, "sheet": told, "form": form, "versions": _versions()}


def export_name(params: dict[str, Any]) -> str:
    """The name of the file that `run` makes of `params`."""
    canonical = json.dumps(params, sort_keys=True, separators=(",", ":"))
    return f"{hashlib.sha256(canonical.encode()).hexdigest()[:24]}.{params['form']}"


def run(
    params: dict[str, Any],
    home: Path,
    progress: Callable[[Any], None],
    cancelled: Callable[[], bool],
) -> dict[str, Any]:
    """params: of `params_of`; an existing file is kept. Returns its name.

    Raises KVScopeError for a sheet or figure that cannot be read or drawn, and Stopped when
    `cancelled` says so between figures.
    """
    store, name = Sheets(home), export_name(params)
    summary = {"sheet_id": params["sheet_id"], "export": name}
    if store.export_path(params["sheet_id"], name).exists():
        return summary
    sheet, done = from_dict(params["sheet"]), 0
    total = steps_of(sheet, params["form"])

    def step() -> None:
        nonlocal done
        if cancelled():
            raise Stopped("The export was cancelled.")
        progress(Report("draw", done, total))
        done += 1

    step()
    figures = {
        item.figure: read_figure(store.figure(params["sheet_id"], item.figure))
        for item in sheet.items
    }
    content = make(sheet, figures, params["form"], step)
    progress(Report("write", total, total))
    store.keep_export(params["sheet_id"], name, content)
    return summary
