"""SAGE-KV and StreamingLLM measured over budgets: at once where that is quick, else as a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from analysis.errors import NeedsJob
from analysis.picks import Retained, retained
from cache_store.reader import Capture

KIND = "retained"
METHODS: dict[str, dict[str, str]] = {
    "SAGE-KV, own picks": {"method": "sage_kv", "view": "query_head"},
    "SAGE-KV, picks shared by the group": {"method": "sage_kv", "view": "union"},
    "StreamingLLM": {"method": "streaming_llm"},
}
DIRECT_CELLS = 10_000_000  # attention weights weighed while the reader waits
CELLS_PER_S = 12_000_000


def stored_retained(capture: Capture, layer: int, budgets: Sequence[int]) -> dict[str, Retained]:
    """By name of METHODS, what each keeps at each budget; see `analysis.picks.retained`.

    Raises NeedsJob (kind "retained") where it takes long and was not computed, AnalysisError
    without a response.
    """
    info = capture.info
    sizes = tuple(int(budget) for budget in budgets)
    spec = {"layer": int(layer), "budgets": list(sizes)}
    derived = capture.derived(KIND, spec)
    if derived is not None:
        with derived:
            mass, error = derived.array("mass"), derived.array("error")
        return {name: Retained(sizes, mass[n], error[n]) for n, name in enumerate(METHODS)}
    cells = info.query_heads * info.response_length * info.length * len(sizes) * len(METHODS)
    if cells > DIRECT_CELLS:
        raise NeedsJob(KIND, spec, cells / CELLS_PER_S, "The measure over budgets")
    return {name: retained(capture, layer, sizes, **METHODS[name]) for name in METHODS}


def derive_retained(
    capture: Capture, spec: Mapping[str, Any], step: Callable[[int, int], None]
) -> dict[str, np.ndarray]:
    """The arrays of the derived file "retained": mass and error, float32 (methods, budgets,
    query_heads, T)."""
    made = []
    for done, options in enumerate(METHODS.values()):
        step(done, len(METHODS))
        made.append(retained(capture, int(spec["layer"]), spec["budgets"], **options))
    step(len(METHODS), len(METHODS))
    return {
        "mass": np.stack([one.mass for one in made]),
        "error": np.stack([one.error for one in made]),
    }
