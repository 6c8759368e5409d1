"""What Plotly is told of a figure, as plain values: traces and a layout, and their JSON."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# What plotly.js reads as an array without a list of numbers.
TYPED = {"float32": "f4", "float64": "f8", "uint8": "u1", "int32": "i4", "uint16": "u2"}


@dataclass
class Spec:
    """A figure that is being drawn: traces in order, and the layout. Arrays stay NumPy arrays.

    `plotly_renderer.to_plotly` makes a checked Plotly figure of it; a page sends it as it is, for
    the checks take many times as long as the drawing.
    """

    layout: dict[str, Any]
    traces: list[dict[str, Any]] = field(default_factory=list)

    def add(self, kind: str, **told: Any) -> None:
        """One more trace; what is None is not told."""
        known = {name: value for name, value in told.items() if value is not None}
        self.traces.append({"type": kind} | known)


def to_json(value: Any) -> str:
    """JSON as plotly.js reads it: typed arrays in base64, numbers that are none as null."""
    return json.dumps(_plain(value), separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, np.ndarray):
        kind = TYPED.get(value.dtype.name)
        if kind is None or not value.size:
            return _plain(value.tolist())
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode("ascii")
        shape = {"shape": ", ".join(map(str, value.shape))} if value.ndim > 1 else {}
        return {"dtype": kind, "bdata": data} | shape
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
