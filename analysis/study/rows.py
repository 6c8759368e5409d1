"""The rows of a study, and what every figure asks of them: means over prompts, paired by prompt.

A row is one prompt under one policy at one size (`cache_store.study.COLUMNS`). Means over several
tasks are the mean of the tasks' own means, so that a task with more prompts counts no more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis.colours import DASHES, policy_colour
from analysis.errors import AnalysisError
from analysis.figure import Series
from analysis.words import number

FULL = "full"
ALL_TASKS = "all tasks"
RESAMPLES = 1000
CONFIDENCE = (2.5, 97.5)  # percentiles of the resampled means


@dataclass(frozen=True)
class Value:
    """A column that can be drawn: its name on an axis, its unit, what it is divided by and its
    natural range."""

    key: str
    label: str
    unit: str = ""
    divisor: float = 1.0
    range: tuple[float, float] | None = None


VALUES: dict[str, Value] = {
    value.key: value
    for value in (
        Value("score", "score", range=(0.0, 1.0)),
        Value("agreement", "tokens that agree with the full cache", "share", range=(0.0, 1.0)),
        Value("nll", "NLL of the full cache's response", "nats per token"),
        Value("kl", "KL(full ‖ policy)", "nats per token"),
        Value("cache_bytes", "cache after compression", "MB", 1e6),
        Value("peak_bytes", "cache at peak", "MB", 1e6),
        Value("decode_ms_per_step", "time per generated token", "ms"),
    )
}


@dataclass(frozen=True)
class Place:
    """One policy at one size; `size` None where the policy takes none (its own share kept)."""

    policy: str
    size: float | None


@dataclass(frozen=True, eq=False)
class Study:
    """The rows of a study that are there so far, with what the caption has to say.

    frame: `cache_store.study.COLUMNS`; spec: the specification as JSON values. Rows with an error
    have no numbers and stay out of every mean.
    """

    id: str
    title: str
    spec: Mapping[str, Any]
    frame: pd.DataFrame

    @property
    def axis(self) -> str:
        """ "ratio" (share evicted) or "budget" (entries per KV head and layer)."""
        return "budget" if self.spec.get("budgets") else "ratio"

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.frame["task"]))

    @cached_property
    def policies(self) -> tuple[str, ...]:
        """Names of the compared policies in the order of the study, without the full cache."""
        others = self.frame[self.frame["policy_key"] != FULL]
        return tuple(dict.fromkeys(others["policy"]))

    @cached_property
    def sizes(self) -> tuple[float, ...]:
        """The ratios or budgets asked for, ascending; 0 evicted is the full cache."""
        return tuple(sorted(float(size) for size in self.spec.get(f"{self.axis}s") or ()))

    @cached_property
    def placed(self) -> pd.DataFrame:
        """The rows with two more columns: `place`, an index into `places`, and `size`."""
        frame = self.frame.copy()
        sizes = np.full(len(frame), np.nan)
        asked = frame[self.axis].to_numpy(np.float64)
        sized = set(self._sized)
        takes = frame["policy"].isin(sized).to_numpy()
        for size in self.sizes:
            sizes[takes & np.isclose(asked, size, rtol=0, atol=1e-9)] = size
        frame["size"] = sizes
        index = {place: n for n, place in enumerate(self.places)}
        names = frame["policy"].where(frame["policy_key"] != FULL, FULL)
        frame["place"] = [
            index.get(Place(name, None if np.isnan(size) else size), -1)
            for name, size in zip(names, sizes, strict=True)
        ]
        return frame

    @cached_property
    def _sized(self) -> tuple[str, ...]:
        """Policies that were run at the study's sizes."""
        sized = []
        for name in self.policies:
            own = self.frame[self.frame["policy"] == name]
            asked = own[self.axis].to_numpy(np.float64)
            if "keep_ratio" in self.choice(name)["options"]:
                continue  # its share may meet a ratio of the study by chance
            met = np.isclose(asked[:, None], np.array(self.sizes)[None, :], rtol=0, atol=1e-9)
            if self.sizes and met.any(axis=1).all():
                sized.append(name)
        return tuple(sized)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The full cache, then every policy at every size."""
        found = [Place(FULL, None)]
        for name in self.policies:
            sizes: Sequence[float | None] = self.sizes if name in self._sized else (None,)
            found += [Place(name, size) for size in sizes]
        return tuple(found)

    @cached_property
    def examples(self) -> pd.DataFrame:
        """The prompts with at least one row: example_id, task; in the order of the study."""
        return self.frame[["example_id", "task"]].drop_duplicates().reset_index(drop=True)

    def matrix(self, value: str, task: str = ALL_TASKS) -> Matrix:
        """`value` as (examples, places), NaN where there is no number; of one task or of all."""
        if task not in (ALL_TASKS, *self.tasks):
            raise AnalysisError(f"This study has no task '{task}', it has {', '.join(self.tasks)}.")
        chosen = (
            self.examples if task == ALL_TASKS else self.examples[self.examples["task"] == task]
        )
        rows = {example: n for n, example in enumerate(chosen["example_id"])}
        values = np.full((len(rows), len(self.places)), np.nan)
        placed = self.placed
        kept = placed[placed["example_id"].isin(rows) & (placed["place"] >= 0)]
        numbers = (
            kept[value].to_numpy(np.float64) / VALUES[value].divisor
            if value in VALUES
            else (kept[value].to_numpy(np.float64))
        )
        values[kept["example_id"].map(rows).to_numpy(int), kept["place"].to_numpy(int)] = numbers
        names = list(dict.fromkeys(chosen["task"]))
        groups = np.array([names.index(name) for name in chosen["task"]], np.int64)
        return Matrix(values, groups)

    def own_ratio(self, policy: str) -> float:
        """The mean realised ratio (or budget) of a policy that takes no size."""
        own = self.frame[self.frame["policy"] == policy]
        return float(own[self.axis].mean())

    def place(self, policy: str, size: float | None) -> int:
        """Column of `matrix`. Raises AnalysisError for what the study does not have."""
        try:
            return self.places.index(Place(policy, size))
        except ValueError as error:
            at = "" if size is None else f" at {self.axis} {number(size)}"
            raise AnalysisError(f"This study has no {policy}{at}.") from error

    def size_of(self, policy: str, size: float | None) -> float | None:
        """`size` for a policy that was run at the study's sizes, None for one with its own."""
        return None if Place(policy, None) in self.places else size

    def choice(self, policy: str) -> dict[str, Any]:
        """The policy's catalogue key and options, without its size."""
        own = self.frame[self.frame["policy"] == policy]
        if own.empty:
            return {}
        first = own.iloc[0]
        options = json.loads(first["options"] or "{}")
        return {"key": str(first["policy_key"]), "options": options}

    def series(self, policies: Sequence[str]) -> tuple[Series, ...]:
        """A line per policy in its own colour; variants of one method differ in their dash."""
        seen: dict[str, int] = {}
        lines = []
        for name in policies:
            key = self.choice(name).get("key", "")
            variant = seen[key] = seen.get(key, -1) + 1
            lines.append(Series(name, policy_colour({"key": key}), DASHES[variant % len(DASHES)]))
        return tuple(lines)

    def words(self, task: str = ALL_TASKS) -> str:
        """Model, prompts and study, for a caption."""
        count = (
            len(self.examples) if task == ALL_TASKS else int((self.examples["task"] == task).sum())
        )
        of = "1 prompt" if count == 1 else f"{count:,} prompts"
        if task == ALL_TASKS and len(self.tasks) > 1:
            of += f" of {len(self.tasks)} tasks that count alike"
        return f"{self.spec.get('model', '')}, {of}, study {self.id}"

    def provenance(self, **selection: Any) -> dict[str, Any]:
        return {
            "study": self.id,
            "model": self.spec.get("model"),
            "seed": self.spec.get("seed"),
            "rows": len(self.frame),
            **selection,
        }


