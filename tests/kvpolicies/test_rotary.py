"""Which channels a model's rotary embedding turns together, against the keys it really caches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import PreTrainedModel

from kvpolicies import EvictingCache, PolicyError, Trace, build, generate, replay
from kvpolicies.attention import observing
from kvpolicies.model_facts import output_norms, rotary_of
from kvpolicies.rotary import frequencies_of, interleaved, rotate
from tests.kvpolicies.models import SIZES, prompt_ids, record

NEIGHBOURS = {"cohere": "CohereConfig", "glm": "GlmConfig", "ernie": "Ernie4_5Config"}
HALVES = {"llama": "LlamaConfig", "gpt_neox": "GPTNeoXConfig"}
WITHOUT = {"cohere": ("head_dim",), "gpt_neox": ("head_dim", "num_key_value_heads")}


def family(name: str, **changes: Any) -> PreTrainedModel:
    kinds = {**NEIGHBOURS, **HALVES, "smollm3": "SmolLM3Config", "cohere2": "Cohere2Config"}
    sizes = {key: value for key, value in SIZES.items() if key not in WITHOUT.get(name, ())}
    extra = {"partial_rotary_factor": 1.0} if name == "glm" else {}
    if name == "gpt_neox":
        extra = {"rotary_pct": 0.5}
    if name == "cohere2":
        extra = {"sliding_window": 16, "num_hidden_layers": 4}
    if name == "smollm3":
        extra = {"num_hidden_layers": 4}
    torch.manual_seed(0)
    config = getattr(transformers, kinds[name])(
        **{**sizes, **extra, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None},
        **changes,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.generation_config.eos_token_id = None
    return model


def keys_of(model: PreTrainedModel, ids: torch.Tensor) -> dict[int, np.ndarray]:
    seen: dict[int, np.ndarray] = {}

    def observer(layer, module, query, key, value, **terms):
        seen[layer] = key[0].double().numpy()

    with torch.no_grad(), observing(model, observer):
        model(input_ids=ids, use_cache=False)
    return seen


def turned(key: np.ndarray, angles: list[float], neighbours: bool) -> np.ndarray:
    """One key (d,) with pair i turned by angles[i], channel by channel."""
    result, half = key.copy(), len(angles)
    for pair, angle in enumerate(angles):
        a, b = (2 * pair, 2 * pair + 1) if neighbours else (pair, pair + half)
        result[a] = key[a] * math.cos(angle) - key[b] * math.sin(angle)
        result[b] = key[b] * math.cos(angle) + key[a] * math.sin(angle)
    return result


@pytest.mark.parametrize("name", [*NEIGHBOURS, *HALVES])
def test_tables_say_how_the_model_turns_its_keys(name: str) -> None:
    model = family(name)
    tables = rotary_of(model, 40)
    assert tables is not None and len(tables[0]) == 40
    assert interleaved(tables[0]) == (name in NEIGHBOURS)
    noted = frequencies_of(tables)
    assert noted is not None and noted["interleaved"] == (name in NEIGHBOURS)
    assert noted["scaling"] == pytest.approx(1)
    keys = keys_of(model, torch.full((1, 12), 7))  # one token: only the position differs
    for layer in keys:
        for position in (1, 5, 11):
            angles = [position * frequency for frequency in noted["frequencies"]]
            expected = turned(keys[layer][0, 0], angles, noted["interleaved"])
            np.testing.assert_allclose(keys[layer][0, position], expected, atol=2e-4)
            first = torch.from_numpy(keys[layer][:1, :1])
            cos, sin = (table[position].double() for table in tables)
            ours = rotate(first, cos, sin, interleaved(tables[0]))
            np.testing.assert_allclose(ours[0, 0].numpy(), expected, atol=2e-4)


def test_layers_without_rotary_embedding_beside_layers_with_it_are_refused() -> None:
    model = family("smollm3")  # every fourth layer has none
    assert rotary_of(model, 20) is None
    for policy in (
        build("expected_attention", budget=8, n_future=4),
        build("streaming_llm", budget=8, positions="cache"),
    ):
        with pytest.raises(PolicyError, match="same in all layers with full attention"):
            EvictingCache(policy, model)
    EvictingCache(build("snapkv", budget=40), model)


def test_full_attention_layers_without_rotary_embedding_get_the_identity() -> None:
    tables = rotary_of(family("cohere2"), 20)  # its sliding layers alone have one
    assert tables is not None
    assert bool((tables[0] == 1).all()) and bool((tables[1] == 0).all())


@pytest.mark.parametrize("name", ["cohere", "llama"])
def test_positions_inside_the_cache_are_those_of_a_dense_sequence(name: str) -> None:
    """With one layer a cached entry knows nothing but its token and position: evicting with
    positions inside the cache is the plain model on the kept tokens alone."""
    model = _one_layer(name)
    ids = prompt_ids(20, seed=3)
    policy = build("streaming_llm", budget=9, sink=3, positions="cache")
    out = generate(model, ids, policy, max_new_tokens=6, forced=[5, 6, 7, 8, 9, 10])
    text = [*ids[0].tolist(), 5, 6, 7, 8, 9, 10]
    for step in range(1, 7):  # row `step` predicts from the token fed at position 19 + step
        kept = out.result.kept_after(step - 1)[0, 0].nonzero()[:, 0].tolist()
        dense = [text[position] for position in kept] + [text[19 + step]]
        with torch.no_grad():
            plain = model(input_ids=torch.tensor([dense]), use_cache=False).logits[0, -1]
        torch.testing.assert_close(out.logits[step], plain.float(), atol=2e-4, rtol=1e-3)


def _one_layer(name: str) -> PreTrainedModel:
    model = family(name)
    model.model.layers = model.model.layers[:1]
    model.config.num_hidden_layers = 1
    return model


def test_expected_attention_does_not_depend_on_how_channels_are_ordered() -> None:
    """Interleaved pairs, put side by side as half-split ones, must give the same scores."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # channel of each half-split place
    draw = torch.Generator().manual_seed(4)
    queries = torch.randn((4, 30, 8), generator=draw)
    keys, values = (torch.randn((2, 30, 8), generator=draw) for _ in range(2))
    angles = torch.arange(60)[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.03])
    neighbours = angles.repeat_interleave(2, 1)
    halves = torch.cat([angles, angles], 1)
    policy = build("expected_attention", budget=10, n_future=20, sink=2)
    one, other = (
        replay(policy, Trace([q], [k], [values], 24, rotary=(table.cos(), table.sin())))
        for q, k, table in (
            (queries, keys, neighbours),
            (queries[..., order], keys[..., order], halves),
        )
    )
    torch.testing.assert_close(one.scores, other.scores, equal_nan=True)
    assert torch.equal(one.evicted_at, other.evicted_at)
    wrong = replay(
        policy, Trace([queries], [keys], [values], 24, rotary=(halves.cos(), halves.sin()))
    )
    assert not torch.allclose(one.scores, wrong.scores, equal_nan=True)


