"""What replays and live runs of a policy left beside a capture: what the eviction figures read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.colours import policy_colour
from analysis.errors import AnalysisError, NeedsJob
from cache_store.derived_writer import derived_path
from cache_store.reader import Capture, CaptureInfo, Derived
from kvpolicies.choice import canonical, passes_of, policy_of, title
from kvpolicies.errors import PolicyError
from kvpolicies.methods import catalogue

# Measured on two cores; they only feed the estimate shown before a job starts.
START_S = 0.5
COST_CELLS_PER_S = 4e7  # (layer, query head, step, position)
PROMPT_CELLS_PER_S = 5e7
STEP_S = 6e-4  # one step of one layer of a policy that watches every step
LOAD_S = 5.0
ONCE = ("after_prefill", "after_prefill_sliding", "per_partition")
PROMPT_SCORES = ("cumulative_attention", "timestamp")  # scores that read every prompt row
FURTHER_PASSES = ("laq", "laq_pp", "kvcompose", "kvcompose_unstructured", "kvzip")

KEPT_IN_MEMORY = 24  # replays and runs, a few megabytes each


@dataclass(frozen=True)
class PackedVisible:
    """What each query head attends to at each step, where the heads of one KV head differ.

    `visible[layer, query_head]` is bool (T + 1, P + T): [t] what the query of step t attends to,
    its own entry included; [0] what the end of prefill leaves it.
    """

    packed: np.ndarray  # uint8 (layers, query_heads, T + 1, ceil((P + T) / 8))
    length: int

    def __getitem__(self, place: tuple[int, int]) -> np.ndarray:
        bits = np.unpackbits(self.packed[place], axis=-1, count=self.length)
        return bits.view(np.bool_)


@dataclass(frozen=True, eq=False)  # the same one or not: figures are remembered by it
class Replayed:
    """A policy replayed over a capture, with its cost against the full cache.

    L layers, Q query heads, H keep-sets per layer (KV heads, or query heads for
    `granularity="query_head"`), P prompt and T response tokens, N = P + T. Step 0 is the end of
    prefill; costs hold steps 1 … T at index t - 1. `choice` is canonical, `colour` the policy's on
    all pages.

    evicted_at int32 (L, H, N): the step after which an entry is gone, T + 1 if never. score
    float32, rank int32 (1 the best, 0 not ranked) and reason uint8 (codes of
    `kvpolicies.decisions.Reason`), each (L, H, N), at the last eviction that considered the entry.
    exempt bool (L,): layers that the policy does not touch. mass_kept and output_error float32
    (L, Q, T), recall and regret_step float32 (L, H, T), recall_response float32 (L, H),
    regret_entry float32 (L, H, N), missed_step int32 (L, H, T), missed_entry int32 (L, H, N): as
    `kvpolicies.cost.Costs` defines them. facts: budget, realised_budget, bytes_full, bytes_kept,
    bytes_peak, seconds and more, by name.
    """

    choice: dict[str, Any]
    title: str
    colour: str
    prompt_length: int
    response_length: int
    query_heads: int
    evicted_at: np.ndarray
    score: np.ndarray
    rank: np.ndarray
    reason: np.ndarray
    exempt: np.ndarray
    visible: PackedVisible | None
    mass_kept: np.ndarray
    recall: np.ndarray
    recall_response: np.ndarray
    output_error: np.ndarray
    regret_step: np.ndarray
    regret_entry: np.ndarray
    missed_step: np.ndarray
    missed_entry: np.ndarray
    facts: dict[str, float]

    def kept(self, layer: int, head: int, step: int) -> np.ndarray:
        """What one head's cache holds after a step; bool (P + T,)."""
        return (self.evicted_at[layer, head] > step) & self._born(step)

    def counts(self, step: int | None = None) -> np.ndarray:
        """Entries held after a step (default: the last); int64 (L, H)."""
        step = self.response_length if step is None else step
        return ((self.evicted_at > step) & self._born(step)).sum(2)

    def _born(self, step: int) -> np.ndarray:
        return np.arange(self.evicted_at.shape[2]) < self.prompt_length + step


