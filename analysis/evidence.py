"""A span of the prompt that the answer rests on: who keeps it, for how long, at which budget.

Spans are position ranges [first, last + 1) of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from analysis.figure import Figure
from cache_store.reader import Capture

if TYPE_CHECKING:
    from analysis.replays import Replayed

Span = tuple[int, int]


def find_span(capture: Capture, text: str) -> list[Span]:
    """Where a text occurs in the prompt, in order: the tokens that hold any of its characters.

    Exact first; if that finds nothing, ignoring case and the kind and number of spaces. Raises
    AnalysisError for a text that does not occur, or is empty.
    """
    raise NotImplementedError


def span_of_characters(capture: Capture, start: int, stop: int) -> Span:
    """The tokens that hold characters [start, stop) of the prompt, as samples name evidence."""
    raise NotImplementedError


def check_span(capture: Capture, span: Span) -> Span:
    """The span, if it is a range of prompt positions. Raises AnalysisError otherwise."""
    raise NotImplementedError


def span_words(capture: Capture, span: Span, limit: int = 60) -> str:
    """A span in words: its positions and its text, shortened."""
    raise NotImplementedError


def evidence_survival(
    capture: Capture,
    replays: Sequence[Replayed],
    span: Span,
    step: int | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
) -> Figure:
    """Lines over steps, one per policy: share of the span's entries that are cached after a step.

    Over all layers and KV heads, or those of `layer`, or one `head` of it; `step` is marked.
    """
    raise NotImplementedError


def evidence_grid(
    capture: Capture,
    replayed: Replayed,
    span: Span,
    step: int,
    *,
    selected: tuple[int, int] | None = None,
) -> Figure:
    """Clickable heatmap layer x KV head: share of the span that is cached after `step`."""
    raise NotImplementedError


def survival_over_budget(
    capture: Capture,
    policies: Sequence[Sequence[Replayed]],
    span: Span,
    step: int | None = None,
) -> Figure:
    """Lines over the budget, one per policy: share of the span's entries cached after `step`.

    policies: for each policy its replays at several budgets, in any order; `step` defaults to the
    last. The budget is the realised one, so that windows and rounding are in it.
    """
    raise NotImplementedError


def budget_of_loss(
    capture: Capture,
    policies: Sequence[Sequence[Replayed]],
    span: Span,
    step: int | None = None,
    *,
    heads: float = 0.5,
) -> pd.DataFrame:
    """The smallest replayed budget at which each policy still keeps the span after `step`.

    Columns: policy, keeps_all, keeps_half (budgets in entries at which all, or at least half, of
    the span's entries are cached in at least the share `heads` of all layers and KV heads, there
    and at every larger replayed budget; NA if not even at the largest), and smallest, largest (the
    budgets looked at).
    """
    raise NotImplementedError
