"""Costs of a replay against a naive loop-by-loop reference, and against hand calculations."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvpolicies.cost
from kvpolicies import Result, Trace, build, replay
from kvpolicies.cost import Costs, costs, recall
from tests.kvpolicies import reference
from tests.kvpolicies.cases import SMALL, make_trace, options_of
from tests.kvpolicies.reference.common import Outcome

CLOSE = {"atol": 2e-5, "rtol": 2e-4}
shapes = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 2),
        "kv_heads": st.integers(1, 2),
        "group": st.integers(1, 3),
        "prompt": st.integers(1, 12),
        "response": st.integers(0, 5),
        "seed": st.integers(0, 9999),
    }
)


def any_masks(trace: Trace, heads: int, seed: int) -> Result:
    """Entries that leave at any step after they came, without a policy."""
    steps, prompt = trace.response_length, trace.prompt_length
    born = (torch.arange(trace.length) - prompt + 1).clamp_min(0)
    chance = torch.rand((trace.layers, heads, trace.length), generator=torch.manual_seed(seed))
    evicted_at = (born + chance * (steps + 2 - born)).floor().int().clamp_max(steps + 1)
    exempt = torch.zeros(trace.layers, dtype=torch.bool)
    return Result(None, evicted_at, exempt, [], None, prompt, label="any")


def naive(trace: Trace, result: Result, alpha: float) -> reference.Costs:
    arrays = [[part.double().numpy() for part in parts] for parts in
              (trace.queries, trace.keys, trace.values)]  # fmt: skip
    plain = reference.make_trace(
        *arrays, trace.prompt_length, scaling=trace.scaling_of(0), softcap=trace.softcap
    )
    visible = None if result.visible is None else result.visible.numpy()
    return reference.costs(plain, Outcome(result.evicted_at.numpy(), visible), alpha)


def check(found: Costs, expected: reference.Costs) -> None:
    np.testing.assert_allclose(found.mass_kept, expected.mass_kept, **CLOSE)
    np.testing.assert_allclose(found.output_error, expected.output_error, **CLOSE)
    np.testing.assert_allclose(found.regret_step, expected.regret_by_step, **CLOSE)
    np.testing.assert_allclose(found.regret_entry, expected.regret_by_entry, **CLOSE)
    if expected.margin > 1e-5:
        np.testing.assert_allclose(found.recall, expected.recall, **CLOSE)
        np.testing.assert_allclose(found.recall_response, expected.recall_response, **CLOSE)
    if expected.alpha_gap > 1e-6:
        np.testing.assert_array_equal(found.missed_step, expected.missed_by_step)
        np.testing.assert_array_equal(found.missed_entry, expected.recurrences_missed)


@settings(max_examples=40, deadline=None)
@given(
    shape=shapes,
    by_query=st.booleans(),
    softcap=st.sampled_from([None, 2.0]),
    alpha=st.sampled_from([5e-4, 0.05, 0.2]),
)
def test_any_masks_cost_what_the_reference_says(shape, by_query, softcap, alpha):
    trace = dataclasses.replace(make_trace(**shape), scaling=0.6, softcap=softcap)
    result = any_masks(trace, trace.query_heads if by_query else trace.kv_heads, shape["seed"])
    check(costs(trace, result, alpha), naive(trace, result, alpha))


@pytest.mark.parametrize("granularity", ["kv_head", "query_head"])
@pytest.mark.parametrize("key", [key for key in SMALL if key != "full"])
def test_every_policy_costs_what_the_reference_says(key: str, granularity: str) -> None:
    trace = make_trace(layers=2, prompt=17, response=5, seed=3)
    policy = build(key, **options_of(key, 6), granularity=granularity)
    result = replay(policy, trace)
    check(costs(trace, result, 0.05), naive(trace, result, 0.05))


def test_by_hand() -> None:
    """Two prompt entries and one response token, one head; the middle entry is gone at prefill.

    The query (0, 1) sees keys with logits ln 1, ln 6, ln 3 (scaling 1): weights 0.1, 0.6, 0.3.
    Values 1, 2 and 5 give 2.8 with all, and (0.1 · 1 + 0.3 · 5) / 0.4 = 4 without the middle one.
    """
    keys = torch.tensor([[[0.0, math.log(weight)] for weight in (1, 6, 3)]])
    queries = torch.tensor([[[0.0, 1.0]] * 3])
    values = torch.tensor([[[1.0, 0.0], [2.0, 0.0], [5.0, 0.0]]])
    trace = Trace([queries], [keys], [values], prompt_length=2, scaling=1.0)
    gone = torch.tensor([[[2, 0, 2]]], dtype=torch.int32)
    result = Result(None, gone, torch.tensor([False]), [], None, 2)
    found = costs(trace, result)
    assert found.mass_kept.tolist() == [[pytest.approx([0.4])]]
    assert found.output_error.tolist() == [[pytest.approx([(4 - 2.8) / 2.8])]]
    assert found.regret_step.tolist() == [[pytest.approx([0.6])]]
    assert found.regret_entry.tolist() == [[pytest.approx([0, 0.6, 0])]]
    # two are left; gold are the two with 0.6 and 0.3, of which only the last one is
    assert found.recall.tolist() == [[[0.5]]]
    # one prompt entry is kept, the one with 0.1; gold is the other
    assert found.recall_response.tolist() == [[0]]
    assert found.missed_step.tolist() == [[[1]]]
    assert found.missed_entry.tolist() == [[[0, 1, 0]]]
    assert costs(trace, result, alpha=0.7).missed_step.tolist() == [[[0]]]


def test_gold_takes_the_lower_position_when_attention_ties() -> None:
    even = torch.full((1, 4), 0.25)
    assert recall(even, torch.tensor([[True, True, False, False]])).tolist() == [1.0]
    assert recall(even, torch.tensor([[False, True, True, False]])).tolist() == [0.5]
    assert recall(even, torch.tensor([[False, False, True, True]])).tolist() == [0.0]
    assert recall(even, torch.zeros((1, 4), dtype=torch.bool)).tolist() == [0.0]
    assert recall(even, torch.ones((1, 4), dtype=torch.bool)).tolist() == [1.0]


def test_keeping_everything_costs_exactly_nothing() -> None:
    trace = make_trace()
    for policy in (build("full"), build("snapkv", budget=24), build("quest", budget=400)):
        found = costs(trace, replay(policy, trace))
        assert (found.mass_kept == 1).all() and (found.recall == 1).all()
        assert (found.recall_response == 1).all()
        for name in ("output_error", "regret_step", "regret_entry", "missed_step", "missed_entry"):
            assert not getattr(found, name).any(), name


def test_layers_with_a_sliding_window_cost_nothing() -> None:
    trace = dataclasses.replace(make_trace(), sliding_window=[None, 5, None])
    result = replay(build("snapkv", budget=4, window=2), trace)
    found = costs(trace, result)
    assert (found.mass_kept[1] == 1).all() and (found.mass_kept[[0, 2]] < 1).all()
    assert not found.output_error[1].any()


@pytest.mark.parametrize("spread", [0.0, 300.0])
def test_no_number_is_missing_where_attention_is_flat_or_lost_entirely(spread: float) -> None:
    """At a spread of 300 an evicted entry takes all of a row's float32 weight."""
    trace = make_trace(spread=spread, seed=5)
    result = replay(build("random", budget=3), trace)
    found = costs(trace, result)
    for field in dataclasses.fields(found):
        assert torch.isfinite(getattr(found, field.name)).all(), field.name
    if spread:
        assert (found.mass_kept < 1e-30).any()
    exact = naive(trace, result, 5e-4)
    np.testing.assert_allclose(found.output_error, exact.output_error, atol=1e-4, rtol=1e-3)