@dataclass(frozen=True)
class PolicyRun:
    """A policy run for real, against the full cache on the same prompt.

    token: step, token_id, text, full_token_id, full_text, agrees of the freely generated response,
    beside the capture's. step: step, kl, nll_full, nll_policy (nats; under the forced response of
    the full cache), cache_bytes, full_cache_bytes (after the step), ms, full_ms. stage: stage,
    seconds, full_seconds. facts: first_difference (step, NaN if none), agreement, forced_nll,
    full_nll, prefill_bytes, compressed_bytes, peak_bytes, full_peak_bytes, simulated and more.
    evicted_at: int32 (L, H, N) of the forced run, to hold against the replay's.
    """

    choice: dict[str, Any]
    title: str
    colour: str
    token: pd.DataFrame
    step: pd.DataFrame
    stage: pd.DataFrame
    facts: dict[str, float]
    evicted_at: np.ndarray


def replayed(capture: Capture, choice: Mapping[str, Any]) -> Replayed:
    """The stored replay of a chosen policy.

    Raises NeedsJob when it was not computed (kind "replay"), or when a recording that it needs is
    missing, which comes first (kind "lookahead", "second_reading" or "model_facts"), and
    AnalysisError for a choice that is none or that this run's lengths make impossible.
    """
    form = _canonical(choice)
    spec = {"policy": form}
    path = derived_path(capture.path.parent, "replay", spec)
    if not path.exists():
        if "masks" in form and not _masks_path(capture.path.parent, form).exists():
            raise AnalysisError(
                f"This run has no imported keep-masks {form['masks']!r}; import them first."
            )
        _refuse_impossible(form, capture.info)
        for kind, recording in _passes(form, capture.info):
            if not derived_path(capture.path.parent, kind, recording).exists():
                raise _needs_recording(capture, form, kind, recording)
        raise NeedsJob("replay", spec, replay_seconds(capture.info, form))
    return _read_replay(path, capture.id, capture.info.query_heads)


def policy_run(capture: Capture, choice: Mapping[str, Any]) -> PolicyRun:
    """The stored live run of a chosen policy.

    Raises NeedsJob (kind "policy_run") when it was not run, and AnalysisError for a choice that is
    none, that has no policy to run or that cannot be run on this prompt.
    """
    form = _canonical(choice)
    if "masks" in form:
        raise AnalysisError("Imported keep-masks have no policy that could run in the model.")
    spec = {"policy": form}
    path = derived_path(capture.path.parent, "policy_run", spec)
    if not path.exists():
        _refuse_impossible(form, capture.info, live=True)
        raise NeedsJob("policy_run", spec, policy_run_seconds(capture.info, form))
    return _read_run(path, capture.id)


def replay_seconds(info: CaptureInfo, choice: Mapping[str, Any]) -> float:
    """Estimated seconds of a replay with its costs, from rates measured on two cores."""
    method = catalogue().get(choice.get("key", ""))
    schedule = choice.get("schedule") or (method.schedule if method else "after_prefill")
    score = choice.get("score") or (method.score if method else "")
    cells = info.layers * info.query_heads * info.length
    seconds = START_S + cells * info.response_length / COST_CELLS_PER_S
    if score in PROMPT_SCORES:
        seconds += cells * info.prompt_length / 2 / PROMPT_CELLS_PER_S
    if schedule not in ONCE:
        seconds += info.layers * info.response_length * STEP_S
    return seconds


def policy_run_seconds(info: CaptureInfo, choice: Mapping[str, Any]) -> float:
    """Estimated seconds of a live run: the capture's own times, for three passes."""
    method = catalogue().get(choice.get("key", ""))
    prefill, decode = info.timings.get("prefill", 1.0), info.timings.get("decode", 1.0)
    passes = 3.0 + (1.0 if method is not None and method.key in FURTHER_PASSES else 0.0)
    return LOAD_S + passes * prefill + 3 * decode


