"""Replay of a policy over a capture, with its costs: the derived kind `replay`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from cache_store.errors import KVScopeError
from cache_store.reader import Capture, CaptureInfo
from cache_store.writer import DerivedWriter
from kvpolicies.attention import UnsupportedAttention
from kvpolicies.choice import canonical, passes_of, policy_of
from kvpolicies.cost import costs
from kvpolicies.errors import PolicyError
from kvpolicies.replayer import Result, replay
from kvpolicies.trace import Trace

Report = Callable[[str, int, int], None]  # phase, done, total; may raise to stop
Columns = dict[str, Any]

STATISTICS = "prompt_statistics"
STATE_BYTES = 2_000_000_000  # of float32 states; larger captures are replayed from float16
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class ReplayError(KVScopeError):
    """A policy cannot be replayed over a capture; the message says why."""


def policy_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """{"policy": choice} with the choice in its canonical form. Raises ReplayError."""
    if sorted(spec) != ["policy"]:
        raise ReplayError("A replay or a run needs exactly a policy.")
    try:
        return {"policy": canonical(spec["policy"])}
    except PolicyError as error:
        raise ReplayError(error.sentence) from error


def compute_replay(
    capture: Capture, spec: Mapping[str, Any], report: Report
) -> dict[str, np.ndarray | Columns]:
    """Arrays and table `fact` of a replay, as `analysis.replays.Replayed` describes them.

    spec: {"policy": canonical choice}. `visible` holds packed bits along positions. Raises
    ReplayError for what the policy refuses, StoreError for a recording that it needs and the run
    lacks.
    """
    choice, info = spec["policy"], capture.info
    began = time.perf_counter()
    try:
        trace = trace_for(capture, choice)
        with _kept_statistics(capture, choice, trace):
            result = _replayed(capture, choice, trace, report)
    except (PolicyError, UnsupportedAttention) as error:
        raise ReplayError(PolicyError(error).sentence) from error
    replayed_s = time.perf_counter() - began
    cost = costs(trace, result, progress=lambda done, total: report("costs", done, total))
    scores, ranks, reasons = result.scores, result.ranks, result.reasons
    arrays: dict[str, np.ndarray | Columns] = {
        "evicted_at": result.evicted_at.numpy(),
        "score": scores.numpy().astype(np.float32),
        "rank": ranks.numpy().astype(np.int32),
        "reason": reasons.numpy().astype(np.uint8),
        "exempt": result.exempt.numpy().astype(np.uint8),
    }
    if result.visible is not None:
        arrays["visible"] = np.packbits(result.visible.numpy(), axis=-1)
    for field in fields(cost):
        arrays[field.name] = getattr(cost, field.name).numpy()
    seconds = time.perf_counter() - began
    facts = cache_facts(info, result) | {"seconds": seconds, "replay_seconds": replayed_s}
    arrays["fact"] = fact_columns(facts)
    return arrays


def trace_for(capture: Capture, choice: Mapping[str, Any]) -> Trace:
    """The capture's states with the recordings that a policy needs. Raises StoreError."""
    passes = dict(passes_of(choice))
    info = capture.info
    heads = info.query_heads + 2 * info.kv_heads
    large = 4 * info.layers * heads * info.length * info.head_dim > STATE_BYTES
    trace = capture.trace(
        lookahead=passes.get("lookahead"),
        second_reading="second_reading" in passes,
        dtype=np.float16 if large else np.float32,
    )
    trace.statistics = _statistics(str(capture.path), capture.path.stat().st_mtime_ns)
    return trace


@lru_cache(maxsize=8)
def _statistics(path: str, changed_ns: int) -> dict[int, dict[str, torch.Tensor]]:
    """What this process has worked out of a capture's whole prompt or its second reading."""
    return {}


@contextlib.contextmanager
def _kept_statistics(capture: Capture, choice: Mapping[str, Any], trace: Trace) -> Iterator[None]:
    """Take the statistics that an earlier replay of the same score left beside the capture, and
    leave those that this one works out: the derived kind `prompt_statistics`, an array per name."""
    if "masks" in choice:
        yield
        return
    policy, held = policy_of(choice), trace.statistics
    spec = {name: policy.options[name] for name in ("granularity", "group_reduce", "scope")}
    spec |= {"score": policy.score.name, "options": asdict(policy.score)}  # type: ignore[call-overload]
    stored = capture.derived(STATISTICS, spec)
    if stored is not None:
        with stored:
            layers = stored.array("layers").tolist()
            for name in set(stored.array_names()) - {"layers"}:
                for layer, values in zip(layers, stored.array(name), strict=True):
                    held.setdefault(layer, {}).setdefault(name, torch.from_numpy(values.copy()))
    before = {name for names in held.values() for name in names}
    yield
    layers = sorted(held)
    new = sorted({name for names in held.values() for name in names} - before)
    if not new or any(name not in held[layer] for layer in layers for name in new):
        return
    with DerivedWriter(capture.path.parent, STATISTICS, spec) as writer:
        for name in new:
            writer.add_array(name, np.stack([held[layer][name].numpy() for layer in layers]))
        writer.add_array("layers", np.array(layers))
        writer.finish()


