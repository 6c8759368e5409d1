"""What takes too long for a page: analyses that a job computes and keeps beside the capture.

A job names `analysis.heavy:run`; it is imported in the worker when the first such job arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.errors import AnalysisError
from cache_store.files import CAPTURE_FILE, check_run_id
from cache_store.reader import Capture
from cache_store.writer import DerivedWriter

Arrays = dict[str, np.ndarray]
Compute = Callable[[Capture, Mapping[str, Any], Callable[[int, int], None]], Arrays]


@dataclass(frozen=True)
class Report:
    """How far a job is: what its callback hears, in the jobs' own words."""

    phase: str
    done: int
    total: int
    text: str = ""


class Stopped(AnalysisError):
    """The reader cancelled the job."""


def kinds() -> dict[str, Compute]:
    """Kind of derived file -> what computes its arrays."""
    from analysis.context_scores import KIND as CONTEXT
    from analysis.context_scores import derive_task_attention
    from analysis.projections import KIND as PROJECTION
    from analysis.projections import derive_projection
    from analysis.retained import KIND as RETAINED
    from analysis.retained import derive_retained

    return {
        CONTEXT: derive_task_attention,
        PROJECTION: derive_projection,
        RETAINED: derive_retained,
    }


def run(
    params: dict[str, Any],
    home: Path,
    progress: Callable[[Any], None],
    cancelled: Callable[[], bool],
) -> dict[str, Any]:
    """params: {"run_id": …, "kind": a key of `kinds`, "spec": {…}}; an existing file is kept.

    Raises AnalysisError for an unknown kind, and Stopped when `cancelled` says so between steps.
    """
    kind, spec = params["kind"], params["spec"]
    compute = kinds().get(kind)
    if compute is None:
        raise AnalysisError(f"There is no analysis named '{kind}'; use {' or '.join(kinds())}.")

    def step(done: int, total: int) -> None:
        if cancelled():
            raise Stopped("The job was cancelled.")
        progress(Report("derive", done, total))

    folder = Path(home) / check_run_id(params["run_id"])
    with DerivedWriter(folder, kind, spec) as writer:
        if not writer.exists:
            with Capture.open(folder / CAPTURE_FILE) as capture:
                for name, values in compute(capture, spec, step).items():
                    writer.add_array(name, values)
            writer.finish()
    return {"run_id": params["run_id"], "kind": kind}