@dataclass(frozen=True, eq=False)
class Matrix:
    """Numbers by prompt and place, with the task of each prompt."""

    values: np.ndarray  # (examples, places)
    groups: np.ndarray  # (examples,) task index

    @property
    def means(self) -> np.ndarray:
        """(places,): mean over the tasks of each task's mean; NaN where any task has no number."""
        return self._over_tasks(np.ones((1, len(self.values))))[0]

    def resampled(self, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
        """(resamples, places): means of prompts drawn again with replacement within each task, the
        same draw for all places, so that differences stay paired."""
        rng = np.random.default_rng(seed)
        weights = np.zeros((resamples, len(self.values)))
        for group in np.unique(self.groups):
            at = np.flatnonzero(self.groups == group)
            weights[:, at] = rng.multinomial(len(at), np.full(len(at), 1 / len(at)), resamples)
        return self._over_tasks(weights)

    def band(self, resamples: int = RESAMPLES, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """(places,) each: the percentiles CONFIDENCE of the resampled means; NaN where a task has
        fewer than two prompts."""
        low, high = (np.full(self.values.shape[1], np.nan) for _ in CONFIDENCE)
        drawn = self.resampled(resamples, seed)
        counted = [
            np.isfinite(self.values[self.groups == group]).sum(axis=0)
            for group in np.unique(self.groups)
        ]
        enough = np.all([count > 1 for count in counted], axis=0) if counted else np.zeros(0, bool)
        if enough.any():
            known = [np.nanpercentile(drawn[:, enough], edge, axis=0) for edge in CONFIDENCE]
            low[enough], high[enough] = known
        return low, high

    def _over_tasks(self, weights: np.ndarray) -> np.ndarray:
        """Weighted means (draws, places) over prompts within each task, then over the tasks."""
        known = np.isfinite(self.values)
        filled = np.where(known, self.values, 0.0)
        means = []
        for group in np.unique(self.groups):
            at = self.groups == group
            sums = weights[:, at] @ filled[at]
            counts = weights[:, at] @ known[at].astype(np.float64)
            means.append(np.where(counts > 0, sums / np.maximum(counts, 1e-12), np.nan))
        if not means:
            return np.full((len(weights), self.values.shape[1]), np.nan)
        return np.mean(means, axis=0)


def size_words(study: Study, size: float | None) -> str:
    """A size as a reader says it: "75% evicted", "budget 64"."""
    if size is None:
        return "its own size"
    return f"budget {size:,.0f}" if study.axis == "budget" else f"{100 * size:.3g}% evicted"
