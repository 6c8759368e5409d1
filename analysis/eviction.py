"""What the Eviction page's Masks, Text and Evidence show: a capture and replays in, figures out.

Heads are indices of a policy's own keep-sets: KV heads, or query heads with its own granularity;
step 0 is the end of prefill.
"""

from __future__ import annotations

from analysis.eviction_grids import kept_difference, kept_grid
from analysis.eviction_masks import mask, mask_difference
from analysis.eviction_text import EvictionView, eviction_table, eviction_text
from analysis.evidence import (
    budget_of_loss,
    evidence_grid,
    evidence_survival,
    survival_over_budget,
)
from analysis.spans import Span, check_span, find_span, span_of_characters, span_words

__all__ = [
    "EvictionView",
    "Span",
    "budget_of_loss",
    "check_span",
    "eviction_table",
    "eviction_text",
    "evidence_grid",
    "evidence_survival",
    "find_span",
    "kept_difference",
    "kept_grid",
    "mask",
    "mask_difference",
    "span_of_characters",
    "span_words",
    "survival_over_budget",
]
