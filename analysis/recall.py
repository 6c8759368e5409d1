"""LAQ's view in numbers: how well a window of queries finds what the whole response needs.

Entries are ranked once per run and window; a budget then only asks how many ranks lie below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from analysis.errors import AnalysisError
from analysis.traces import grouped_rows, trace_from

if TYPE_CHECKING:
    from analysis.traces import Source
    from kvpolicies.trace import Trace

OFFSETS = range(-16, 9)
WIDTH = 8
WEIGHTINGS = ("softmax", "logits")
NO_RESPONSE = (
    "Nothing was generated in this run, so there is no response whose needs could be recalled; "
    "capture the prompt with a response."
)


@dataclass(frozen=True)
class RecallRows:
    """What recall is computed from, once per run and weighting.

    rows: float32 (layers, kv_heads, m, P), what the queries of positions first ... first + m - 1
    give each prompt entry; gold: float32 (layers, kv_heads, P), the sum over the whole response;
    pseudo: float32 (layers, kv_heads, n, P), the same rows of a recorded lookahead response, or
    None; unrecorded: the layers it holds no queries of (a sliding window rules there).
    """

    rows: np.ndarray
    first: int
    gold: np.ndarray
    prompt_length: int
    response_length: int
    pseudo: np.ndarray | None = None
    unrecorded: tuple[int, ...] = ()


def recall_rows(
    source: Source,
    *,
    first_offset: int = min(OFFSETS),
    last_offset: int = max(OFFSETS) + WIDTH,
    weighting: str = "softmax",
    group_reduce: str = "mean",
    lookahead: Sequence[np.ndarray] | None = None,
) -> RecallRows:
    """Rows of the queries around the end of the prompt, and the response's own sums.

    Offset 0 is the first generated token. weighting: "softmax" over all keys a query can see, or
    "logits", the raw dot products as the paper prints them. lookahead: per layer the queries
    (query_heads, n, d) of a response generated on a small cache; their softmax is over the
    prompt's keys only, since their own keys are not recorded. Raises AnalysisError without a
    response.
    """
    if weighting not in WEIGHTINGS:
        raise AnalysisError(f"Weighting is {' or '.join(WEIGHTINGS)}, not {weighting!r}.")
    trace = trace_from(source)
    prompt, steps = trace.prompt_length, trace.response_length
    if steps == 0:
        raise AnalysisError(NO_RESPONSE)
    first = max(0, prompt + min(0, first_offset))
    stop = min(trace.length, prompt + max(1, last_offset))
    shape = (trace.layers, trace.kv_heads)
    rows = np.zeros((*shape, stop - first, prompt), np.float32)
    gold = np.zeros((*shape, prompt), np.float32)
    for layer in range(trace.layers):
        for start in range(first, trace.length, 512):
            end = min(trace.length, start + 512)
            part = _rows(trace, layer, start, end, weighting, group_reduce)
            kept = part[:, : max(0, stop - start)]
            rows[layer, :, start - first : start - first + kept.shape[1]] = kept
            gold[layer] += part[:, max(0, prompt - start) :].sum(axis=1)
    pseudo = None
    if lookahead is not None:
        pseudo = np.stack(
            [
                _pseudo_rows(trace, layer, queries, weighting, group_reduce)
                for layer, queries in enumerate(lookahead)
            ]
        )
    unrecorded = tuple(n for n, part in enumerate(lookahead or ()) if not np.asarray(part).any())
    return RecallRows(rows, first, gold, prompt, steps, pseudo, unrecorded)


def _rows(
    trace: Trace, layer: int, first: int, stop: int, weighting: str, group_reduce: str
) -> np.ndarray:
    if weighting == "softmax":
        return grouped_rows(
            trace, layer, first, stop, reduce=group_reduce, columns=trace.prompt_length
        )
    queries = trace.queries[layer][:, first:stop]
    return _reduced(_products(trace, layer, queries), trace.kv_heads, group_reduce)


def _pseudo_rows(
    trace: Trace, layer: int, queries: np.ndarray, weighting: str, group_reduce: str
) -> np.ndarray:
    import torch

    from kvpolicies.attention import attention_rows

    asked = torch.as_tensor(np.asarray(queries, np.float32))
    if weighting == "logits":
        return _reduced(_products(trace, layer, asked), trace.kv_heads, group_reduce)
    prompt = trace.prompt_length
    rows = attention_rows(
        asked,
        trace.keys[layer][:, :prompt],
        torch.arange(prompt, prompt + asked.shape[1]),
        scaling=trace.scaling_of(layer),
        softcap=trace.softcap,
        sliding_window=trace.window_of(layer),
    )
    return _reduced(rows.numpy(), trace.kv_heads, group_reduce)


def _products(trace: Trace, layer: int, queries: object) -> np.ndarray:
    """Raw q·k with every prompt key, without scaling or mask; float32 (query_heads, m, P)."""
    import torch

    from kvpolicies.view import scaled_logits

    keys = trace.keys[layer][:, : trace.prompt_length]
    products: np.ndarray = scaled_logits(torch.as_tensor(queries), keys, 1.0).numpy()
    return products


def _reduced(rows: np.ndarray, kv_heads: int, how: str) -> np.ndarray:
    grouped = rows.reshape(kv_heads, -1, *rows.shape[1:])
    reduced: np.ndarray = getattr(grouped, how)(axis=1)
    return reduced


@dataclass(frozen=True)
class RankedWindows:
    """What a budget is asked of: any budget's recall is a count.

    depth: int32 (windows, layers, kv_heads, P), the smallest budget at which both the window and
    the response keep the entry; P + 1 where a window holds no query. labels: (windows,), an offset
    or a number of queries; queries: (windows,), how many each window really has; missing: layers
    without a recall.
    """

    labels: np.ndarray
    queries: np.ndarray
    depth: np.ndarray
    missing: tuple[int, ...] = ()

    def recall(self, budget: int) -> np.ndarray:
        """|kept ∩ gold| / |gold| at a budget; float64 (windows, layers, kv_heads), NaN if empty."""
        if budget < 1:
            raise AnalysisError(f"A budget is at least 1 entry, not {budget}.")
        share = (self.depth <= budget).sum(axis=-1) / min(budget, self.depth.shape[-1])
        share[self.queries == 0] = np.nan
        share[:, list(self.missing)] = np.nan
        return share


def ranked_windows(
    rows: RecallRows, offsets: Sequence[int] = OFFSETS, width: int = WIDTH, *, pseudo: bool = False
) -> RankedWindows:
    """Windows of `width` consecutive queries from each offset, against the response's own choice.

    pseudo: positions from the prompt's end on are those of the recorded lookahead response (the
    dashed lines). Windows that run out of queries are shorter, as `queries` says. Raises
    AnalysisError for offsets whose rows were not computed.
    """
    if width < 1:
        raise AnalysisError(f"A window has at least 1 query, not {width}.")
    available = rows.rows
    if pseudo:
        if rows.pseudo is None:
            raise AnalysisError("No lookahead response is recorded; record one first.")
        before = rows.rows[:, :, : rows.prompt_length - rows.first]
        available = np.concatenate([before, rows.pseudo], axis=2)
    last = rows.first + available.shape[2]
    end = last if pseudo else rows.prompt_length + rows.response_length
    spans = []
    for offset in offsets:
        start, stop = (
            min(max(place, 0), end)
            for place in (rows.prompt_length + offset, rows.prompt_length + offset + width)
        )
        if start < stop and (start < rows.first or stop > last):
            raise AnalysisError(
                f"The window from {offset} lies outside the rows that were computed; recompute "
                "them for these offsets."
            )
        spans.append((start - rows.first, stop - rows.first))
    scores = np.stack([available[:, :, start:stop].sum(axis=2) for start, stop in spans])
    sizes = np.array([stop - start for start, stop in spans])
    missing = rows.unrecorded if pseudo else ()
    return _ranked(np.array(list(offsets)), sizes, scores, rows.gold, missing)


def ranked_lengths(
    rows: RecallRows, lengths: Sequence[int], *, window: int = 0, pseudo: bool = True
) -> RankedWindows:
    """The first n queries of the lookahead (or full-cache) response, n in `lengths`.

    window: LAQ++'s last prompt queries joined to them (0: LAQ). LAQ, Figure 5(b).
    """
    if pseudo and rows.pseudo is None:
        raise AnalysisError("No lookahead response is recorded; record one first.")
    border = rows.prompt_length - rows.first
    after = rows.pseudo if pseudo and rows.pseudo is not None else rows.rows[:, :, border:]
    joined = min(window, border)
    base = rows.rows[:, :, border - joined : border].sum(axis=2)
    scores = np.stack([base + after[:, :, :length].sum(axis=2) for length in lengths])
    sizes = np.array([joined + min(length, after.shape[2]) for length in lengths])
    missing = rows.unrecorded if pseudo else ()
    return _ranked(np.array(list(lengths)), sizes, scores, rows.gold, missing)


def _ranked(
    labels: np.ndarray,
    sizes: np.ndarray,
    scores: np.ndarray,
    gold: np.ndarray,
    missing: tuple[int, ...],
) -> RankedWindows:
    depth = np.maximum(ranks(scores), ranks(gold)) + 1
    depth[sizes == 0] = depth.shape[-1] + 1
    return RankedWindows(labels, sizes, depth, missing)


def ranks(scores: np.ndarray) -> np.ndarray:
    """Rank of each entry along the last axis, 0 the best, ties to the lower position; int32."""
    import torch

    order = torch.sort(torch.from_numpy(scores), dim=-1, descending=True, stable=True)[1]
    places = torch.arange(scores.shape[-1], dtype=torch.int32).expand(order.shape)
    ranked = torch.empty_like(order, dtype=torch.int32).scatter_(-1, order, places)
    return np.asarray(ranked)


def recall_curve(
    trace: Source,
    *,
    budget: int,
    offsets: Sequence[int] = OFFSETS,
    width: int = WIDTH,
    weighting: str = "softmax",
    group_reduce: str = "mean",
    lookahead: Sequence[np.ndarray] | None = None,
) -> np.ndarray:
    """Recall over window start (LAQ, Eqs. 1-3 and Figure 2); float64 (offsets, layers, kv_heads).

    Gold are the prompt entries with the `budget` largest sums over the full cache's response,
    predicted those of a window of `width` queries from each offset; NaN where a window is empty.
    With `lookahead` (per layer (query_heads, n, d)) the windows' generated queries are those.
    """
    offsets = list(offsets)
    rows = recall_rows(
        trace,
        first_offset=min(offsets, default=0),
        last_offset=max(offsets, default=0) + width,
        weighting=weighting,
        group_reduce=group_reduce,
        lookahead=lookahead,
    )
    return ranked_windows(rows, offsets, width, pseudo=lookahead is not None).recall(budget)
