"""What must hold for every row of the catalogue, whatever it scores."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpolicies import build, catalogue, replay, replayer
from kvpolicies.decisions import Reason
from kvpolicies.entries import RecordedEntries
from kvpolicies.methods import METHODS
from tests.kvpolicies.cases import SMALL, UNBUDGETED, make_trace, options_of

KEYS = list(catalogue())
NESTED = [
    key
    for key, method in catalogue().items()
    if (method.allocate, method.schedule) == ("uniform", "after_prefill") and key != "full"
]
EVERY_HEAD_B = (
    "streaming_llm",
    "h2o",
    "tova",
    "snapkv",
    "expected_attention",
    "laq",
    "laq_pp",
    "random",
    "oracle",
    "belady",
)
shapes = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 3),
        "kv_heads": st.integers(1, 3),
        "group": st.integers(1, 3),
        "prompt": st.integers(1, 20),
        "response": st.integers(0, 7),
        "dim": st.sampled_from([2, 4]),
        "seed": st.integers(0, 999),
        "equal_keys": st.booleans(),
    }
)


def test_every_row_is_in_the_table():
    assert set(SMALL) == {method.key for method in METHODS}


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=12, deadline=None)
@given(shape=shapes, budget=st.integers(1, 24), by_query=st.booleans())
def test_masks_are_sound(key, shape, budget, by_query):
    """Realised counts, births, deaths, scores without NaN and reasons, over all edges."""
    trace = make_trace(**shape)
    granularity = "query_head" if by_query else "kv_head"
    result = replay(build(key, **options_of(key, budget), granularity=granularity), trace)
    prompt, steps = trace.prompt_length, trace.response_length
    heads = trace.query_heads if by_query else trace.kv_heads
    assert result.evicted_at.shape == (trace.layers, heads, trace.length)
    assert result.evicted_at.dtype == torch.int32
    born = (torch.arange(trace.length) - prompt + 1).clamp(min=0)
    assert (result.evicted_at >= born).all() and (result.evicted_at <= steps + 1).all()
    keep = result.keep
    assert keep.shape == (trace.layers, heads, steps + 1, trace.length)
    old = torch.arange(trace.length) < prompt
    assert not (keep[:, :, 1:] & ~keep[:, :, :-1] & old).any()  # nothing comes back
    method = catalogue()[key]
    if key in EVERY_HEAD_B and method.schedule == "every_step":
        for step in range(steps + 1):
            assert (result.counts(step) == min(budget, prompt + step)).all()
    elif key in EVERY_HEAD_B:
        assert (result.counts(0) == min(budget, prompt)).all()
        assert (result.counts(steps) == min(budget, prompt) + steps).all()
    elif method.schedule == "every":
        for step in range(steps + 1):
            interval = 3
            cut = (step // interval) * interval
            expected = prompt + step if cut == 0 else min(budget, prompt + cut) + step - cut
            if prompt + cut <= budget:
                expected = prompt + step
            assert (result.counts(step) == min(expected, prompt + step)).all()
    assert not result.scores.isinf().any()
    for decision in result.decisions:
        ranked = decision.classes == 1
        assert not decision.scores[ranked].isnan().any()
        assert (decision.ranks > 0).eq(ranked).all()
        assert (decision.reasons[~decision.keep & (decision.classes > 0)] == Reason.EVICTED).all()
        kept, gone = decision.keep & ranked, ~decision.keep & ranked
        if method.allocate == "uniform" and method.schedule != "per_partition":
            for head in range(len(ranked)):
                if kept[head].any() and gone[head].any() and key != "sage_kv":
                    assert decision.scores[head][kept[head]].min() >= (
                        decision.scores[head][gone[head]].max()
                    )
    if result.visible is not None:
        held = keep.repeat_interleave(1 if by_query else trace.group, 1)
        born_now = torch.arange(trace.length) == prompt - 1 + torch.arange(steps + 1)[:, None]
        assert not (result.visible[:, :, 0] & ~held[:, :, 0]).any()
        assert not (result.visible[:, :, 1:] & ~held[:, :, :-1] & ~born_now[1:]).any()
        assert result.visible.any(-1).all()


@pytest.mark.parametrize("key", KEYS)
def test_a_budget_for_everything_keeps_everything(key):
    if key in UNBUDGETED:
        options = {**SMALL[key]}
        if "keep_ratio" in options:
            options["keep_ratio"] = 1.0
        if key == "duo_attention":
            options["streaming"] = 0.0
    else:
        options = options_of(key, 40)
        options.pop("pages", None)
        if key in ("quest", "infllm"):
            options["page"] = 40 if key == "infllm" else 4
            options["budget"] = 400
    result = replay(build(key, **options), make_trace())
    assert (result.evicted_at == 10).all()
    assert not result.decisions
    if result.visible is not None:
        assert torch.equal(result.visible, result.keep.repeat_interleave(2, 1))


@pytest.mark.parametrize("key", [key for key in KEYS if key != "random"])
def test_permuting_kv_heads_permutes_the_masks(key):
    trace = make_trace(kv_heads=3, context=20)
    order = torch.tensor([2, 0, 1])
    by_query = torch.cat([2 * order[:, None], 2 * order[:, None] + 1], 1).flatten()
    permuted = dataclasses.replace(
        trace,
        queries=[states[by_query] for states in trace.queries],
        keys=[states[order] for states in trace.keys],
        values=[states[order] for states in trace.values],
        lookahead=[states[by_query] for states in trace.lookahead],
        second_reading=(
            [states[by_query] for states in trace.second_reading[0]],
            [states[order] for states in trace.second_reading[1]],
        ),
    )
    policy = build(key, **options_of(key, 11))
    plain, other = replay(policy, trace), replay(policy, permuted)
    assert torch.equal(plain.evicted_at[:, order], other.evicted_at)
    if plain.visible is not None:
        assert torch.equal(plain.visible[:, by_query], other.visible)


@pytest.mark.parametrize("key", NESTED)
def test_larger_budgets_nest(key):
    trace = make_trace(prompt=30, context=25)
    kept = [replay(build(key, **options_of(key, b)), trace).kept_after(0) for b in range(4, 31)]
    for smaller, larger in itertools.pairwise(kept):
        assert not (smaller & ~larger).any()


@pytest.mark.parametrize("key", KEYS)
def test_evicted_states_are_never_looked_at_again(key, monkeypatch):
    """Overwriting an entry's states with NaN once it is evicted changes nothing."""
    policy = build(key, **options_of(key, 9))
    plain = replay(policy, make_trace(seed=3))
    evict = RecordedEntries.evict

    def poison(self, keep):
        gone = ~keep if self.alive is None else ~keep & self.alive
        heads = torch.arange(self.heads)[:, None].expand_as(gone)[gone]
        for states in (self._keys, self._values):
            states[heads, self.positions[gone]] = torch.nan
        evict(self, keep)

    monkeypatch.setattr(RecordedEntries, "evict", poison)
    monkeypatch.setattr(replayer, "BLOCK_CELLS", 1)  # logits are computed step by step
    poisoned = replay(policy, make_trace(seed=3))
    assert torch.equal(plain.evicted_at, poisoned.evicted_at)
    for decision in poisoned.decisions:
        assert not decision.scores[decision.classes == 1].isnan().any()


