"""Replays and live runs made by hand: random but possible numbers, none from the product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.replays import PolicyRun, Replayed
from kvpolicies.choice import canonical, title
from kvpolicies.decisions import Reason
from tests.synthetic import Synthetic


def made_replay(
    made: Synthetic,
    choice: dict[str, Any] | None = None,
    *,
    seed: int = 0,
    by_query: bool = False,
    exempt: Sequence[int] = (),
    **changes: Any,
) -> Replayed:
    """A policy that evicted half of the prompt at prefill and some more entries at later steps."""
    draw = np.random.default_rng(seed)
    heads = made.query_heads if by_query else made.kv_heads
    steps, length, layers = made.response_length, made.length, made.layers
    born = np.maximum(0, np.arange(length) - made.prompt_length + 1)
    shape = (layers, heads, length)
    gone = np.maximum(born, draw.integers(0, steps + 1, shape))
    gone[:, :, : made.prompt_length][draw.random((layers, heads, made.prompt_length)) < 0.5] = 0
    evicted_at = np.where(draw.random(shape) < 0.6, gone, steps + 1).astype(np.int32)
    evicted_at[list(exempt)] = steps + 1
    reason = np.where(evicted_at <= steps, Reason.EVICTED, Reason.SELECTED).astype(np.uint8)
    form = canonical(choice or {"key": "snapkv", "options": {"budget": 8}})

    def drawn(*shape: int) -> np.ndarray:
        return draw.random(shape, np.float32)

    fields: dict[str, Any] = {
        "choice": form,
        "title": title(form),
        "colour": "#0072B2",
        "prompt_length": made.prompt_length,
        "response_length": steps,
        "query_heads": made.query_heads,
        "evicted_at": evicted_at,
        "score": drawn(*shape),
        "rank": np.broadcast_to(np.arange(1, length + 1, dtype=np.int32), shape).copy(),
        "reason": reason,
        "exempt": np.isin(np.arange(layers), list(exempt)),
        "visible": None,
        "mass_kept": drawn(layers, made.query_heads, steps),
        "recall": drawn(layers, heads, steps),
        "recall_response": drawn(layers, heads),
        "output_error": drawn(layers, made.query_heads, steps),
        "regret_step": drawn(layers, heads, steps),
        "regret_entry": drawn(*shape) * (evicted_at <= steps),
        "missed_step": draw.integers(0, 5, (layers, heads, steps)).astype(np.int32),
        "missed_entry": draw.integers(0, 5, shape).astype(np.int32),
        "facts": {
            "budget": 8.0,
            "realised_budget": 8.0,
            "bytes_full": 4000.0,
            "bytes_kept": 1000.0,
            "bytes_peak": 2000.0,
        },
    }
    return Replayed(**(fields | changes))


def whole_replay(made: Synthetic) -> Replayed:
    """A policy that keeps everything."""
    heads, steps, length = made.kv_heads, made.response_length, made.length
    shape = (made.layers, heads, length)
    return made_replay(
        made,
        {"key": "full"},
        evicted_at=np.full(shape, steps + 1, np.int32),
        score=np.full(shape, np.nan, np.float32),
        rank=np.zeros(shape, np.int32),
        reason=np.zeros(shape, np.uint8),
        mass_kept=np.ones((made.layers, made.query_heads, steps), np.float32),
        output_error=np.zeros((made.layers, made.query_heads, steps), np.float32),
        regret_step=np.zeros((made.layers, heads, steps), np.float32),
        regret_entry=np.zeros(shape, np.float32),
        missed_step=np.zeros((made.layers, heads, steps), np.int32),
        missed_entry=np.zeros(shape, np.int32),
        facts={"realised_budget": float(length)},
    )


def made_run(
    made: Synthetic,
    tokens: Sequence[int] | None = None,
    full: Sequence[int] | None = None,
    choice: dict[str, Any] | None = None,
    *,
    seed: int = 0,
    **facts: float,
) -> PolicyRun:
    """A live run: tokens of the policy and of the full cache, by default the same ones."""
    draw = np.random.default_rng(seed)
    steps = made.response_length
    full = list(range(100, 100 + steps)) if full is None else list(full)
    tokens = full if tokens is None else list(tokens)
    form = canonical(choice or {"key": "snapkv", "options": {"budget": 8}})

    def column(values: Sequence[int], as_text: bool) -> list[Any]:
        shown = [f"<{value}>" for value in values] if as_text else list(values)
        return shown + [None] * (max(len(tokens), len(full)) - len(values))

    token = pd.DataFrame(
        {
            "step": np.arange(1, max(len(tokens), len(full)) + 1),
            "token_id": pd.array(column(tokens, False), "Int64"),
            "text": column(tokens, True),
            "full_token_id": pd.array(column(full, False), "Int64"),
            "full_text": column(full, True),
        }
    )
    token["agrees"] = (token["token_id"] == token["full_token_id"]).fillna(False)
    step = pd.DataFrame({"step": np.arange(1, steps + 1)})
    for name in ("kl", "nll_full", "nll_policy", "ms", "full_ms"):
        step[name] = draw.random(steps)
    step["cache_bytes"] = draw.integers(1, 1_000_000, steps)
    step["full_cache_bytes"] = 2_000_000 + 1000 * np.arange(steps)
    stage = pd.DataFrame(
        {
            "stage": ["prefill", "evict", "decode"],
            "seconds": draw.random(3),
            "full_seconds": [0.5, math.nan, 2.0],
        }
    )
    shape = (made.layers, made.kv_heads, made.length)
    known = {"agreement": 1.0, "first_difference": math.nan, "simulated": 0.0, "peak_bytes": 9e5}
    return PolicyRun(
        form,
        title(form),
        "#0072B2",
        token=token,
        step=step,
        stage=stage,
        facts=known | facts,
        evicted_at=np.full(shape, steps + 1, np.int32),
    )
