"""Attention rows and statistics of a capture, stored or recomputed from its states.

The only module of `analysis` that needs torch, and only when a row was not stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis.errors import AnalysisError
from cache_store.reader import Capture

if TYPE_CHECKING:
    from kvpolicies.attention import LayerStates

MEAN = "mean"
DIRECT_CELLS = 150_000_000  # attention weights computed while the reader waits: about a second
Selection = int | str  # an index, or MEAN
Heads = Selection | tuple[int, ...]  # or the mean of some

# key -> label: what `step_stat` holds of each row
MEASURES: dict[str, str] = {
    "entropy": "entropy",
    "effective_tokens": "effective tokens",
    "sink_mass": "sink mass",
    "recent_mass": "recent mass",
    "top1_mass": "top-1 mass",
    "far_top1_mass": "far top-1 mass",
}
UNITS: dict[str, str] = {
    "entropy": "nats",
    "effective_tokens": "tokens",
    "sink_mass": "share",
    "recent_mass": "share",
    "top1_mass": "share",
    "far_top1_mass": "share",
}

# Every float16 as float32: a look-up is several times as fast as numpy's conversion.
_SINGLE = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def chosen(what: str, selection: Heads, count: int) -> list[int]:
    """The indices a selection stands for: all of `count` for MEAN, otherwise those it names."""
    if selection == MEAN:
        return list(range(count))
    indices = selection if isinstance(selection, tuple) else (selection,)
    for index in indices:
        if isinstance(index, str) or not 0 <= index < count:
            raise AnalysisError(
                f"This run has no {what} {index}; it has {what}s 0 to {count - 1}, or '{MEAN}'."
            )
    return [int(index) for index in indices]


def chosen_layers(capture: Capture, layer: Selection) -> list[int]:
    """The layers of a selection; AnalysisError when the run has no such layer."""
    return chosen("layer", layer, capture.info.layers)


def chosen_heads(capture: Capture, head: Heads) -> list[int]:
    """The query heads of a selection; AnalysisError when the run has no such head."""
    return chosen("query head", head, capture.info.query_heads)


def check_range(what: str, span: tuple[int, int] | None, stop: int) -> tuple[int, int]:
    """A range [first, last + 1) of positions, cut to [0, stop); the whole of it by default."""
    if span is None:
        return 0, stop
    first, last = max(0, int(span[0])), min(stop, int(span[1]))
    if first >= last:
        raise AnalysisError(
            f"The {what} range {span[0]}–{span[1] - 1} holds no position below {stop}; "
            "choose a first position that is not after the last one."
        )
    return first, last


def step_range(capture: Capture) -> tuple[int, int]:
    """First and last step whose rows every view offers: the prompt's window to the last token."""
    info = capture.info
    return 1 - min(info.window, info.prompt_length), info.response_length


def check_step(capture: Capture, step: int) -> int:
    """The step, if the run has a token there (any prompt token is one too)."""
    first, last = 1 - capture.info.prompt_length, capture.info.response_length
    if not first <= step <= last:
        raise AnalysisError(f"This run has no step {step}; its steps are {first} to {last}.")
    return int(step)


def position_of(capture: Capture, step: int) -> int:
    """Position of a step's token, `P + step - 1`."""
    return capture.info.prompt_length + step - 1


def window_rows(
    capture: Capture, layer: Selection, head: Heads, first_step: int, last_step: int
) -> np.ndarray:
    """Attention of consecutive steps over all positions, the mean over the selection.

    Returns float32 (last_step - first_step + 1, P + T), 0 where a step cannot see. Stored rows are
    read; others are recomputed, and equal them within float16.
    """
    layers, heads = chosen_layers(capture, layer), chosen_heads(capture, head)
    total: np.ndarray | None = None
    for number in layers:
        for rows in _layer_rows(capture, number, heads, first_step, last_step):
            total = rows if total is None else np.add(total, rows, out=total)
    assert total is not None
    return total if len(layers) * len(heads) == 1 else total / np.float32(len(layers) * len(heads))


def _layer_rows(
    capture: Capture, layer: int, heads: Sequence[int], first_step: int, last_step: int
) -> Iterator[np.ndarray]:
    """The rows of each head of one layer, float32 (steps, P + T)."""
    info = capture.info
    stored_from, stored_to = step_range(capture)
    if layer in info.stored_layers and stored_from <= first_step and last_step <= stored_to:
        for head in heads:
            _, rows = capture.attention_rows(layer, head, (first_step, last_step))
            yield _SINGLE[rows.view(np.uint16)]
        return
    first, stop = position_of(capture, first_step), position_of(capture, last_step) + 1
    rows = recomputed_rows(capture, layer, heads, first, stop)
    for head_rows in rows:
        padded = np.zeros((stop - first, info.length), np.float32)
        padded[:, :stop] = head_rows
        yield padded


