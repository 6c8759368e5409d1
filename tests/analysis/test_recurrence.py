"""LazyEviction's view against the independent reference and hand-worked cases."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.errors import AnalysisError
from analysis.lazy_decisions import (
    decision_at,
    decision_summary,
    evictions_table,
    lazy_decisions,
    recurs_at,
)
from analysis.lazy_figures import cached_over_steps, evictions
from analysis.lazy_scores import score_curves, score_terms
from analysis.mri_figures import mri_by_head, mri_cdf, mri_histogram
from analysis.recurrence import (
    Distribution,
    Tracked,
    alpha_advice,
    distribution,
    head_distributions,
    pooled_distribution,
    recurring_tokens,
    response_attention,
    state_at,
    track,
)
from analysis.recurrence_figures import (
    activation_raster,
    attention_map,
    important_map,
    recurring_table,
)
from analysis.traces import layers_within
from kvpolicies import build, replay
from tests.analysis.conftest import KINDS, Opener
from tests.kvpolicies import reference
from tests.kvpolicies.cases import make_trace

NAN = math.nan
BY_HAND = np.array([[0.9, 0.0, NAN], [0.0, 0.0, 0.9], [0.0, 0.9, 0.9], [0.9, 0.0, 0.9]])


def random_attention(seed: int, prompt: int = 9, steps: int = 14) -> np.ndarray:
    """Sparse weights, NaN where the token of a later step would be."""
    draw = np.random.default_rng(seed)
    attention = draw.random((steps, prompt + steps)) ** 4
    for step in range(steps):
        attention[step, prompt + step + 1 :] = NAN
    return attention.astype(np.float32)


def test_track_by_hand() -> None:
    out = track(BY_HAND, alpha=0.5, prompt_length=1)
    assert out.mri.tolist() == [3, 3, 1]  # entry 2 is the token of step 2, its TS starts at 1
    assert out.last_active.tolist() == [4, 3, 4]
    assert out.active.sum() == 6 and out.ever.tolist() == [True, True, True]
    first = track(BY_HAND, alpha=0.5, prompt_length=1, count="from_first")
    assert first.mri.tolist() == [3, 0, 1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("alpha", [0.05, 0.5, "3/n", 2.0])
@pytest.mark.parametrize("count", ["from_birth", "from_first"])
def test_track_is_the_reference_s(seed: int, alpha: Any, count: str) -> None:
    heads = np.stack([random_attention(seed), random_attention(seed + 50)])
    out = track(heads, alpha, 9, count=count)
    for head, attention in enumerate(heads):
        expected = reference.track(attention, alpha, 9, count)
        assert (out[head].mri == expected.mri).all()
        assert (out[head].last_active == expected.last_active).all()
        assert (out[head].active == expected.active).all()


def test_a_larger_alpha_marks_fewer_and_never_more() -> None:
    attention = random_attention(7)
    low, high = (track(attention, alpha, 9).active for alpha in (0.1, 0.3))
    assert (high <= low).all() and high.sum() < low.sum()


@pytest.mark.parametrize(("alpha", "count"), [("three", "from_birth"), (-1, "from_birth"), (1, "")])
def test_what_cannot_be_tracked_is_one_sentence(alpha: Any, count: str) -> None:
    with pytest.raises(AnalysisError):
        track(BY_HAND, alpha, 1, count=count)


def test_distribution_and_window_by_hand() -> None:
    active = np.ones((3, 10), bool)
    active[:, 9] = False  # never active, and so not counted
    mri = np.array([0, 1, 1, 1, 1, 2, 2, 3, 9, 50], np.int32)
    whole = distribution([Tracked(mri, mri, active)])
    assert (whole.tokens, whole.considered) == (9, 10)
    assert whole.counts[:4].tolist() == [1, 4, 2, 1] and len(whole.counts) == 10
    assert whole.share_above_one == pytest.approx(4 / 9)
    # 7 of 9 are at most 2 (77.8 %), 8 of 9 at most 3
    assert (whole.window(), whole.window(7 / 9), whole.window(0.01)) == (3, 2, 1)
    assert whole.cdf[[0, 2, 9]] == pytest.approx([1 / 9, 7 / 9, 1])
    twice = pooled_distribution([whole, whole])
    assert (twice.tokens, twice.runs, twice.window()) == (18, 2, 3)


def test_nothing_active_has_no_window() -> None:
    empty = distribution([track(BY_HAND, 2.0, 1)])
    assert empty.window() is None and math.isnan(empty.share_above_one)


def test_response_attention_is_each_group_s_mean(open_capture: Opener) -> None:
    for kind in ("grouped", "softcap", "sliding", "one_to_one"):
        made, capture = open_capture(kind)
        attention = response_attention(capture)
        group = made.query_heads // made.kv_heads
        assert attention.shape == (made.layers, made.kv_heads, made.response_length, made.length)
        for layer, head, step in ((0, 0, 1), (1, made.kv_heads - 1, made.response_length)):
            at = made.position(step)
            rows = [made.row(layer, q, at) for q in range(head * group, (head + 1) * group)]
            row = attention[layer, head, step - 1]
            assert row[: at + 1] == pytest.approx(np.mean(rows, axis=0)[: at + 1], abs=1e-5)
            assert np.isnan(row[at + 1 :]).all()


def test_alpha_below_uniform_attention_is_said() -> None:
    advice = alpha_advice(1e-4, 4096)
    assert advice is not None and "3/n" in advice and "0.00024" in advice
    assert alpha_advice(5e-4, 4096) is None and alpha_advice("3/n", 4096) is None


def test_recurring_tokens_by_hand() -> None:
    attention = np.zeros((6, 4))
    attention[[0, 4], 0] = 0.6, 0.3  # silent for four steps
    attention[:, 1] = 0.9  # always active: never came back
    attention[[1, 3, 4], 2] = 0.5, 0.7, 0.9  # its longest pause ends at step 4
    attention[5, 3] = 0.9  # active once
    tracked = track(attention, 0.1, 4)
    found = recurring_tokens(tracked, attention)
    assert [(t.number, t.position, t.returned, t.pause, t.activations) for t in found] == [
        (1, 0, 5, 4, 2),
        (2, 2, 4, 2, 3),
    ]
    assert [t.weight for t in found] == pytest.approx([0.3, 0.7])
    assert [t.position for t in recurring_tokens(tracked, attention, limit=1)] == [2]


def test_state_at_is_the_state_after_that_many_steps() -> None:
    attention = random_attention(3)
    tracked = track(attention, 0.2, 9)
    for step in (1, 5, 14):
        expected = reference.track(attention[:step], 0.2, 9)
        pause, mri = state_at(tracked, step, 9)
        assert len(pause) == 9 + step
        assert (mri == expected.mri[: 9 + step]).all()
        assert (pause == step - expected.last_active[: 9 + step]).all()


def test_recurs_at_by_hand() -> None:
    active = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]], bool)
    assert recurs_at(np.array([1, 2, 0]), active).tolist() == [3, 0, 2]
    assert recurs_at(np.array([4, 4, 4]), active).tolist() == [0, 0, 0]  # never evicted


@pytest.mark.parametrize("form", ["released", "printed"])
def test_decisions_are_those_of_the_whole_replay(form: str) -> None:
    trace = make_trace(response=14)
    options = {"budget": 12, "window": 3, "alpha": 0.05}
    whole = replay(build("lazyeviction", form=form, **options), trace)
    made = lazy_decisions(trace, 1, form, **options)
    assert (made.evicted_at == whole.evicted_at[1].numpy()).all()
    assert made.steps == tuple(d.step for d in whole.decisions if d.layer == 1)
    tracked = track(response_attention(trace, [1])[0], 0.05, 24)
    table = evictions_table({form: made}, tracked[0], 0)
    assert len(table) == (made.evicted_at[0] <= 14).sum()
    for row in table.itertuples():
        steps = np.flatnonzero(tracked.active[0, :, row.position]) + 1
        later = steps[steps > row.step]
        assert row.recurs_at == (later[0] if len(later) else 0)
    summary = decision_summary(table)
    assert summary["evicted"].tolist() == [len(table)]
    assert summary["returned"].tolist() == [(table["recurs_at"] > 0).sum()]


@pytest.mark.parametrize("form", ["released", "printed"])
def test_score_terms_are_the_reference_s(form: str) -> None:
    pause, mri = (part.reshape(-1) for part in np.meshgrid(np.arange(6), np.arange(5)))
    terms = score_terms(pause, mri, form)
    for index, (waited, longest) in enumerate(zip(pause.tolist(), mri.tolist(), strict=True)):
        h1 = reference.h1_score(waited, 0, longest, form)
        h2 = reference.h2_score(longest, form)
        found = [float(terms[name][index]) for name in ("H1", "H2", "I")]
        assert found == pytest.approx([h1, h2, h1 + h2], abs=1e-5)


@pytest.mark.parametrize("term", ["I", "H1", "H2"])
def test_tokens_lie_on_the_curves_of_both_forms(open_capture: Opener, term: str) -> None:
    made, capture = open_capture("grouped")
    pause = np.tile([0, 3, 3, 20], 11)[: made.prompt_length + 2]
    mri = np.tile([5, 5, 0, 2, 5], 9)[: made.prompt_length + 2]
    figure = score_curves(capture, pause, mri, term, step=2, layer=1, kv_head=0)

    def expected(form: str, waited: int, longest: int) -> float:
        h1 = reference.h1_score(waited, 0, longest, form)
        h2 = reference.h2_score(longest, form)
        return {"I": h1 + h2, "H1": h1, "H2": h2}[term]

    pairs = {(int(a), int(b)) for a, b in zip(pause, mri, strict=True)}
    names = [series.name for series in figure.series]
    for form in ("released", "printed"):
        own = figure.arrays["point_series"] == names.index(f"tokens, {form} form")
        points = zip(figure.arrays["point_x"][own], figure.arrays["point_y"][own], strict=True)
        drawn = sorted(pair for pair in pairs if term != "H2" or pair[1])
        wanted = [(b if term == "H2" else a, expected(form, a, b)) for a, b in drawn]
        np.testing.assert_allclose(list(points), wanted, atol=1e-5)
        lines = [n for n, name in enumerate(names) if name.startswith(f"{form} form")]
        # of the MRIs above 0, 2 and 5, the 10th percentile is 2, the others 5
        for line, longest in zip(lines, (0,) if term == "H2" else (2, 5), strict=True):
            for place, value in zip(figure.x.values, figure.arrays["y"][line], strict=True):
                own_pair = (0, int(place)) if term == "H2" else (int(place), longest)
                assert value == pytest.approx(expected(form, *own_pair), abs=1e-5)
    if term == "H2":
        return
    text = figure.point_text[sorted(pairs).index((3, 0))]
    twins = [place for place in range(len(pause)) if (pause[place], mri[place]) == (3, 0)]
    assert f"and {len(twins) - 3} more · pause 3, MRI 0" in text
    assert text.startswith(f"{twins[0]} ")
    assert f"{int((mri == 0).sum())} of them never active" in figure.caption


def test_bars_of_pooled_intervals_stand_where_they_belong(open_capture: Opener) -> None:
    from analysis.geometry import places

    _, capture = open_capture("grouped")
    counts = np.zeros(10, np.int64)
    counts[[1, 9]] = 7, 3
    figure = mri_histogram([capture], [Distribution(counts, 24)], alpha=0.1, bins=4)
    # cells of three: 0 ... 2, 3 ... 5, 6 ... 8, and 9
    assert figure.arrays["y"].tolist() == [[7, 0, 0, 3]]
    assert places(figure.x, 4).tolist() == [1, 4, 7, 10]
    assert figure.markers[0].x == 9  # 80 % are only covered by the longest


def test_another_share_proposes_another_window(open_capture: Opener) -> None:
    _, capture = open_capture("grouped")
    mri = np.array([[[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]])
    tracked = Tracked(mri, mri, np.ones((1, 1, 1, 10), bool))
    for share, window in ((0.5, 5), (0.8, 8), (1.0, 10)):
        assert head_distributions(tracked, share)[1].tolist() == [[window]]
        whole = distribution([tracked])
        figure = mri_cdf([capture], [whole], alpha=0.1, share=share)
        assert f"{100 * share:.0f} % have an MRI of at most W = {window} steps" in figure.caption
        grid = mri_by_head(
            [capture], [head_distributions(tracked, share)[1]], "window", layers=[0], share=share
        )
        assert grid.title.startswith(f"Window that covers {100 * share:.0f} % of the tokens")


def every_figure(capture: Any) -> Iterator[Any]:
    attention = response_attention(capture)
    tracked = track(attention, 0.05, capture.info.prompt_length)
    own = tracked[0, 0]
    recurring = recurring_tokens(own, attention[0, 0])
    whole = distribution([tracked])
    shares, proposed = head_distributions(tracked)
    layers = range(capture.info.layers)
    yield attention_map(capture, attention[0, 0], recurring, 0, 0, step=1, bins=5)
    yield activation_raster(capture, own, 0, 0, alpha=0.05, bins=3)
    yield mri_histogram([capture], [whole], alpha=0.05)
    yield mri_cdf([capture, capture], [whole, whole], alpha=0.05)
    yield mri_by_head([capture], [shares], "share", layers=layers, selected=(0, 0))
    yield mri_by_head([capture], [proposed], "window", layers=layers)
    pause, mri = state_at(own, 1, capture.info.prompt_length)
    for term in ("I", "H1", "H2"):
        yield score_curves(capture, pause, mri, term, step=1, layer=0, kv_head=0)
    windows = capture.info.sliding_window
    layer = next(number for number in layers if windows[number] is None)
    made = {
        form: lazy_decisions(capture, layer, form, budget=2, window=1, alpha=0.05)
        for form in ("released", "printed")
    }
    table = evictions_table(made, own, 0)
    yield evictions(capture, table, 0, 0, step=1)
    assert len(recurring_table(capture, recurring)) == len(recurring)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "nothing_generated"])
def test_every_figure_of_every_capture(open_capture: Opener, kind: str) -> None:
    from analysis.plotly_renderer import to_plotly

    _, capture = open_capture(kind)
    for figure in every_figure(capture):
        assert figure.caption and figure.alt and figure.note and figure.note.source
        figure.table()
        to_plotly(figure)


def test_nothing_generated_is_one_sentence(open_capture: Opener) -> None:
    _, capture = open_capture("nothing_generated")
    attention = response_attention(capture)
    assert attention.shape[2] == 0
    tracked = track(attention, 5e-4, capture.info.prompt_length)
    assert distribution([tracked]).window() is None
    for show in (
        lambda: attention_map(capture, attention[0, 0], [], 0, 0),
        lambda: activation_raster(capture, tracked[0, 0], 0, 0, alpha=5e-4),
        lambda: lazy_decisions(capture, 0, budget=4),
    ):
        with pytest.raises(AnalysisError, match="Nothing was generated"):
            show()
    assert "No token" in mri_cdf([capture], [distribution([tracked])], alpha=5e-4).caption


def test_a_sliding_layer_has_no_decisions(open_capture: Opener) -> None:
    _, capture = open_capture("sliding")
    with pytest.raises(AnalysisError, match="sliding window of 6 tokens"):
        lazy_decisions(capture, 0, budget=4)


def test_the_sawtooth_counts_what_is_cached(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    result = replay(build("lazyeviction", budget=20, window=4, alpha=0.05), capture.trace())
    policy = SimpleNamespace(
        evicted_at=result.evicted_at.numpy(),
        exempt=result.exempt.numpy(),
        prompt_length=made.prompt_length,
        choice={"key": "lazyeviction"},
        title="LazyEviction",
        colour="#000000",
        facts={},
    )
    lines = cached_over_steps(capture, [policy], step=3).arrays["y"]  # type: ignore[list-item]
    expected = [float(result.counts(step).float().mean()) for step in range(13)]
    assert lines[0] == pytest.approx(expected)
    assert lines[1].tolist() == [40.0 + step for step in range(13)]
    # cut to the budget after steps 4, 8 and 12, growing in between
    assert expected == [40, 41, 42, 43, 20, 21, 22, 23, 20, 21, 22, 23, 20]
    alone = cached_over_steps(capture, [policy], full=False)  # type: ignore[list-item]
    assert alone.arrays["y"].tolist() == [pytest.approx(expected)]
    # after the first decision from 20 to 23, so that the 40 before it do not flatten the teeth
    assert alone.y.range == (19, 24)
    assert "the full cache grows from 40 to 52 entries" in alone.caption
    policy.evicted_at = np.full_like(policy.evicted_at, 13)
    everything = cached_over_steps(capture, [policy], full=False)  # type: ignore[list-item]
    assert everything.y.range is None


def test_the_more_attended_half_by_hand(open_capture: Opener) -> None:
    _, capture = open_capture("one_token")  # one prompt token, one generated
    attention = np.array([[0.4, 0.6]])
    figure = important_map(capture, attention, [], 0, 0)
    assert figure.arrays["z"].tolist() == [[0, 1]]
    nan = np.nan
    attention = np.array([[0.5, 0.2, 0.3, nan], [0.1, 0.2, 0.3, 0.4]])
    figure = important_map(capture, attention, [], 0, 0)
    # two of three, then two of four; of the three that were there only the first leaves
    np.testing.assert_array_equal(figure.arrays["z"], [[1, 0, 1, nan], [0, 0, 1, 1]])
    assert "33.3 % of the entries enter or leave it" in figure.caption


def test_one_decision_by_hand() -> None:
    rows = [  # form, step, position, mri, score, recurs_at
        ("released form", 4, 3, 2, 0.5, 0),
        ("printed form", 4, 3, 2, 0.1, 0),
        ("released form", 4, 7, 0, 0.2, 9),
        ("printed form", 8, 7, 0, np.nan, 9),
    ]
    names = ["form", "step", "position", "mri", "score", "recurs_at"]
    table = pd.DataFrame(rows, columns=names)
    for step in (0, 4, 7):
        at, found = decision_at(table, step)
        assert at == 4 and found["by"].tolist() == ["both forms", "released form"]
        assert found["position"].tolist() == [3, 7] and found["recurs_at"].tolist() == [0, 9]
        assert found["released"].tolist() == [0.5, 0.2]
        assert found["printed"].tolist() == [0.1, pytest.approx(np.nan, nan_ok=True)]
    at, found = decision_at(table, 8)
    assert at == 8 and found[["position", "by"]].values.tolist() == [[7, "printed form"]]


def test_layers_within_spreads_what_fits() -> None:
    trace = make_trace(layers=5)
    each = 2 * 9 * 33
    assert layers_within(trace, 10 * each) == [0, 1, 2, 3, 4]
    assert layers_within(trace, 3 * each) == [0, 2, 4]
    assert layers_within(trace, 0) == [0]


def test_activation_raster_by_hand(open_capture: Opener) -> None:
    _, capture = open_capture("one_token")  # one prompt token, one generated
    tracked = track(np.array([[0.9, 0.9]]), 0.5, 1)
    assert activation_raster(capture, tracked, 0, 0, alpha=0.5).arrays["codes"].tolist() == [
        [1],
        [1],
    ]
    made, capture = open_capture("grouped")
    attention = np.zeros((12, made.length))
    attention[[0, 2], 5] = 1.0
    attention[4, 41] = 1.0  # born at step 2
    shown = activation_raster(
        capture, track(attention, 0.5, 40), 0, 0, alpha=0.5, positions=[5, 41]
    )
    assert shown.arrays["codes"][0].tolist() == [1, 2, 1] + [3] * 9
    assert shown.arrays["codes"][1].tolist() == [0, 2, 2, 2, 1] + [3] * 7
    assert shown.y.ticks[0][1].endswith("· 2")
