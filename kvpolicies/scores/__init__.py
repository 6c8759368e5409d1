"""The scores: how much each cached entry matters. One small class each, by family."""

from kvpolicies.scores import attention, lag, recency, references, selection, statistics
from kvpolicies.scores.base import SCORES, Score

__all__ = [
    "SCORES",
    "Score",
    "attention",
    "lag",
    "recency",
    "references",
    "selection",
    "statistics",
]
