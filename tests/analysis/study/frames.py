"""Hand-made rows of a study."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.study.rows import Study
from cache_store.study import COLUMNS

NUMBERS = ("score", "agreement", "nll", "kl", "cache_bytes", "peak_bytes", "depth", "length")


def row(example: str, task: str, policy: str, size: float, **values: Any) -> dict[str, Any]:
    """One row; `size` is the ratio. Numbers that are not given are missing."""
    key = values.pop("key", "full" if policy == "full" else policy)
    options = values.pop("options", {})
    whole = {
        "example_id": example,
        "task": task,
        "policy": "Full cache" if policy == "full" else policy,
        "policy_key": key,
        "options": json.dumps(options),
        "ratio": size,
        "repeat": 0,
        "response": "",
        "simulated": False,
        "facts": "{}",
        "seed": 0,
        "error": None,
    }
    return {name: np.nan for name in COLUMNS} | whole | values


def study(rows: list[Mapping[str, Any]], **spec: Any) -> Study:
    spec = {"model": "demo", "seed": 0, **spec}
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return Study("0123456789abcdef", "A study", spec, frame)


def curve(
    policy: str, task: str, scores: Mapping[float, list[float]], **values: Any
) -> list[dict[str, Any]]:
    """Rows of prompts task-0, task-1, … from their scores at each size."""
    return [
        row(f"{task}-{i}", task, policy, size, score=score, **values)
        for size, column in scores.items()
        for i, score in enumerate(column)
    ]
