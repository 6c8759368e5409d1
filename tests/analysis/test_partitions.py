"""LagKV's view against the independent reference and hand-worked cases."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from analysis.errors import AnalysisError
from analysis.partitions import (
    VARIANTS,
    completed_at,
    compressing_steps,
    lag_scores,
    layout,
    token_class,
    variant_overlap,
    what_is_kept,
)
from analysis.partitions_figures import (
    length_over_steps,
    partition_scores,
    partition_strip,
    recursion,
    role_codes,
    score_map,
    variant_strip,
)
from kvpolicies import Trace, build, replay
from tests.analysis.conftest import KINDS, Opener
from tests.kvpolicies import reference
from tests.kvpolicies.cases import make_trace
from tests.kvpolicies.reference.lag import partition_scores as reference_scores

SMALL = {"sink": 2, "lag": 4}
KEYS = {"lag_relative": "lagkv", "local_relative": "localkv", "key_norm": "l2_lag"}


def test_layout_by_hand() -> None:
    parts = layout(17, **SMALL)  # 2 sinks, three partitions of 4, 3 left over
    assert (parts.partitions, parts.compressed) == (3, 2)
    assert [parts.span(n) for n in range(3)] == [(2, 6), (6, 10), (10, 14)]
    assert (parts.window_start, parts.remainder_start) == (10, 14)
    assert parts.roles().tolist() == [1] * 2 + [2] * 8 + [3] * 4 + [4] * 3
    assert parts.kept_length(0.5) == 2 + 2 * 2 + 4 + 3
    assert layout(9, **SMALL).kept_length(0.5) == 9  # below S + 2L nothing is evicted
    assert layout(1, **SMALL).roles().tolist() == [1]
    # partition 0 is compressed when partition 1 completes, after position 9
    assert [completed_at(n, 2, 4, 10) for n in range(3)] == [0, 4, 8]
    assert completed_at(0, 2, 4, 7) == 3


@pytest.mark.parametrize("sizes", [{"sink": 2, "lag": 0}, {"sink": -1, "lag": 4}])
def test_impossible_partitions_are_one_sentence(sizes: dict[str, int]) -> None:
    with pytest.raises(AnalysisError, match="L of at least 1"):
        layout(20, **sizes)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [{}, {"group": 1}, {"dim": 1}, {"prompt": 5, "response": 12}])
def test_scores_and_parts_are_the_reference_s(variant: str, shape: dict[str, Any]) -> None:
    trace = make_trace(seed=1, **shape)
    made = lag_scores(trace, 1, variant, **SMALL)
    parts = layout(trace.length, **SMALL)
    assert np.isnan(made.total[:, :2]).all() and np.isnan(made.total[:, parts.window_start :]).all()
    for head in range(trace.kv_heads):
        keys, values = (
            states[1][head].numpy().astype(np.float64) for states in (trace.keys, trace.values)
        )
        for number in range(parts.compressed):
            start, stop = parts.span(number)
            later = slice(stop, stop + 4)
            expected = reference_scores(keys, values, slice(start, stop), later, KEYS[variant])
            assert made.total[head, start:stop] == pytest.approx(expected, abs=1e-5)
            order = sorted(range(4), key=lambda i: (-expected[i], i))
            assert [int(rank) for rank in made.rank[head, start:stop]] == [
                order.index(i) for i in range(4)
            ]
            if made.value_part is not None:
                assert made.key_part[head, start:stop].sum() == pytest.approx(1, abs=1e-5)
                both = made.key_part + made.value_part
                assert made.total[head, start:stop] == pytest.approx(both[head, start:stop])


def test_scores_by_hand() -> None:
    import torch

    keys = torch.tensor([[[0.0, 0.0], [2.0, 4.0], [0.0, 0.0], [2.0, 2.0]]])
    flat = torch.ones(1, 4, 2)  # no channel has a range: both tokens weigh the same
    trace = Trace([keys], [keys], [flat], prompt_length=4)
    made = lag_scores(trace, 0, sink=0, lag=2)
    root = math.sqrt(0.5)  # z = (0, 0) and (1, 2)
    assert made.key_part[0, :2] == pytest.approx(
        [1 / (1 + math.exp(root)), 1 / (1 + math.exp(-root))]
    )
    assert made.value_part is not None and made.value_part[0, :2].tolist() == [0.5, 0.5]
    assert made.rank[0].tolist() == [1, 0, -1, -1]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("prompt", [3, 9, 10, 24])
def test_what_is_kept_is_what_the_policy_keeps(variant: str, ratio: float, prompt: int) -> None:
    trace = make_trace(seed=2, prompt=prompt, response=13)
    options: dict[str, Any] = {**SMALL, "keep_ratio": ratio}
    if variant == "key_norm":
        options["skip_layers"] = 0
    result = replay(build(KEYS[variant], **options), trace)
    made = lag_scores(trace, 1, variant, **SMALL)
    for step in range(14):
        expected = result.kept_after(step)[1, :, : prompt + step].numpy()
        assert (made.keep(ratio, prompt + step) == expected).all()
    lengths = made.lengths(ratio)
    assert lengths.tolist() == result.keep[1, 0].sum(1).tolist()
    kept = math.floor(ratio * 4 + 1e-9)
    assert lengths.tolist() == [reference.length_after(prompt + t, 2, 4, kept) for t in range(14)]


def test_steps_that_compress_by_hand() -> None:
    # 2 sinks, L = 4, prompt of 10: partition 0 at once, 1 and 2 after steps 4 and 8
    assert compressing_steps(layout(20, **SMALL), 10) == {0: [0], 4: [1], 8: [2]}
    assert compressing_steps(layout(20, **SMALL), 17) == {0: [0, 1], 1: [2]}
    assert compressing_steps(layout(9, **SMALL), 9) == {}


def test_a_wider_r_keeps_more_and_never_less() -> None:
    made = lag_scores(make_trace(), 0, **SMALL)
    kept = [made.keep(ratio) for ratio in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert all((low <= high).all() for low, high in pairwise(kept))
    assert kept[-1].all()
    with pytest.raises(AnalysisError, match="0 to 1"):
        made.keep(1.5)


def test_role_codes_by_hand() -> None:
    made = lag_scores(make_trace(), 0, **SMALL)  # 24 + 9: partitions end at 6, 10, …, 30
    codes = role_codes(made, 0.5, 24)
    assert codes.shape == (2, 33) and (codes[:, 24:] == 0).all()
    assert (
        (codes[:, :2] == 1).all() and (codes[:, 18:22] == 4).all() and (codes[:, 22:24] == 5).all()
    )
    inside = codes[:, 2:18].reshape(2, 4, 4)
    assert ((inside == 2).sum(axis=2) == 2).all() and ((inside == 3).sum(axis=2) == 2).all()


def test_variants_agree_with_themselves() -> None:
    trace = make_trace()
    made = [lag_scores(trace, 0, variant, **SMALL) for variant in VARIANTS]
    table = variant_overlap(made, 0.5, 24).to_numpy()
    assert np.diag(table).tolist() == [1, 1, 1] and (table == table.T).all()
    assert np.isnan(variant_overlap(made, 0.5, 5).to_numpy()).all()


def test_what_distinguishes_kept_tokens(open_capture: Opener) -> None:
    _, capture = open_capture("grouped")
    assert [token_class(piece) for piece in (" 71", "river", ".", "\n", "", "🙂", "a1")] == [
        "digits", "words", "punctuation", "space", "other", "punctuation", "digits",
    ]  # fmt: skip
    ranked = np.zeros(40, bool)
    ranked[2:18] = True
    keep = np.ones((2, 40), bool)
    keep[:, 2:18:2] = False
    table = what_is_kept(capture, keep, ranked).set_index("kind")
    assert table["tokens"].sum() == 16 and table["share_of_text"].sum() == pytest.approx(1)
    pieces = capture.tokens()["text"].tolist()
    digits = [n for n in range(2, 18) if any(sign.isdigit() for sign in pieces[n])]
    share = sum(n % 2 for n in digits) / len(digits)
    assert table.loc["digits", "share_kept"] == pytest.approx(share)
    assert table.loc["digits", "lift"] == pytest.approx(share / 0.5)


def every_figure(capture: Any) -> Iterator[Any]:
    windows = capture.info.sliding_window
    layer = next(n for n in range(capture.info.layers) if windows[n] is None)
    made = [lag_scores(capture, layer, variant, **SMALL) for variant in VARIANTS]
    for scores in made:
        yield partition_strip(capture, scores, 0.5, layer)
        yield recursion(capture, scores, 0.5, layer, 0)
        yield length_over_steps(capture, scores, 0.5)
        if layout(scores.length, **SMALL).compressed:
            yield partition_scores(capture, scores, 0.5, layer, 0)
            yield score_map(capture, scores, layer)
        else:
            for show in (
                lambda s=scores: partition_scores(capture, s, 0.5, layer, 0),
                lambda s=scores: score_map(capture, s, layer),
            ):
                with pytest.raises(AnalysisError, match="S \\+ 2L = 10"):
                    show()
    yield variant_strip(capture, made, 0.5, layer, 0, step=capture.info.response_length)
    with pytest.raises(AnalysisError, match="no step"):
        partition_strip(capture, made[0], 0.5, layer, step=capture.info.response_length + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_of_every_capture(open_capture: Opener, kind: str) -> None:
    from analysis.plotly_renderer import to_plotly

    _, capture = open_capture(kind)
    for figure in every_figure(capture):
        assert figure.caption and figure.alt and figure.note and figure.note.source
        figure.table()
        to_plotly(figure)


def test_a_sliding_layer_is_left_alone(open_capture: Opener) -> None:
    _, capture = open_capture("sliding")
    with pytest.raises(AnalysisError, match="choose another layer"):
        lag_scores(capture, 0)
    with pytest.raises(AnalysisError, match="not 'norm'"):
        lag_scores(capture, 1, "norm")
