"""The naive reference, held to cases small enough to work out by hand."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from . import reference
from .reference.allocate import head_adaptive_kvpress
from .reference.attention import pool
from .reference.expected import expected_attention_scores, rotation
from .reference.lag import partition_scores
from .reference.lazy import Redundancy
from .reference.lookahead import lookahead_scores
from .reference.select import page_bound

AFTER_PREFILL = [
    "snapkv",
    "pyramidkv",
    "ada_snapkv",
    "expected_attention",
    "ada_expected_attention",
    "knorm",
    "laq",
    "laq_pp",
    "sage_kv",
    "kvcompose",
    "kvcompose_unstructured",
    "kvzip",
    "random",
    "oracle",
    "belady",
]
EVERY_STEP = ["streaming_llm", "h2o", "tova"]
EVERY_W = ["lazyeviction", "h2o_window", "tova_window", "raas_window"]


def noise(
    layers: int = 2,
    query_heads: int = 4,
    heads: int = 2,
    prompt: int = 20,
    steps: int = 6,
    width: int = 4,
    seed: int = 0,
) -> dict[str, Any]:
    """States of a made-up capture, as the keyword arguments of `replay`."""
    draw = np.random.default_rng(seed)

    def some(*shape: int) -> list[np.ndarray]:
        return [draw.normal(size=shape) for _ in range(layers)]

    return {
        "queries": some(query_heads, prompt + steps, width),
        "keys": some(heads, prompt + steps, width),
        "values": some(heads, prompt + steps, width),
        "prompt_length": prompt,
        "lookahead": some(query_heads, 8, width),
        "second_reading": (some(query_heads, prompt, width), some(heads, prompt, width)),
    }


def watched(prompt: int, attended: Sequence[Sequence[int]], width: int = 8) -> dict[str, Any]:
    """One layer and head in which the query at position i shares its attention evenly over the
    entries `attended[i]` (all it sees, if that is empty): keys are unit vectors."""
    total = len(attended)
    queries = np.zeros((1, total, width))
    for at, entries in enumerate(attended):
        queries[0, at, list(entries)] = 50.0
    keys = np.eye(width)[None, :total]
    return {
        "queries": [queries],
        "keys": [keys],
        "values": [np.ones((1, total, width))],
        "prompt_length": prompt,
        "scaling": 1.0,
    }


def gone(outcome: reference.Outcome, layer: int = 0, head: int = 0) -> dict[int, int]:
    """position → step, of what was evicted."""
    never = outcome.evicted_at.max()
    row = outcome.evicted_at[layer, head]
    return {p: int(step) for p, step in enumerate(row) if step < never}


def cached(outcome: reference.Outcome, prompt: int) -> np.ndarray:
    """Entries after each step: (layers, heads, T + 1)."""
    return outcome.keep(prompt).sum(axis=-1)


def shown(outcome: reference.Outcome) -> np.ndarray:
    assert outcome.visible is not None
    return outcome.visible


# Ground rules


@pytest.mark.parametrize("key", [k for k in reference.POLICIES if k != "full"])
def test_every_key_runs_under_both_granularities(key: str) -> None:
    case = noise(layers=3)
    options: dict[str, Any] = {"budget": 10}
    if key == "r_kv":
        options |= {"interval": 3, "window": 2}
    if key in ("lagkv", "localkv", "l2_lag"):
        options |= {"sink": 2, "lag": 4, "budget": 14}
    for granularity, heads in (("kv_head", 2), ("query_head", 4)):
        out = reference.replay(key, **case, granularity=granularity, **options)
        assert out.evicted_at.dtype == np.int32
        assert out.evicted_at.shape == (3, 2 if key.startswith("tova") else heads, 26)
        assert cached(out, 20).min() >= 1
        assert all(out.evicted_at[..., 20 + t].min() > t for t in range(6))


@pytest.mark.parametrize("key", AFTER_PREFILL)
def test_a_prompt_within_the_budget_loses_nothing(key: str) -> None:
    out = reference.replay(key, **noise(), budget=20)
    assert (out.evicted_at == 7).all()


@pytest.mark.parametrize("key", ["snapkv", "laq", "laq_pp", "oracle", "expected_attention"])
def test_uniform_policies_keep_the_budget_and_then_grow(key: str) -> None:
    out = reference.replay(key, **noise(), compression_ratio=0.5)
    assert (cached(out, 20) == [10, 11, 12, 13, 14, 15, 16]).all()


@pytest.mark.parametrize("key", EVERY_STEP)
def test_every_step_holds_the_budget_from_prefill_on(key: str) -> None:
    out = reference.replay(key, **noise(), budget=9)
    assert (cached(out, 20) == 9).all()


@pytest.mark.parametrize("key", EVERY_W)
def test_every_w_is_a_sawtooth(key: str) -> None:
    out = reference.replay(key, **noise(), budget=9, window=3)
    assert (cached(out, 20) == [20, 21, 22, 9, 10, 11, 9]).all()


def test_budget_below_the_window_keeps_the_last() -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("snapkv", {}),
        ("laq_pp", {}),
        ("lazyeviction", {"window": 6}),
    ]
    for key, options in cases:
        out = reference.replay(key, **noise(), budget=5, **options)
        step = 6 if key == "lazyeviction" else 0
        kept = np.flatnonzero(out.keep(20)[0, 0, step])
        assert list(kept) == list(range(15 + step, 20 + step))


def test_ties_go_to_the_lower_position() -> None:
    case = noise(prompt=6, steps=0, layers=1)
    case["keys"] = [np.ones((2, 6, 4))]
    out = reference.replay("knorm", **case, budget=2, preset="kvpress")
    assert list(out.evicted_at[0, 0]) == [1, 1, 0, 0, 0, 0]
    assert out.decisions[0].margin == 0


def test_margin_is_the_gap_that_decided() -> None:
    case = watched(3, [(), (), ()])
    case["keys"] = [np.diag([3.0, 1.0, 2.0])[None]]
    case["queries"] = [np.zeros((1, 3, 3))]
    out = reference.replay("knorm", **case, budget=2, preset="kvpress")
    (decision,) = out.decisions
    assert (decision.kept, decision.margin) == ([1, 2], 1.0)


# Scores and allocations


def test_pooling() -> None:
    assert list(pool(np.array([1.0, 0, 0, 4]), 3, "max")) == [1, 1, 4, 4]
    assert pool(np.array([1.0, 0, 0, 4]), 3, "mean") == pytest.approx([0.5, 1 / 3, 4 / 3, 2])


def test_pyramid_totals() -> None:
    counts = reference.pyramid(128, 8, 10_000, 32)
    assert counts[:2] == [234, 227]
    assert sum(counts) + 32 * 8 == 4272
    assert reference.pyramid(128, 8, 200, 32) == [120] * 32  # N < 2c
    assert reference.pyramid(128, 8, 10_000, 1) == [120]
    # N − w = 22 caps max = 2·12 − 0 = 24, so min = 2; step (22 − 2) // 2
    assert reference.pyramid(20, 8, 30, 3) == [22, 12, 2]


def test_head_adaptive_shares() -> None:
    high, low = [9.0, 8, 7, 6, 5, 4, 3, 2, 1, 0.5], [8.5] + [0.0] * 9
    # nine and one of the ten best: 9·0.8 + 1 = 8.2 and 1·0.8 + 1 = 1.8
    assert reference.head_adaptive_counts([high, low], 5, 0.2)[0] == [8, 2]
    # eight and none: 6.4 and 0 round to 6 and 0; the remainders give one to each
    assert reference.head_adaptive_counts([high, [0.0] * 10], 4, 0.2)[0] == [7, 1]
    kept, _ = head_adaptive_kvpress([high, low], 5, 2)
    assert kept == [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1]]


def test_snapkv_by_hand() -> None:
    # the last query looks at 1 and 3, the one before at 0
    case = watched(6, [(0,), (0,), (0,), (0,), (0,), (1, 3)])
    out = reference.replay("snapkv", **case, budget=3, window=1, kernel=1)
    assert list(out.evicted_at[0, 0]) == [0, 1, 0, 1, 0, 1]
    # pooled over three, 0 … 4 all score one half: the lowest stay
    out = reference.replay("snapkv", **case, budget=3, window=1, kernel=3)
    assert list(out.evicted_at[0, 0]) == [1, 1, 0, 0, 0, 1]
    # the window of two sums 1 for entry 0, a half each for 1 and 3
    out = reference.replay("snapkv", **case, budget=4, window=2, kernel=1)
    assert list(out.evicted_at[0, 0]) == [1, 1, 0, 0, 1, 1]


def test_context_scope_never_touches_the_question() -> None:
    for key in ("snapkv", "kvcompose", "kvzip", "oracle", "random", "expected_attention"):
        case = noise()
        case["second_reading"] = tuple([t[:, :12] for t in s] for s in case["second_reading"])
        options: dict[str, Any] = {"window": 2} if key == "snapkv" else {}
        out = reference.replay(key, **case, context_length=12, budget=5, scope="context", **options)
        assert (out.evicted_at[..., 12:] == 7).all()
        assert (out.evicted_at == 0).sum() == 2 * 2 * (12 - 5)


def test_expected_attention_of_a_constant_query() -> None:
    case = noise(layers=1, query_heads=2)
    case["queries"] = [np.ones((2, 26, 4))]
    trace = reference.make_trace(*[case[n] for n in ("queries", "keys", "values", "prompt_length")])
    scores = expected_attention_scores(trace, 0, 1, 20, 512, 4)
    keys, values = case["keys"][0][1, :20], case["values"][0][1, :20]
    weights = np.exp(keys.sum(axis=1) / 2)
    assert scores == pytest.approx(
        weights / weights.sum() * np.sqrt((values**2).sum(axis=1)), rel=1e-12
    )


def test_expected_attention_undoes_the_rotation() -> None:
    angles = np.arange(25)[:, None] * np.array([1.0, 0.1])[None]
    cos, sin = (np.concatenate([f(angles)] * 2, axis=1) for f in (np.cos, np.sin))
    case = noise(layers=1, query_heads=1, heads=1)
    plain = np.array([1.0, -2.0, 0.5, 3.0])
    case["queries"] = [
        np.stack([rotation(cos[min(p, 24)], sin[min(p, 24)], 4) @ plain for p in range(26)])[None]
    ]
    trace = reference.make_trace(
        *[case[n] for n in ("queries", "keys", "values", "prompt_length")], rotary=(cos, sin)
    )
    scores = expected_attention_scores(trace, 0, 0, 20, 5, 4)
    future = np.mean([rotation(cos[p], sin[p], 4) @ plain for p in range(20, 25)], axis=0)
    weights = np.exp(case["keys"][0][0, :20] @ future / 2)
    norms = np.sqrt((case["values"][0][0, :20] ** 2).sum(axis=1))
    assert scores == pytest.approx(weights / weights.sum() * norms)


# Policies that evict while decoding


def test_streaming_llm_by_hand() -> None:
    case = watched(6, [()] * 8)
    out = reference.replay("streaming_llm", **case, budget=4, sink=2)
    assert gone(out) == {2: 0, 3: 0, 4: 1, 5: 2}
    out = reference.replay("streaming_llm", **case, budget=2, sink=4)  # one sink, the newest
    assert [list(np.flatnonzero(k)) for k in out.keep(6)[0, 0]] == [[0, 5], [0, 6], [0, 7]]


def test_h2o_by_hand() -> None:
    # entry 0 gathers 1 + 1, entry 1 gathers 1, entry 2 gathers 1 at step 1
    case = watched(3, [(0,), (0,), (1,), (2,)])
    assert gone(reference.replay("h2o", **case, budget=2)) == {1: 0, 2: 1}


def test_tova_by_hand() -> None:
    # 1 leads; 0 and 2 tie; at step 1 everything ties and the fresh entry is the highest
    case = watched(3, [(0,), (0,), (1,), ()])
    assert list(reference.replay("tova", **case, budget=2).evicted_at[0, 0]) == [2, 2, 0, 1]


def test_raas_by_hand() -> None:
    case = watched(1, [(0,), (), (1,), (1,), ()])
    out = reference.replay("raas", **case, budget=3, alpha=0.9)
    # stamps at step 3: entry 1 active then, 2 as born, 3 as born; at 4 the older of a tie goes
    assert gone(out) == {2: 3, 1: 4}
    # with P ≥ B only the newest generated entry stays
    out = reference.replay("raas", **watched(3, [()] * 6), budget=2)
    assert gone(out) == {3: 2, 4: 3}


LAZY = [(0,), (0,), (0,), (0,), (1,), (3,), (5,)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # step 2: I = 2σ(−2) + 1 for 0, 2σ(−1) + 2σ(−1) for 1, 0 for 2
        # step 4: I = 2σ(−4) + 1 for 0, 2σ(−4/3) + 2σ(−2) for 3, 0 for 4
        ({}, {1: 2, 2: 2, 3: 4, 4: 4}),
        # step 2: 2σ(−1) for 0, 1 + 2σ(−1) for 1; step 4: 1 fades to 2σ(−1) + 2σ(−1), 3 has
        # 2σ(−1/3) + 2σ(−1/2)
        ({"form": "printed"}, {0: 2, 2: 2, 1: 4, 4: 4}),
        ({"h1": False}, {1: 2, 2: 2, 3: 4, 4: 4}),
        # step 2: 2σ(−2) against 2σ(−1); step 4: 1 has 2σ(−2), 3 has 2σ(−4/3)
        ({"h2": False}, {0: 2, 2: 2, 1: 4, 4: 4}),
    ],
)
def test_lazyeviction_by_hand(options: dict[str, Any], expected: dict[int, int]) -> None:
    case = watched(3, LAZY)
    out = reference.replay("lazyeviction", **case, budget=3, window=2, alpha=0.5, **options)
    assert gone(out) == expected


def test_lazyeviction_scores_by_hand() -> None:
    def twice(x: float) -> float:
        return 2 / (1 + math.exp(-x))

    case = watched(3, LAZY)
    out = reference.replay("lazyeviction", **case, budget=3, window=2, alpha=0.5)
    first, second = out.decisions
    assert first.positions == [0, 1, 2]
    assert first.scores == pytest.approx([twice(-2) + 1, 2 * twice(-1), 0], abs=1e-4)
    assert second.positions == [0, 3, 4]
    assert second.scores == pytest.approx([twice(-4) + 1, twice(-4 / 3) + twice(-2), 0], abs=1e-4)


def test_lazyeviction_limits() -> None:
    assert reference.h1_score(5, 4, 0, "printed") == 0
    assert reference.h2_score(1, "printed") == 0
    assert reference.h2_score(0, "printed") == reference.h2_score(0, "released") == 0
    assert reference.h2_score(1, "released") == 1


def test_alpha_as_a_multiple_of_uniform_attention() -> None:
    # four visible entries: 3/n is 0.75, and an even quarter is not enough; 1/n is
    case = watched(3, [()] * 5)
    few = reference.replay("lazyeviction", **case, budget=2, window=1, alpha="3/n")
    many = reference.replay("lazyeviction", **case, budget=2, window=1, alpha="0.9/n")
    assert few.decisions[0].scores == pytest.approx([0, 0, 0], abs=1e-6)
    assert min(many.decisions[0].scores) > 1


def test_redundancy_spares_the_newest_copy() -> None:
    case = watched(5, [()] * 5)
    case["keys"] = [np.array([[[1.0, 0], [0, 1], [1, 0], [1, 0], [0, 1]]])]
    case["queries"] = [np.zeros((1, 5, 2))]
    case["values"] = [np.ones((1, 5, 2))]
    trace = reference.make_trace(*[case[n] for n in ("queries", "keys", "values", "prompt_length")])
    found = Redundancy(trace, 0, 0, 1, 0.1, 0.5).redundancy([0, 1, 2, 3, 4])
    # rows 0 and 2 drop their link to 3, row 3 its link to 2, rows 1 and 4 theirs to each other:
    # columns keep 0: from 2 and 3; 2: from 0; 3: nothing
    means = np.array([2, 0, 1, 0, 0]) / 5
    assert found == pytest.approx(np.exp(means) / np.exp(means).sum())


# The five methods


def test_lagkv_lengths() -> None:
    assert reference.length_after(16 + 3 * 128, 16, 128, 32) == 16 + 2 * 32 + 128
    assert reference.length_after(16 + 2 * 128 - 1, 16, 128, 32) == 16 + 2 * 128 - 1
    assert reference.length_after(16 + 2 * 128 + 5, 16, 128, 32) == 16 + 32 + 128 + 5
    assert reference.keep_ratio_for(210, 400, 16, 128) == 33 / 128
    with pytest.raises(ValueError, match="144 to 400"):
        reference.keep_ratio_for(143, 400, 16, 128)
    case = noise(prompt=19, steps=9)
    out = reference.replay("lagkv", **case, sink=2, lag=4, keep_ratio=0.5)
    # 17 = 4·4 + 1: three partitions lose two; further ones complete at 22 and 26
    lengths = [13, 14, 15, 14, 15, 16, 17, 16, 17, 18]
    assert (cached(out, 19) == lengths).all()
    assert lengths == [reference.length_after(19 + t, 2, 4, 2) for t in range(10)]


def test_lagkv_scores_by_hand() -> None:
    part, later = [[0.0, 0.0], [2.0, 4.0]], [[0.0, 0.0], [2.0, 2.0]]
    keys = np.array(part + later)
    flat = np.ones((4, 2))  # min == max in every channel
    scores = partition_scores(keys, flat, slice(0, 2), slice(2, 4), "lagkv")
    root = math.sqrt(0.5)  # z = (0, 0) and (1, 2)
    assert scores == pytest.approx(
        [1 / (1 + math.exp(root)) + 0.5, 1 / (1 + math.exp(-root)) + 0.5]
    )
    # its own reference: z = (0, 0) and (1, 1), no deviation at all
    own = partition_scores(keys, flat, slice(0, 2), slice(2, 4), "localkv")
    assert own == pytest.approx([1, 1])


def test_lookahead_masks() -> None:
    case = noise(layers=1, query_heads=1, heads=1, prompt=6, width=2)
    case["queries"], case["lookahead"] = [np.zeros((1, 12, 2))], [np.zeros((1, 2, 2))]
    trace = reference.make_trace(
        *[case[n] for n in ("queries", "keys", "values", "prompt_length")],
        lookahead=case["lookahead"],
    )

    def scores(window: int, mask: str) -> np.ndarray:
        return lookahead_scores(trace, 0, 0, 6, 8, window, 1, "max", "mean", mask)

    sixth, fifth, quarter, third = 1 / 6, 1 / 5, 1 / 4, 1 / 3
    assert scores(0, "correct") == pytest.approx([2 * sixth] * 6)
    assert scores(0, "released") == pytest.approx([fifth + sixth] * 5 + [sixth])
    assert scores(2, "correct") == pytest.approx([fifth + 3 * sixth] * 5 + [3 * sixth])
    assert scores(2, "released") == pytest.approx(
        [third + quarter + fifth + sixth] * 3 + [quarter + fifth + sixth, fifth + sixth, sixth]
    )


def test_sage_kv_sizes() -> None:
    assert reference.sizes(8192, 4) == (2048, 1024, 2048)
    assert reference.sizes(8192, 7) == (2048, 512, 2560)
    assert reference.sizes(7, 4) == (1, 0, 6)


def test_sage_kv_slides_its_window() -> None:
    case = noise(layers=1)
    out = reference.replay("sage_kv", **case, budget=8)  # S 2, k 2, R 2 with groups of two
    assert [len(d.kept) for d in out.decisions] == [2] * 4
    for head in range(2):
        picks = sorted(set(out.decisions[2 * head].kept) | set(out.decisions[2 * head + 1].kept))
        for t, kept in enumerate(out.keep(20)[0, head]):
            assert list(np.flatnonzero(kept)) == [0, 1, *picks, 17 + t, 18 + t, 19 + t]
    view = shown(out)
    for query_head in range(4):
        own = [0, 1, *out.decisions[query_head].kept]
        seen = [list(np.flatnonzero(v)) for v in view[0, query_head]]
        assert seen[0] == [*own, 17, 18, 19]
        assert seen[1] == [*own, 17, 18, 19, 20]
        assert seen[2] == [*own, 18, 19, 20, 21]
    union = reference.replay("sage_kv", **case, budget=8, view="union")
    assert (union.evicted_at == out.evicted_at).all()
    shared = shown(union)
    assert (shared[0, 0] == shared[0, 1]).all()
    assert (shared[0, 0, 0] == view[0, :2, 0].any(axis=0)).all()


def test_compose_by_hand() -> None:
    scores = np.array([[[4.0, 0, 2], [0, 4, 2]], [[1, 1, 1], [1, 1, 1]]])
    out = reference.compose(scores, compression_ratio=0.5)
    assert out.slots[0].tolist() == [[0, 2, 1], [1, 2, 0]]
    assert out.slots[1].tolist() == [[0, 1, 2]] * 2
    assert out.slot_scores.tolist() == [[6, 4, 2], [2, 2, 2]]
    assert list(out.counts) == [2, 1]
    assert list(reference.compose(scores, compression_ratio=1 / 3).counts) == [3, 1]
    assert list(reference.compose(scores, compression_ratio=0.5, min_per_layer=0).counts) == [3, 0]
    # layer 0's slots 2, 2, 2 are raised to 6, 4, 2, and it wins the ties
    swapped = reference.compose(scores[::-1], compression_ratio=0.5, match="kvpress")
    assert list(swapped.counts) == [2, 1]
    with pytest.raises(ValueError, match="too few"):
        reference.compose(scores, compression_ratio=0.8)


@pytest.mark.parametrize("source", ["context", "question", "self"])
@pytest.mark.parametrize("agg_task", ["max", "mean"])
def test_kvcompose_counts_sum_to_the_budget(source: str, agg_task: str) -> None:
    case = noise()
    case["second_reading"] = tuple([t[:, :15] for t in s] for s in case["second_reading"])
    case |= {"context_length": 15, "budget": 4, "source": source, "agg_task": agg_task}
    out = reference.replay("kvcompose", **case)
    counts = out.keep(20)[:, :, 0, :15].sum(axis=-1)
    assert (counts[:, 0] == counts[:, 1]).all()
    assert counts[:, 0].sum() == 2 * 4
    assert (out.evicted_at[..., 15:] == 7).all()
    matched = reference.replay("kvcompose", **case, match="kvpress")
    raised = matched.keep(20)[:, :, 0, :15].sum(axis=-1)[:, 0]
    assert raised.sum() == 2 * 4 and raised[0] >= raised[1] and raised[0] >= counts[0, 0]
    free = reference.replay("kvcompose_unstructured", **case)
    assert free.keep(20)[:, :, 0, :15].sum() == 2 * 2 * 4


def test_kvcompose_question_scores_by_hand() -> None:
    # context 0 … 3, the question's two tokens look at 2 and at 0 and 3
    case = watched(6, [(0,)] * 4 + [(2,), (0, 3)])
    out = reference.replay("kvcompose", **case, context_length=4, budget=2, source="question")
    assert out.decisions[0].scores == pytest.approx([1, 0, 2, 1])  # max, plus the mean of one head
    assert list(out.evicted_at[0, 0]) == [1, 0, 1, 0, 1, 1]


def test_kvzip_by_hand() -> None:
    case = watched(3, [()] * 3, width=8)
    second = np.zeros((1, 3, 8))
    second[0, 0, 2] = second[0, 1, 0] = second[0, 2, 5] = 50.0
    again = np.eye(8)[None, 3:6]  # the third row looks at its own copy
    case["second_reading"] = ([second], [again])
    out = reference.replay("kvzip", **case, budget=2, sink=0)
    assert out.decisions[0].scores == pytest.approx([1, 0, 1])
    assert list(out.evicted_at[0, 0]) == [1, 0, 1]


# Selection, bounds, costs, curves


def test_quest_by_hand() -> None:
    assert page_bound(np.array([1.0, -2.0]), np.array([[0.0, 1.0], [3.0, -1.0]])) == 5
    case = watched(6, [()] * 6 + [(4,)])
    out = reference.replay("quest", **case, budget=2, page=1, dense_layers=0)
    assert list(np.flatnonzero(shown(out)[0, 0, 1])) == [0, 1, 4]
    assert (out.evicted_at == 2).all()


def test_infllm_shows_init_local_and_the_best_block() -> None:
    case = watched(7, [()] * 7 + [(4,)])
    out = reference.replay("infllm", **case, budget=5, init=1, local=2, block=2)
    assert list(np.flatnonzero(shown(out)[0, 0, 1])) == [0, 3, 4, 6, 7]


def test_oracle_and_belady_by_hand() -> None:
    case = watched(3, [()] * 3 + [(2,), (1, 3), (1,)])
    assert gone(reference.replay("oracle", **case, budget=2))[0] == 0
    out = reference.replay("oracle", **case, budget=1)  # 1 gets 1.5, 2 gets 1
    assert list(out.evicted_at[0, 0, :3]) == [0, 4, 0]
    out = reference.replay("belady", **case, budget=1, alpha=0.4)  # 2 is used next
    assert list(out.evicted_at[0, 0, :3]) == [0, 0, 4]
    out = reference.replay("belady", **case, budget=2, alpha=0.4, schedule="every_step")
    assert gone(out) == {0: 0, 2: 1, 4: 2, 5: 3}


def test_duo_attention_streams_half_the_heads() -> None:
    out = reference.replay("duo_attention", **noise(), sink=2, recent=3)
    sizes = cached(out, 20)
    assert sorted(sizes[:, :, 0].ravel()) == [5, 5, 20, 20]
    assert (sizes[sizes[:, :, 0] == 5] == 5).all()


def test_track_by_hand() -> None:
    nan = math.nan
    attention = np.array([[0.9, 0.0, nan], [0.0, 0.0, 0.9], [0.0, 0.9, 0.9], [0.9, 0.0, 0.9]])
    # entry 2 is the token of step 2, at position P + t − 1: its TS starts at 1
    out = reference.track(attention, alpha=0.5, prompt_length=1)
    assert list(out.mri) == [3, 3, 1]
    assert list(out.last_active) == [4, 3, 4]
    assert out.active.sum() == 6
    first = reference.track(attention, alpha=0.5, prompt_length=1, count="from_first")
    assert list(first.mri) == [3, 0, 1]


def test_recall_by_hand() -> None:
    # the response looks at 0, and at 0 and 1; the prompt's last two queries at 2, and at 1 and 2
    case = watched(4, [(0,), (1,), (2,), (1, 2), (0,), (0, 1)])
    trace = reference.make_trace(case["queries"], case["keys"], case["values"], 4, scaling=1.0)
    curve = reference.recall_curve(trace, budget=2, offsets=[-2, -1, 0, 5, 6], width=2)
    assert curve[:3, 0, 0].tolist() == [0.5, 1.0, 1.0]
    assert np.isnan(curve[3:]).all()


def test_costs_add_up() -> None:
    case = noise()
    trace = reference.make_trace(*[case[n] for n in ("queries", "keys", "values", "prompt_length")])
    nothing = reference.costs(trace, reference.replay("full", **case))
    assert nothing.output_error.max() < 1e-12 and nothing.regret_by_step.max() == 0
    out = reference.costs(trace, reference.replay("h2o", **case, budget=8))
    layers, sets, steps = out.regret_by_step.shape
    kept = out.mass_kept.reshape(layers, sets, -1, steps).mean(2)
    assert kept + out.regret_by_step == pytest.approx(1)
    assert out.regret_by_entry.sum() == pytest.approx(out.regret_by_step.sum())
    best = reference.costs(trace, reference.replay("oracle", **case, budget=8))
    for key in ("snapkv", "random", "laq", "belady"):
        other = reference.costs(trace, reference.replay(key, **case, budget=8))
        assert best.mass_kept.sum() >= other.mass_kept.sum()
