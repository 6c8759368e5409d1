"""What each policy cost over a whole run, one row per policy (docs/methods.md, section 7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.comparison import mean_over, pooled
from analysis.distances import distance_to, reference_of
from analysis.rows import MEAN
from cache_store.reader import Capture

if TYPE_CHECKING:
    from analysis.replays import Replayed


@dataclass(frozen=True)
class Column:
    """A column of a summary: its label and unit, and what it says in one sentence."""

    label: str
    unit: str
    help: str


SUMMARY_COLUMNS: dict[str, Column] = {
    "policy": Column("policy", "", "The policy with its budget."),
    "budget": Column("budget", "entries", "Entries per KV head and layer that were asked for."),
    "realised_budget": Column(
        "realised budget", "entries", "Entries per head and layer after the first eviction."
    ),
    "entries": Column("entries at the end", "entries", "Per head and layer, after the last step."),
    "bytes_full": Column("full cache", "bytes", "Keys and values of the full cache at the end."),
    "bytes_kept": Column("cache kept", "bytes", "Keys and values kept at the end."),
    "bytes_peak": Column("cache at peak", "bytes", "The largest cache of any step."),
    "mass_kept": Column("mass kept", "share", "Attention mass kept, mean over heads and steps."),
    "mass_kept_worst": Column(
        "worst mass kept", "share", "The lowest of any layer, query head and step."
    ),
    "recall": Column("recall", "share", "Of each step's gold entries; mean over heads and steps."),
    "recall_response": Column(
        "recall, response", "share", "Of the prompt entries that the response attends to most."
    ),
    "output_error": Column(
        "output error", "", "Relative L2 error of the attention output, mean (LazyEviction Eq. 4)."
    ),
    "regret": Column(
        "regret", "attention mass", "Summed over the steps, mean over heads and layers."
    ),
    "missed": Column(
        "missed recurrences", "entries", "Summed over the steps, mean over heads and layers."
    ),
    "jaccard_oracle": Column(
        "in common with the oracle", "share", "Jaccard of what both keep, mean over steps."
    ),
    "mass_below_oracle": Column(
        "mass below the oracle", "share", "Mass that the oracle keeps at this budget and this not."
    ),
}


def cost_summary(capture: Capture, replayeds: Sequence[Replayed]) -> pd.DataFrame:
    """One row per policy with the columns SUMMARY_COLUMNS; NaN where a number does not exist.

    The distance to the oracle is to the one among `replayeds` with the policy's own budget and
    schedule (`oracle_choice`).
    """
    rows = [_summary_row(capture, policy, replayeds) for policy in replayeds]
    return pd.DataFrame(rows, columns=list(SUMMARY_COLUMNS))


def _summary_row(
    capture: Capture, policy: Replayed, replayeds: Sequence[Replayed]
) -> dict[str, str | float]:
    def over(values: np.ndarray) -> np.ndarray:
        return pooled(capture, policy, values, MEAN, MEAN).astype(np.float64)

    mass, regret = over(policy.mass_kept), over(policy.regret_step)
    row: dict[str, str | float] = {
        "policy": policy.title,
        "entries": _mean(over(policy.counts())),
        "mass_kept": _mean(mass),
        "mass_kept_worst": float(np.nanmin(mass)) if np.isfinite(mass).any() else math.nan,
        "recall": _mean(over(policy.recall)),
        "recall_response": _mean(over(policy.recall_response)),
        "output_error": _mean(over(policy.output_error)),
        "regret": _mean(np.nansum(regret, axis=1)),
        "missed": _mean(over(policy.missed_step).sum(axis=1)),
        "jaccard_oracle": math.nan,
        "mass_below_oracle": math.nan,
    }
    for name in ("budget", "realised_budget", "bytes_full", "bytes_kept", "bytes_peak"):
        row[name] = policy.facts.get(name, math.nan)
    oracle = reference_of(policy, replayeds, "oracle")
    if oracle is not None:
        distance = distance_to(capture, policy, oracle)
        row["jaccard_oracle"] = float(distance["jaccard"].mean())
        row["mass_below_oracle"] = 0.0 - float(distance["mass_difference"].mean())
    return row


def _mean(values: np.ndarray) -> float:
    return float(mean_over(values.reshape(-1, 1))[0])