def test_without_a_response_there_are_no_steps() -> None:
    trace = make_trace(response=0)
    found = costs(trace, replay(build("snapkv", budget=4, window=2), trace))
    assert found.mass_kept.shape == (3, 4, 0) and found.recall_response.eq(1).all()


def test_blocks_of_steps_change_nothing_and_can_be_stopped(monkeypatch) -> None:
    trace = make_trace()
    result = replay(build("h2o", budget=6), trace)
    whole = costs(trace, result)
    monkeypatch.setattr(kvpolicies.cost, "BLOCK_CELLS", 4 * trace.query_heads * trace.length)
    seen: list[tuple[int, int]] = []
    blocks = costs(trace, result, progress=lambda done, total: seen.append((done, total)))
    for field in dataclasses.fields(whole):
        torch.testing.assert_close(getattr(blocks, field.name), getattr(whole, field.name))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert {total for _, total in seen} == {27} and seen[-1] == (27, 27) and len(seen) > 9

    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done:
            raise Stop

    with pytest.raises(Stop):
        costs(trace, result, progress=stop)


@pytest.mark.parametrize(("seed", "budget"), [(0, 1), (1, 4), (2, 9), (3, 20), (4, 30)])
def test_the_oracle_keeps_most_mass_of_all_that_evict_once(seed: int, budget: int) -> None:
    trace = make_trace(seed=seed, response=4)
    kept = {
        key: float(
            costs(trace, replay(build(key, **options_of(key, budget)), trace)).mass_kept.sum()
        )
        for key in ("oracle", "snapkv", "random", "laq")
    }
    assert all(value <= kept["oracle"] + 1e-3 for value in kept.values())
