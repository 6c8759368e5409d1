"""SAGE-KV's view against the independent reference and hand-worked cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from analysis.errors import AnalysisError
from analysis.picks import (
    jaccard,
    last_rows,
    partition,
    picks,
    retained,
    stored_sizes,
    unions,
)
from analysis.picks_figures import (
    group_overlap,
    overlap_matrix,
    picks_strip,
    picks_table,
    role_codes,
    sliding,
    union_sizes,
)
from analysis.retained_figures import position_schemes, retained_over_budget
from kvpolicies import build, replay
from tests.analysis.conftest import KINDS, Opener
from tests.kvpolicies import reference
from tests.kvpolicies.cases import make_trace


def test_partition_sizes_by_hand() -> None:
    assert [
        (p.sink, p.picks, p.recent)
        for p in (partition(8192, 4, 9000), partition(8192, 7, 9000), partition(7, 4, 100))
    ] == [(2048, 1024, 2048), (2048, 512, 2560), (1, 0, 6)]
    parts = partition(8, 2, 20)  # S 2, k 2, R 2
    assert parts.selects and parts.candidates == (2, 17)
    assert [parts.window(step) for step in (0, 1, 5)] == [(17, 20), (18, 21), (22, 25)]
    assert not partition(8, 2, 8).selects and partition(8, 2, 8).candidates == (8, 8)
    with pytest.raises(AnalysisError, match="at least 1"):
        partition(0, 2, 8)


@pytest.mark.parametrize("budget", [1, 3, 8, 13, 100])
@pytest.mark.parametrize("shape", [{}, {"group": 1, "kv_heads": 4}, {"group": 4, "kv_heads": 1}])
def test_picks_are_the_policy_s(budget: int, shape: dict[str, int]) -> None:
    trace = make_trace(seed=3, response=5, **shape)
    parts = partition(budget, trace.group, 24)
    picked = picks(last_rows(trace), parts)
    result = replay(build("sage_kv", budget=budget), trace)
    assert (stored_sizes(picked, parts) == result.counts(0).numpy()).all()
    union = unions(picked, trace.group)
    assert result.visible is not None
    for step in range(6):
        for layer, head in np.ndindex(3, trace.query_heads):
            codes = role_codes(picked[layer], parts, step)[head]
            seen = result.visible[layer, head, step, : 24 + step].numpy()
            if step:  # the query of a step still sees what leaves the window after it
                cached = result.kept_after(step)[layer, head // trace.group, : 24 + step].numpy()
                seen = seen & cached
            assert (np.isin(codes, (1, 2, 4)) == seen).all()
    if parts.selects and parts.picks:
        assert (picked.sum(axis=2) == parts.picks).all()
        assert (union.sum(axis=2) <= parts.picks * trace.group).all()


def test_last_rows_are_each_head_s_own(open_capture: Opener) -> None:
    for kind in ("grouped", "softcap", "sliding", "one_token"):
        made, capture = open_capture(kind)
        rows = last_rows(capture)
        assert rows.shape == (made.layers, made.query_heads, made.prompt_length)
        at = made.prompt_length - 1
        for layer, head in ((0, 0), (1, made.query_heads - 1)):
            expected = made.row(layer, head, at)[: made.prompt_length]
            assert rows[layer, head] == pytest.approx(expected, abs=1e-5)


def test_jaccard_by_hand() -> None:
    sets = np.array([[1, 1, 0, 0], [0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]], bool)
    overlap = jaccard(sets)
    assert overlap[0, :3].tolist() == [1, 1 / 3, 1]
    assert (overlap[:3, :3] == overlap[:3, :3].T).all()
    assert np.isnan(overlap[3, 3]) and overlap[3, 0] == 0


@pytest.mark.parametrize("view", ["query_head", "union"])
def test_retained_is_the_reference_s_cost(view: str) -> None:
    trace = make_trace(seed=4, response=6)
    arrays = [[t.numpy() for t in part] for part in (trace.queries, trace.keys, trace.values)]
    theirs = reference.make_trace(*arrays, 24)
    for layer in (0, 2):
        made = retained(trace, layer, [4, 9, 40], view=view)
        for index, budget in enumerate(made.budgets):
            out = reference.replay("sage_kv", *arrays, 24, budget=budget, view=view)
            for head in range(4):
                for step in range(1, 7):
                    row, values = naive_row(theirs, layer, head, 24 + step - 1)
                    assert out.visible is not None
                    seen = out.visible[layer, head, step, : len(row)]
                    mass = row[seen].sum()
                    full, kept = row @ values, (row * seen) @ values / mass
                    error = np.linalg.norm(full - kept) / np.linalg.norm(full)
                    assert made.mass[index, head, step - 1] == pytest.approx(mass, abs=1e-5)
                    assert made.error[index, head, step - 1] == pytest.approx(error, abs=1e-4)
        assert (made.mass[2] > 1 - 1e-5).all() and (made.error[2] < 1e-4).all()


def naive_row(trace: Any, layer: int, head: int, at: int) -> tuple[np.ndarray, np.ndarray]:
    keys = trace.keys[layer][head // 2][: at + 1]
    weights = np.exp(keys @ trace.queries[layer][head, at] * trace.scaling)
    return weights / weights.sum(), trace.values[layer][head // 2][: at + 1]


@pytest.mark.parametrize("prompt", [3, 24])
def test_streaming_llm_retains_what_its_replay_does(prompt: int) -> None:
    trace = make_trace(seed=5, prompt=prompt, response=9)
    arrays = [[t.numpy() for t in part] for part in (trace.queries, trace.keys, trace.values)]
    theirs = reference.make_trace(*arrays, prompt)
    made = retained(trace, 1, [1, 6], method="streaming_llm")
    for index, budget in enumerate(made.budgets):
        result = replay(build("streaming_llm", budget=budget), trace)
        for head in (0, 3):
            for step in range(1, 10):
                row, _ = naive_row(theirs, 1, head, prompt + step - 1)
                kept = result.kept_after(step - 1)[1, head // 2].numpy()[: len(row)]
                kept[-1] = True  # its own entry
                assert made.mass[index, head, step - 1] == pytest.approx(row[kept].sum(), abs=1e-5)


def every_figure(capture: Any, budget: int) -> Iterator[Any]:
    info = capture.info
    rows = last_rows(capture)
    parts = partition(budget, info.group, info.prompt_length)
    picked = picks(rows, parts)
    yield picks_strip(capture, picked[0], parts, 0, step=info.response_length)
    yield sliding(capture, picked[0], parts, 0, 0)
    yield union_sizes(capture, picked, parts, selected=(0, 0))
    yield position_schemes(capture, budget, info.response_length)
    for between in (overlap_matrix, group_overlap):
        if picked[0].any():
            yield between(capture, picked[0], parts, 0)
        else:
            with pytest.raises(AnalysisError, match="no picks to compare"):
                between(capture, picked[0], parts, 0)
    assert len(picks_table(capture, picked[0], rows[0])) == picked[0].any(axis=0).sum()
    if info.response_length:
        measured = {view: retained(capture, 0, [2, 8], view=view) for view in VIEWS}
        for measure in ("mass", "error"):
            yield retained_over_budget(capture, measured, measure, 0)
    else:
        with pytest.raises(AnalysisError, match="Nothing was generated"):
            retained(capture, 0, [4])


VIEWS = ("query_head", "union")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [1, 8])
def test_every_figure_of_every_capture(open_capture: Opener, kind: str, budget: int) -> None:
    from analysis.plotly_renderer import to_plotly

    _, capture = open_capture(kind)
    for figure in every_figure(capture, budget):
        assert figure.caption and figure.alt and figure.note and figure.note.source
        figure.table()
        to_plotly(figure)


def test_groups_overlap_in_their_united_picks(open_capture: Opener) -> None:
    """Two groups of two heads: {1, 2} and {2, 3} are {1, 2, 3}, {3} and {4} are {3, 4}."""
    _, capture = open_capture("grouped")
    picked = np.zeros((4, 40), bool)
    for head, places in enumerate(([1, 2], [2, 3], [3], [4])):
        picked[head, places] = True
    figure = group_overlap(capture, picked, partition(8, 2, 40), 0)
    assert figure.arrays["z"].tolist() == [[1, 0.25], [0.25, 1]]
    assert "Mean overlap between groups 0.25" in figure.caption


def test_position_schemes_by_hand(open_capture: Opener) -> None:
    _, capture = open_capture("grouped")  # 40 + 12
    lines = position_schemes(capture, 6, 2, sink=2).arrays["y"]
    assert lines.tolist() == [[41, 40, 3, 2, 1, 0], [5, 4, 3, 2, 1, 0]]
    assert position_schemes(capture, 100, 0).arrays["y"][0].tolist() == list(range(39, -1, -1))
    with pytest.raises(AnalysisError, match="no step 13"):
        position_schemes(capture, 6, 13)
