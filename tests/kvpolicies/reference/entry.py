"""The one entry: a key of the catalogue and the states of a capture."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import bounds, composite, every_step, lag, lazy, lookahead, sage, select, window
from .common import Array, Outcome, Trace

POLICIES: dict[str, Callable[..., Outcome]] = {
    "full": every_step.full,
    "streaming_llm": every_step.streaming_llm,
    "h2o": every_step.h2o,
    "tova": every_step.tova,
    "raas": every_step.raas,
    "duo_attention": every_step.duo_attention,
    "snapkv": window.snapkv,
    "pyramidkv": window.pyramidkv,
    "ada_snapkv": window.ada_snapkv,
    "expected_attention": window.expected_attention,
    "ada_expected_attention": window.ada_expected_attention,
    "knorm": window.knorm,
    "lagkv": lag.lagkv,
    "localkv": lag.localkv,
    "l2_lag": lag.l2_lag,
    "laq": lookahead.laq,
    "laq_pp": lookahead.laq_pp,
    "sage_kv": sage.sage_kv,
    "r_kv": lazy.r_kv,
    "lazyeviction": lazy.lazyeviction,
    "h2o_window": lazy.h2o_window,
    "tova_window": lazy.tova_window,
    "raas_window": lazy.raas_window,
    "kvcompose": composite.kvcompose,
    "kvcompose_unstructured": composite.kvcompose_unstructured,
    "kvzip": composite.kvzip,
    "quest": select.quest,
    "infllm": select.infllm,
    "random": bounds.random,
    "oracle": bounds.oracle,
    "belady": bounds.belady,
}
ONE_SET_PER_LAYER = ("tova", "tova_window")


def states(tensors: Sequence[Any]) -> list[Array]:
    return [np.asarray(tensor, dtype=np.float64) for tensor in tensors]


def make_trace(
    queries: Sequence[Any],
    keys: Sequence[Any],
    values: Sequence[Any],
    prompt_length: int,
    *,
    context_length: int | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    lookahead: Sequence[Any] | None = None,
    second_reading: tuple[Sequence[Any], Sequence[Any]] | None = None,
    output_norms: Sequence[Any] | None = None,
    rotary: tuple[Any, Any] | None = None,
) -> Trace:
    """METHODS 1: `context_length` (default: the whole prompt), `scaling` (default `d ** -0.5`)."""
    trace = Trace(states(queries), states(keys), states(values), prompt_length, prompt_length, 1.0)
    trace.context_length = prompt_length if context_length is None else context_length
    trace.scaling = trace.queries[0].shape[2] ** -0.5 if scaling is None else scaling
    trace.softcap = softcap
    trace.lookahead = None if lookahead is None else states(lookahead)
    if second_reading is not None:
        trace.second_reading = (states(second_reading[0]), states(second_reading[1]))
    trace.output_norms = None if output_norms is None else states(output_norms)
    if rotary is not None:
        trace.rotary = (states(rotary)[0], states(rotary)[1])
    trace.kv_group = trace.group
    return trace


def trace_of(product: Any) -> Trace:
    """The same from any object with the attributes METHODS 1 gives a trace."""
    return make_trace(
        product.queries,
        product.keys,
        product.values,
        product.prompt_length,
        scaling=getattr(product, "scaling", None),
        softcap=getattr(product, "softcap", None),
    )


def per_query_head(trace: Trace) -> Trace:
    """METHODS 1: `granularity="query_head"` gives each query head its own set, as several papers'
    released code does by repeating KV first."""

    def repeated(tensors: list[Array]) -> list[Array]:
        return [np.repeat(t, trace.kv_group, axis=0) for t in tensors]

    second = trace.second_reading
    return Trace(
        trace.queries,
        repeated(trace.keys),
        repeated(trace.values),
        trace.prompt_length,
        trace.context_length,
        trace.scaling,
        trace.softcap,
        trace.lookahead,
        None if second is None else (second[0], repeated(second[1])),
        trace.output_norms
        if trace.output_norms is None or len(trace.output_norms[0]) == trace.query_heads
        else repeated(trace.output_norms),
        trace.rotary,
        trace.budget,
        trace.compression_ratio,
        trace.kv_group,
    )


def replay(
    key: str,
    queries: Sequence[Any],
    keys: Sequence[Any],
    values: Sequence[Any],
    prompt_length: int,
    *,
    budget: int | None = None,
    compression_ratio: float | None = None,
    context_length: int | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    lookahead: Sequence[Any] | None = None,
    second_reading: tuple[Sequence[Any], Sequence[Any]] | None = None,
    output_norms: Sequence[Any] | None = None,
    rotary: tuple[Any, Any] | None = None,
    granularity: str = "kv_head",
    **options: Any,
) -> Outcome:
    """Walk a capture with the policy `key` of METHODS 5; `options` are that row's parameters.

    Queries (query_heads, P + T, d), keys and values (kv_heads, P + T, d) per layer, after rotary.
    `second_reading` is (queries per layer, keys per layer) of the context's second copy. An option
    that the policy does not have raises TypeError.
    """
    trace = make_trace(
        queries,
        keys,
        values,
        prompt_length,
        context_length=context_length,
        scaling=scaling,
        softcap=softcap,
        lookahead=lookahead,
        second_reading=second_reading,
        output_norms=output_norms,
        rotary=rotary,
    )
    trace.budget, trace.compression_ratio = budget, compression_ratio
    if granularity not in ("kv_head", "query_head"):
        raise ValueError(f"granularity is 'kv_head' or 'query_head', not {granularity!r}")
    if granularity == "query_head" and key not in ONE_SET_PER_LAYER:
        trace = per_query_head(trace)
    return POLICIES[key](trace, **options)
