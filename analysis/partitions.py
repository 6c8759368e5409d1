"""LagKV's view in numbers: partitions, their scores in two parts, and the recursion over steps.

Scores depend on sinks and L only and are computed once per layer; r is a cut through the ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.errors import AnalysisError
from analysis.traces import trace_from
from cache_store.reader import Capture

if TYPE_CHECKING:
    from analysis.traces import Source

SINK, LAG, KEEP_RATIO = 16, 128, 0.25
VARIANTS = {
    "lag_relative": "LagKV (the next partition is the reference)",
    "local_relative": "LocalKV (its own partition is the reference)",
    "key_norm": "key norm by partitions",
}


@dataclass(frozen=True)
class Layout:
    """How LagKV divides the first `length` positions.

    sink: first positions kept; partitions: how many complete ones of `lag` follow; compressed: how
    many of them are compressed (all but the last, which is the sliding window with the remainder).
    """

    length: int
    sink: int
    lag: int
    partitions: int

    @property
    def compressed(self) -> int:
        return max(0, self.partitions - 1)

    def span(self, partition: int) -> tuple[int, int]:
        """First position and the one after the last of a complete partition."""
        start = self.sink + partition * self.lag
        return start, start + self.lag

    @property
    def window_start(self) -> int:
        """Where the sliding window (last complete partition and remainder) begins."""
        return min(self.length, self.sink + self.compressed * self.lag)

    @property
    def remainder_start(self) -> int:
        return min(self.length, self.sink + self.partitions * self.lag)

    def roles(self) -> np.ndarray:
        """uint8 (length,): 1 sink, 2 compressed partition, 3 last partition, 4 remainder."""
        roles = np.full(self.length, 2, np.uint8)
        roles[self.window_start :] = 3
        roles[self.remainder_start :] = 4
        roles[: self.sink] = 1
        return roles

    def kept_length(self, keep_ratio: float) -> int:
        """Cache length after the recursion (LagKV, Eq. 10 with its bracket corrected)."""
        from kvpolicies.schedules import lag_length

        return lag_length(
            self.length, self.sink, self.lag, kept_per_partition(self.lag, keep_ratio)
        )


def layout(length: int, sink: int = SINK, lag: int = LAG) -> Layout:
    """Sinks, partitions and remainder of `length` positions. Raises AnalysisError for L < 1."""
    if lag < 1 or sink < 0:
        raise AnalysisError(
            f"Partitions need L of at least 1 and no fewer than 0 sinks, not L = "
            f"{lag} and {sink} sinks."
        )
    return Layout(length, sink, lag, max(0, length - sink) // lag)


def kept_per_partition(lag: int, keep_ratio: float) -> int:
    """⌊rL⌋, r the share that is kept. Raises AnalysisError for r outside 0 to 1."""
    if not 0 <= keep_ratio <= 1:
        raise AnalysisError(
            f"r is the share of a partition that is kept, 0 to 1, not {keep_ratio}."
        )
    return math.floor(keep_ratio * lag + 1e-9)


def completed_at(partition: int, sink: int, lag: int, prompt_length: int) -> int:
    """The step after which a partition is compressed: when the one after it is complete."""
    return max(0, sink + (partition + 2) * lag - prompt_length)


def compressing_steps(parts: Layout, prompt_length: int) -> dict[int, list[int]]:
    """Step -> the partitions that are compressed after it, in order; 0 is the end of prefill.

    parts: of prompt and response together.
    """
    steps: dict[int, list[int]] = {}
    for partition in range(parts.compressed):
        step = completed_at(partition, parts.sink, parts.lag, prompt_length)
        steps.setdefault(step, []).append(partition)
    return steps


@dataclass(frozen=True)
class LagScores:
    """Scores of one layer's partitions over prompt and response.

    key_part, value_part, total: float32 (kv_heads, P + T), NaN where never ranked (sinks, the last
    complete partition, the remainder); value_part is None for the key norm, which has one part
    only. rank: int32 (kv_heads, P + T), 0 the best of its partition, -1 where never ranked.
    """

    variant: str
    sink: int
    lag: int
    prompt_length: int
    key_part: np.ndarray
    value_part: np.ndarray | None
    total: np.ndarray
    rank: np.ndarray

    @property
    def length(self) -> int:
        return self.total.shape[1]

    def keep(self, keep_ratio: float, length: int | None = None) -> np.ndarray:
        """What each head keeps once `length` positions were seen; bool (kv_heads, length).

        length: prompt and the steps so far (default: all of them).
        """
        length = self.length if length is None else length
        kept = np.ones((self.total.shape[0], length), bool)
        parts = layout(length, self.sink, self.lag)
        ranked = slice(self.sink, parts.window_start)
        kept[:, ranked] = self.rank[:, ranked] < kept_per_partition(self.lag, keep_ratio)
        return kept

    def lengths(self, keep_ratio: float) -> np.ndarray:
        """Entries per head that are really kept after steps 0 ... T; int64 (T + 1,)."""
        steps = range(self.prompt_length, self.length + 1)
        return np.array([int(self.keep(keep_ratio, seen)[0].sum()) for seen in steps])


def lag_scores(
    source: Source, layer: int, variant: str = "lag_relative", *, sink: int = SINK, lag: int = LAG
) -> LagScores:
    """Score every complete partition of a layer; the response's count as they complete.

    variant: a key of VARIANTS. Partitions are never rescored, so the same scores hold at every
    step (LagKV, Section 3). Raises AnalysisError for a variant that does not exist or a layer in a
    sliding window.
    """
    import torch

    from kvpolicies.entries import RecordedEntries
    from kvpolicies.scores import SCORES
    from kvpolicies.scores.lag import LagRelative
    from kvpolicies.view import View

    if variant not in VARIANTS:
        raise AnalysisError(f"LagKV's variants are {', '.join(VARIANTS)}, not {variant!r}.")
    parts = layout(0, sink, lag)
    trace = trace_from(source, [layer])
    window = trace.window_of(0)
    if window is not None and window < trace.length:
        raise AnalysisError(
            f"Layer {layer} attends within a sliding window of {window:,} tokens, so policies "
            "leave it alone; choose another layer."
        )
    parts = layout(trace.length, sink, lag)
    entries = RecordedEntries(trace.keys[0], trace.values[0], trace.length)
    view = View(
        entries, trace.queries[0], 0, trace.scaling_of(0), open_from=min(sink, trace.length)
    )
    kind = SCORES[variant]
    value_part: np.ndarray | None = None
    with torch.inference_mode():
        if issubclass(kind, LagRelative):
            key, value = (part.numpy() for part in kind(lag=lag).parts(view))
            key_part, value_part, total = key, value, key + value
        else:
            key_part = kind().score(view).numpy().copy()
            key_part[:, : parts.sink] = np.nan
            key_part[:, parts.window_start :] = np.nan
            total = key_part
    rank = np.full(total.shape, -1, np.int32)
    if parts.compressed:
        ranked = slice(parts.sink, parts.window_start)
        by_partition = total[:, ranked].reshape(total.shape[0], parts.compressed, lag)
        order = np.argsort(-by_partition, axis=2, kind="stable")
        places = np.broadcast_to(np.arange(lag, dtype=np.int32), order.shape)
        own = np.empty(order.shape, np.int32)
        np.put_along_axis(own, order, places, axis=2)
        rank[:, ranked] = own.reshape(total.shape[0], -1)
    return LagScores(variant, sink, lag, trace.prompt_length, key_part, value_part, total, rank)


def variant_overlap(scores: list[LagScores], keep_ratio: float, length: int) -> pd.DataFrame:
    """How alike the variants choose: Jaccard of what they keep of the compressed partitions.

    One row and column per variant, means over KV heads; NaN where nothing is compressed.
    """
    names = [made.variant for made in scores]
    parts = layout(length, scores[0].sink, scores[0].lag)
    ranked = slice(parts.sink, parts.window_start)
    kept = [made.keep(keep_ratio, length)[:, ranked] for made in scores]
    table = np.full((len(names), len(names)), np.nan)
    for row, one in enumerate(kept):
        for column, other in enumerate(kept):
            union = (one | other).sum(axis=1)
            if parts.compressed and union.all():
                table[row, column] = float(((one & other).sum(axis=1) / union).mean())
    return pd.DataFrame(table, index=names, columns=names)


CLASSES = ("digits", "words", "punctuation", "space", "other")


def token_class(piece: str) -> str:
    """What a token is made of, by its first telling character."""
    text = piece.strip()
    if not text:
        return "space" if piece else "other"
    if any(sign.isdigit() for sign in text):
        return "digits"
    if any(sign.isalpha() for sign in text):
        return "words"
    return "punctuation" if text.isprintable() else "other"


def what_is_kept(capture: Capture, keep: np.ndarray, ranked: np.ndarray) -> pd.DataFrame:
    """What distinguishes kept tokens: by class of token, how many and what share is kept.

    keep: bool (kv_heads, n); ranked: bool (n,), the positions that could be evicted. Columns:
    kind, tokens, share_of_text, share_kept (mean over heads), lift (share kept over the mean of
    all), kept_often (share of its tokens kept by more than half of the heads).
    """
    pieces = capture.tokens()["text"].tolist()[: len(ranked)]
    kinds = np.array([token_class(piece) for piece in pieces], dtype=object)
    share = keep[:, : len(ranked)].mean(axis=0)
    overall = float(share[ranked].mean()) if ranked.any() else math.nan
    rows = []
    for kind in CLASSES:
        there = (kinds == kind) & ranked
        if there.any():
            kept = float(share[there].mean())
            rows.append(
                {
                    "kind": kind,
                    "tokens": int(there.sum()),
                    "share_of_text": float(there.sum() / ranked.sum()),
                    "share_kept": kept,
                    "lift": kept / overall if overall else math.nan,
                    "kept_often": float((share[there] > 0.5).mean()),
                }
            )
    names = ["kind", "tokens", "share_of_text", "share_kept", "lift", "kept_often"]
    return pd.DataFrame(rows, columns=names)
