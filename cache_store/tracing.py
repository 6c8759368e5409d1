"""A capture as what policies are replayed over: the one place where the store meets kvpolicies.

Torch is imported when a trace is asked for, not before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cache_store.errors import StoreError

if TYPE_CHECKING:
    from cache_store.reader import Capture
    from kvpolicies.trace import Trace

ROTARY_AHEAD = 4096  # positions beyond the text whose rotary embedding is given along


def trace_of(
    capture: Capture,
    lookahead: Mapping[str, Any] | None,
    second_reading: bool,
    layers: Sequence[int] | None,
    dtype: Any,
) -> Trace:
    """`Capture.trace`, which says what the parameters mean."""
    from kvpolicies.trace import Trace

    info = capture.info
    chosen = list(range(info.layers)) if layers is None else list(layers)
    if not chosen:
        raise StoreError("A trace needs at least one layer; name some, or leave layers out.")
    scaling = info.scaling or (info.head_dim**-0.5,) * info.layers
    windows = info.sliding_window or (None,) * info.layers
    facts = _model_facts(capture)
    queries, keys, values = (
        [capture.states(layer, kind) for layer in chosen] for kind in ("q", "k", "v")
    )
    return Trace.from_numpy(
        queries,
        keys,
        values,
        info.prompt_length,
        dtype=dtype,
        context_length=info.context_length,
        scaling=[scaling[layer] for layer in chosen],
        softcap=info.softcap,
        sliding_window=[windows[layer] for layer in chosen],
        rotary=_rotary(capture) or facts.get("rotary"),
        lookahead=None if lookahead is None else _lookahead(capture, lookahead, chosen),
        second_reading=_second_reading(capture, chosen) if second_reading else None,
        output_norms=_of(facts.get("output_norms"), chosen),
        prompt_attention=_prompt_attention(capture, chosen),
    )


def _of(values: np.ndarray | None, chosen: list[int]) -> list[np.ndarray] | None:
    return None if values is None else [values[layer] for layer in chosen]


def _lookahead(
    capture: Capture, spec: Mapping[str, Any], chosen: list[int]
) -> list[np.ndarray] | None:
    derived = capture.derived("lookahead", dict(spec))
    if derived is None:
        raise StoreError(
            f"Run {capture.id} holds no lookahead of this policy and length; record it first."
        )
    with derived:
        return _of(derived.array("queries"), chosen)


def _second_reading(
    capture: Capture, chosen: list[int]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    derived = capture.derived("second_reading", {})
    if derived is None:
        raise StoreError(
            f"Run {capture.id} holds no second reading of its context; record it first."
        )
    with derived:
        queries, keys = derived.array("queries"), derived.array("keys")
        return [queries[layer] for layer in chosen], [keys[layer] for layer in chosen]


def _prompt_attention(capture: Capture, chosen: list[int]) -> list[np.ndarray] | None:
    """Attention that each prompt entry received from the prompt's queries, where derived."""
    derived = capture.derived("prompt_attention", {})
    if derived is None:
        return None
    with derived:
        if "prompt_sum_query" not in derived.array_names():
            return None
        return _of(derived.array("prompt_sum_query"), chosen)


def _model_facts(capture: Capture) -> dict[str, Any]:
    """What a pass with the model recorded of its weights: output norms, rotary embedding."""
    derived = capture.derived("model_facts", {})
    if derived is None:
        return {}
    with derived:
        names = derived.array_names()
        facts: dict[str, Any] = {
            name: derived.array(name) for name in ("output_norms",) if name in names
        }
        if {"rotary_cos", "rotary_sin"} <= set(names):
            facts["rotary"] = (derived.array("rotary_cos"), derived.array("rotary_sin"))
        return facts


def _rotary(capture: Capture) -> tuple[np.ndarray, np.ndarray] | None:
    """cos and sin (positions, width) from the frequencies that the capture noted."""
    noted = capture.info.settings.get("rotary")
    if not isinstance(noted, dict):
        return None
    try:
        frequencies = np.asarray(noted["frequencies"], np.float64)
        scaling, interleaved = float(noted["scaling"]), bool(noted["interleaved"])
        angles = np.arange(capture.info.length + ROTARY_AHEAD)[:, None] * frequencies
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"{capture.path} is damaged: its rotary embedding; capture the prompt again."
        ) from error
    both = np.repeat(angles, 2, 1) if interleaved else np.concatenate([angles, angles], 1)
    return (
        (np.cos(both) * scaling).astype(np.float32),
        (np.sin(both) * scaling).astype(np.float32),
    )
