"""AUC, largest ratios and paired differences against hand calculation."""

import numpy as np
import pytest

from analysis.errors import AnalysisError
from analysis.study import summary
from tests.analysis.study.frames import curve, study


def test_area_by_hand():
    # (1 + .5)/2 · .5 + (.5 + .1)/2 · .4 = .375 + .12 = .495, over .9: .55
    assert summary.area(np.array([0, 0.5, 0.9]), np.array([1, 0.5, 0.1])) == pytest.approx(0.55)
    assert np.isnan(summary.area(np.array([0, 0.5]), np.array([1, np.nan])))


def test_a_perfect_score_everywhere_has_area_1():
    ratios = np.array([0, 0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    assert summary.area(ratios, np.ones(9)) == pytest.approx(1)


@pytest.mark.parametrize(
    ("errors", "tolerance", "expected"),
    [
        # 5 % at .5, 15 % at .75: 10 % is crossed half way between
        ([0, 0.05, 0.15], 0.10, 0.625),
        ([0, 0.05, 0.15], 0.20, 0.75),  # never crossed: the largest measured
        ([0, 0.30, 0.05], 0.10, 0.5 / 3),  # the first crossing counts, recovered later or not
        ([0, 0.10, 0.30], 0.10, 0.5),  # just met
        ([0, np.nan, 0.30], 0.10, np.nan),
    ],
)
def test_largest_ratio_by_hand(errors, tolerance, expected):
    found = summary.largest_ratio(np.array([0, 0.5, 0.75]), np.array(errors), tolerance)
    assert found == pytest.approx(expected, nan_ok=True)


def example():
    return study(
        curve("full", "a", {0: [1, 1]})
        + curve("full", "b", {0: [0.5, 0.5]})
        + curve("full", "c", {0: [0, 0]})  # failed by the full cache
        + [
            r
            for task, scores in {
                "a": {0.5: [1, 0.8], 0.9: [0.6, 0.6]},
                "b": {0.5: [0.5, 0.5], 0.9: [0.25, 0.25]},
                "c": {0.5: [0, 0], 0.9: [0, 0]},
            }.items()
            for r in curve("snapkv", task, scores)
        ],
        ratios=[0.5, 0.9],
    )


def test_errors_are_relative_and_leave_out_what_the_full_cache_fails():
    # a: 0, .1, .4; b: 0, 0, .5; c is left out: means 0, .05, .45
    np.testing.assert_allclose(summary.errors(example(), "snapkv"), [0, 0.05, 0.45])


def test_the_table_by_hand():
    (row,) = summary.summary(example()).to_dict("records")
    # means over tasks: .5 at 0, (.9 + .5)/3 at .5, (.6 + .25)/3 at .9
    by_hand = (0.5 + 1.4 / 3) / 2 * 0.5 + (1.4 / 3 + 0.85 / 3) / 2 * 0.4
    assert row["AUC"] == pytest.approx(by_hand / 0.9)
    assert row["AUC, b"] == pytest.approx((0.5 * 0.5 + (0.5 + 0.25) / 2 * 0.4) / 0.9)
    # 10 %: an eighth of the way from .5 to .9 (.05 to .45); 20 %: 3/8
    assert row["largest ratio, ε ≤ 10%"] == pytest.approx(0.5 + 0.4 / 8)
    assert row["largest ratio, ε ≤ 20%"] == pytest.approx(0.5 + 0.4 * 3 / 8)
    assert summary.summary_figure(example()).table() is not None


def test_budgets_have_no_area():
    rows = curve("full", "a", {0: [1]})
    with pytest.raises(AnalysisError, match="over budgets"):
        summary.summary(study(rows, budgets=[64]))


def pair(a, b):
    return study(
        curve("full", "t", {0: [1] * len(a)})
        + curve("snapkv", "t", {0.5: a})
        + curve("h2o", "t", {0.5: b}),
        ratios=[0.5],
    )


def test_paired_differences():
    names, means, p = summary.differences(pair([0.9, 0.8, 1.0], [0.4, 0.3, 0.5]), 0.5)
    assert names == ["full", "snapkv", "h2o"]
    assert means[1, 2] == pytest.approx(0.5) and means[2, 1] == pytest.approx(-0.5)
    assert p[1, 2] == 1 / 1000  # every draw has a positive difference
    assert p[1, 1] == 1  # no difference at all


def test_a_difference_of_one_prompt_in_two_is_chance():
    # differences +1 and 0: a draw has no positive one with probability 1/4, so p is about 1/2
    _, means, p = summary.differences(pair([1, 1], [0, 1]), 0.5)
    assert means[1, 2] == pytest.approx(0.5)
    assert p[1, 2] == pytest.approx(0.5, abs=0.06)


def test_swapping_policies_changes_the_sign_only():
    rng = np.random.default_rng(0)
    a, b = rng.random(12), rng.random(12)
    _, means, p = summary.differences(pair(list(a), list(b)), None)
    np.testing.assert_allclose(means, -means.T, atol=1e-12)
    np.testing.assert_allclose(p, p.T)


def test_outlined_cells_are_the_significant_ones():
    figure = summary.difference_figure(pair([0.9, 0.8, 1.0], [0.4, 0.3, 0.5]), 0.5)
    assert {(m.y, m.x) for m in figure.markers} >= {(1, 2), (2, 1)}
    table = summary.difference_table(pair([0.9, 0.8, 1.0], [0.4, 0.3, 0.5]), 0.5)
    assert list(table["policy"]) == ["full", "full", "snapkv"]