@pytest.mark.parametrize("key", [key for key in KEYS if key not in ("oracle", "belady")])
def test_a_shorter_response_decides_the_same_so_far(key):
    trace = make_trace(seed=3)
    policy = build(key, **options_of(key, 9))
    whole, three = replay(policy, trace), replay(policy, _up_to(trace, 3))
    assert torch.equal(three.evicted_at.clamp(max=4), whole.evicted_at[..., :27].clamp(max=4))


def _up_to(trace, steps):
    length = trace.prompt_length + steps
    return dataclasses.replace(
        trace,
        queries=[states[:, :length] for states in trace.queries],
        keys=[states[:, :length] for states in trace.keys],
        values=[states[:, :length] for states in trace.values],
    )


@pytest.mark.parametrize("key", ["snapkv", "kvcompose", "kvzip", "laq_pp", "expected_attention"])
def test_the_question_is_never_ranked_in_context_scope(key):
    trace = make_trace(prompt=24, context=18)
    result = replay(build(key, **options_of(key, 6), scope="context"), trace)
    assert (result.evicted_at[:, :, 18:] == trace.response_length + 1).all()
    assert result.counts(0).float().mean() == 6 + 6


@pytest.mark.parametrize("key", ["snapkv", "h2o", "kvcompose", "kvcompose_unstructured"])
def test_compression_ratio_becomes_a_budget(key):
    trace = make_trace(prompt=24, response=8)
    result = replay(build(key, **SMALL[key], compression_ratio=0.75), trace)
    assert result.budget == (8 if key == "h2o" else 6)
    assert result.counts(0).float().mean() == result.budget


def test_equal_scores_keep_the_lower_positions():
    trace = make_trace(equal_keys=True)
    for key in ("tova", "knorm", "snapkv"):
        result = replay(build(key, **options_of(key, 8)), trace)
        window = 3 if key == "snapkv" else 0
        expected = [*range(8 - window), *range(24 - window, 24)]
        assert result.kept_after(0)[-1, 0].nonzero()[:, 0].tolist() == expected


def test_sliding_layers_are_exempt():
    trace = dataclasses.replace(make_trace(), sliding_window=[None, 8, None])
    result = replay(build("snapkv", **options_of("snapkv", 8)), trace)
    assert result.exempt.tolist() == [False, True, False]
    assert result.counts(0)[:, 0].tolist() == [8, 24, 8]
    assert result.realised_budget == 8


@pytest.mark.parametrize("key", ["h2o", "snapkv", "lazyeviction", "duo_attention"])
def test_without_detail_only_the_list_of_decisions_is_missing(key):
    policy, trace = build(key, **options_of(key, 9)), make_trace()
    full, lean = replay(policy, trace), replay(policy, trace, detail=False)
    assert full.decisions and not lean.decisions
    assert torch.equal(full.evicted_at, lean.evicted_at)
    for name in ("scores", "ranks", "reasons"):
        assert torch.equal(getattr(full, name).nan_to_num(-9), getattr(lean, name).nan_to_num(-9))
    assert full.realised_budget == lean.realised_budget


@pytest.mark.parametrize("key", KEYS)
def test_half_precision_recordings_are_replayed(key):
    """Through float16 the masks differ only where scores nearly tie: counts stay the same."""
    trace = make_trace(dim=8)
    half = dataclasses.replace(
        trace,
        queries=[states.half() for states in trace.queries],
        keys=[states.half() for states in trace.keys],
        values=[states.half() for states in trace.values],
    )
    policy = build(key, **options_of(key, 9))
    plain, rounded = replay(policy, trace), replay(policy, half)
    if catalogue()[key].structured and key != "kvcompose":
        assert torch.equal(plain.counts(), rounded.counts())
    assert (plain.evicted_at != rounded.evicted_at).float().mean() < 0.1
