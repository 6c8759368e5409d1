"""Numbers worked out by hand for single methods, and the sentences of impossible ones."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from kvpolicies import MissingInput, PolicyError, Trace, build, catalogue, replay
from kvpolicies.allocations import Pyramid, apportion
from kvpolicies.choice import policy_of
from kvpolicies.decisions import Reason
from kvpolicies.parameters import PARAMETERS
from kvpolicies.schedules import sage_partition
from kvpolicies.scores.lag import channel_spread
from kvpolicies.scores.recency import recurrence_score
from kvpolicies.slots import slot_counts
from tests.kvpolicies.cases import make_trace


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("sink,lag,ratio", [(0, 3, 0.34), (2, 4, 0.5), (16, 8, 0.25), (1, 5, 1.0)])
def test_lagkv_length_follows_equation_10(sink, lag, ratio):
    kept = math.floor(ratio * lag + 1e-9)
    for prompt in (1, sink + 2 * lag - 1, sink + 2 * lag, 41):
        steps = 13
        trace = make_trace(prompt=prompt, response=steps, layers=1)
        result = replay(build("lagkv", sink=sink, lag=lag, keep_ratio=ratio), trace)
        for step in range(steps + 1):
            seen = prompt + step
            partitions = (seen - sink) // lag
            expected = seen
            if seen >= sink + 2 * lag:
                expected = sink + kept * (partitions - 1) + lag + (seen - sink) % lag
            assert (result.counts(step) == expected).all()


def test_lagkv_takes_the_largest_ratio_within_a_budget():
    trace = make_trace(prompt=42, response=0, layers=1)  # sinks 2, 10 partitions of 4
    for budget, kept in ((24, 2), (23, 1), (15, 1), (14, 0), (6, 0), (42, 4)):
        length = 2 + 9 * kept + 4
        result = replay(build("lagkv", sink=2, lag=4, budget=budget), trace)
        assert (result.counts(0) == length).all(), (budget, length)
    with pytest.raises(PolicyError, match="attainable range is 6 to 42"):
        replay(build("lagkv", sink=2, lag=4, budget=5), trace)


def test_lagkv_score_of_a_small_partition():
    """Two channels, one without range: z = (0, 0), (1, 0), spread 0 and sqrt(0.5)."""
    reference = torch.tensor([[0.0, 7.0], [2.0, 7.0]])
    tokens = torch.tensor([[0.0, 9.0], [2.0, 9.0], [6.0, 1.0]])
    spread = channel_spread(tokens, reference)
    torch.testing.assert_close(spread, torch.tensor([0.0, math.sqrt(0.5), 3 * math.sqrt(0.5)]))
    assert channel_spread(tokens[:, :1], reference[:, :1]).tolist() == [0, 0, 0]


def test_sage_kv_check_values():
    assert sage_partition(8192, 4) == (2048, 1024, 2048)
    assert sage_partition(8192, 7) == (2048, 512, 2560)
    assert sage_partition(7, 4) == (1, 0, 6)


def test_sage_kv_selects_per_query_head_and_slides():
    trace = make_trace(layers=1, kv_heads=1, group=2, prompt=20, response=5, seed=4)
    result = replay(build("sage_kv", budget=8), trace)  # S 2, k 2, R 2
    logits = trace.queries[0][:, 19] @ trace.keys[0][0, :20].T / 2
    picks = [sorted(row[2:17].topk(2).indices.add(2).tolist()) for row in logits]
    for step in range(6):
        window = [0, 1, *range(17 + step, 20 + step)]
        attended = [0, 1, *range(17 + max(0, step - 1), 20 + step)]  # the oldest leaves afterwards
        for head in range(2):
            seen = result.visible[0, head, step].nonzero()[:, 0].tolist()
            assert seen == sorted({*attended, *picks[head]})
        held = result.kept_after(step)[0, 0].nonzero()[:, 0].tolist()
        assert held == sorted({*window, *picks[0], *picks[1]})
    shared = replay(build("sage_kv", budget=8, view="union"), trace)
    assert shared.visible is None and torch.equal(shared.evicted_at, result.evicted_at)


def test_lazyeviction_two_forms():
    pause, mri = torch.tensor([0, 3, 5, 5, 4]), torch.tensor([1, 2, 0, 1, 7])
    released = recurrence_score(pause, mri)
    expected = [
        2 * sigmoid(-1.0) + 2 * sigmoid(0),
        2 * sigmoid(-(1 + 3 / (2 + 1e-5))) + 2 * sigmoid(-1),
        0.0,
        2 * sigmoid(-(1 + 5 / (1 + 1e-5))) + 2 * sigmoid(0),
        2 * sigmoid(-(1 + 4 / (7 + 1e-5))) + 2 * sigmoid(-6),
    ]
    torch.testing.assert_close(released, torch.tensor(expected), atol=1e-6, rtol=1e-5)
    printed = recurrence_score(pause, mri, "printed")
    expected = [
        2 * sigmoid(0),  # MRI 1: H2's limit is 0
        2 * sigmoid(-1.5) + 2 * sigmoid(-1),
        0.0,  # never came back
        2 * sigmoid(-5),
        2 * sigmoid(-4 / 7) + 2 * sigmoid(-1 / 6),
    ]
    torch.testing.assert_close(printed, torch.tensor(expected), atol=1e-6, rtol=1e-5)
    only_h2 = recurrence_score(pause, mri, h1="off", h2="inverse")
    torch.testing.assert_close(only_h2, torch.tensor([1, 0.5, 0, 1, 1 / 7]))


def test_lazyeviction_by_hand():
    """One head whose attention is dictated: keys along axes, large queries pick single entries."""
    prompt = 3
    keys = torch.eye(9)[None]
    looked_at = [0, 2, 0, 5, 5, 0]  # by steps 1 ... 6
    queries = torch.zeros(1, 9, 9)
    for step, entry in enumerate(looked_at):
        queries[0, prompt + step, entry] = 100.0
    trace = Trace([queries], [keys], [keys], prompt_length=prompt, scaling=1.0)
    result = replay(build("lazyeviction", budget=4, window=3, alpha=0.5), trace)
    # step 3: entries 0-5; MRI: 0 -> max(1, 2), 2 -> 2; entry 0 active at 3, 2 at 2, 1 never.
    # keep the last 3 (3, 4, 5) and the best of 0, 1, 2: entry 0, active now.
    assert result.kept_after(3)[0, 0].nonzero()[:, 0].tolist() == [0, 3, 4, 5]
    # step 6: entries 0, 3 ... 8; 5 was looked at in steps 4, 5 and 0 in step 6.
    # the last 3 are 6, 7, 8; 0: MRI 3, active now; 5 (appended at step 3, TS 2): MRI 2, TS 5.
    zero = 2 * sigmoid(-1) + 2 * sigmoid(-2)
    five = 2 * sigmoid(-(1 + 1 / (2 + 1e-5))) + 2 * sigmoid(-1)
    assert result.decision(0, 6).scores[0, 0].item() == pytest.approx(zero, abs=1e-6)
    assert result.decision(0, 6).scores[0, 3].item() == pytest.approx(five, abs=1e-6)
    best = 0 if zero > five else 5
    assert result.kept_after(6)[0, 0].nonzero()[:, 0].tolist() == [best, 6, 7, 8]
    assert result.reasons[0, 0, 6] == Reason.RECENT and result.reasons[0, 0, 1] == Reason.EVICTED


def test_kvcompose_counts_sum_to_the_budget():
    assert slot_counts([torch.tensor([9.0, 1, 1]), torch.tensor([5.0, 4, 3])], 4, 0) == [1, 3]
    assert slot_counts([torch.tensor([9.0, 1, 1]), torch.tensor([0.0, 0, 0])], 3, 1) == [2, 1]
    assert slot_counts([torch.tensor([1.0, 1]), torch.tensor([1.0, 1])], 3, 0) == [2, 1]
    with pytest.raises(PolicyError, match="min_per_layer=2"):
        slot_counts([torch.ones(3), torch.ones(3)], 3, 2)
    for budget in range(1, 24):
        trace = make_trace(seed=budget)
        counts = replay(build("kvcompose", budget=budget), trace).counts(0)
        assert (counts == counts[:, :1]).all() and counts[:, 0].sum() == 3 * budget
    trace = make_trace()
    plain = replay(build("kvcompose", budget=6), trace).counts(0)[:, 0]
    raised = replay(build("kvcompose", budget=6, match="kvpress"), trace).counts(0)[:, 0]
    assert raised.sum() == plain.sum() and raised[0] == raised.max() and raised[0] > plain[0]


def test_pyramid_overshoots_as_stated():
    total = sum(Pyramid().layer_budget(128, layer, 32, 5000, 8) for layer in range(32))
    assert total == 4272


def test_head_adaptive_counts():
    ordered = [[0.9, 0.8, 0.7, 0.6], [0.5, 0.4, 0.3, 0.2], [0.1, 0.05, 0.01, 0.0]]
    assert apportion([3.2, 1.6, 1.2], ordered, 6) == [3, 2, 1]
    assert apportion([2.5, 2.5, 1.0], ordered, 6) == [3, 2, 1]  # the better next entry
    assert apportion([9.0, 0.0, 0.0], ordered, 6) == [4, 1, 1]  # no head keeps what it lacks


@pytest.mark.parametrize(
    "arguments,sentence",
    [
        ({"key": "snapkvv", "budget": 4}, "no policy 'snapkvv'"),
        ({"key": "snapkv"}, "needs a budget"),
        ({"key": "snapkv", "budget": 0}, "budget .B. must be a whole number of at least 1, not 0"),
        ({"key": "snapkv", "budget": 4, "compression_ratio": 0.5}, "not both"),
        ({"key": "snapkv", "compression_ratio": 1.5}, "from 0 to 1, not 1.5"),
        ({"key": "snapkv", "budget": 4, "alpha": 1}, "no parameter 'alpha'"),
        ({"key": "snapkv", "budget": 4, "kernel": 2.5}, "kernel"),
        ({"key": "snapkv", "budget": 4, "window": 0}, "at least 1"),
        ({"key": "snapkv", "budget": 4, "pool": "sum"}, "one of max, mean, not 'sum'"),
        ({"key": "lazyeviction", "budget": 4, "alpha": "3/m"}, "not '3/m'"),
        ({"key": "lazyeviction", "budget": 4, "form": "both"}, "released, printed"),
        ({"key": "h2o", "budget": 4, "scope": "context"}, "after_prefill, not every_step"),
        ({"key": "kvcompose", "budget": 4, "scope": "prompt"}, "ranks the context only"),
        ({"key": "kvcompose", "budget": 4, "schedule": "every_step"}, "drawn up once"),
        ({"key": "laq", "budget": 4, "schedule": "every(5)"}, "end of the prompt only"),
        ({"key": "quest", "budget": 4, "schedule": "after_prefill"}, "is not possible"),
        ({"key": "snapkv", "budget": 4, "schedule": "select"}, "is not possible"),
        ({"key": "lagkv", "allocate": "head_adaptive"}, "cannot split a partition"),
        ({"key": "snapkv", "budget": 4, "preset": "mine"}, "not 'mine'"),
        ({"score": "position", "allocate": "per_head", "schedule": "after_prefill"}, "every_step"),
        ({}, "needs a key"),
    ],
)
def test_impossible_policies_say_which_and_why(arguments, sentence):
    with pytest.raises(PolicyError, match=sentence):
        build(**arguments)


def test_missing_inputs_say_which():
    trace = make_trace()
    bare = Trace(trace.queries, trace.keys, trace.values, prompt_length=24)
    for key, missing in (
        ("laq", "lookahead"),
        ("kvzip", "second_reading"),
        ("expected_attention", "rotary"),
    ):
        with pytest.raises(MissingInput) as raised:
            replay(build(key, budget=8), bare)
        assert raised.value.missing == missing


@pytest.mark.parametrize(
    "choices",
    [
        {"score": "lookahead_attention", "allocate": "composite"},
        {"score": "cumulative_attention", "allocate": "head_adaptive", "schedule": "every(3)"},
        {"score": "recurrence", "allocate": "pyramid", "schedule": "every_step", "alpha": "3/n"},
        {"score": "key_norm", "allocate": "global"},
        {"score": "window_attention", "schedule": "every_step", "window": 3},
        {"score": "random", "allocate": "composite"},
        {"score": "last_attention", "allocate": "global"},
        {"score": "expected_attention", "allocate": "composite", "n_future": 8},
        {"score": "redundancy_attention", "allocate": "head_adaptive", "window": 2},
    ],
)
def test_any_other_legal_combination_runs(choices):
    result = replay(build(budget=8, **choices), make_trace())
    steps = result.response_length if "every" in choices.get("schedule", "") else 0
    if choices.get("allocate") != "pyramid":
        assert result.counts(steps).sum() == 8 * 6
    assert result.policy.key == "custom"


def test_lagkv_with_pyramid_budgets():
    trace = make_trace(prompt=66, response=0)
    policy = build("lagkv", allocate="pyramid", sink=2, lag=4, budget=26, beta=4)
    counts = replay(policy, trace).counts(0)[:, 0].tolist()
    # pyramid: c 26, min 6, max 46, step 20: budgets 46, 26, 6; lengths 6 + 15 * kept
    assert counts == [36, 21, 6]


def test_duo_attention_takes_a_head_pattern(tmp_path):
    trace = make_trace(layers=2)
    small = {"sink": 1, "recent": 3}
    streams = [[True, False], [False, False]]
    result = replay(build("duo_attention", head_pattern=streams, **small), trace)
    assert result.counts(0).tolist() == [[4, 24], [24, 24]]
    (tmp_path / "heads.tsv").write_text("0.9\t0.1\n0.5\t0.3\n")
    path = str(tmp_path / "heads.tsv")
    result = replay(build("duo_attention", head_pattern=path, streaming=0.75, **small), trace)
    assert result.counts(0).tolist() == [[24, 4], [4, 4]]
    for pattern, sentence in (([[True]] * 2, "model has 2 KV heads"), ("none.npy", "cannot be")):
        with pytest.raises(PolicyError, match=sentence):
            replay(build("duo_attention", head_pattern=pattern, **small), trace)


def test_presets_and_parameters_are_stated():
    for method in catalogue().values():
        for preset in method.presets.values():
            assert preset.difference.endswith(".") and len(preset.difference) > 20
        policy = build(method.key, **({"budget": 64} if method.budget == "required" else {}))
        for option in policy.options:
            assert PARAMETERS[option].meaning
    assert build("knorm", budget=4, preset="kvpress").skip_layers == 0
    assert build("lazyeviction", budget=4, preset="paper").score.form == "printed"
    assert build("snapkv", budget=4, preset="kvpress", window=5).options["window"] == 5


def _presets():
    return [(key, name) for key, method in catalogue().items() for name in method.presets]


@pytest.mark.parametrize(("key", "name"), _presets())
def test_every_preset_changes_something_that_can_be_built(key, name):
    budget = {"budget": 40} if catalogue()[key].budget == "required" else {}
    plain, preset = build(key, **budget), build(key, preset=name, **budget)
    stated = catalogue()[key].presets[name]
    for option, value in stated.options.items():
        assert preset.options[option] == value
    assert plain != preset
    if stated.schedule:
        assert preset.schedule.name == stated.schedule != plain.schedule.name
        assert (
            build(key, preset=name, schedule="every_step", **budget).schedule.name == "every_step"
        )
    assert policy_of({"key": key, "preset": name, "options": budget}).options == preset.options
    assert policy_of({"key": key, "preset": name, "options": budget}).schedule == preset.schedule


@pytest.mark.parametrize("key", ["streaming_llm", "h2o", "tova"])
def test_kvpress_evicts_once_and_then_grows(key):
    trace = make_trace(layers=1)
    prompt, steps = trace.prompt_length, trace.response_length
    counts = replay(build(key, budget=9, preset="kvpress"), trace)
    for step in range(steps + 1):
        assert counts.counts(step)[0].tolist() == [9 + step] * trace.kv_heads
    if key == "tova":
        assert bool(counts.kept_after(0)[0, :, prompt - 1].all())


def test_kvpress_averages_over_the_queries_that_could_see_an_entry():
    trace = make_trace(layers=1)
    prompt, group = trace.prompt_length, trace.group
    result = replay(build("h2o", budget=9, preset="kvpress"), trace)
    for head in range(trace.kv_heads):
        averages = torch.zeros(prompt)
        for position in range(prompt):
            for query in range(position, prompt):
                for member in range(head * group, (head + 1) * group):
                    row = trace.keys[0][head, : query + 1] @ trace.queries[0][member, query]
                    weights = (row * trace.scaling_of(0)).softmax(0)
                    averages[position] += float(weights[position]) / group / (prompt - position)
        torch.testing.assert_close(result.scores[0, head, :prompt], averages, atol=1e-5, rtol=1e-4)


def test_kvpress_compresses_partitions_of_the_prompt_only():
    trace = make_trace(layers=1, prompt=24, response=20)
    options = {"lag": 4, "keep_ratio": 0.5}
    once = replay(build("lagkv", preset="kvpress", **options), trace)
    ever = replay(build("lagkv", sink=4, **options), trace)
    # 4 sinks, then 5 partitions of 4, of which the first 4 keep 2 each
    assert once.counts(0)[0].tolist() == [4 + 4 * 2 + 4] * trace.kv_heads
    assert torch.equal(once.kept_after(0), ever.kept_after(0))
    assert once.counts(20)[0].tolist() == [16 + 20] * trace.kv_heads
    assert bool((ever.counts(20)[0] < 16 + 20).all())


def test_the_catalogue_loads_without_torch():
    code = "import sys, kvpolicies; kvpolicies.catalogue(); print('torch' in sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "False"


def test_a_softmax_without_sinks_only_reweights_query_heads():
    """With one query head per KV head, kvpress's normalisation scales all scores alike."""
    trace = make_trace(group=1, layers=1)
    options = {"budget": 9, "n_future": 8, "sink": 2}
    plain = replay(build("expected_attention", **options), trace)
    other = replay(build("expected_attention", preset="kvpress", **options), trace)
    assert torch.equal(plain.evicted_at, other.evicted_at)
    ratio = (other.scores / plain.scores)[0, :, 2:24]
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio))
