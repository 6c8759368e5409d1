"""Prompt and response with what a policy has evicted, ready to be played over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.colours import Category
from analysis.comparison import budget_words
from analysis.eviction_codes import (
    CATEGORIES,
    Code,
    HeadEntries,
    attended,
    check_eviction_step,
    codes_of,
    head_entries,
    held,
    place_words,
)
from analysis.figure import Note
from analysis.spans import Span, check_span
from analysis.text import PAGE_TOKENS, WINDOW_STEPS, step_window, text_page
from analysis.words import number, provenance, source_words
from cache_store.reader import Capture

if TYPE_CHECKING:
    from analysis.replays import Replayed

WINDOW_CELLS = 4_000_000  # steps x tokens of a page worked out at once

EVICTION_TEXT_NOTE = Note(
    "Struck and faded tokens are gone from the chosen head's cache at the chosen step; the darker "
    "a token's ground, the more of all layers and heads still keep it, so a struck token on a dark "
    "ground survives elsewhere, and evidence is underlined.",
    "share = |{ (layer, head) : evicted_at(i) > t }| / (layers · heads)",
    "LazyEviction, Figure 3b: the tokens in the text",
)


@dataclass(frozen=True)
class Changes:
    """A number per token over consecutive steps: `base` (n,) at the first of them, and what
    becomes of it: arriving at the i-th step (i >= 1), `tokens[offsets[i - 1] : offsets[i]]` take
    the `values` there."""

    base: np.ndarray
    offsets: np.ndarray
    tokens: np.ndarray
    values: np.ndarray

    def at(self, index: int) -> np.ndarray:
        """The numbers at the index-th step."""
        numbers = self.base.copy()
        stop = self.offsets[index]
        numbers[self.tokens[:stop]] = self.values[:stop]
        return numbers


@dataclass(frozen=True)
class EvictionView:
    """One page of the text under a policy.

    first: position of the page's first token; pieces and token_ids int32 (page tokens,) as in
    `TokenView`; segments: (name, first, last + 1) over the whole text. steps: int32 (m,) the
    consecutive steps that are sent; codes: `Code` of each token of the page in the chosen head,
    uint8; holders: in how many of `sets` layers and heads it is held, int32; both over `steps`.
    kept: int32 (m,) entries held by the chosen head; score, rank, evicted_at: (page tokens,) of
    the chosen head, as in `Replayed`. evidence: position ranges to underline.
    first_step ... last_step: what a slider offers.
    """

    first: int
    pieces: tuple[str, ...]
    token_ids: np.ndarray
    segments: tuple[tuple[str, int, int], ...]
    length: int
    prompt_length: int
    page: int
    pages: int
    step: int
    steps: np.ndarray
    codes: Changes
    holders: Changes
    sets: int
    kept: np.ndarray
    score: np.ndarray
    rank: np.ndarray
    evicted_at: np.ndarray
    evidence: tuple[Span, ...]
    chooses: bool
    place: str
    first_step: int
    last_step: int
    caption: str
    alt: str
    categories: tuple[Category, ...] = CATEGORIES
    note: Note = EVICTION_TEXT_NOTE
    provenance: Mapping[str, Any] = field(default_factory=dict)


def eviction_text(
    capture: Capture,
    replayed: Replayed,
    layer: int,
    head: int,
    step: int,
    page: int | None = None,
    *,
    evidence: Sequence[Span] = (),
    window: int = WINDOW_STEPS,
    page_tokens: int = PAGE_TOKENS,
) -> EvictionView:
    """The text around the step's token (or page `page`, 0 is the first) under a policy.

    evidence: position ranges [first, last + 1) to underline. `window` bounds the steps sent for
    policies whose view changes with every step (`visible`); others are sent whole. Shown with
    `pages.parts.token_text.eviction_text`. Raises AnalysisError for what does not exist.
    """
    check_eviction_step(replayed, step)
    entries = head_entries(replayed, layer, head)
    spans = tuple(check_span(capture, marked) for marked in evidence)
    shown = text_page(capture, capture.info.prompt_length + step - 1, page, page_tokens)
    first, stop = shown.first, shown.first + len(shown.pieces)
    if replayed.visible is None:
        window = max(window, WINDOW_CELLS // (stop - first))
    steps = step_window(step, window, 0, replayed.response_length)
    codes = codes_of(entries, steps, first, stop)
    holders = _holders(replayed, steps, first, stop)
    kept = _kept(entries, steps)
    place = place_words(capture, replayed, layer, head)
    there, now = replayed.prompt_length + step, int(kept[step - steps[0]])
    verb = "attended to at" if entries.attended is not None else "kept after"
    states = f"{now:,} of {there:,} tokens {verb} step {step:,} in {place}"
    return EvictionView(
        first=first,
        pieces=shown.pieces,
        token_ids=shown.token_ids,
        segments=shown.segments,
        length=capture.info.length,
        prompt_length=capture.info.prompt_length,
        page=shown.page,
        pages=shown.pages,
        step=step,
        steps=steps,
        codes=changes_of(codes),
        holders=changes_of(holders),
        sets=_sets(replayed),
        kept=kept,
        score=entries.score[first:stop],
        rank=entries.rank[first:stop],
        evicted_at=entries.evicted_at[first:stop],
        evidence=spans,
        chooses=replayed.visible is not None,
        place=place,
        first_step=0,
        last_step=replayed.response_length,
        caption=(
            f"{states}; shown are {shown.words}. {budget_words((replayed,))}; "
            f"{source_words(capture)}."
        ),
        alt=f"The text under {replayed.title}: {states}.{_evidence_alt(replayed, spans, step)}",
        provenance=provenance(
            capture,
            figure="eviction_text",
            policies=[replayed.choice],
            layer=layer,
            kv_head=head,
            step=step,
        ),
    )


def eviction_table(
    capture: Capture, replayed: Replayed, layer: int, head: int, step: int
) -> pd.DataFrame:
    """Every token that exists at a step, for the Data button.

    Columns: position, token_id, text, segment, kept, reason, evicted_at (NA if never), score, rank
    (of the chosen layer and head, at the entry's last ranking; NA if not ranked) and kept_share
    (of all layers and heads that the policy touches).
    """
    there = replayed.prompt_length + check_eviction_step(replayed, step)
    entries = head_entries(replayed, layer, head)
    codes = codes_of(entries, np.array([step]), 0, there)[0]
    labels = np.array(["", *(category.label for category in CATEGORIES)], dtype=object)
    evicted_at = pd.array(entries.evicted_at[:there], dtype="Int32")
    evicted_at[entries.evicted_at[:there] > replayed.response_length] = pd.NA
    rank = pd.array(entries.rank[:there], dtype="Int32")
    rank[entries.rank[:there] == 0] = pd.NA
    tokens = capture.tokens()[["position", "token_id", "text", "segment"]].iloc[:there]
    return tokens.assign(
        kept=~np.isin(codes, (Code.EVICTED, Code.UNSEEN)),
        reason=labels[codes],
        evicted_at=evicted_at,
        score=entries.score[:there],
        rank=rank,
        kept_share=_holders(replayed, np.array([step]), 0, there)[0] / _sets(replayed),
    )


def _touched(replayed: Replayed) -> np.ndarray:
    """The layers that count; all where the policy touches none."""
    return np.flatnonzero(~replayed.exempt if not replayed.exempt.all() else replayed.exempt)


def _sets(replayed: Replayed) -> int:
    """How many layers and heads a token can be held in."""
    return len(_touched(replayed)) * replayed.evicted_at.shape[1]


def _holders(replayed: Replayed, steps: np.ndarray, first: int, stop: int) -> np.ndarray:
    """In how many layers and heads each position is held after each step; int32 (m, n)."""
    layers = _touched(replayed)
    gone = replayed.evicted_at[layers, :, first:stop].reshape(-1, stop - first)
    if replayed.visible is not None:
        seen = attended(replayed, slice(int(steps[0]), int(steps[-1]) + 1), first, stop)[layers]
        seen = seen.reshape(-1, *seen.shape[2:])
        counts = (seen & (gone[:, None] > steps[:, None])).sum(0)
    else:
        last = int(steps[-1]) + 1
        places = np.minimum(gone, last) + np.arange(stop - first) * (last + 1)
        ends = np.bincount(places.reshape(-1), minlength=(stop - first) * (last + 1))
        counts = len(gone) - ends.reshape(stop - first, last + 1).cumsum(1)[:, steps].T
    born = np.arange(first, stop) < replayed.prompt_length + steps[:, None]
    return (counts * born).astype(np.int32)


def _kept(entries: HeadEntries, steps: np.ndarray) -> np.ndarray:
    """Entries that the head holds (or attends to) after each step; int32 (m,)."""
    if entries.attended is None:
        gone = np.sort(entries.evicted_at)
        kept = entries.prompt_length + steps - np.searchsorted(gone, steps, side="right")
    else:
        kept = (entries.attended[steps] & (entries.evicted_at > steps[:, None])).sum(1)
    return kept.astype(np.int32)


def changes_of(numbers: np.ndarray) -> Changes:
    """What becomes of each number; numbers (m, n): one row per step."""
    moved = numbers[1:] != numbers[:-1]
    _, tokens = np.nonzero(moved)
    offsets = np.append(0, moved.sum(1).cumsum()).astype(np.int32)
    return Changes(numbers[0].copy(), offsets, tokens.astype(np.int32), numbers[1:][moved])


def _evidence_alt(replayed: Replayed, spans: Sequence[Span], step: int) -> str:
    if not spans:
        return ""
    positions = np.concatenate([np.arange(first, stop) for first, stop in spans])
    share = held(replayed, step)[_touched(replayed)][:, :, positions].mean()
    return f" Of the evidence, {number(round(100 * float(share), 1))} % over all layers and heads."