def recomputed_rows(
    capture: Capture, layer: int, heads: Sequence[int], first: int, stop: int
) -> np.ndarray:
    """Rows of query positions first ... stop - 1 from the stored states: float32 (H, m, stop)."""
    import torch

    from kvpolicies.attention import attention_rows

    states = layer_states(capture, layer, heads, first, stop)
    return attention_rows(
        states.queries,
        states.keys,
        torch.arange(first, stop),
        scaling=states.scaling,
        softcap=states.softcap,
        sliding_window=states.sliding_window,
    ).numpy()


def layer_states(
    capture: Capture, layer: int, heads: Sequence[int], first: int, stop: int
) -> LayerStates:
    """Queries of positions first ... stop - 1 of some heads, and all keys those can see.

    `heads` is one head, or all of them.
    """
    import torch

    from kvpolicies.attention import LayerStates

    info = capture.info
    if len(heads) == 1:
        queries = capture.states(layer, "q", first, stop, head=heads[0])[None]
        keys = capture.states(layer, "k", 0, stop, head=heads[0] // info.group)[None]
    else:
        queries = capture.states(layer, "q", first, stop)
        keys = capture.states(layer, "k", 0, stop)
    return LayerStates(
        torch.from_numpy(np.array(queries)),
        torch.from_numpy(np.array(keys)),
        info.scaling[layer],
        info.softcap,
        info.sliding_window[layer],
    )


def row_measures(rows: np.ndarray, first: int, sink: int, recent: int) -> dict[str, np.ndarray]:
    """The measures of `step_stat` for rows (..., m, n) of query positions first ... first + m - 1.

    entropy = -sum p ln p; effective_tokens = exp(entropy); sink_mass over the first `sink`
    positions; recent_mass over the last `recent` positions up to the query's own; far_top1_mass is
    the largest weight that neither counts (0 where there is none). Each (..., m).
    """
    logs = np.log(np.maximum(rows, np.finfo(np.float32).tiny))  # 0 ln 0 counts as 0
    entropy = -np.einsum("...n,...n->...", rows, logs)
    positions = first + np.arange(rows.shape[-2])
    columns = np.arange(rows.shape[-1])
    near = (columns > positions[:, None] - recent) & (columns <= positions[:, None])
    return {
        "entropy": entropy,
        "effective_tokens": np.exp(entropy),
        "sink_mass": rows[..., :sink].sum(-1),
        "recent_mass": np.einsum("...n,...n->...", rows, near.astype(rows.dtype)),
        "top1_mass": rows.max(-1),
        "far_top1_mass": (rows * (~near & (columns >= sink))).max(-1),
    }


def layer_statistics(capture: Capture, layer: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Steps (m,) and every measure, float32 (query_heads, m), of the observed steps of a layer."""
    info = capture.info
    first_step, last_step = step_range(capture)
    steps = np.arange(first_step, last_step + 1)
    if layer in info.stored_layers:
        frame = capture.step_stats(layer).sort_values(["head", "step"])
        shape = (info.query_heads, len(steps))
        return steps, {
            measure: frame[measure].to_numpy(np.float32).reshape(shape) for measure in MEASURES
        }
    first = position_of(capture, first_step)
    measured: list[dict[str, np.ndarray]] = []
    for start in range(first, info.length, 64):  # 64 rows of every head at once
        rows = recomputed_rows(
            capture, layer, range(info.query_heads), start, min(info.length, start + 64)
        )
        measured.append(row_measures(rows, start, info.sink, info.recent))
    return steps, {
        measure: np.concatenate([part[measure] for part in measured], axis=1)
        for measure in MEASURES
    }


def recomputable_layers(capture: Capture) -> tuple[list[int], list[int]]:
    """Layers whose rows were not stored: (those recomputed at once, those left out as too many)."""
    info = capture.info
    absent = [layer for layer in range(info.layers) if layer not in info.stored_layers]
    first_step, last_step = step_range(capture)
    cells = len(absent) * info.query_heads * (last_step - first_step + 1) * info.length
    return (absent, []) if cells <= DIRECT_CELLS else ([], absent)
