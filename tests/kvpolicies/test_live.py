"""The cache inside real models: identity, agreement with replay, copies, refusals."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import DynamicCache

from kvpolicies import EvictingCache, PolicyError, build, catalogue, generate, replay
from kvpolicies.attention import observing
from kvpolicies.generation import fork_and_ask
from kvpolicies.passes import feed
from tests.kvpolicies.cases import SMALL, UNBUDGETED, options_of
from tests.kvpolicies.models import FAMILIES, plain_tokens, prompt_ids, record, tiny

LIVE = [key for key in catalogue() if key not in ("oracle", "belady")]
ALONE = [key for key in LIVE if key not in ("laq", "laq_pp", "kvzip", "kvcompose_unstructured")]
P, T = 24, 9


def everything(key: str) -> dict:
    """Options with which the method keeps all of a short run."""
    if key in UNBUDGETED:
        own = {"keep_ratio": 1.0} if "keep_ratio" in SMALL[key] else {}
        return {**SMALL[key], **own, **({"streaming": 0.0} if key == "duo_attention" else {})}
    options = options_of(key, 400)
    options.pop("pages", None)
    return options


@pytest.mark.parametrize("key", LIVE)
def test_keeping_everything_gives_the_plain_tokens(key):
    model, ids = tiny("llama"), prompt_ids(P)
    plain = plain_tokens(model, ids, T)
    out = generate(model, ids, build(key, **everything(key)), max_new_tokens=T)
    assert out.tokens == plain
    assert (out.result.evicted_at == T + 1).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("key", ["full", "h2o", "kvcompose", "ada_snapkv", "sage_kv", "quest"])
def test_every_family_keeps_its_tokens(family, key):
    model, ids = tiny(family), prompt_ids(P, seed=1)
    plain = plain_tokens(model, ids, T)
    cache = EvictingCache(build(key, **everything(key)), model)
    output = model.generate(ids, past_key_values=cache, max_new_tokens=T, do_sample=False)
    assert output[0, P:].tolist() == plain


@pytest.mark.parametrize("key", ALONE)
def test_generate_and_the_cache_alone_agree(key):
    model, ids = tiny("llama"), prompt_ids(P, seed=2)
    policy = build(key, **options_of(key, 9))
    cache = EvictingCache(policy, model)
    tokens = model.generate(ids, past_key_values=cache, max_new_tokens=T, do_sample=False)
    assert generate(model, ids, policy, max_new_tokens=T).tokens == tokens[0, P:].tolist()


@pytest.mark.parametrize("key", LIVE)
@pytest.mark.parametrize("granularity", ["kv_head", "query_head"])
def test_live_equals_replay(key, granularity):
    """End of prefill in every layer; under forced text, every step in layer 0."""
    model, ids = tiny("llama"), prompt_ids(P, seed=3)
    policy = build(key, **options_of(key, 9), granularity=granularity)
    forced = prompt_ids(T, seed=4)[0].tolist()
    trace = record(model, ids, forced, policy=policy)
    live = generate(model, ids, policy, forced=forced).result
    replayed = replay(policy, trace)
    assert torch.equal(live.evicted_at == 0, replayed.evicted_at == 0)
    assert torch.equal(live.evicted_at[0], replayed.evicted_at[0])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "key", ["h2o", "lazyeviction", "snapkv", "expected_attention", "kvcompose"]
)
def test_families_agree_with_replay(family, key):
    model, ids = tiny(family), prompt_ids(P, seed=5)
    policy = build(key, **options_of(key, 9))
    forced = prompt_ids(T, seed=6)[0].tolist()
    live = generate(model, ids, policy, forced=forced).result
    replayed = replay(policy, record(model, ids, forced, policy=policy))
    first = int((~replayed.exempt).nonzero()[0])
    assert torch.equal(live.exempt, replayed.exempt)
    assert torch.equal(live.evicted_at == 0, replayed.evicted_at == 0)
    if first == 0:
        assert torch.equal(live.evicted_at[0], replayed.evicted_at[0])


@pytest.mark.parametrize("key", ["snapkv", "kvzip", "kvcompose_unstructured", "laq_pp"])
def test_the_context_alone_is_compressed(key):
    model, ids = tiny("llama"), prompt_ids(P, seed=7)
    policy = build(key, **{**options_of(key, 6), "scope": "context"})
    out = generate(model, ids, policy, context_length=18, forced=[1, 2, 3])
    replayed = replay(policy, record(model, ids, [1, 2, 3], context=18, policy=policy))
    assert torch.equal(out.result.evicted_at, replayed.evicted_at)
    assert (out.result.evicted_at[:, :, 18:] == 4).all()


@pytest.mark.parametrize("key", ["h2o", "ada_snapkv", "sage_kv", "lagkv"])
def test_several_questions_on_one_compressed_cache(key):
    """Each question is answered from its own copy, as if it alone had been asked."""
    model, ids = tiny("llama"), prompt_ids(P, seed=8)
    policy = build(key, **options_of(key, 9))
    cache = EvictingCache(policy, model)
    with torch.inference_mode():
        feed(model, cache, ids)
    held = [cache.kept(layer) for layer in range(3)]
    first = fork_and_ask(model, cache, prompt_ids(5, seed=9), 4)
    second = fork_and_ask(model, cache, prompt_ids(7, seed=10), 4)
    assert [cache.kept(layer) for layer in range(3)] == held and cache.seen == P
    assert fork_and_ask(model, cache, prompt_ids(5, seed=9), 4) == first
    alone = EvictingCache(policy, model)
    with torch.inference_mode():
        feed(model, alone, ids)
    assert fork_and_ask(model, alone, prompt_ids(7, seed=10), 4) == second


def test_a_follow_up_question_sees_exactly_what_is_kept():
    """A multi-token forward equals plain attention over the kept entries and causal new ones."""
    model, ids, question = tiny("llama"), prompt_ids(P, seed=11), prompt_ids(6, seed=12)
    cache = EvictingCache(build("ada_snapkv", **options_of("ada_snapkv", 8)), model)
    seen = {}

    def observer(layer, module, query, key, value, **facts):
        seen[layer] = (query[0], key[0], value[0])

    with torch.inference_mode():
        feed(model, cache, ids)
        kept = cache.kept(0)
        entries = cache.own_layers[0].entries.fork()
        outputs = []
        hook = model.model.layers[0].self_attn.o_proj.register_forward_pre_hook(
            lambda module, inputs: outputs.append(inputs[0])
        )
        with observing(model, observer):
            feed(model, cache, question)
        hook.remove()
    query, key, value = seen[0]
    for head in range(4):
        kv = head // 2
        rows = [entries.positions[kv].tolist().index(position) for position in kept[kv]]
        for token in range(6):
            keys = torch.cat([entries.keys[kv, rows], key[kv, : token + 1]])
            values = torch.cat([entries.values[kv, rows], value[kv, : token + 1]])
            weights = (keys @ query[head, token] * 8**-0.5).softmax(0)
            expected = weights @ values
            got = outputs[0][0, token, 8 * head : 8 * head + 8]
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


def test_streaming_llm_positions_inside_the_cache():
    """With positions inside the cache, logits are those of the kept tokens in a row."""
    model, ids = tiny("llama"), prompt_ids(P, seed=13)
    policy = build("streaming_llm", budget=6, sink=2, positions="cache")
    cache = EvictingCache(policy, model)
    outputs = []
    with torch.inference_mode():
        feed(model, cache, ids)
        entries = cache.own_layers[0].entries.fork()
        hook = model.model.layers[0].self_attn.register_forward_pre_hook(
            lambda module, inputs, kwargs: outputs.append(kwargs["hidden_states"]),
            with_kwargs=True,
        )
        hook_out = model.model.layers[0].self_attn.o_proj.register_forward_pre_hook(
            lambda module, inputs: outputs.append(inputs[0])
        )
        feed(model, cache, prompt_ids(1, seed=14))
        hook.remove()
        hook_out.remove()
        hidden, got = outputs
        kept = entries.positions[0].tolist()
        assert kept == [0, 1, 20, 21, 22, 23]
        # the same kept tokens' layer inputs at positions 0 ... 6 give the same attention
        attention = model.model.layers[0].self_attn
        past = DynamicCache()
        inputs = torch.cat([_layer_input(model, ids)[:, kept], hidden], 1)
        rotary = model.model.rotary_emb(inputs, torch.arange(7)[None])
        expected = []
        hook = attention.o_proj.register_forward_pre_hook(
            lambda module, args: expected.append(args[0])
        )
        attention(
            hidden_states=inputs,
            position_embeddings=rotary,
            attention_mask=None,
            past_key_values=past,
        )
        hook.remove()
    torch.testing.assert_close(got[0, 0], expected[0][0, -1], atol=1e-5, rtol=1e-4)


def _layer_input(model, ids):
    seen = []
    hook = model.model.layers[0].self_attn.register_forward_pre_hook(
        lambda module, inputs, kwargs: seen.append(kwargs["hidden_states"]), with_kwargs=True
    )
    model(input_ids=ids)
    hook.remove()
    return seen[0]


def test_bytes_fall_with_the_budget_and_are_measured():
    model, ids = tiny("llama"), prompt_ids(P)
    out = generate(model, ids, build("snapkv", budget=6, window=2), max_new_tokens=3)
    per_entry = 2 * 2 * 8 * 4 * 3  # K and V, two heads of 8 float32 channels, three layers
    assert out.prefill_bytes == P * per_entry
    assert out.compressed_bytes == 6 * per_entry
    assert out.cache_bytes == [7 * per_entry, 8 * per_entry]
    stored = sum(
        layer.entries.keys.untyped_storage().nbytes()
        + layer.entries.values.untyped_storage().nbytes()
        for layer in out.cache.own_layers
    )
    assert stored == out.cache_bytes[-1] and not out.simulated
    ada = generate(model, ids, build("ada_snapkv", budget=6, window=2), max_new_tokens=3)
    assert ada.simulated and ada.compressed_bytes == 6 * per_entry


def test_sampling_is_seeded_and_reset_forgets():
    model, ids = tiny("llama"), prompt_ids(P)
    policy = build("h2o", budget=8)
    again = [
        generate(model, ids, policy, max_new_tokens=6, do_sample=True, temperature=2.0, seed=seed)
        for seed in (1, 1, 2)
    ]
    assert again[0].tokens == again[1].tokens != again[2].tokens
    cache = EvictingCache(policy, model)
    first = model.generate(ids, past_key_values=cache, max_new_tokens=5, do_sample=False)
    cache.reset()
    second = model.generate(ids, past_key_values=cache, max_new_tokens=5, do_sample=False)
    assert torch.equal(first, second)


def test_half_precision_runs():
    model = copy.deepcopy(tiny("llama")).to(torch.bfloat16)
    for key in ("h2o", "lagkv", "laq_pp", "kvzip", "r_kv", "sage_kv", "infllm"):
        out = generate(model, prompt_ids(P), build(key, **options_of(key, 9)), max_new_tokens=4)
        assert len(out.tokens) == 4 and out.logits.isfinite().all()


def test_refusals():
    model, ids = tiny("llama"), prompt_ids(P)
    policy = build("snapkv", budget=8)

    def run(**options):
        options = {"input_ids": ids, "max_new_tokens": 3, "do_sample": False, **options}
        return model.generate(past_key_values=EvictingCache(policy, model), **options)

    with pytest.raises(PolicyError, match="no beams, not 2"):
        run(num_beams=2)
    with pytest.raises(PolicyError, match="padding"):
        mask = torch.ones_like(ids)
        mask[:, :3] = 0
        run(attention_mask=mask)
    with pytest.raises(PolicyError, match="prefill_chunk_size"):
        run(prefill_chunk_size=4)
    with pytest.raises((PolicyError, ValueError), match="crop"):
        run(prompt_lookup_num_tokens=2)
    with pytest.raises((PolicyError, ValueError), match="crop"):
        run(assistant_model=tiny("llama", 1))
    with pytest.raises(PolicyError, match="batch size 1"):
        run(input_ids=ids.repeat(2, 1))
    with pytest.raises(PolicyError, match="cropped"):
        EvictingCache(policy, model).crop(-1)
    with pytest.raises(PolicyError, match=r"kvpolicies\.generate"):
        EvictingCache(build("laq", budget=8), model)
    with pytest.raises(PolicyError, match="replay only"):
        generate(model, ids, build("oracle", budget=8))
    with pytest.raises(PolicyError, match="sliding window of 64"):
        generate(tiny("mistral"), prompt_ids(70), policy, max_new_tokens=2)
    cache = EvictingCache(policy, model)
    model.set_attn_implementation("sdpa")
    with pytest.raises(PolicyError, match="make a new EvictingCache"):
        model.generate(ids, past_key_values=cache, max_new_tokens=2)


def test_lookahead_leaves_the_prompt_as_it_was():
    model, ids = tiny("llama"), prompt_ids(P, seed=15)
    policy = build("laq", budget=10, kernel=3)
    out = generate(model, ids, policy, max_new_tokens=4)
    assert len(out.lookahead_tokens) == 8
    assert out.result.counts(0).eq(10).all()
    short = generate(model, ids, policy, max_new_tokens=4, eos_token_id=out.lookahead_tokens[0])
    assert short.lookahead_tokens == out.lookahead_tokens[:1]  # never fewer than one forward
    assert short.tokens == out.tokens[:1] and short.finish_reason == "stop"
