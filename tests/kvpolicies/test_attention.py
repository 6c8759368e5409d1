"""The attention function against transformers' eager path and against plain loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

from kvpolicies.attention import (
    LayerStates,
    UnsupportedAttention,
    attention_rows,
    observing,
    row_blocks,
)
from kvpolicies.pooling import bin_edges, pooled_attention

SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def naive_row(query, keys, position, scaling, softcap=None, window=None):
    """One softmax row by a loop over keys; query (d,), keys (n, d)."""
    logits = []
    for index, key in enumerate(keys.tolist()):
        logit = scaling * sum(a * b for a, b in zip(query.tolist(), key, strict=True))
        if softcap is not None:
            logit = softcap * math.tanh(logit / softcap)
        outside = index > position or (window is not None and position - index >= window)
        logits.append(-math.inf if outside else logit)
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def random_states(kv_heads, group, queries, length, dim, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(kv_heads * group, queries, dim, generator=generator),
        torch.randn(kv_heads, length, dim, generator=generator),
    )


@settings(max_examples=25, deadline=None)
@given(
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    length=st.integers(1, 9),
    softcap=st.sampled_from([None, 2.0]),
    window=st.sampled_from([None, 1, 3, 50]),
    data=st.data(),
)
def test_rows_equal_a_loop(kv_heads, group, length, softcap, window, data):
    count = data.draw(st.integers(1, length))
    queries, keys = random_states(kv_heads, group, count, length, 4)
    positions = torch.arange(length - count, length)
    rows = attention_rows(
        queries, keys, positions, scaling=0.7, softcap=softcap, sliding_window=window
    )
    for head in range(kv_heads * group):
        for index in range(count):
            expected = naive_row(
                queries[head, index],
                keys[head // group],
                length - count + index,
                0.7,
                softcap,
                window,
            )
            assert rows[head, index].tolist() == pytest.approx(expected, abs=1e-5)
    assert torch.allclose(rows.sum(-1), torch.ones(()), atol=1e-5)


def test_blocks_join_to_the_whole(monkeypatch):
    monkeypatch.setattr("kvpolicies.attention.BLOCK_CELLS", 64)
    queries, keys = random_states(2, 2, 11, 15, 4)
    whole = attention_rows(queries, keys, torch.arange(4, 15), scaling=0.5)
    seen = []
    for position, number, rows in row_blocks([LayerStates(queries, keys, 0.5)], 4, multiple=2):
        assert number == 0
        start = position - 4
        assert torch.allclose(rows, whole[:, start : start + rows.shape[1], : rows.shape[2]])
        seen += range(start, start + rows.shape[1])
    assert seen == list(range(11))


def naive_pool(matrix, query_start, key_range, bins, pool):
    """matrix (m, n) already averaged over heads; bins of equal width, future cells left out."""
    edges = [
        [*range(0, size, max(1, math.ceil(size / bins))), size]
        for size in (matrix.shape[0], key_range[1] - key_range[0])
    ]
    result = np.full((len(edges[0]) - 1, len(edges[1]) - 1), np.nan)
    for row in range(result.shape[0]):
        for column in range(result.shape[1]):
            cells = [
                matrix[i, key_range[0] + j]
                for i in range(edges[0][row], edges[0][row + 1])
                for j in range(edges[1][column], edges[1][column + 1])
                if key_range[0] + j <= query_start + i
            ]
            if cells:
                result[row, column] = max(cells) if pool == "max" else sum(cells) / len(cells)
    return result


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 14),
    bins=st.integers(1, 16),
    pool=st.sampled_from(["max", "mean"]),
    layers=st.integers(1, 2),
    data=st.data(),
)
def test_pooling_equals_a_loop(length, bins, pool, layers, data):
    start = data.draw(st.integers(0, length - 1))
    count = data.draw(st.integers(1, length - start))
    first = data.draw(st.integers(0, length - 1))
    last = data.draw(st.integers(first + 1, length))
    states = [random_states(2, 2, count, length, 4, seed) for seed in range(layers)]
    parts = [
        attention_rows(queries, keys, torch.arange(start, start + count), scaling=0.5).mean(0)
        for queries, keys in states
    ]
    matrix = torch.stack(parts).mean(0).numpy()
    pooled = pooled_attention(
        [LayerStates(queries, keys, 0.5) for queries, keys in states],
        start,
        (first, last),
        bins=bins,
        pool=pool,
    )
    expected = naive_pool(matrix, start, (first, last), bins, pool)
    np.testing.assert_allclose(pooled, expected, atol=1e-6)


def test_bins_are_equally_wide_and_cover_everything():
    assert bin_edges(10, 3).tolist() == [0, 4, 8, 10]
    assert bin_edges(3, 8).tolist() == [0, 1, 2, 3]


def small_llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        **SMALL,
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config).eval()


def test_observed_states_give_the_models_own_attention():
    model = small_llama()
    ids = torch.arange(12)[None]
    with torch.no_grad():
        eager = model(ids, output_attentions=True)
    model.set_attn_implementation("sdpa")
    seen = {}

    def observer(layer, module, query, key, value, *, scaling, softcap, sliding_window, plain):
        assert not plain
        seen[layer] = attention_rows(query[0], key[0], torch.arange(12), scaling=scaling)

    with torch.no_grad(), observing(model, observer):
        observed = model(ids)
    assert model.config._attn_implementation == "sdpa"
    assert sorted(seen) == [0, 1]
    for layer, rows in seen.items():
        assert torch.allclose(rows, eager.attentions[layer][0], atol=1e-5)
    assert torch.allclose(observed.logits, eager.logits, atol=1e-4)


def test_one_query_over_all_keys_gives_its_weights_and_the_same_logits():
    model = small_llama()
    ids = torch.arange(12)[None]
    given = {}

    def observer(layer, module, query, key, value, *, plain, **terms):
        if not plain:
            return None
        given[layer] = torch.full((4, key.shape[2]), -1.0)
        return given[layer]

    with torch.no_grad():
        cache = model(ids[:, :11]).past_key_values
        eager = model(ids[:, 11:], past_key_values=cache, output_attentions=True)
        cache = model(ids[:, :11]).past_key_values
        with observing(model, observer):
            observed = model(ids[:, 11:], past_key_values=cache)
    assert sorted(given) == [0, 1]
    for layer, weights in given.items():
        assert torch.allclose(weights, eager.attentions[layer][0, :, 0], atol=1e-6)
    assert torch.allclose(observed.logits, eager.logits, atol=1e-5)


def test_soft_capping_takes_the_explicit_path_in_blocks(monkeypatch):
    monkeypatch.setattr("kvpolicies.attention.BLOCK_CELLS", 100)
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(
        Gemma2Config(
            **SMALL,
            head_dim=8,
            sliding_window=5,
            attn_logit_softcapping=1.5,
            attn_implementation="eager",
        )
    ).eval()
    ids = torch.arange(3, 15)[None]  # 0 is the padding token, which generate would mask
    with torch.no_grad():
        expected = model(ids).logits
        with observing(model, lambda *args, **kwargs: None):
            logits = model(ids).logits
            step = model.generate(ids, max_new_tokens=4, do_sample=False)
        model.set_attn_implementation("eager")
        plain = model.generate(ids, max_new_tokens=4, do_sample=False)
    assert torch.allclose(logits, expected, atol=1e-4)
    assert step.tolist() == plain.tolist()


def test_terms_that_rows_cannot_describe_are_refused():
    from kvpolicies.attention import _attention

    states = torch.randn(1, 2, 3, 4)
    module = torch.nn.Module()
    with pytest.raises(UnsupportedAttention, match="learned attention sinks"):
        _attention(module, states, states, states, None, s_aux=torch.zeros(2))
