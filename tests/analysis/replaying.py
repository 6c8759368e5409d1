"""`Replayed` without a job: from a replay of a trace, or by hand; its costs are zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.colours import policy_colour
from analysis.replays import PackedVisible, Replayed
from kvpolicies.choice import canonical, title

if TYPE_CHECKING:
    from kvpolicies import Result


def by_hand(
    evicted_at: np.ndarray,
    prompt_length: int,
    *,
    choice: dict[str, Any] | None = None,
    group: int = 1,
    **changes: Any,
) -> Replayed:
    """evicted_at (layers, heads, P + T); reasons follow from it unless they are given."""
    layers, heads, length = evicted_at.shape
    steps, queries = length - prompt_length, heads * group
    form = canonical(choice or {"key": "snapkv", "options": {"budget": 4}})
    parts: dict[str, Any] = {
        "choice": form,
        "title": title(form),
        "colour": policy_colour(form),
        "prompt_length": prompt_length,
        "response_length": steps,
        "query_heads": queries,
        "evicted_at": evicted_at.astype(np.int32),
        "score": np.full(evicted_at.shape, np.nan, np.float32),
        "rank": np.zeros(evicted_at.shape, np.int32),
        "reason": np.where(evicted_at <= steps, 4, 3).astype(np.uint8),
        "exempt": np.zeros(layers, bool),
        "visible": None,
        "mass_kept": np.zeros((layers, queries, steps), np.float32),
        "recall": np.zeros((layers, heads, steps), np.float32),
        "recall_response": np.zeros((layers, heads), np.float32),
        "output_error": np.zeros((layers, queries, steps), np.float32),
        "regret_step": np.zeros((layers, heads, steps), np.float32),
        "regret_entry": np.zeros(evicted_at.shape, np.float32),
        "missed_step": np.zeros((layers, heads, steps), np.int32),
        "missed_entry": np.zeros(evicted_at.shape, np.int32),
        "facts": {"budget": float(form.get("options", {}).get("budget", np.nan))},
    }
    return Replayed(**(parts | changes))


def of_result(result: Result, choice: dict[str, Any], query_heads: int) -> Replayed:
    """What `analysis.replays.replayed` would read of a replay, without its costs."""
    evicted_at = result.evicted_at.numpy()
    visible = None
    if result.visible is not None:
        packed = np.packbits(result.visible.numpy(), axis=-1)
        visible = PackedVisible(packed, evicted_at.shape[2])
    return by_hand(
        evicted_at,
        result.prompt_length,
        choice=choice,
        group=query_heads // evicted_at.shape[1],
        score=result.scores.numpy(),
        rank=result.ranks.numpy(),
        reason=result.reasons.numpy(),
        exempt=result.exempt.numpy(),
        visible=visible,
        facts={
            "budget": float("nan") if result.budget is None else float(result.budget),
            "realised_budget": result.realised_budget,
        },
    )
