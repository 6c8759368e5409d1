"""The Attention page's numbers against plain loops over the states they come from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.attention import (
    MEAN,
    MEASURES,
    head_matrix,
    mark_step,
    overview,
    received_attention,
    step_row,
    step_statistics,
    text_view,
    top_tokens,
)
from analysis.errors import AnalysisError, NeedsJob
from analysis.plotly_renderer import to_plotly
from backend.derive import derive
from cache_store.reader import Capture
from tests.analysis.conftest import KINDS, Opener
from tests.synthetic import Synthetic

HALF = 1e-3  # float16 storage of weights below 1

every_kind = pytest.mark.parametrize("kind", KINDS)


def selected_rows(made: Synthetic, layer: int | str, head: int | str, position: int) -> np.ndarray:
    layers = range(made.layers) if layer == MEAN else [layer]
    heads = range(made.query_heads) if head == MEAN else [head]
    return np.mean([made.row(int(n), int(h), position) for n in layers for h in heads], axis=0)


@every_kind
@pytest.mark.parametrize("layer", [0, MEAN])
@pytest.mark.parametrize("head", [0, MEAN])
def test_step_row_is_the_softmax_row(
    open_capture: Opener, kind: str, layer: int | str, head: int | str
) -> None:
    made, capture = open_capture(kind)
    for step in {1 - made.prompt_length, 0, made.response_length}:
        row = step_row(capture, layer, head, step)
        assert row.dtype == np.float32 and row.shape == (made.length,)
        expected = selected_rows(made, layer, head, made.position(step))
        np.testing.assert_allclose(row, expected, atol=HALF)
        assert math.isclose(row.sum(), 1, abs_tol=5e-3)


def test_unstored_layers_give_the_stored_numbers(tmp_path_factory: pytest.TempPathFactory) -> None:
    paths = [
        Synthetic(stored_layers=layers).write(tmp_path_factory.mktemp("same"))
        for layers in (None, ())
    ]
    with Capture.open(paths[0]) as stored, Capture.open(paths[1]) as recomputed:
        both = [stored, recomputed]
        for layer, head in ((0, 1), (1, MEAN), (MEAN, MEAN)):
            rows = [step_row(capture, layer, head, 5) for capture in both]
            np.testing.assert_allclose(rows[0], rows[1], atol=HALF)
            lines = [step_statistics(c, layer, head, ["sink_mass"]).arrays["y"] for c in both]
            np.testing.assert_allclose(lines[0], lines[1], atol=HALF)
            received = [received_attention(c, layer, MEAN).arrays["y"] for c in both]
            np.testing.assert_allclose(received[0], received[1], atol=HALF)
        grids = [overview(capture, "entropy").arrays["z"] for capture in both]
        np.testing.assert_allclose(grids[0], grids[1], atol=5e-3)


@every_kind
def test_unpooled_matrix_is_every_row(open_capture: Opener, kind: str) -> None:
    made, capture = open_capture(kind)
    head = made.query_heads - 1
    figure = head_matrix(capture, 0, head, bins=made.length)
    expected = made.matrix(0, head)
    expected[np.triu_indices(made.length, 1)] = np.nan
    np.testing.assert_allclose(figure.arrays["z"], expected, atol=HALF)
    assert "every weight shown" in figure.caption


@pytest.mark.parametrize("kind", ["grouped", "softcap", "sliding"])
@pytest.mark.parametrize("pool", ["max", "mean"])
@pytest.mark.parametrize("head", [1, MEAN])
def test_pooled_matrix_against_loops(
    open_capture: Opener, kind: str, pool: str, head: int | str
) -> None:
    made, capture = open_capture(kind)
    heads = range(made.query_heads) if head == MEAN else [int(head)]
    whole = np.mean([made.matrix(1, number) for number in heads], axis=0)
    first_query, last_query, first_key, last_key, bins = 10, 45, 3, 41, 6
    figure = head_matrix(
        capture, 1, head, (first_query, last_query), (first_key, last_key), bins=bins, pool=pool
    )
    rows, columns = figure.y.edges, figure.x.edges
    assert rows is not None and columns is not None
    assert (rows[0], rows[-1], columns[0], columns[-1]) == (10, 45, 3, 41)
    z = figure.arrays["z"]
    assert z.shape == (len(rows) - 1, len(columns) - 1) and max(z.shape) <= bins
    for i, j in np.ndindex(z.shape):
        cells = [
            whole[query, key]
            for query in range(rows[i], rows[i + 1])
            for key in range(columns[j], columns[j + 1])
            if key <= query
        ]
        if not cells:
            assert np.isnan(z[i, j])
        else:
            expected = max(cells) if pool == "max" else sum(cells) / len(cells)
            assert abs(z[i, j] - expected) < HALF


def test_maximum_is_never_below_the_mean(open_capture: Opener) -> None:
    _, capture = open_capture("grouped")
    most, mean = (
        head_matrix(capture, MEAN, MEAN, bins=7, pool=pool).arrays["z"] for pool in ("max", "mean")
    )
    assert np.array_equal(np.isnan(most), np.isnan(mean))
    assert np.nanmin(most - mean) >= -1e-6


def test_hidden_sink_is_cut_off_and_named(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    figure = head_matrix(capture, 0, 0, bins=made.length, hide_sink=True)
    assert figure.x.edges is not None and figure.x.edges[0] == made.sink
    np.testing.assert_allclose(
        np.nan_to_num(figure.arrays["z"]), made.matrix(0, 0)[:, made.sink :], atol=HALF
    )
    assert "first 4 positions (sink) hidden" in figure.caption


def test_matrix_names_its_largest_weight_and_the_tokens(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    figure = head_matrix(capture, 0, 2, (20, 30), (5, 25), step=-12)
    part = made.matrix(0, 2)[20:30, 5:25]
    query, key = np.unravel_index(part.argmax(), part.shape)
    assert f"from query {20 + query} “{made.pieces[20 + query]}”" in figure.alt
    assert f"to key {5 + key} “{made.pieces[5 + key]}”" in figure.alt
    assert f"largest weight {part.max():.2g}"[:-1] in figure.alt
    assert figure.x.ticks[2] == (7, "7 ␣<b>") and figure.x.ticks[1] == (6, "6 ⏎")
    assert [(marker.kind, marker.y) for marker in figure.markers] == [("y", 27)]
    assert mark_step(figure, capture, 5) == figure  # position 44 is not among the queries
    to_plotly(figure)


def test_log_scale_and_borders(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    figure = head_matrix(capture, 0, 0, log=True)
    assert figure.colour is not None and figure.colour.log and figure.colour.range[1] == 1.0
    borders = [(marker.kind, marker.x or marker.y) for marker in figure.markers]
    assert borders == [("y", made.prompt_length - 0.5), ("x", made.prompt_length - 0.5)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer": 2}, "no layer 2; it has layers 0 to 1"),
        ({"head": 4}, "no query head 4"),
        ({"head": "first"}, "no query head first"),
        ({"pool": "sum"}, "not by 'sum'"),
        ({"query_range": (5, 5)}, "query range"),
        ({"query_range": (60, 70)}, "query range 60–69"),
        ({"query_range": (0, 10), "key_range": (10, 20)}, "No query of 0–9 sees a key"),
        ({"key_range": (0, 4), "hide_sink": True}, "outside the hidden sink"),
        ({"step": 13}, "no step 13; its steps are -39 to 12"),
    ],
)
def test_a_selection_that_does_not_exist_is_one_sentence(
    open_capture: Opener, changes: dict[str, Any], message: str
) -> None:
    _, capture = open_capture("grouped")
    with pytest.raises(AnalysisError, match=message):
        head_matrix(capture, **({"layer": 0, "head": 0} | changes))


def test_a_costly_mean_needs_a_job_and_then_comes_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Synthetic()
    path = made.write(tmp_path)
    monkeypatch.setattr("analysis.matrix.DIRECT_CELLS", 100)
    with Capture.open(path) as capture, pytest.raises(NeedsJob) as needed:
        head_matrix(capture, MEAN, MEAN, bins=4)
    assert needed.value.kind == "mean_matrix" and needed.value.seconds > 0
    spec = needed.value.spec
    assert spec["layers"] == [0, 1] and spec["heads"] == [0, 1, 2, 3]
    assert spec["query_range"] == [0, 52] and spec["key_range"] == [0, 52]
    derive(tmp_path, made.run_id, needed.value.kind, spec)
    mean = np.mean([made.matrix(layer, head) for layer in (0, 1) for head in range(4)], axis=0)
    with Capture.open(path) as capture:
        z = head_matrix(capture, MEAN, MEAN, bins=4).arrays["z"]
    for row, column in np.ndindex(4, 4):  # 52 positions in 4 bins of 13
        if column > row:
            assert np.isnan(z[row, column])
        else:
            tile = mean[13 * row : 13 * (row + 1), 13 * column : 13 * (column + 1)]
            assert abs(z[row, column] - tile.max()) < HALF


@every_kind
@pytest.mark.parametrize("measure", MEASURES)
def test_overview_holds_each_heads_measure(open_capture: Opener, kind: str, measure: str) -> None:
    made, capture = open_capture(kind)
    steps = range(1, made.response_length + 1) if made.response_length else [0]
    figures = [(overview(capture, measure), steps), (overview(capture, measure, 0), [0])]
    for figure, over in figures:
        expected = [
            [
                np.mean([made.measures(layer, head, step)[measure] for step in over])
                for head in range(made.query_heads)
            ]
            for layer in range(made.layers)
        ]
        np.testing.assert_allclose(figure.arrays["z"], expected, rtol=5e-3, atol=HALF)
        low, high = figure.colour.range if figure.colour else (0, 0)
        assert low - 1e-3 <= figure.arrays["z"].min() <= figure.arrays["z"].max() <= high + 1e-3


def test_overview_leaves_out_what_costs_too_much(
    open_capture: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, capture = open_capture("unstored")
    monkeypatch.setattr("analysis.rows.DIRECT_CELLS", 10)
    figure = overview(capture, "sink_mass", selected=(1, 3))
    assert np.isnan(figure.arrays["z"]).tolist() == [[True] * 4, [False] * 4, [True] * 4]
    assert "0, 2" in figure.caption
    assert [(m.x, m.y, m.selected) for m in figure.markers] == [(3, 1, True)]
    with pytest.raises(AnalysisError, match="no measure 'mass'"):
        overview(capture, "mass")
    with pytest.raises(AnalysisError, match="not for step -35"):
        overview(capture, "entropy", -35)


@every_kind
def test_text_view_holds_a_page_and_a_window(open_capture: Opener, kind: str) -> None:
    made, capture = open_capture(kind)
    step = min(2, made.response_length)
    view = text_view(capture, 0, 0, step)
    assert "".join(view.pieces) == capture.prompt_text() + capture.response_text()
    assert (view.first, view.page, view.pages, len(view.pieces)) == (0, 0, 1, made.length)
    assert view.rows.dtype == np.float16 and view.rows.flags.c_contiguous
    assert view.steps.tolist() == list(made.steps)
    assert not np.isnan(view.rows).any()
    for row, number in zip(view.rows, view.steps, strict=True):
        np.testing.assert_allclose(row, made.row(0, 0, made.position(int(number))), atol=HALF)
    names = {name for name, _, _ in view.segments}
    assert [view.segments[0][1], view.segments[-1][2]] == [0, made.length]
    assert names == set(made.segments)
    target = int(made.row(0, 0, made.position(step)).argmax())
    assert f"on position {target}" in view.alt


def test_text_view_of_some_heads_is_their_mean(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    view = text_view(capture, 1, (2, 3), 2)
    for row, number in zip(view.rows, view.steps, strict=True):
        place = made.position(int(number))
        mean = (made.row(1, 2, place) + made.row(1, 3, place)) / 2
        np.testing.assert_allclose(row, mean, atol=HALF)
    assert "layer 1, mean over heads 2, 3" in view.caption
    with pytest.raises(AnalysisError, match="no query head 99"):
        text_view(capture, 1, (2, 99), 2)


def test_text_view_pages_around_the_step_and_moves_its_window_in_blocks(
    open_capture: Opener,
) -> None:
    made, capture = open_capture("grouped")
    view = text_view(capture, 1, 2, 10, page_tokens=20, window=8)
    assert (view.page, view.pages, view.first, len(view.pieces)) == (2, 3, 36, 16)
    assert view.caption.startswith("Attention of step 10 (position 49), layer 1, head 2, over ")
    assert "tokens 36–51 of 52 (page 3 of 3)" in view.caption
    assert view.rows.shape == (8, made.length)
    first = text_view(capture, 1, 2, -39, page=0, page_tokens=20, window=8)
    assert first.steps.tolist() == list(range(-39, -31)) and first.page == 0
    np.testing.assert_allclose(first.rows[0, 0], 1)
    seen = [
        tuple(text_view(capture, 0, 0, step, window=8).steps.tolist()) for step in range(-31, 13)
    ]
    assert all(step in steps for step, steps in zip(range(-31, 13), seen, strict=True))
    assert len(set(seen)) <= 12  # neighbouring steps ask for the same rows
    with pytest.raises(AnalysisError, match="pages 1 to 3, not 4"):
        text_view(capture, 0, 0, 1, page=3, page_tokens=20)


@every_kind
def test_top_tokens_are_the_largest_weights(open_capture: Opener, kind: str) -> None:
    made, capture = open_capture(kind)
    step = made.response_length
    row = made.row(0, 0, made.position(step))
    table = top_tokens(capture, 0, 0, step, k=5)
    ranked = sorted(range(made.length), key=lambda position: -row[position])[:5]
    assert table["rank"].tolist() == list(range(1, len(table) + 1))
    assert len(table) == min(5, made.length)
    np.testing.assert_allclose(row[table["position"]], row[ranked], atol=HALF)
    np.testing.assert_allclose(table["weight"], row[ranked], atol=HALF)
    np.testing.assert_allclose(table["cumulative_share"], np.cumsum(row[ranked]), atol=5e-3)
    assert table["segment"].tolist() == [made.segments[p] for p in table["position"]]


def test_top_tokens_show_spaces_line_ends_and_parts_of_characters(open_capture: Opener) -> None:
    _, capture = open_capture("grouped")
    table = top_tokens(capture, 0, 0, 12, k=52).set_index("position")["token"]
    assert (table[1], table[6], table[10], table[12]) == ("␣river", "⏎", "◌", "⇥")
    assert table[7] == "␣<b>" and table[13] == "<script>alert(1)</scrip…"


@every_kind
def test_statistics_over_steps(open_capture: Opener, kind: str) -> None:
    made, capture = open_capture(kind)
    measures = ["sink_mass", "recent_mass", "top1_mass", "far_top1_mass"]
    single = step_statistics(capture, 0, 0, measures)
    assert single.x.values is not None and single.x.values.tolist() == list(made.steps)
    for line, measure in zip(single.arrays["y"], measures, strict=True):
        expected = [made.measures(0, 0, step)[measure] for step in made.steps]
        np.testing.assert_allclose(line, expected, atol=HALF)
    over_heads = step_statistics(capture, 0, MEAN, ["entropy"])
    values = np.array(
        [
            [made.measures(0, head, step)["entropy"] for step in made.steps]
            for head in range(made.query_heads)
        ]
    )
    np.testing.assert_allclose(over_heads.arrays["y"][0], values.mean(0), atol=5e-3)
    if made.query_heads > 1:
        low, high = np.percentile(values, [10, 90], axis=0)
        np.testing.assert_allclose(over_heads.arrays["low"][0], low, atol=5e-3)
        np.testing.assert_allclose(over_heads.arrays["high"][0], high, atol=5e-3)
    by_layer = step_statistics(capture, 0, 0, ["entropy"], by_layer=True)
    assert [series.name for series in by_layer.series] == [f"layer {n}" for n in range(made.layers)]
    to_plotly(by_layer)


@pytest.mark.parametrize(
    ("measures", "by_layer", "message"),
    [
        ([], False, "No measure"),
        (["mass"], False, "no measure 'mass'"),
        (["entropy", "sink_mass"], False, "cannot share an axis"),
        (["top1_mass", "sink_mass"], True, "one measure at a time"),
    ],
)
def test_statistics_that_cannot_share_a_figure(
    open_capture: Opener, measures: list[str], by_layer: bool, message: str
) -> None:
    _, capture = open_capture("grouped")
    with pytest.raises(AnalysisError, match=message):
        step_statistics(capture, 0, 0, measures, by_layer=by_layer)


@every_kind
@pytest.mark.parametrize("statistic", ["sum", "max", "last"])
def test_received_attention(open_capture: Opener, kind: str, statistic: str) -> None:
    made, capture = open_capture(kind)
    rows = made.received(0, 0)
    expected = {"sum": rows.sum(0), "max": rows.max(0), "last": rows[-1]}[statistic]
    figure = received_attention(capture, 0, 0, statistic=statistic)
    np.testing.assert_allclose(figure.arrays["y"][0], expected, atol=5e-3)
    assert f"at position {int(expected.argmax())} " in figure.alt
    to_plotly(figure)


def test_received_attention_of_every_query_needs_a_job(tmp_path: Path) -> None:
    made = Synthetic()
    path = made.write(tmp_path)
    with Capture.open(path) as capture, pytest.raises(NeedsJob) as needed:
        received_attention(capture, 1, MEAN, whole=True)
    derive(tmp_path, made.run_id, needed.value.kind, needed.value.spec)
    groups = [(made.matrix(1, 2 * g) + made.matrix(1, 2 * g + 1)) / 2 for g in range(2)]
    with Capture.open(path) as capture:
        for statistic, reduce in (("sum", np.sum), ("max", np.max)):
            figure = received_attention(capture, 1, MEAN, statistic=statistic, whole=True)
            expected = np.mean([reduce(rows, axis=0) for rows in groups], axis=0)
            np.testing.assert_allclose(figure.arrays["y"][0], expected, atol=5e-3)
        with pytest.raises(AnalysisError, match="choose sum or max"):
            received_attention(capture, 1, MEAN, statistic="last", whole=True)


def test_figures_of_degenerate_runs_are_drawn(open_capture: Opener) -> None:
    for kind in ("one_token", "smallest", "nothing_generated", "short_prompt"):
        _, capture = open_capture(kind)
        for figure in (
            overview(capture),
            overview(capture, "effective_tokens"),
            head_matrix(capture, MEAN, MEAN, log=True),
            head_matrix(capture, 0, 0, hide_sink=True),
            step_statistics(capture, MEAN, MEAN, ["entropy"], step=0),
            received_attention(capture, MEAN, MEAN),
        ):
            assert to_plotly(figure).data and figure.alt and figure.caption and figure.note
            assert len(figure.table())