@pytest.mark.parametrize("name", ["cohere", "glm"])
def test_live_and_replay_agree_for_interleaved_families(name: str) -> None:
    model = family(name)
    ids = prompt_ids(30, seed=1)
    policy = build("expected_attention", budget=12, n_future=16)
    trace = record(model, ids, [4, 5, 6])
    live = generate(model, ids, policy, max_new_tokens=3, forced=[4, 5, 6]).result
    assert torch.equal(replay(policy, trace).keep[:, :, 0], live.keep[:, :, 0])


@pytest.mark.parametrize("name", ["gpt_neox", "cohere"])
def test_output_norms_under_any_name_of_the_projection(name: str) -> None:
    model = family(name)
    heads = 4 if name == "gpt_neox" else 2
    values = torch.randn(heads, 3, 8)
    layer = model.gpt_neox.layers[1].attention if name == "gpt_neox" else model.model.layers[1]
    weight = layer.dense.weight if name == "gpt_neox" else layer.self_attn.o_proj.weight
    found = output_norms(model, 1, values).detach()
    for head in range(4):
        own = weight[:, 8 * head : 8 * head + 8].detach()
        for entry in range(3):
            expected = (own @ values[head * heads // 4, entry]).norm()
            assert float(found[head, entry]) == pytest.approx(float(expected), rel=1e-4)
