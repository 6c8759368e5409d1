"""LagKV's and SAGE-KV's roles on the text itself: what each token is to one head, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from analysis import partitions_figures, picks_figures
from analysis.errors import AnalysisError
from analysis.eviction_codes import CATEGORIES, Code
from analysis.eviction_text import EvictionView, changes_of
from analysis.figure import Note
from analysis.partitions import LagScores, completed_at, kept_per_partition, layout
from analysis.picks import Partition, unions
from analysis.text import PAGE_TOKENS, step_window, text_page
from analysis.words import provenance, source_words
from cache_store.reader import Capture

_LAG_CODES = np.array(
    [Code.NOTHING, Code.SINK, Code.SELECTED, Code.EVICTED, Code.RECENT, Code.RECENT], np.uint8
)
_SAGE_CODES = np.array(
    [Code.NOTHING, Code.SINK, Code.SELECTED, Code.UNSEEN, Code.RECENT, Code.EVICTED], np.uint8
)
STEPS = 64  # sent at once, so that playing does not wait for the server
_GROUP = Code.UNSEEN - 1
SAGE_CATEGORIES = (
    *CATEGORIES[:_GROUP],
    replace(CATEGORIES[_GROUP], label="picked by another head of its group"),
    *CATEGORIES[_GROUP + 1 :],
)
LAG_TEXT_NOTE = Note(
    "Struck tokens are gone from the chosen head; the darker a token's ground, the more of the "
    "layer's heads still keep it. Sinks and the last partition are never ranked.",
    "shade = share of the layer's KV heads that keep the entry",
    "LagKV, Section 3",
)
SAGE_TEXT_NOTE = Note(
    "Struck tokens are not attended to by the chosen query head: they are gone, or only another "
    "head of its group picked them. The darker a token's ground, the more of the layer's query "
    "heads still attend to it.",
    "shade = share of the layer's query heads that attend to the entry",
    "SAGE-KV, Figure 1",
)


def lag_text(
    capture: Capture,
    scores: LagScores,
    keep_ratio: float,
    layer: int,
    kv_head: int,
    step: int,
    page: int | None = None,
) -> EvictionView:
    """The text under LagKV's recursion; the score is the one within its own partition.

    Raises AnalysisError for a head or step that does not exist.
    """
    kept = kept_per_partition(scores.lag, keep_ratio)
    last = scores.length - scores.prompt_length
    gone = np.full(scores.length, last + 1, np.int32)
    parts = layout(scores.length, scores.sink, scores.lag)
    _check_head("KV head", kv_head, len(scores.total))
    for number in range(parts.compressed):
        places = np.arange(*parts.span(number))
        lost = places[scores.rank[kv_head, places] >= kept]
        gone[lost] = completed_at(number, scores.sink, scores.lag, scores.prompt_length)

    def codes(at: int) -> np.ndarray:
        length = scores.prompt_length + at
        return _LAG_CODES[partitions_figures.role_codes(scores, keep_ratio, length)]

    return _text(
        capture,
        codes,
        kv_head,
        f"layer {layer}, KV head {kv_head}",
        step,
        page,
        score=scores.total[kv_head],
        rank=scores.rank[kv_head] + 1,
        gone=gone,
        note=LAG_TEXT_NOTE,
        figure="lag_text",
        layer=layer,
        kv_head=kv_head,
        variant=scores.variant,
        sink=scores.sink,
        lag=scores.lag,
        keep_ratio=keep_ratio,
    )


def sage_text(
    capture: Capture,
    rows: np.ndarray,
    picked: np.ndarray,
    parts: Partition,
    layer: int,
    query_head: int,
    step: int,
    page: int | None = None,
) -> EvictionView:
    """The text as one query head sees it; the score is the last prompt token's attention.

    rows, picked: (query_heads, P) of the layer. Raises AnalysisError for a head or step that does
    not exist.
    """
    _check_head("query head", query_head, len(picked))
    prompt, length, last = parts.prompt_length, capture.info.length, capture.info.response_length
    gone = np.full(length, last + 1, np.int32)
    score = np.full(length, np.nan, np.float32)
    if parts.selects:
        first, stop = parts.candidates
        places = np.arange(first, length)
        gone[places] = np.minimum(np.maximum(0, places - prompt + parts.recent + 2), last + 1)
        gone[first:stop] = 0
        group = unions(picked[None], parts.group)[0, query_head // parts.group]
        gone[:prompt][group] = last + 1
        score[first:stop] = rows[query_head, first:stop]
    rank = np.zeros(length, np.int32)
    ranked = np.flatnonzero(~np.isnan(score))
    rank[ranked[np.argsort(-score[ranked], kind="stable")]] = np.arange(1, len(ranked) + 1)

    def codes(at: int) -> np.ndarray:
        seen = _SAGE_CODES[picks_figures.role_codes(picked, parts, at)]
        return np.pad(seen, ((0, 0), (0, length - seen.shape[1])))

    shown = _text(
        capture,
        codes,
        query_head,
        f"layer {layer}, query head {query_head}",
        step,
        page,
        score=score,
        rank=rank,
        gone=gone,
        note=SAGE_TEXT_NOTE,
        figure="sage_text",
        layer=layer,
        query_head=query_head,
        budget=parts.budget,
    )
    return replace(shown, categories=SAGE_CATEGORIES)


def _check_head(what: str, head: int, count: int) -> None:
    if not 0 <= head < count:
        raise AnalysisError(f"This run has no {what} {head}; it has 0 to {count - 1}.")


def _text(
    capture: Capture,
    codes: Callable[[int], np.ndarray],
    head: int,
    place: str,
    step: int,
    page: int | None,
    *,
    score: np.ndarray,
    rank: np.ndarray,
    gone: np.ndarray,
    note: Note,
    **selection: Any,
) -> EvictionView:
    """codes(step): `Code` of every head and position; score, rank, gone: (P + T,) of `head`;
    selection: what the text shows, for its provenance."""
    picks_figures.check_step(capture, step)
    info = capture.info
    shown = text_page(capture, info.prompt_length + step - 1, page, PAGE_TOKENS)
    first, stop = shown.first, shown.first + len(shown.pieces)
    steps = step_window(step, STEPS, 0, info.response_length)
    own, holders, kept = _over_steps(codes, steps, head, first, stop)
    now, there = int(kept[step - steps[0]]), info.prompt_length + step
    states = f"{now:,} of {there:,} tokens after step {step:,} in {place}"
    return EvictionView(
        first=first,
        pieces=shown.pieces,
        token_ids=shown.token_ids,
        segments=shown.segments,
        length=info.length,
        prompt_length=info.prompt_length,
        page=shown.page,
        pages=shown.pages,
        step=step,
        steps=steps,
        codes=changes_of(own),
        holders=changes_of(holders),
        sets=len(codes(step)),
        kept=kept,
        score=score[first:stop],
        rank=rank[first:stop],
        evicted_at=gone[first:stop],
        evidence=(),
        chooses=False,
        place=place,
        first_step=0,
        last_step=info.response_length,
        caption=f"{states}; shown are {shown.words}. {source_words(capture)}.",
        alt=f"The text with {states}.",
        note=note,
        provenance=provenance(capture, step=step, **selection),
    )


def _over_steps(
    codes: Callable[[int], np.ndarray],
    steps: Sequence[int] | np.ndarray,
    head: int,
    first: int,
    stop: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes of the head and holders of each position on the page (m, n); entries held (m,)."""
    own, holders, kept = [], [], []
    for step in steps:
        every = codes(int(step))
        held = ~np.isin(every, (Code.NOTHING, Code.EVICTED, Code.UNSEEN))
        own.append(every[head, first:stop])
        holders.append(held[:, first:stop].sum(axis=0, dtype=np.int32))
        kept.append(int(held[head].sum()))
    return np.stack(own), np.stack(holders), np.array(kept, np.int32)
