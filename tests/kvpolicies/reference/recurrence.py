"""The recurrence page's tracker, as a loop over steps and entries."""

import math
from dataclasses import dataclass

import numpy as np

from .common import Array
from .statistics import threshold


@dataclass
class Tracked:
    mri: Array  # (n,)
    last_active: Array  # (n,): TS at the end
    active: Array  # (T, n)


def track(
    attention: Array, alpha: float | str = 5e-4, prompt_length: int = 0, count: str = "from_birth"
) -> Tracked:
    """METHODS 1: attention of T steps over n entries of one head, NaN where not yet born. METHODS
    6: because prompt tokens start with `TS = 0`, a first activation already counts as an interval;
    `count="from_first"` starts at the first activation instead."""
    attention = np.asarray(attention, dtype=np.float64)
    steps, entries = attention.shape
    ts = np.zeros(entries, dtype=np.int32)
    mri = np.zeros(entries, dtype=np.int32)
    active = np.zeros((steps, entries), dtype=bool)
    for entry in range(entries):
        ts[entry] = max(0, entry - prompt_length)  # appended at step entry − P + 1, one less
    for t in range(1, steps + 1):
        born = [e for e in range(entries) if not math.isnan(attention[t - 1, e])]
        level = threshold(alpha, len(born))
        for entry in born:
            if attention[t - 1, entry] >= level:
                first = not active[:, entry].any()
                if not (first and count == "from_first"):
                    mri[entry] = max(mri[entry], t - ts[entry])
                ts[entry] = t
                active[t - 1, entry] = True
    return Tracked(mri, ts, active)
