"""What is computed from a finished capture, without its model: one derived file per question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backend.progress import CancelCheck, Cancelled, Progress, ProgressCallback
from backend.replays import compute_replay, policy_spec
from cache_store.errors import StoreError
from cache_store.files import CAPTURE_FILE, check_run_id
from cache_store.reader import Capture
from cache_store.writer import DerivedWriter
from kvpolicies.attention import LayerStates, row_blocks
from kvpolicies.pooling import pooled_attention

MEAN_MATRIX_FIELDS = ("layers", "heads", "query_range", "key_range", "bins", "pool")


def derive(
    home: Path | str,
    run_id: str,
    kind: str,
    spec: Mapping[str, Any],
    progress: ProgressCallback | None = None,
    cancelled: CancelCheck | None = None,
) -> Path:
    """Compute `kind` for one run from its stored states and write it beside the capture.

    `prompt_attention` (spec {}): attention received by each position from every query of the
    text: arrays `sum` and `max`, float32 (layers, kv_heads, P + T), of the group's mean; and
    `sum_query`, `max_query` (layers, query_heads, P + T); `prompt_sum_query` (layers,
    query_heads, P) from the prompt's queries only, which is what policies start from.
    `mean_matrix` (spec layers, heads, query_range, key_range, bins, pool): array `matrix`, the
    mean over the listed layers and query heads, pooled as `pooled_attention` does.
    `replay` (spec {"policy": choice}): a policy replayed over the capture, with its costs; see
    `backend.replays.compute_replay`.
    A result that exists is kept. Returns its path. Raises StoreError, ReplayError and Cancelled.
    """
    compute = {
        "prompt_attention": _prompt_attention,
        "mean_matrix": _mean_matrix,
        "replay": _replay,
    }.get(kind)
    if compute is None:
        raise StoreError(f"There is nothing to derive named '{kind}': use prompt_attention.")
    if kind == "replay":
        spec = policy_spec(spec)
    report, stop = progress or (lambda _: None), cancelled or (lambda: False)

    def step(done: int, total: int, phase: str = "derive") -> None:
        if stop():
            raise Cancelled
        report(Progress(phase, done, total))

    folder = Path(home) / check_run_id(run_id)
    with DerivedWriter(folder, kind, spec) as writer:
        if writer.exists:
            return writer.path
        with Capture.open(folder / CAPTURE_FILE) as capture, torch.inference_mode():
            write_all(writer, compute(capture, spec, step))
        return writer.finish()


def write_all(writer: DerivedWriter, results: Mapping[str, np.ndarray | Mapping[str, Any]]) -> None:
    """Arrays under their names, and columns as tables."""
    for name, values in results.items():
        if isinstance(values, np.ndarray):
            writer.add_array(name, values)
        else:
            writer.add(name, values)


def _replay(capture: Capture, spec: Mapping[str, Any], step: Any) -> Mapping[str, Any]:
    return compute_replay(capture, spec, lambda phase, done, total: step(done, total, phase))


def _prompt_attention(capture: Capture, spec: Mapping[str, Any], step: Any) -> Mapping[str, Any]:
    if spec:
        raise StoreError(f"prompt_attention takes no parameters, but got '{next(iter(spec))}'.")
    info = capture.info
    by_kv = (info.layers, info.kv_heads, info.length)
    by_query = (info.layers, info.query_heads, info.length)
    sums, largest = torch.zeros(by_kv), torch.zeros(by_kv)
    query_sums, query_largest = torch.zeros(by_query), torch.zeros(by_query)
    prompt = info.prompt_length
    prompt_sums = torch.zeros(info.layers, info.query_heads, prompt)
    for layer in range(info.layers):
        states = _states(capture, layer)
        for first, _, rows in row_blocks([states], 0):  # (H, m, n)
            done = layer * info.length + first
            step(done, info.layers * info.length)
            seen = rows.shape[2]
            groups = rows.unflatten(0, (info.kv_heads, info.group)).mean(1)  # (G, m, n)
            for received, peak, weights in (
                (sums[layer], largest[layer], groups),
                (query_sums[layer], query_largest[layer], rows),
            ):
                received[:, :seen] += weights.sum(1)
                peak[:, :seen] = torch.maximum(peak[:, :seen], weights.amax(1))
            asked = rows[:, : max(0, prompt - first), :prompt]
            prompt_sums[layer, :, : min(seen, prompt)] += asked.sum(1)
    arrays = {"sum": sums, "max": largest, "sum_query": query_sums, "max_query": query_largest}
    arrays["prompt_sum_query"] = prompt_sums
    return {name: values.numpy() for name, values in arrays.items()}


def _mean_matrix(capture: Capture, spec: Mapping[str, Any], step: Any) -> Mapping[str, Any]:
    info = capture.info
    if sorted(spec) != sorted(MEAN_MATRIX_FIELDS):
        raise StoreError(f"mean_matrix needs exactly {', '.join(MEAN_MATRIX_FIELDS)}.")
    first, last = _range("query_range", spec["query_range"], info.length)
    keys = _range("key_range", spec["key_range"], info.length)
    layers = _indices("layers", spec["layers"], info.layers)
    heads = _indices("heads", spec["heads"], info.query_heads)
    bins, pool = spec["bins"], spec["pool"]
    if pool not in ("max", "mean") or not isinstance(bins, int) or bins < 1:
        raise StoreError(f"mean_matrix cannot pool to {bins!r} bins by {pool!r}: use max or mean.")
    states = [_states(capture, layer, heads, first, last) for layer in layers]
    matrix = pooled_attention(states, first, keys, bins=bins, pool=pool, progress=step)
    return {"matrix": matrix}


def _states(
    capture: Capture,
    layer: int,
    heads: Sequence[int] | None = None,
    first: int = 0,
    last: int | None = None,
) -> LayerStates:
    """Stored states of one layer: queries [first, last) of some query heads, and their keys."""
    info = capture.info
    queries = torch.from_numpy(capture.states(layer, "q", first, last).astype(np.float32))
    keys = torch.from_numpy(capture.states(layer, "k", 0, last).astype(np.float32))
    if heads is not None and list(heads) != list(range(info.query_heads)):
        queries = queries[list(heads)]
        keys = keys[[head // info.group for head in heads]]
    return LayerStates(queries, keys, info.scaling[layer], info.softcap, info.sliding_window[layer])


def _range(name: str, value: Any, length: int) -> tuple[int, int]:
    first, last = value
    if not 0 <= first < last <= length:
        raise StoreError(f"{name} is {value}: use two positions between 0 and {length}.")
    return int(first), int(last)


def _indices(name: str, value: Sequence[int], count: int) -> list[int]:
    if not value or not all(0 <= index < count for index in value):
        raise StoreError(f"{name} is {list(value)}: use numbers from 0 to {count - 1}.")
    return list(value)
