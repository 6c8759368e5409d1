"""Can this model's attention be captured? Found out by running a few tokens, not by its name."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache, PreTrainedModel

from backend.models import ModelFacts
from backend.sources import ModelError, _first_line
from kvpolicies.attention import attention_rows, observing

TOKENS = 6
TOLERANCE = {torch.float32: 2e-3}  # half precisions round their own weights: see HALF_TOLERANCE
HALF_TOLERANCE = 3e-2


class _Call(NamedTuple):
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scaling: float
    softcap: float | None
    sliding_window: int | None


class _Refused(Exception):
    pass


@torch.no_grad()
def check_capturable(model: PreTrainedModel, facts: ModelFacts, model_id: str) -> ModelFacts:
    """Run a few tokens with and without cache and compare what attention does with eager.

    Returns the facts with what was observed in place of what the configuration says. Raises
    ModelError with the reason when the states do not determine the model's attention: no use of
    transformers' attention interface, layers without attention, states shared between layers,
    heads of different sizes, attention to later tokens, terms besides queries and keys.
    """
    ids = (torch.arange(1, TOKENS + 1) * 37 % facts.vocabulary)[None].to(model.device)
    try:
        whole, cached, cache = _observe(model, ids)
        _check_calls(whole, cached, cache, facts.layers)
        _check_rows(whole, _eager_attention(model, ids))
    except _Refused as refusal:
        raise ModelError(
            f"The model '{model_id}' ({type(model).__name__}) cannot be captured: {refusal}."
        ) from refusal
    except Exception as error:  # any family may fail in its own way; the reader gets its reason
        raise ModelError(
            f"The model '{model_id}' ({type(model).__name__}) cannot be captured: "
            f"{_first_line(error)}."
        ) from error
    first = whole[0]
    return dataclasses.replace(
        facts,
        query_heads=first.query.shape[1],
        kv_heads=first.key.shape[1],
        head_dim=first.query.shape[3],
        scaling=tuple(float(call.scaling) for call in whole),
        softcap=first.softcap,
        sliding_window=tuple(call.sliding_window for call in whole),
    )


def _observe(
    model: PreTrainedModel, ids: torch.Tensor
) -> tuple[list[_Call], list[_Call], DynamicCache]:
    """Attention calls of one whole forward, and of the last token fed after the others."""
    calls: list[tuple[int, _Call]] = []

    def observer(
        layer: int, module: Any, query: Any, key: Any, value: Any, *, plain: bool, **terms: Any
    ) -> None:
        calls.append((layer, _Call(query, key, value, **terms)))

    def forward(tokens: torch.Tensor, cache: DynamicCache) -> list[_Call]:
        calls.clear()
        model(input_ids=tokens, past_key_values=cache, use_cache=True)
        layers = [layer for layer, _ in calls]
        if not layers:
            raise _Refused(
                "it does not compute attention through transformers' attention interface"
            )
        if len(set(layers)) < len(layers):
            raise _Refused(f"one forward calls attention for the layers {layers}, some repeatedly")
        return [call for _, call in sorted(calls, key=lambda entry: entry[0])]

    with observing(model, observer):
        whole = forward(ids, DynamicCache(config=model.config))
        cache = DynamicCache(config=model.config)
        forward(ids[:, :-1], cache)
        return whole, forward(ids[:, -1:], cache), cache


def _eager_attention(model: PreTrainedModel, ids: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        return model(input_ids=ids, output_attentions=True, use_cache=False).attentions
    finally:
        model.set_attn_implementation(before)


def _check_calls(whole: list[_Call], cached: list[_Call], cache: DynamicCache, layers: int) -> None:
    if len(whole) != layers or len(cached) != layers:
        raise _Refused(
            f"only {len(whole)} of its {layers} layers compute attention (a hybrid with recurrent "
            "layers), so its cache is more than keys and values"
        )
    first = whole[0]
    if len({call.key.data_ptr() for call in whole}) < layers:
        raise _Refused("some of its layers reuse another layer's keys and values")
    for layer, (call, later) in enumerate(zip(whole, cached, strict=True)):
        shapes = [tuple(state.shape) for state in (call.query, call.key, call.value)]
        if shapes != [tuple(state.shape) for state in (first.query, first.key, first.value)]:
            raise _Refused(f"its layers differ in heads or head size (layer {layer})")
        if len({shape[3] for shape in shapes}) > 1:
            raise _Refused(
                f"its queries, keys and values differ in size ({shapes[0][3]}, {shapes[1][3]}, "
                f"{shapes[2][3]} per head)"
            )
        if shapes[1] != shapes[2] or shapes[0][1] % shapes[1][1] or call.query.shape[2] != TOKENS:
            raise _Refused(f"its states have unusual shapes {shapes}")
        window = call.sliding_window
        layer_cache: Any = cache.layers[layer]
        if layer_cache.is_sliding and layer_cache.sliding_window != window:
            raise _Refused(
                f"layer {layer} forgets tokens in a way its attention does not state (chunked "
                "attention)"
            )
        kept = TOKENS if window is None else min(TOKENS, window)
        if later.query.shape[2] != 1 or later.key.shape[2] != kept:
            raise _Refused(f"its cache holds {later.key.shape[2]} of {kept} visible tokens")
        if call.softcap != first.softcap:
            raise _Refused("its layers differ in soft-capping")


def _check_rows(whole: list[_Call], eager: tuple[torch.Tensor, ...] | None) -> None:
    """The states must give the very weights that the eager implementation uses."""
    if not eager or len(eager) != len(whole) or any(weights is None for weights in eager):
        raise _Refused("its eager implementation returns no attention to compare with")
    positions = torch.arange(TOKENS)
    for layer, (call, weights) in enumerate(zip(whole, eager, strict=True)):
        if weights[0, :, 0, 1:].abs().max() > 1e-4:
            raise _Refused("its tokens attend to later tokens (bidirectional attention)")
        rows = attention_rows(
            call.query[0],
            call.key[0],
            positions,
            scaling=call.scaling,
            softcap=call.softcap,
            sliding_window=call.sliding_window,
        )
        worst = float((rows - weights[0].float()).abs().max())
        if not worst <= TOLERANCE.get(call.query.dtype, HALF_TOLERANCE):
            raise _Refused(
                f"in layer {layer} its attention is not the softmax of queries and keys (weights "
                f"differ by {worst:.2g}: sinks, biases or another rule)"
            )
