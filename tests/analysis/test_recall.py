"""LAQ's recall against the independent reference and hand-worked cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from analysis.draft_figures import recall_over_draft_budget, recall_over_length
from analysis.errors import AnalysisError, NeedsJob
from analysis.lookaheads import lookahead, recorded_lookaheads
from analysis.recall import (
    OFFSETS,
    RankedWindows,
    ranked_lengths,
    ranked_windows,
    ranks,
    recall_curve,
    recall_rows,
)
from analysis.recall_figures import recall_by_head, recall_lines
from cache_store.reader import Capture
from cache_store.writer import DerivedWriter
from kvpolicies import Trace
from tests.analysis.conftest import KINDS, Opener
from tests.kvpolicies import reference
from tests.kvpolicies.cases import make_trace
from tests.synthetic import Synthetic

EMPTY = ("nothing_generated",)


def watched(prompt: int, looks: list[tuple[int, ...]]) -> Trace:
    """Query i looks at the keys named and at nothing else."""
    count = len(looks)
    queries = torch.zeros(1, count, count)
    for at, seen in enumerate(looks):
        queries[0, at, list(seen)] = 50.0
    keys = torch.eye(count)[None]
    return Trace([queries], [keys], [keys], prompt_length=prompt, scaling=1.0)


def test_recall_by_hand() -> None:
    # the response looks at 0, and at 0 and 1; the prompt's last two queries at 2, and at 1 and 2
    trace = watched(4, [(0,), (1,), (2,), (1, 2), (0,), (0, 1)])
    curve = recall_curve(trace, budget=2, offsets=[-2, -1, 0, 5, 6], width=2)
    assert curve[:3, 0, 0].tolist() == [0.5, 1.0, 1.0]
    assert np.isnan(curve[3:]).all()
    rows = recall_rows(trace, first_offset=-2, last_offset=8)
    assert ranked_windows(rows, [-2, 0, 1, 2], 2).queries.tolist() == [2, 2, 1, 0]


@pytest.mark.parametrize("weighting", ["softmax", "logits"])
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"group": 1, "kv_heads": 3},
        {"layers": 1, "kv_heads": 1, "group": 3},
        {"prompt": 3, "response": 2},
        {"response": 1},
    ],
)
def test_recall_is_the_reference_s(weighting: str, shape: dict[str, Any]) -> None:
    trace = make_trace(seed=3, **shape)
    for budget, width in ((1, 8), (7, 3), (1000, 2)):
        mine = recall_curve(trace, budget=budget, width=width, weighting=weighting)
        theirs = reference.recall_curve(trace, budget, OFFSETS, width, weighting)
        if budget < trace.prompt_length:
            np.testing.assert_allclose(mine, theirs, atol=1e-9)
        else:  # every entry is kept by both
            assert (mine[~np.isnan(theirs)] == 1).all()
        assert (np.isnan(mine) == np.isnan(theirs)).all()


@pytest.mark.parametrize("reduce", ["mean", "max", "sum"])
def test_group_reductions_and_softcap_are_the_reference_s(reduce: str) -> None:
    trace = make_trace(seed=5)
    trace.softcap = 2.0
    mine = recall_curve(trace, budget=5, group_reduce=reduce)
    theirs = reference.recall_curve(trace, 5, OFFSETS, group_reduce=reduce)
    np.testing.assert_allclose(mine, theirs, atol=1e-9)


def test_every_budget_comes_from_one_ranking() -> None:
    trace = make_trace(seed=1)
    ranked = ranked_windows(recall_rows(trace))
    for budget in (1, 2, 9, 24, 30):
        expected = recall_curve(trace, budget=budget)
        np.testing.assert_array_equal(ranked.recall(budget), expected)
    assert (ranked.recall(24)[~np.isnan(ranked.recall(24))] == 1).all()


def test_ranks_break_ties_by_position() -> None:
    scores = np.array([[1.0, 3.0, 1.0, 3.0]], np.float32)
    assert ranks(scores).tolist() == [[2, 0, 3, 1]]


def test_the_response_s_own_queries_as_lookahead_rank_alike() -> None:
    trace = make_trace(seed=2, response=4)
    own = [queries[:, 24:].numpy() for queries in trace.queries]
    # logits do not depend on what else a query sees, so both curves must agree exactly
    solid = recall_curve(trace, budget=6, weighting="logits")
    dashed = recall_curve(trace, budget=6, weighting="logits", lookahead=own)
    np.testing.assert_array_equal(solid, dashed)


def test_pseudo_rows_see_the_prompt_only() -> None:
    trace = make_trace(seed=4)
    assert trace.lookahead is not None
    pseudo = [queries.numpy() for queries in trace.lookahead]
    rows = recall_rows(trace, lookahead=pseudo)
    assert rows.pseudo is not None
    for layer, head, at in ((0, 0, 0), (2, 1, 5)):
        weights = []
        for query_head in (2 * head, 2 * head + 1):
            logits = trace.keys[layer][head, :24].numpy() @ pseudo[layer][query_head, at] / 2
            weights.append(np.exp(logits) / np.exp(logits).sum())
        assert rows.pseudo[layer, head, at] == pytest.approx(np.mean(weights, axis=0), abs=1e-6)
    windows = ranked_windows(rows, [0, 3], 4, pseudo=True)
    lengths = ranked_lengths(rows, [1, 4, 8, 20])
    assert windows.queries.tolist() == [4, 4] and lengths.queries.tolist() == [1, 4, 8, 8]
    assert (windows.depth[0] == lengths.depth[1]).all()  # the first four queries, both ways
    joined = ranked_lengths(rows, [4], window=2)
    straddling = ranked_windows(rows, [-2], 6, pseudo=True)
    assert (joined.depth == straddling.depth).all()


def test_unrecorded_layers_have_no_recall() -> None:
    trace = make_trace(seed=4)
    pseudo = [np.zeros((4, 8, 4)), *(q.numpy() for q in list(trace.lookahead or [])[1:])]
    curve = recall_curve(trace, budget=5, offsets=[0], lookahead=pseudo)
    assert np.isnan(curve[0]).all(axis=-1).tolist() == [True, False, False]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in EMPTY])
def test_every_figure_of_every_capture(open_capture: Opener, kind: str) -> None:
    from analysis.plotly_renderer import to_plotly

    made, capture = open_capture(kind)
    draw = np.random.default_rng(0)
    shape = (made.layers, made.query_heads, 3, made.head_dim)
    rows = recall_rows(capture, lookahead=list(draw.standard_normal(shape)))
    solid, dashed = ranked_windows(rows), ranked_windows(rows, pseudo=True)
    lengths = ranked_lengths(rows, range(1, 4))
    figures = [
        recall_lines([capture], [solid], [2, 4], lookaheads={"draft": [dashed]}, width=8),
        recall_lines([capture, capture], [solid, solid], [3], width=8, layer=0, kv_head=0),
        recall_by_head([capture], [solid], 3, 0, selected=(0, 0)),
        recall_over_length([capture], {"draft": [lengths]}, 3, window=2),
        recall_over_draft_budget(
            [capture], {"SnapKV": {4: [lengths]}}, 3, full=[lengths], before=[solid], steps=3
        ),
    ]
    for figure in figures:
        assert figure.caption and figure.alt and figure.note and figure.note.source
        figure.table()
        to_plotly(figure)
    names = [series.name for series in figures[0].series]
    assert names == ["B = 2", "B = 2, draft", "B = 4", "B = 4, draft"]
    assert [s.dash for s in figures[0].series] == ["solid", "dash", "solid", "dash"]
    mean = np.nanmean(solid.recall(2)[16]) if solid.queries[16] else np.nan
    assert figures[0].arrays["y"][0, 16] == pytest.approx(mean, abs=1e-6, nan_ok=True)


def test_recall_over_the_drafts_budget_by_hand(open_capture: Opener) -> None:
    """Four prompt entries, one layer and head; the response needs 0 and 1."""
    _, capture = open_capture("grouped")

    def ranked(*found: int) -> RankedWindows:
        """Windows of which each finds so many of the two."""
        depth = np.array([[[[1, 1 if many == 2 else 3, 4, 4]]] for many in found])
        depth[[many == 0 for many in found], :, :, 0] = 3
        return RankedWindows(np.arange(1, len(found) + 1), np.arange(1, len(found) + 1), depth)

    figure = recall_over_draft_budget(
        [capture],
        {"SnapKV": {8: [ranked(1, 2)], 2: [ranked(0, 1)]}, "H2O": {4: [ranked(1, 1)]}},
        2,
        full=[ranked(2, 2)],
        before=[ranked(0)],
        steps=2,
        colours={"SnapKV": "#123456"},
    )
    assert figure.x.values.tolist() == [2, 4, 8]
    names = [(line.name, line.colour, line.dash) for line in figure.series[:2]]
    assert names == [
        ("SnapKV, 2 queries", "#123456", "solid"), ("SnapKV, 1 query", "#123456", "dot"),
    ]  # fmt: skip
    nan = np.nan
    np.testing.assert_array_equal(
        figure.arrays["y"], [[0.5, nan, 1], [0, nan, 0.5], [nan, 0.5, nan], [nan, 0.5, nan]]
    )
    assert [mark.y for mark in figure.markers] == [1.0, 0.0]
    with pytest.raises(AnalysisError, match="record one first"):
        recall_over_draft_budget([capture], {}, 2, full=[ranked(2)], before=[ranked(0)], steps=1)


def test_shorter_windows_are_named(open_capture: Opener) -> None:
    _, capture = open_capture("grouped")  # 12 generated tokens
    rows = recall_rows(capture)
    figure = recall_lines([capture], [ranked_windows(rows)], [4], width=8)
    assert "Windows from 5, 6, 7, 8 hold fewer queries." in figure.caption


def test_what_cannot_be_recalled_is_one_sentence(open_capture: Opener) -> None:
    _, empty = open_capture("nothing_generated")
    with pytest.raises(AnalysisError, match="Nothing was generated"):
        recall_curve(empty, budget=4)
    _, capture = open_capture("grouped")
    with pytest.raises(AnalysisError, match="not 'sum'"):
        recall_curve(capture, budget=4, weighting="sum")
    with pytest.raises(AnalysisError, match="at least 1 entry"):
        recall_curve(capture, budget=0)
    rows = recall_rows(capture, first_offset=-2)
    with pytest.raises(AnalysisError, match="outside the rows"):
        ranked_windows(rows, [-9])
    for needs_draft in (lambda: ranked_windows(rows, [0], pseudo=True), lambda: _lengths(rows)):
        with pytest.raises(AnalysisError, match="record one first"):
            needs_draft()
    ranked = ranked_windows(rows, [0])
    with pytest.raises(AnalysisError, match="no window at 3"):
        recall_by_head([capture], [ranked], 4, 3)
    with pytest.raises(AnalysisError, match="No budget"):
        recall_lines([capture], [ranked], [], width=8)


def _lengths(rows: Any) -> RankedWindows:
    return ranked_lengths(rows, [1])


def test_a_missing_lookahead_is_a_job_and_then_read(tmp_path: Path) -> None:
    made = Synthetic()
    path = made.write(tmp_path)
    choice = {"key": "snapkv", "options": {"budget": 8}}
    with Capture.open(path) as capture:
        with pytest.raises(NeedsJob) as needed:
            lookahead(capture, choice, 3)
        assert needed.value.kind == "lookahead" and needed.value.spec["steps"] == 3
        queries = np.ones((2, 4, 3, 8), np.float16)
        with DerivedWriter(path.parent, "lookahead", needed.value.spec) as writer:
            writer.add_array("queries", queries)
            writer.add_array("tokens", np.array([1, 2, 3]))
            writer.add("token", {"step": [1, 2, 3], "token_id": [1, 2, 3], "text": ["a", "b", "c"]})
            writer.finish()
        found = lookahead(capture, choice, 3)
        assert found.texts == ("a", "b", "c") and (found.queries == queries).all()
        assert [other.title for other in recorded_lookaheads(capture)] == [found.title]
        with pytest.raises(AnalysisError):
            lookahead(capture, {"key": "nothing"}, 3)
