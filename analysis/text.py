"""The text and one step's attention on it: what the text view and the table of top tokens show."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from analysis.errors import AnalysisError
from analysis.figure import Note
from analysis.rows import Heads, Selection, check_step, position_of, step_range, window_rows
from analysis.words import (
    number,
    provenance,
    selection_words,
    source_words,
    span,
    step_words,
    visible,
)
from cache_store.reader import Capture

PAGE_TOKENS = 1500
WINDOW_STEPS = 128

TEXT_NOTE = Note(
    "The darker a token, the more the outlined token attends to it; the shades of one step are "
    "scaled to its largest weight. A token without a shade gets next to nothing.",
    "row of A = softmax(scaling · q kᵀ) for the query of the step",
    "LazyEviction, Figure 3b: the recurring tokens in the text",
)


@dataclass(frozen=True)
class TokenView:
    """One page of the text with the attention of a window of steps.

    first: position of the page's first token; pieces: text of each token of the page, "" where a
    later token completes the character; token_ids: int32 (page tokens,); segments: (name, first,
    last + 1) over the whole text; step and its query's position; steps: int32 (m,) consecutive
    steps around it; rows: float16 (m, length), C order, 0 where a step cannot see, never NaN;
    first_step, last_step: what a slider offers.
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
    position: int
    steps: np.ndarray
    rows: np.ndarray
    first_step: int
    last_step: int
    caption: str
    alt: str
    note: Note = TEXT_NOTE
    provenance: Mapping[str, Any] = field(default_factory=dict)


def text_view(
    capture: Capture,
    layer: Selection,
    head: Heads,
    step: int,
    page: int | None = None,
    *,
    window: int = WINDOW_STEPS,
    page_tokens: int = PAGE_TOKENS,
    rows: np.ndarray | None = None,
) -> TokenView:
    """The text around the step (or page `page`, 0 is the first), with up to `window` steps' rows.

    rows: those of `text_rows` over the steps of `text_steps`, where they are known already. Raises
    AnalysisError for a layer, head, step or page that does not exist.
    """
    info = capture.info
    steps = text_steps(capture, step, window)
    position = position_of(capture, step)
    shown = text_page(capture, position, page, page_tokens)
    if rows is None:
        rows = text_rows(capture, layer, head, int(steps[0]), int(steps[-1]))
    row = rows[step - int(steps[0])]
    target = int(row.argmax())
    pieces = token_pieces(capture)
    what = selection_words(layer, head)
    return TokenView(
        first=shown.first,
        pieces=shown.pieces,
        token_ids=shown.token_ids,
        segments=shown.segments,
        length=info.length,
        prompt_length=info.prompt_length,
        page=shown.page,
        pages=shown.pages,
        step=step,
        position=position,
        steps=steps,
        rows=rows,
        first_step=step_range(capture)[0],
        last_step=info.response_length,
        caption=(
            f"Attention of {step_words(capture, step)}, {what}, over {shown.words}; "
            f"{source_words(capture)}."
        ),
        alt=(
            f"The text shaded by the attention of {step_words(capture, step)}, {what}: most, "
            f"{number(float(row[target]))}, on position {target:,} “{visible(pieces[target])}”."
        ),
        provenance=provenance(capture, figure="text", layer=layer, head=head, step=step),
    )


def text_steps(capture: Capture, step: int, window: int = WINDOW_STEPS) -> np.ndarray:
    """The steps that are sent with the text of one; int32 (m,), m at most `window`.

    They move in blocks of half the window, so that neighbouring steps ask for the same rows.
    Raises AnalysisError for a step that does not exist.
    """
    first = min(check_step(capture, step), step_range(capture)[0])
    return step_window(step, window, first, capture.info.response_length)


def text_rows(
    capture: Capture, layer: Selection, head: Heads, first_step: int, last_step: int
) -> np.ndarray:
    """Attention of consecutive steps as a text view holds it; float16 (steps, P + T), C order."""
    rows = window_rows(capture, layer, head, first_step, last_step)
    return np.ascontiguousarray(rows, np.float16)


@dataclass(frozen=True)
class Page:
    """A page of the text; fields as in `TokenView`, `words` says which tokens it shows."""

    first: int
    pieces: tuple[str, ...]
    token_ids: np.ndarray
    segments: tuple[tuple[str, int, int], ...]
    page: int
    pages: int
    words: str


def text_page(
    capture: Capture, position: int, page: int | None, page_tokens: int = PAGE_TOKENS
) -> Page:
    """Page `page` of the text, or the one with `position`; pages are equally long.

    Raises AnalysisError for a page that does not exist.
    """
    length = capture.info.length
    pages = max(1, math.ceil(length / page_tokens))
    size = math.ceil(length / pages)
    page = position // size if page is None else page
    if not 0 <= page < pages:
        raise AnalysisError(f"The text has pages 1 to {pages}, not {page + 1}.")
    first, stop = page * size, min(length, (page + 1) * size)
    tokens = capture.tokens()
    words = f"all {length:,} tokens"
    if pages > 1:
        words = f"tokens {span(first, stop)} of {length:,} (page {page + 1} of {pages})"
    return Page(
        first,
        tuple(tokens["text"].tolist()[first:stop]),
        tokens["token_id"].to_numpy(np.int32)[first:stop],
        _segments(tokens["segment"].tolist()),
        page,
        pages,
        words,
    )


def step_window(step: int, window: int, first: int, last: int) -> np.ndarray:
    """Consecutive steps around `step`, at most `window`, within first ... last; int32 (m,)."""
    stride = max(1, window // 2)
    start = first + (step - first) // stride * stride - window // 4
    start = max(first, min(start, last - window + 1))
    return np.arange(start, min(last, start + window - 1) + 1, dtype=np.int32)


def _segments(names: list[str]) -> tuple[tuple[str, int, int], ...]:
    """Runs of equal segment names as (name, first, last + 1)."""
    borders = [0, *(i for i in range(1, len(names)) if names[i] != names[i - 1]), len(names)]
    return tuple((names[first], first, stop) for first, stop in pairwise(borders))


def token_pieces(capture: Capture) -> list[str]:
    """The text of every token as plain strings."""
    return capture.tokens()["text"].tolist()


def top_tokens(
    capture: Capture, layer: Selection, head: Selection, step: int, k: int = 20
) -> pd.DataFrame:
    """The most attended tokens of a step, equal weights by position.

    Columns: rank (1 is the largest), position, token (spaces and line ends as signs), weight,
    cumulative_share (of the step's attention up to this rank), segment.
    """
    check_step(capture, step)
    row = window_rows(capture, layer, head, step, step)[0][: position_of(capture, step) + 1]
    order = np.argsort(-row, kind="stable")[:k]
    tokens = capture.tokens()
    return pd.DataFrame(
        {
            "rank": np.arange(1, len(order) + 1),
            "position": order,
            "token": [visible(piece) for piece in tokens["text"].iloc[order]],
            "weight": row[order],
            "cumulative_share": np.cumsum(row[order], dtype=np.float64).astype(np.float32),
            "segment": tokens["segment"].iloc[order].tolist(),
        }
    )
