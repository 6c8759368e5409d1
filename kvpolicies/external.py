"""Keep-masks made by other tools, read as if a policy had been replayed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from kvpolicies.errors import PolicyError
from kvpolicies.result import Result


def masks_as_result(
    columns: Mapping[str, Any],
    *,
    layers: int,
    heads: int,
    prompt_length: int,
    length: int,
    label: str,
) -> Result:
    """Kept entries, one per row of the columns layer, head, position and optionally step.

    Without steps the rows are what the prompt keeps. With them, each step that occurs lists all
    that is cached after it; between listed steps entries stay, and new ones are kept until a
    listed step lacks them. Raises `PolicyError` naming the column and value that do not fit.
    """
    missing = [name for name in ("layer", "head", "position") if name not in columns]
    if missing:
        raise PolicyError(f"keep-masks need the columns layer, head, position; missing: {missing}")
    steps = length - prompt_length
    limits = {"layer": layers, "head": heads, "position": length, "step": steps + 1}
    rows: dict[str, np.ndarray] = {}
    for name, limit in limits.items():
        if name not in columns:
            continue
        column = np.asarray(columns[name]).reshape(-1)
        if not np.issubdtype(column.dtype, np.integer):
            raise PolicyError(f"column {name} of the keep-masks must hold whole numbers")
        outside = (column < 0) | (column >= limit)
        if outside.any():
            raise PolicyError(
                f"column {name} of the keep-masks holds {int(column[outside][0])}, outside 0 to "
                f"{limit - 1} of this capture"
            )
        rows[name] = column.astype(np.int64)
    if len({len(column) for column in rows.values()}) > 1:
        raise PolicyError("the columns of the keep-masks have different lengths")
    step = rows.get("step", np.zeros_like(rows["layer"]))
    evicted_at = torch.full((layers, heads, length), steps + 1, dtype=torch.int32)
    positions = torch.arange(length)
    for listed in np.unique(step).tolist() or [0]:
        now = step == listed
        kept = torch.zeros((layers, heads, length), dtype=torch.bool)
        kept[rows["layer"][now], rows["head"][now], rows["position"][now]] = True
        born = positions < prompt_length + listed
        evicted_at[~kept & born & (evicted_at > listed)] = listed
    exempt = torch.zeros(layers, dtype=torch.bool)
    return Result(None, evicted_at, exempt, [], None, prompt_length, label=label)
