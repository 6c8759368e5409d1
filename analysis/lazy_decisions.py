"""What LazyEviction evicts at each decision in one layer, and which of it would have come back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.errors import AnalysisError
from analysis.recurrence import NO_RESPONSE, Tracked
from analysis.traces import trace_from

if TYPE_CHECKING:
    from analysis.traces import Source

FORMS = {"released": "released form", "printed": "printed form"}


@dataclass(frozen=True)
class LazyDecisions:
    """LazyEviction replayed over one layer.

    evicted_at: int32 (kv_heads, P + T), T + 1 if never; score: float32 (kv_heads, P + T), I at the
    last decision that ranked the entry, NaN if none did; steps: the steps of its decisions.
    """

    form: str
    evicted_at: np.ndarray
    score: np.ndarray
    steps: tuple[int, ...]


def lazy_decisions(
    source: Source, layer: int, form: str = "released", **options: Any
) -> LazyDecisions:
    """Replay LazyEviction over one layer, `options` as `kvpolicies.build` takes them.

    About 0.2 s for 256 steps over 4,096 tokens. Raises AnalysisError for an option that cannot be,
    or when nothing was generated.
    """
    from kvpolicies import PolicyError, build, replay

    if form not in FORMS:
        raise AnalysisError(f"LazyEviction's forms are {' and '.join(FORMS)}, not {form!r}.")
    trace = trace_from(source, [layer])
    if trace.response_length == 0:
        raise AnalysisError(NO_RESPONSE)
    window = trace.window_of(0)
    if window is not None and window < trace.length:
        raise AnalysisError(
            f"Layer {layer} attends within a sliding window of {window:,} tokens, so policies "
            "leave it alone; choose another layer."
        )
    try:
        result = replay(build("lazyeviction", form=form, **options), trace)
    except PolicyError as error:
        raise AnalysisError(error.sentence) from error
    steps = tuple(decision.step for decision in result.decisions)
    return LazyDecisions(form, result.evicted_at[0].numpy(), result.scores[0].numpy(), steps)


def recurs_at(evicted_at: np.ndarray, active: np.ndarray) -> np.ndarray:
    """The first active step under the full cache after each entry was evicted, 0 if none.

    evicted_at: (..., n); active: bool (..., T, n) of `track`. Returns int32 (..., n).
    """
    steps = np.arange(1, active.shape[-2] + 1)[:, None]
    later = active & (steps > evicted_at[..., None, :])
    first = np.where(later.any(axis=-2), later.argmax(axis=-2) + 1, 0)
    return first.astype(np.int32)


def evictions_table(
    decisions: Mapping[str, LazyDecisions], tracked: Tracked, kv_head: int
) -> pd.DataFrame:
    """One row per form and evicted entry of a head.

    tracked: of that head. Columns: form, step (of the decision), position, mri (under the full
    cache), score (I at the decision), recurs_at (the full cache's next active step, 0 if none).
    """
    parts = []
    for form, made in decisions.items():
        evicted_at = made.evicted_at[kv_head]
        gone = np.flatnonzero(evicted_at <= tracked.active.shape[0])
        again = recurs_at(evicted_at, tracked.active)
        parts.append(
            pd.DataFrame(
                {
                    "form": FORMS[form],
                    "step": evicted_at[gone],
                    "position": gone,
                    "mri": tracked.mri[gone],
                    "score": made.score[kv_head, gone],
                    "recurs_at": again[gone],
                }
            )
        )
    if not parts:
        return pd.DataFrame(columns=["form", "step", "position", "mri", "score", "recurs_at"])
    table = pd.concat(parts, ignore_index=True)
    return table.sort_values(["step", "position", "form"], ignore_index=True)


def decision_at(table: pd.DataFrame, step: int) -> tuple[int, pd.DataFrame]:
    """The newest decision until a step (before the first, the first), and its entries once each.

    table: of `evictions_table`, not empty. Columns: position, by ("both forms" or the one form),
    mri, released and printed (I in each form, NaN where it ranked or evicted nothing), recurs_at.
    """
    steps = table["step"].unique()
    until = steps[steps <= step]
    at = int(until.max() if len(until) else steps.min())
    rows = table[table["step"] == at]
    entries = rows.drop_duplicates("position").set_index("position").sort_index()
    own = {key: rows[rows["form"] == name].set_index("position") for key, name in FORMS.items()}
    both = own["released"].index.intersection(own["printed"].index)
    return at, pd.DataFrame(
        {
            "position": entries.index,
            "by": np.where(entries.index.isin(both), "both forms", entries["form"]),
            "mri": entries["mri"].to_numpy(),
            **{key: part["score"].reindex(entries.index).to_numpy() for key, part in own.items()},
            "recurs_at": entries["recurs_at"].to_numpy(),
        }
    )


def decision_summary(table: pd.DataFrame) -> pd.DataFrame:
    """Per form: decisions, evicted, returned (how many of them would have come back), share."""
    rows = []
    for form in FORMS.values():
        part = table[table["form"] == form]
        if part.empty:
            continue
        evicted, returned = len(part), int((part["recurs_at"] > 0).sum())
        rows.append(
            {
                "form": form,
                "decisions": part["step"].nunique(),
                "evicted": evicted,
                "returned": returned,
                "share_returned": returned / evicted,
            }
        )
    names = ["form", "decisions", "evicted", "returned", "share_returned"]
    return pd.DataFrame(rows, columns=names)
