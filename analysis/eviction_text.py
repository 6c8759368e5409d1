"""Prompt and response with what a policy has evicted, ready to be played over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from analysis.figure import Note
from analysis.text import PAGE_TOKENS, WINDOW_STEPS
from cache_store.reader import Capture

if TYPE_CHECKING:
    from analysis.replays import Replayed


@dataclass(frozen=True)
class EvictionView:
    """One page of the text under a policy; see `eviction_text`."""

    first: int
    pieces: tuple[str, ...]
    caption: str
    alt: str
    note: Note


def eviction_text(
    capture: Capture,
    replayed: Replayed,
    layer: int,
    head: int,
    step: int,
    page: int | None = None,
    *,
    evidence: Sequence[tuple[int, int]] = (),
    window: int = WINDOW_STEPS,
    page_tokens: int = PAGE_TOKENS,
) -> EvictionView:
    """The text around the step's token (or page `page`, 0 is the first) under a policy.

    evidence: position ranges [first, last + 1) to underline. `window` bounds the steps sent for
    policies whose view changes with every step (`visible`); others are sent whole. Shown with
    `pages.parts.token_text.eviction_text`. Raises AnalysisError for what does not exist.
    """
    raise NotImplementedError


def eviction_table(
    capture: Capture, replayed: Replayed, layer: int, head: int, step: int
) -> pd.DataFrame:
    """Every token that exists at a step, for the Data button.

    Columns: position, token_id, text, segment, kept, reason, evicted_at (NA if never), score, rank
    (of the chosen layer and head, at the entry's last decision) and kept_share (of all).
    """
    raise NotImplementedError
