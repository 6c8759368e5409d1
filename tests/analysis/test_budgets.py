"""KVCompose's view against the independent reference and hand-worked cases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from analysis.budgets import (
    ALLOCATIONS,
    Composed,
    allocated,
    at_ratio,
    compose,
    compose_slots,
    counts_over_ratios,
    overlap,
)
from analysis.budgets_figures import (
    allocation_lines,
    budgets_over_ratios,
    head_budgets,
    layer_budgets,
    operator_effect,
)
from analysis.composite_figures import composite_matrix, composite_table
from analysis.context_scores import aggregate, stored_task_attention, task_attention
from analysis.errors import AnalysisError, NeedsJob
from analysis.heavy import run
from cache_store.reader import Capture
from kvpolicies import build, replay
from tests.analysis.conftest import KINDS, Opener
from tests.kvpolicies import reference
from tests.kvpolicies.cases import make_trace
from tests.kvpolicies.reference.composite import context_scores
from tests.synthetic import Synthetic

BY_HAND = np.array([[[4.0, 0, 2], [0, 4, 2]], [[1, 1, 1], [1, 1, 1]]])


def test_compose_by_hand() -> None:
    out = compose(BY_HAND, compression_ratio=0.5)
    assert out.slots.tolist() == [[[0, 2, 1], [1, 2, 0]], [[0, 1, 2]] * 2]
    assert out.slot_scores.tolist() == [[6, 4, 2], [2, 2, 2]]
    assert out.counts.tolist() == [2, 1]
    assert compose(BY_HAND, 1 / 3).counts.tolist() == [3, 1]
    assert compose(BY_HAND, 0.5, min_per_layer=0).counts.tolist() == [3, 0]
    assert out.keep()[0].tolist() == [[True, False, True], [False, True, True]]
    # kvpress: with the layers swapped, layer 0's 2, 2, 2 are raised to 6, 4, 2 and win the ties
    assert compose(BY_HAND[::-1], 0.5).counts.tolist() == [1, 2]
    raised = compose(BY_HAND[::-1], 0.5, match="kvpress")
    assert raised.counts.tolist() == [2, 1] and raised.realised_ratio == pytest.approx(1 / 2)
    assert raised.slot_scores.tolist() == [[2, 2, 2], [6, 4, 2]]
    with pytest.raises(AnalysisError, match="min_per_layer"):
        compose(BY_HAND, 0.8)
    with pytest.raises(AnalysisError, match="use 0 to 1"):
        compose(BY_HAND, 1.2)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", [(4, 2, 12), (1, 1, 5), (3, 1, 7), (2, 3, 1)])
@pytest.mark.parametrize("least", [0, 1, 2])
def test_compose_is_the_reference_s(seed: int, shape: tuple[int, ...], least: int) -> None:
    scores = np.random.default_rng(seed).random(shape).astype(np.float32)
    for agg_head in ("mean", "max"):
        for ratio in (0.0, 0.3, 0.5):
            if (1 - ratio) * shape[0] * shape[2] < shape[0] * min(least, shape[2]):
                continue
            mine = compose(scores, ratio, least, agg_head=agg_head)
            theirs = reference.compose(scores, ratio, least, agg_head)
            assert mine.counts.tolist() == theirs.counts.tolist()
            assert (mine.slots == theirs.slots).all()
            np.testing.assert_allclose(mine.slot_scores, theirs.slot_scores, rtol=1e-5)


def test_every_ratio_comes_from_one_order() -> None:
    slots = compose_slots(np.random.default_rng(1).random((4, 2, 30)))
    ratios = [0.0, 0.1, 0.25, 0.5, 0.75, 0.9]
    counts = counts_over_ratios(slots, ratios)
    for row, ratio in zip(counts, ratios, strict=True):
        assert row.tolist() == at_ratio(slots, ratio).counts.tolist()
        assert row.sum() == int((1 - ratio) * 120 + 1e-9)
    assert (np.diff(counts, axis=0) <= 0).all()  # what a lower budget keeps, a higher one keeps too
    assert counts_over_ratios(slots, [1.0]).tolist() == [[1] * 4]


@pytest.mark.parametrize("tokens", ["context", "question", "self"])
@pytest.mark.parametrize("agg_task", ["max", "mean"])
@pytest.mark.parametrize("norm", ["none", "value", "output"])
def test_scores_are_the_reference_s(tokens: str, agg_task: str, norm: str) -> None:
    trace = make_trace(context=18, seed=6)
    scores = aggregate(task_attention(trace, tokens), trace, agg_task=agg_task, value_norm=norm)
    theirs = reference.make_trace(
        trace.queries,
        trace.keys,
        trace.values,
        24,
        context_length=18,
        second_reading=trace.second_reading,
        output_norms=trace.output_norms,
    )
    # the group's mean comes before ‖v‖, whose factor all of a group share
    expected = context_scores(
        theirs, tokens, agg_task, "mean", {"none": None, "value": "v", "output": "vo"}[norm]
    )
    np.testing.assert_allclose(scores, expected, atol=1e-5)


@pytest.mark.parametrize("key", ["kvcompose", "kvcompose_unstructured"])
def test_what_is_kept_is_what_the_policy_keeps(key: str) -> None:
    trace = make_trace(context=18, seed=2)
    result = replay(build(key, compression_ratio=0.6, source="question"), trace)
    scores = aggregate(task_attention(trace, "question"), trace)
    kept = result.evicted_at[:, :, :18].numpy() > 0
    if key == "kvcompose":
        assert (compose(scores, 0.6).keep() == kept).all()
    else:
        assert (allocated(scores, 0.6, "global") == kept.sum(axis=2)).all()


def test_the_same_total_is_split_in_other_ways() -> None:
    scores = np.random.default_rng(3).random((4, 2, 100)).astype(np.float32)
    splits = {name: allocated(scores, 0.75, name) for name in ALLOCATIONS}
    assert {name: int(counts.sum()) for name, counts in splits.items() if name != "pyramid"} == {
        "composite": 200,
        "uniform": 200,
        "head_adaptive": 200,
        "global": 200,
    }
    assert splits["uniform"].tolist() == [[25, 25]] * 4
    # by hand: c = 25, min = 25 // 20 = 1, max = 49, step = (49 - 1) // 3 = 16
    assert splits["pyramid"][:, 0].tolist() == [49, 33, 17, 1]
    assert (splits["head_adaptive"].sum(axis=1) == 50).all()
    assert (splits["composite"][:, 0] == splits["composite"][:, 1]).all()
    with pytest.raises(AnalysisError, match="not 'fair'"):
        allocated(scores, 0.75, "fair")


def test_overlap_by_hand() -> None:
    first = compose(BY_HAND, 0.5)  # layer 0: {0, 2}, {1, 2}; layer 1: {0}, {0}
    second = compose(BY_HAND[:, :, ::-1], 0.5)  # layer 0: {2, 0}, {1, 0}; layer 1: {0}, {0}
    assert second.keep()[0].tolist() == [[True, False, True], [True, True, False]]
    assert overlap(first, second).tolist() == [[1, 1 / 3], [1, 1]]


def every_figure(capture: Any) -> Iterator[Any]:
    task = task_attention(capture, "question")
    scores = aggregate(task, capture)
    layers = task.layers
    made = compose(scores, 0.5, min_per_layer=0)
    slots = compose_slots(scores)
    ratios = [0.0, 0.5, 0.9]
    yield layer_budgets([capture], [made], layers=layers)
    yield layer_budgets([capture] * 2, [made] * 2, layers=layers)
    over = counts_over_ratios(slots, ratios, 0)
    counts = {name: allocated(scores, 0.5, name, min_per_layer=0) for name in ALLOCATIONS}
    other = compose(aggregate(task, capture, agg_task="mean"), 0.5, min_per_layer=0)
    for many in (1, 2):
        runs = [capture] * many
        yield budgets_over_ratios(runs, ratios, [over] * many, layers=layers, ratio=0.5)
        yield allocation_lines(runs, [counts] * many, layers=layers, ratio=0.5)
        yield head_budgets(
            runs, [counts["global"]] * many, "global", layers=layers, selected=(0, 0)
        )
        variants = {"mean over task tokens": [other] * many}
        yield operator_effect(runs, [made] * many, variants, layers=layers)
    yield composite_matrix(capture, made, layers[0], layers=layers)
    table = composite_table(capture, made, layers[0], layers=layers)
    assert len(table) == min(32, made.context) * capture.info.kv_heads
    assert table["kept"].sum() == min(32, made.counts[0]) * capture.info.kv_heads


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "one_token"])
def test_every_figure_of_every_capture(open_capture: Opener, kind: str) -> None:
    from analysis.plotly_renderer import to_plotly

    _, capture = open_capture(kind)
    for figure in every_figure(capture):
        assert figure.caption and figure.alt and figure.note and figure.note.source
        figure.table()
        to_plotly(figure)


def test_runs_of_unequal_length_are_pooled_by_their_shares(tmp_path: Path) -> None:
    """Contexts of 32 and 4 tokens, two layers: worked out by hand."""
    first, second = Synthetic(), Synthetic(prompt_length=8, run_id="20261120-101112-0000ff", seed=9)
    with ExitStack() as stack:
        captures = [
            stack.enter_context(Capture.open(made.write(tmp_path))) for made in (first, second)
        ]
        assert [capture.info.context_length for capture in captures] == [32, 4]
        layers = (0, 1)
        over = budgets_over_ratios(
            captures, [0.5], [np.array([[8, 24]]), np.array([[3, 1]])], layers=layers
        )
        # of 64 slots 8 and 24, of 8 slots 3 and 1
        assert over.arrays["y"][:, 0].tolist() == [(8 / 64 + 3 / 8) / 2, (24 / 64 + 1 / 8) / 2]
        assert "2 runs of" in over.caption
        counts = [np.array([[8, 8], [24, 16]]), np.array([[1, 1], [4, 2]])]
        heads = head_budgets(captures, counts, "global", layers=layers)
        assert heads.arrays["z"].tolist() == [[0.25, 0.25], [0.875, 0.5]]
        assert heads.colour is not None and heads.colour.range == (0, 1)
        lines = allocation_lines(
            captures, [{"global": part} for part in counts], layers=layers, ratio=0.5
        )
        assert lines.arrays["y"].tolist() == [[0.25, 0.6875]]
        assert "low" in lines.arrays and "unstructured 64" in lines.caption
        slots = [compose_slots(np.zeros((2, 2, size))) for size in (32, 4)]
        default = [_kept(made, 0, 0) for made in slots]
        variant = [_kept(slots[0], 16, 0), _kept(slots[1], 0, 1)]
        effect = operator_effect(captures, default, {"max over heads": variant}, layers=layers)
        assert effect.arrays["y"].tolist() == [[0.25, 0.125]]


def _kept(slots: Composed, *counts: int) -> Composed:
    return replace(slots, counts=np.array(counts))


def test_what_cannot_be_composed_is_one_sentence(open_capture: Opener) -> None:
    _, capture = open_capture("one_token")  # one prompt token: all of it is context
    with pytest.raises(AnalysisError, match="question"):
        task_attention(capture, "question")
    with pytest.raises(AnalysisError, match="not 'guess'"):
        task_attention(capture, "guess")
    trace = make_trace(context=0)
    with pytest.raises(AnalysisError, match="no context"):
        task_attention(trace)
    _, capture = open_capture("grouped")
    task = task_attention(capture, "question")
    with pytest.raises(AnalysisError, match="must be one of max, mean"):
        aggregate(task, capture, agg_task="sum")
    with pytest.raises(AnalysisError, match="v W_O"):
        aggregate(task, capture, value_norm="output")
    with pytest.raises(AnalysisError, match="no composite tokens"):
        composite_table(capture, compose(aggregate(task, capture)), 7, layers=task.layers)


def test_exempt_layers_have_no_budget(open_capture: Opener) -> None:
    _, capture = open_capture("sliding")  # layer 0 attends in a window of 6
    assert task_attention(capture, "question").layers == (1,)


def test_a_long_context_is_a_job_and_then_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Synthetic()
    path = made.write(tmp_path)
    with Capture.open(path) as capture:
        direct = stored_task_attention(capture, "self")
        with pytest.raises(NeedsJob) as needed:
            stored_task_attention(capture, "context")
        assert needed.value.kind == "second_reading"
        monkeypatch.setattr("analysis.context_scores.DIRECT_CELLS", 10)
        with pytest.raises(NeedsJob) as needed:
            stored_task_attention(capture, "self")
    told: list[tuple[int, int]] = []
    params = {"run_id": made.run_id, "kind": needed.value.kind, "spec": needed.value.spec}
    with pytest.raises(AnalysisError, match="cancelled"):
        run(params, tmp_path, lambda report: None, lambda: True)
    run(params, tmp_path, lambda report: told.append((report.done, report.total)), lambda: False)
    assert told == [(1, 2), (2, 2)]
    with Capture.open(path) as capture:
        stored = stored_task_attention(capture, "self")
    assert (stored.largest == direct.largest).all() and (stored.mean == direct.mean).all()
    assert stored.layers == direct.layers
    with pytest.raises(AnalysisError, match="no analysis named"):
        run({**params, "kind": "nothing"}, tmp_path, lambda report: None, lambda: False)


def test_attention_of_the_question_by_hand() -> None:
    from kvpolicies import Trace

    keys = torch.eye(6)[None]
    queries = torch.zeros(1, 6, 6)
    queries[0, 4, 2] = queries[0, 5, 0] = queries[0, 5, 3] = 50.0
    trace = Trace([queries], [keys], [keys], prompt_length=6, context_length=4, scaling=1.0)
    task = task_attention(trace, "question")
    assert task.largest[0, 0] == pytest.approx([0.5, 0, 1, 0.5], abs=1e-6)
    assert task.mean[0, 0] == pytest.approx([0.25, 0, 0.5, 0.25], abs=1e-6)