def _canonical(choice: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return canonical(choice)
    except PolicyError as error:
        raise AnalysisError(error.sentence) from error


def _passes(form: dict[str, Any], info: CaptureInfo) -> list[tuple[str, dict[str, Any]]]:
    try:
        return passes_of(form, has_rotary="rotary" in info.settings)
    except PolicyError as error:
        raise AnalysisError(error.sentence) from error


def _refuse_impossible(form: dict[str, Any], info: CaptureInfo, live: bool = False) -> None:
    """Say at once what a job could only fail with, however often it is tried."""
    if "masks" in form:
        return
    from kvpolicies.plan import Plan, Shape, ranked_length

    try:
        policy = policy_of(form)
        if live:
            policy.check_live()
        ranked = ranked_length(policy, info.prompt_length, info.context_length)
        lengths = (info.prompt_length, ranked, info.response_length)
        Plan(policy, Shape(info.layers, info.kv_heads, info.query_heads, *lengths)).check()
    except PolicyError as error:
        raise AnalysisError(error.sentence) from error


def _needs_recording(
    capture: Capture, form: dict[str, Any], kind: str, spec: dict[str, Any]
) -> NeedsJob:
    info = capture.info
    seconds = LOAD_S + info.timings.get("prefill", 1.0)
    if kind == "lookahead":
        steps = int(spec["steps"])
        what = f"a lookahead of {steps} tokens on a cache of {title(spec['policy'])}"
        seconds += steps * info.timings.get("decode", 1.0) / max(1, info.response_length)
    elif kind == "second_reading":
        what = "a second reading of the context"
        seconds *= 2
    else:
        what = "facts of the model's weights"
        seconds = LOAD_S
    return NeedsJob(kind, spec, seconds, f"{title(form)} needs {what}, which this run lacks: it")


@lru_cache(maxsize=KEPT_IN_MEMORY)
def _read_replay(path: Path, capture_id: str, query_heads: int) -> Replayed:
    """A derived file never changes, so its path is enough to remember it by."""
    with Derived.open(path, capture_id=capture_id) as derived:
        form = derived.spec["policy"]
        name = _masks_label(path.parent.parent, form) if "masks" in form else title(form)
        arrays = {part: derived.array(part) for part in derived.array_names()}
        facts = _facts(derived)
        packed = arrays.pop("visible", None)
    exempt = arrays.pop("exempt").astype(bool)
    length = arrays["evicted_at"].shape[2]
    response = arrays["mass_kept"].shape[2]
    return Replayed(
        choice=form,
        title=name,
        colour=policy_colour(form),
        prompt_length=length - response,
        response_length=response,
        query_heads=query_heads,
        exempt=exempt,
        visible=None if packed is None else PackedVisible(packed, length),
        facts=facts,
        **arrays,
    )


@lru_cache(maxsize=KEPT_IN_MEMORY)
def _read_run(path: Path, capture_id: str) -> PolicyRun:
    with Derived.open(path, capture_id=capture_id) as derived:
        form = derived.spec["policy"]
        tables = {name: derived.table(name) for name in ("token", "step", "stage")}
        return PolicyRun(
            form,
            title(form),
            policy_colour(form),
            **tables,
            facts=_facts(derived),
            evicted_at=derived.array("evicted_at"),
        )


def _masks_path(folder: Path, form: Mapping[str, Any]) -> Path:
    return derived_path(folder, "keep_masks", {"source": form["masks"]})


def _masks_label(folder: Path, form: Mapping[str, Any]) -> str:
    """The name of the file that keep-masks came in, while they are there."""
    path = _masks_path(folder, form)
    if not path.exists():
        return title(form)
    with Derived.open(path) as derived:
        return str(derived.table("label")["text"].iloc[0])


def _facts(derived: Derived) -> dict[str, float]:
    frame = derived.table("fact")
    return {
        name: math.nan if value is None else float(value)
        for name, value in zip(frame["name"], frame["value"], strict=True)
    }