def _replayed(capture: Capture, choice: Mapping[str, Any], trace: Trace, report: Report) -> Result:
    if "masks" in choice:
        return imported(capture, str(choice["masks"]))
    return replay(
        policy_of(choice),
        trace,
        detail=False,
        progress=lambda done, total: report("replay", done, total),
    )


def imported(capture: Capture, source: str) -> Result:
    """Keep-masks of another tool that lie beside the capture. Raises ReplayError."""
    info = capture.info
    derived = capture.derived("keep_masks", {"source": source})
    if derived is None:
        raise ReplayError(
            f"Run {info.id} has no imported keep-masks '{source}': import them first."
        )
    with derived:
        evicted_at = torch.from_numpy(np.array(derived.array("evicted_at"), np.int32))
    exempt = torch.tensor([window is not None for window in _windows(info)])
    return Result(None, evicted_at, exempt, [], None, info.prompt_length, label=source)


def cache_facts(info: CaptureInfo, result: Result) -> dict[str, float]:
    """Budget and bytes of a replay, by name.

    bytes_full: the full cache after the last step; bytes_kept: the policy's; bytes_prompt_full and
    bytes_prompt: the same after prefill; bytes_peak: the policy's largest after any step; realised_
    budget: entries per layer and head after the first eviction; simulated: 1 where heads of a layer
    hold unequal numbers, whose bytes are computed rather than measured in a live run.
    """
    entries = entries_over_steps(info, result)
    entry_bytes = 2 * info.head_dim * ITEM_BYTES.get(info.dtype or "", 4)
    full = info.kv_heads * _layer_lengths(info).sum(0)
    return {
        "budget": float("nan") if result.budget is None else float(result.budget),
        "realised_budget": result.realised_budget,
        "bytes_full": float(full[-1] * entry_bytes),
        "bytes_kept": float(entries[-1] * entry_bytes),
        "bytes_prompt_full": float(full[0] * entry_bytes),
        "bytes_prompt": float(entries[0] * entry_bytes),
        "bytes_peak": float(entries.max() * entry_bytes),
        "simulated": float(_unequal(result)),
    }


def entries_over_steps(info: CaptureInfo, result: Result) -> np.ndarray:
    """Entries cached in all layers and heads after steps 0 … T; int64 (T + 1,)."""
    steps = info.response_length
    entries = np.zeros(steps + 1, np.int64)
    for layer, lengths in enumerate(_layer_lengths(info)):
        if result.exempt[layer]:
            entries += info.kv_heads * lengths
            continue
        evicted_at = result.evicted_at[layer].numpy()
        gone = np.bincount(evicted_at.ravel(), minlength=steps + 2)[: steps + 1].cumsum()
        entries += evicted_at.shape[0] * lengths - gone
    return entries


def _layer_lengths(info: CaptureInfo) -> np.ndarray:
    """Entries that one head of each layer caches in full after steps 0 … T; (layers, T + 1).

    A sliding window of w tokens caches the last w - 1, as transformers does.
    """
    lengths = info.prompt_length + np.arange(info.response_length + 1)
    windows = _windows(info)
    everywhere = all(window is not None for window in windows)
    return np.stack(
        [
            lengths if window is None or everywhere else np.minimum(lengths, window - 1)
            for window in windows
        ]
    )


def _windows(info: CaptureInfo) -> tuple[int | None, ...]:
    return info.sliding_window or (None,) * info.layers


def _unequal(result: Result) -> bool:
    """Whether the heads of some layer lose different numbers of entries at some step."""
    ordered = np.sort(result.evicted_at[~result.exempt].numpy(), axis=-1)
    return bool((ordered != ordered[:, :1]).any())


def fact_columns(facts: Mapping[str, float]) -> Columns:
    """Table `fact`: one row per name."""
    return {"name": list(facts), "value": [float(value) for value in facts.values()]}
