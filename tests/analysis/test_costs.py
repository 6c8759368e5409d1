"""The figures of what eviction cost, against plain loops over numbers made by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from analysis.costs import (
    MEAN,
    SUMMARY_COLUMNS,
    cost_summary,
    distance_over_steps,
    distance_to,
    mass_kept,
    oracle_choice,
    output_error_by_layer,
    random_choice,
    recall,
    recall_by_layer,
    regret_over_steps,
)
from analysis.distances import eviction_interval
from analysis.errors import AnalysisError
from analysis.figure import Figure
from analysis.plotly_renderer import to_plotly
from analysis.replays import PackedVisible, Replayed
from cache_store.reader import Capture
from kvpolicies.choice import policy_of
from kvpolicies.methods import catalogue
from kvpolicies.replayer import replay
from tests.analysis.conftest import KINDS, Opener
from tests.analysis.policies import made_replay, whole_replay
from tests.kvpolicies.cases import options_of
from tests.synthetic import Synthetic

every_kind = pytest.mark.parametrize("kind", KINDS)
edges = pytest.mark.parametrize("kind", ["unstored", "one_token", "nothing_generated", "smallest"])
SNAPKV = {"key": "snapkv", "options": {"budget": 8}}
H2O = {"key": "h2o", "options": {"budget": 8}}
ORACLE = {"key": "oracle", "options": {"budget": 8}}
RANDOM = {"key": "random", "options": {"budget": 8}}

OVER_STEPS: dict[str, Callable[[Capture, Sequence[Replayed]], Figure]] = {
    "mass": lambda capture, made: mass_kept(capture, made, MEAN, MEAN, step=1),
    "regret": lambda capture, made: regret_over_steps(capture, made, MEAN, MEAN),
    "missed": lambda capture, made: regret_over_steps(capture, made, 0, 0, measure="missed"),
    "recall": lambda capture, made: recall(capture, made, 0, MEAN),
}
BY_LAYER: dict[str, Callable[[Capture, Sequence[Replayed]], Figure]] = {
    "error": lambda capture, made: output_error_by_layer(capture, made),
    "recall": lambda capture, made: recall_by_layer(capture, made),
}
EVERY = {f"{name} over steps": drawn for name, drawn in OVER_STEPS.items()} | {
    f"{name} by layer": drawn for name, drawn in BY_LAYER.items()
}


def rows_behind(
    made: Synthetic, policy: Replayed, values: np.ndarray, layer: int | str, head: int | str
) -> list[np.ndarray]:
    """Every (layer, head) row of a selection; `head` counts KV heads."""
    rows = []
    for number in range(values.shape[0]):
        if (layer == MEAN and policy.exempt[number]) or layer not in (MEAN, number):
            continue
        for index in range(values.shape[1]):
            kv_head = index * made.kv_heads // values.shape[1]
            if head in (MEAN, kv_head):
                rows.append(values[number, index])
    return rows


@pytest.mark.parametrize("by_query", [False, True])
@pytest.mark.parametrize(("layer", "head"), [(0, 0), (1, MEAN), (MEAN, 1), (MEAN, MEAN)])
def test_lines_over_steps_are_means_of_the_heads_behind_them(
    open_capture: Opener, layer: int | str, head: int | str, by_query: bool
) -> None:
    made, capture = open_capture("grouped")
    policy = made_replay(made, by_query=by_query)
    sums = np.cumsum(policy.regret_step, axis=2)
    missed = np.cumsum(policy.missed_step, axis=2)
    drawn = {
        "mass": (mass_kept(capture, [policy], layer, head), policy.mass_kept),
        "recall": (recall(capture, [policy], layer, head), policy.recall),
        "so far": (regret_over_steps(capture, [policy], layer, head), sums),
        "missed": (regret_over_steps(capture, [policy], layer, head, measure="missed"), missed),
        "of the step": (
            regret_over_steps(capture, [policy], layer, head, measure="regret"),
            policy.regret_step,
        ),
    }
    for figure, values in drawn.values():
        rows = rows_behind(made, policy, values, layer, head)
        for column in range(made.response_length):
            expected = sum(float(row[column]) for row in rows) / len(rows)
            assert figure.arrays["y"][0, column] == pytest.approx(expected, rel=1e-5)
        if len(rows) > 1:
            low, high = np.percentile(np.array(rows), [10, 90], axis=0)
            np.testing.assert_allclose(figure.arrays["low"][0], low, rtol=1e-5)
            np.testing.assert_allclose(figure.arrays["high"][0], high, rtol=1e-5)
            assert "10th to 90th percentile" in figure.caption
        else:
            assert "low" not in figure.arrays and "percentile" not in figure.caption
        assert figure.x.values is not None and figure.x.values.tolist() == [*range(1, 13)]


def test_by_layer_figures_hold_each_layers_mean_and_leave_out_exempt_ones(
    open_capture: Opener,
) -> None:
    made, capture = open_capture("unstored")
    policy = made_replay(made, exempt=[1])
    error = output_error_by_layer(capture, [policy]).arrays["y"][0]
    at_step = output_error_by_layer(capture, [policy], 1, step=3).arrays["y"][0]
    held = recall_by_layer(capture, [policy], 0).arrays["y"][0]
    for layer in range(3):
        if layer == 1:
            assert np.isnan([error[layer], at_step[layer], held[layer]]).all()
            continue
        values = policy.output_error[layer]
        assert error[layer] == pytest.approx(float(values.mean()), rel=1e-5)
        group = made.query_heads // made.kv_heads
        assert at_step[layer] == pytest.approx(float(values[group : 2 * group, 2].mean()), rel=1e-5)
        assert held[layer] == pytest.approx(float(policy.recall_response[layer, 0]), rel=1e-5)


def test_a_mean_over_layers_leaves_out_exempt_ones_and_names_them(open_capture: Opener) -> None:
    made, capture = open_capture("unstored")
    policy = made_replay(made, exempt=[0, 2])
    figure = mass_kept(capture, [policy], MEAN, MEAN)
    np.testing.assert_allclose(figure.arrays["y"][0], policy.mass_kept[1].mean(axis=0), rtol=1e-5)
    assert "Layers 0, 2" in figure.caption
    own = mass_kept(capture, [policy], 2, MEAN)
    np.testing.assert_allclose(own.arrays["y"][0], policy.mass_kept[2].mean(axis=0), rtol=1e-5)


def test_references_are_lines_without_a_band_and_with_a_dash_of_their_own(
    open_capture: Opener,
) -> None:
    made, capture = open_capture("grouped")
    chosen = [made_replay(made, choice) for choice in (SNAPKV, H2O, ORACLE, RANDOM)]
    figure = mass_kept(capture, chosen, MEAN, MEAN)
    assert [line.name for line in figure.series] == [policy.title for policy in chosen]
    assert len({line.dash for line in figure.series}) == 4
    assert np.isfinite(figure.arrays["low"]).all(axis=1).tolist() == [True, True, False, False]
    three = mass_kept(capture, [*chosen, made_replay(made, {**SNAPKV, "key": "tova"})], MEAN, MEAN)
    assert "low" not in three.arrays and "percentile" not in three.caption


def test_a_reference_with_a_schedule_keeps_its_name(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    oracle = oracle_choice(H2O)
    assert oracle is not None
    figure = mass_kept(capture, [made_replay(made, oracle)], 0, 0)
    assert figure.series[0].name == "Oracle (every step), budget 8"


@edges
@pytest.mark.parametrize("name", EVERY)
def test_every_figure_is_drawn_for_every_run(open_capture: Opener, kind: str, name: str) -> None:
    made, capture = open_capture(kind)
    policies = [made_replay(made), whole_replay(made), made_replay(made, ORACLE, seed=2)]
    figure = EVERY[name](capture, policies)
    assert len(figure.arrays["y"]) == 3 and figure.alt and figure.note is not None
    assert to_plotly(figure).data
    if made.response_length == 0 and name.endswith("over steps"):
        assert "Nothing was generated" in figure.caption


@edges
@pytest.mark.parametrize("name", EVERY)
def test_nothing_to_show_is_a_sentence(open_capture: Opener, kind: str, name: str) -> None:
    made, capture = open_capture(kind)
    empty = EVERY[name](capture, [])
    assert "No policy is chosen" in empty.caption and not to_plotly(empty).data
    unknown = made_replay(made, exempt=range(made.layers))
    assert EVERY[name](capture, [unknown]).alt


def test_nan_costs_are_left_out(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    policy = made_replay(made)
    policy.mass_kept[0, 0] = np.nan
    line = mass_kept(capture, [policy], 0, MEAN).arrays["y"][0]
    np.testing.assert_allclose(line, policy.mass_kept[0, 1:].mean(axis=0), rtol=1e-5)
    policy.mass_kept[:] = np.nan
    assert "has no values" in mass_kept(capture, [policy], 0, MEAN).alt
    assert math.isnan(cost_summary(capture, [policy])["mass_kept"][0])


def test_unknown_measures_and_heads_are_refused_in_a_sentence(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    policy = made_replay(made)
    with pytest.raises(AnalysisError, match="no measure 'lost'"):
        regret_over_steps(capture, [policy], 0, 0, measure="lost")
    with pytest.raises(AnalysisError, match="no measure 'lost'"):
        distance_over_steps(capture, [policy], policy, measure="lost")
    with pytest.raises(AnalysisError, match="no KV head 2"):
        mass_kept(capture, [policy], 0, 2)
    with pytest.raises(AnalysisError, match="no layer 7"):
        recall(capture, [policy], 7, 0)


def test_missed_recurrences_say_when_alpha_lies_below_uniform_attention(
    open_capture: Opener,
) -> None:
    made, capture = open_capture("grouped")  # 52 entries: uniform attention is far above 5e-4
    figure = regret_over_steps(capture, [made_replay(made)], 0, 0, measure="missed")
    assert "below uniform attention over 52 entries" in figure.caption


# --- distances ------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_query", [(False, False), (True, False), (True, True)])
@every_kind
def test_distance_is_the_jaccard_of_the_kept_sets(
    open_capture: Opener, kind: str, by_query: tuple[bool, bool]
) -> None:
    made, capture = open_capture(kind)
    one, other = (
        made_replay(made, seed=seed, by_query=query) for seed, query in enumerate(by_query)
    )
    frame = distance_to(capture, one, other)
    heads = made.query_heads if any(by_query) else made.kv_heads
    for row in frame.itertuples():
        shares = []
        for head in range(heads):
            kept = [
                {
                    position
                    for position in range(made.prompt_length + row.step)
                    if policy.evicted_at[row.layer, head * policy.evicted_at.shape[1] // heads][
                        position
                    ]
                    > row.step
                }
                for policy in (one, other)
            ]
            union = kept[0] | kept[1]
            shares.append(len(kept[0] & kept[1]) / len(union) if union else 1)
        assert row.jaccard == pytest.approx(sum(shares) / heads, abs=1e-6)
        if row.step == 0:
            assert math.isnan(row.mass_difference)
        else:
            mass = [policy.mass_kept[row.layer, :, row.step - 1].mean() for policy in (one, other)]
            assert row.mass_difference == pytest.approx(mass[0] - mass[1], abs=1e-6)
    assert len(frame) == made.layers * (made.response_length + 1)


def test_a_policy_that_only_selects_is_compared_by_what_it_attends_to(
    open_capture: Opener,
) -> None:
    made, capture = open_capture("grouped")
    kept = made_replay(made)
    seen = np.random.default_rng(5).random(
        (made.layers, made.query_heads, made.response_length + 1, made.length)
    )
    seen = seen < 0.4
    quest = made_replay(
        made,
        {"key": "quest", "options": {"budget": 32}},
        evicted_at=np.full_like(kept.evicted_at, made.response_length + 1),
        visible=PackedVisible(np.packbits(seen, axis=-1), made.length),
    )
    frame = distance_to(capture, quest, kept).set_index(["layer", "step"])["jaccard"]
    group = made.query_heads // made.kv_heads
    for layer, step in frame.index:
        shares = []
        for head in range(made.kv_heads):
            there = range(made.prompt_length + step)
            asked = seen[layer, head * group : (head + 1) * group, step].any(0)
            one = {position for position in there if asked[position]}
            other = {p for p in there if kept.evicted_at[layer, head, p] > step}
            shares.append(len(one & other) / len(one | other))
        assert frame[layer, step] == pytest.approx(np.mean(shares), abs=1e-6)
    figure = distance_over_steps(capture, [quest, kept], kept)
    assert "Quest evicts nothing: compared is what each step attends to." in figure.caption
    assert "evict" not in distance_over_steps(capture, [kept], kept).caption


def test_a_policy_is_at_no_distance_from_itself(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    policy = made_replay(made)
    frame = distance_to(capture, policy, policy)
    assert (frame["jaccard"] == 1).all() and (frame["mass_difference"].dropna() == 0).all()


@edges
@pytest.mark.parametrize("measure", ["jaccard", "mass_difference"])
def test_distances_are_drawn(open_capture: Opener, kind: str, measure: str) -> None:
    made, capture = open_capture(kind)
    one, oracle = made_replay(made), made_replay(made, ORACLE, seed=1)
    frame = distance_to(capture, one, oracle)
    for layer in (0, MEAN):
        figure = distance_over_steps(capture, [one], oracle, layer, measure=measure)
        rows = frame if layer == MEAN else frame[frame["layer"] == layer]
        expected = rows.groupby("step")[measure].mean().to_numpy()
        np.testing.assert_allclose(figure.arrays["y"][0], expected, rtol=1e-4, atol=1e-6)
        assert "Oracle" in figure.title


@pytest.mark.parametrize("key", catalogue())
@pytest.mark.parametrize("reference", [oracle_choice, random_choice])
def test_every_row_has_a_reference_that_can_be_built(key: str, reference: Callable) -> None:
    choice = {"key": key, "options": options_of(key, 12)}
    built = reference(choice, realised=11.6)
    if key == "full":
        assert built is None
        return
    policy, method = policy_of(built), catalogue()[key]
    assert built["key"] in ("oracle", "random")
    if "budget" in choice["options"]:
        assert policy.budget == 12
    elif method.schedule != "per_partition":
        assert policy.budget == 12  # 11.6 entries realised
    kept_schedules = ("every_step", "every", "per_partition")
    expected = method.schedule if method.schedule in kept_schedules else "after_prefill"
    assert policy.schedule.name == expected
    if expected == "every":
        assert policy.schedule.interval == policy_of(choice).schedule.interval


@pytest.mark.parametrize(
    "choice",
    [
        {"key": "snapkv", "options": {"budget": 11, "window": 4}},
        {"key": "knorm", "options": {"compression_ratio": 0.6, "skip_layers": 1}},
        {"key": "streaming_llm", "options": {"budget": 9}},
        {"key": "h2o_window", "options": {"budget": 9, "window": 3}},
        {"key": "snapkv", "schedule": "every", "options": {"budget": 9, "interval": 5}},
        {"key": "lagkv", "options": {"sink": 2, "lag": 4, "keep_ratio": 0.5}},
        {"key": "knorm", "options": {"budget": 9, "scope": "context", "skip_layers": 0}},
        {"score": "key_norm", "schedule": "every_step", "options": {"budget": 10}},
        {"key": "raas", "options": {"budget": 45}},
        {"key": "tova", "options": {"budget": 9, "granularity": "query_head"}},
    ],
)
def test_a_reference_keeps_as_many_entries_as_its_policy(
    open_capture: Opener, choice: dict
) -> None:
    _, capture = open_capture("grouped")
    trace = capture.trace()
    own = replay(policy_of(choice), trace)
    for reference in (oracle_choice, random_choice):
        built = reference(choice)
        assert built is not None
        other = replay(policy_of(built), trace)
        for step in range(own.response_length + 1):
            np.testing.assert_array_equal(own.counts(step), other.counts(step))


def test_masks_of_another_tool_are_compared_at_the_entries_they_keep() -> None:
    assert oracle_choice({"masks": "abc"}, 31.7) == {"key": "oracle", "options": {"budget": 32}}
    assert oracle_choice({"masks": "abc"}) is None
    assert random_choice({"masks": "abc"}, math.nan) is None


# --- summary --------------------------------------------------------------------------------------


@every_kind
def test_the_summary_holds_each_number_of_its_policy(open_capture: Opener, kind: str) -> None:
    made, capture = open_capture(kind)
    policies = [made_replay(made, SNAPKV), made_replay(made, ORACLE, seed=1), whole_replay(made)]
    table = cost_summary(capture, policies)
    assert table.columns.tolist() == list(SUMMARY_COLUMNS)
    for row, policy in zip(table.itertuples(), policies, strict=True):
        mass = [float(v) for v in policy.mass_kept.reshape(-1)]
        entries = [
            sum(1 for evicted in head if evicted > made.response_length)
            for layer in policy.evicted_at
            for head in layer
        ]
        places = made.layers * policy.recall.shape[1]
        assert row.entries == pytest.approx(sum(entries) / places)
        if not mass:
            assert math.isnan(row.mass_kept) and math.isnan(row.mass_kept_worst)
            continue
        assert row.mass_kept == pytest.approx(sum(mass) / len(mass), rel=1e-4)
        assert row.mass_kept_worst == pytest.approx(min(mass))
        assert row.regret == pytest.approx(float(policy.regret_step.sum()) / places, rel=1e-4)
        assert row.missed == pytest.approx(float(policy.missed_step.sum()) / places, rel=1e-4)
        assert row.recall == pytest.approx(float(policy.recall.mean()), rel=1e-4)
        assert row.output_error == pytest.approx(float(policy.output_error.mean()), abs=1e-5)
    assert table["bytes_peak"][0] == 2000 and math.isnan(table["bytes_peak"][2])
    distance = distance_to(capture, policies[0], policies[1])
    assert table["jaccard_oracle"][0] == pytest.approx(distance["jaccard"].mean(), rel=1e-4)
    assert table["jaccard_oracle"][1] == 1
    assert math.isnan(table["jaccard_oracle"][2])  # the full cache has no budget to compare at


@pytest.mark.parametrize(
    ("choice", "interval"),
    [
        ({"key": "lazyeviction"}, 25),  # the windows and the interval that the catalogue states
        ({"key": "lazyeviction", "options": {"window": 10}}, 10),
        ({"key": "r_kv"}, 128),
        ({"score": "random", "schedule": "every", "options": {"budget": 8}}, 25),
        ({"key": "snapkv"}, None),
        ({"key": "h2o"}, None),
        ({"key": "full"}, None),
        ({"masks": "abc"}, None),
    ],
)
def test_how_many_steps_lie_between_two_evictions(
    choice: dict[str, Any], interval: int | None
) -> None:
    assert eviction_interval(choice) == interval


def test_the_oracle_of_another_budget_is_no_measure(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    other = {"key": "oracle", "options": {"budget": 9}}
    table = cost_summary(capture, [made_replay(made, SNAPKV), made_replay(made, other)])
    assert math.isnan(table["jaccard_oracle"][0])
    assert cost_summary(capture, []).empty
