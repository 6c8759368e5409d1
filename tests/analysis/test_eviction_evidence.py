"""Spans of the prompt and their survival, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.errors import AnalysisError
from analysis.eviction import (
    budget_of_loss,
    check_span,
    evidence_grid,
    evidence_survival,
    find_span,
    span_of_characters,
    span_words,
    survival_over_budget,
)
from analysis.evidence import span_held
from analysis.replays import Replayed
from tests.analysis.conftest import Opener
from tests.analysis.replaying import by_hand

P, T = 40, 12
SPAN = (3, 7)


def keeping(
    budget: int, kept: dict[tuple[int, int], tuple[int, ...]], key: str = "snapkv"
) -> Replayed:
    """After step 2 each (layer, head) keeps of the span only the positions named."""
    evicted_at = np.full((2, 2, P + T), T + 1)
    evicted_at[:, :, SPAN[0] : SPAN[1]] = 2
    for (layer, head), positions in kept.items():
        evicted_at[layer, head, list(positions)] = T + 1
    return by_hand(evicted_at, P, group=2, choice={"key": key, "options": {"budget": budget}})


ALL = (3, 4, 5, 6)


def test_a_text_is_found_exactly_then_loosely_and_every_time(open_capture: Opener) -> None:
    synthetic, capture = open_capture("grouped")
    pieces = synthetic.pieces[:P]  # "The river is 4071.⏎ <b></b> &amp;é⇥…", 24 pieces, repeated
    assert find_span(capture, " 4071") == [(3, 5), (27, 29)]
    assert find_span(capture, "071") == [(3, 5), (27, 29)]
    assert find_span(capture, "THE  river") == [(0, 2), (24, 26)]
    assert find_span(capture, ".\n <b>") == [(5, 8), (29, 32)]
    assert "".join(pieces[3:5]) == " 4071"
    with pytest.raises(AnalysisError, match="does not contain “needle”"):
        find_span(capture, "needle")
    with pytest.raises(AnalysisError, match="Type some words"):
        find_span(capture, "  ")


def test_a_character_split_over_tokens_takes_all_of_them(open_capture: Opener) -> None:
    synthetic, capture = open_capture("grouped")
    pieces = synthetic.pieces
    assert pieces[10:12] == ["", "é"] and pieces[14:18] == ["", "", "", "🙂"]
    assert find_span(capture, "é") == [(10, 12), (34, 36)]
    assert find_span(capture, "🙂") == [(14, 18)] + [(38, 42)] * (P >= 42)
    start = len("".join(pieces[:10]))
    assert span_of_characters(capture, start, start + 1) == (10, 12)
    for wrong in ((-1, 2), (4, 4), (0, 10_000)):
        with pytest.raises(AnalysisError, match="no range of the prompt"):
            span_of_characters(capture, *wrong)


def test_a_span_is_a_range_of_the_prompt(open_capture: Opener) -> None:
    _, capture = open_capture("grouped")
    assert check_span(capture, (0, P)) == (0, P)
    for wrong in ((-1, 2), (5, 5), (P - 1, P + 1)):
        with pytest.raises(AnalysisError, match="no span of the prompt"):
            check_span(capture, wrong)
    assert span_words(capture, (3, 7)) == "positions 3–6 “4071.⏎”"


def test_survival_counts_the_span_over_layers_heads_and_steps(open_capture: Opener) -> None:
    _, capture = open_capture("grouped")
    first = keeping(8, {(0, 0): ALL, (1, 0): (3,)})
    second = keeping(16, {(0, 0): ALL, (0, 1): ALL, (1, 0): (3, 4)}, key="h2o")
    figure = evidence_survival(capture, [first, second], SPAN, 5)
    expected = np.ones((2, T + 1))
    expected[0, 2:], expected[1, 2:] = 5 / 16, 10 / 16
    np.testing.assert_allclose(figure.arrays["y"], expected)
    one = evidence_survival(capture, [first], SPAN, layer=1, head=0)
    np.testing.assert_allclose(one.arrays["y"][0, 2:], 0.25)
    layer = evidence_survival(capture, [first], SPAN, layer=0)
    np.testing.assert_allclose(layer.arrays["y"][0, 2:], 0.5)
    grid = evidence_grid(capture, first, SPAN, 2, selected=(0, 0))
    np.testing.assert_allclose(grid.arrays["z"], [[1, 0], [0.25, 0]])
    assert figure.table().shape[0] == 2 * (T + 1)


def test_exempt_layers_do_not_count_as_survival() -> None:
    replayed = keeping(8, {(0, 0): ALL, (0, 1): ALL})
    held = span_held(by_hand(replayed.evicted_at, P, exempt=np.array([True, False])), SPAN)
    assert np.isnan(held[0]).all() and (held[1, :, 2:] == 0).all() and (held[1, :, :2] == 1).all()


def test_survival_over_budget_and_the_budget_of_loss(open_capture: Opener) -> None:
    _, capture = open_capture("grouped")
    some = [
        keeping(32, {(0, 0): ALL, (0, 1): ALL, (1, 0): ALL, (1, 1): ALL}),
        keeping(4, {(0, 0): (3,)}),
        keeping(16, {(0, 0): ALL, (0, 1): ALL, (1, 0): (3, 4)}),
        keeping(8, {(0, 0): (3, 4), (0, 1): (3, 4)}),
    ]
    other = [keeping(8, {(0, 0): ALL, (1, 1): ALL}, "h2o"), keeping(16, {(0, 0): ALL}, "h2o")]
    figure = survival_over_budget(capture, [some, other], SPAN, 3)
    assert figure.x.values is not None and figure.x.values.tolist() == [4, 8, 16, 32]
    assert [series.name for series in figure.series] == ["SnapKV", "H2O"]
    np.testing.assert_allclose(
        figure.arrays["y"], [[1 / 16, 4 / 16, 10 / 16, 1], [np.nan, 0.5, 0.25, np.nan]]
    )
    lost = budget_of_loss(capture, [some, other], SPAN, heads=0.5)
    assert lost["policy"].tolist() == ["SnapKV", "H2O"]
    assert lost["keeps_all"].fillna(-1).tolist() == [16, -1]  # H2O loses it at 16 again
    assert lost["keeps_half"].fillna(-1).tolist() == [8, -1]
    assert lost[["smallest", "largest"]].to_numpy().tolist() == [[4, 32], [8, 16]]
    every = budget_of_loss(capture, [some], SPAN, heads=1.0)
    assert every[["keeps_all", "keeps_half"]].to_numpy().tolist() == [[32, 32]]
    early = budget_of_loss(capture, [some], SPAN, 1)  # before anything goes
    assert early["keeps_all"].tolist() == [4]
    with pytest.raises(AnalysisError, match="share of heads"):
        budget_of_loss(capture, [some], SPAN, heads=0)
