"""Means over prompts and tasks, and what the bootstrap must do, by hand."""

import numpy as np
import pytest

from analysis.errors import AnalysisError
from analysis.study.rows import FULL, Matrix, Place
from tests.analysis.study.frames import curve, row, study

RATIOS = [0.5, 0.75]


def two_tasks():
    return study(
        curve("full", "a", {0: [1, 1, 1]})
        + curve("full", "b", {0: [0.5]})
        + curve("snapkv", "a", {0.5: [1, 0, 1], 0.75: [0, 0, 1]})
        + curve("snapkv", "b", {0.5: [0.5], 0.75: [0.25]}),
        ratios=RATIOS,
    )


def test_places_are_the_full_cache_then_policies_by_size():
    assert two_tasks().places == (Place(FULL, None), Place("snapkv", 0.5), Place("snapkv", 0.75))


def test_means_count_tasks_alike():
    # a: 2/3 and 1/3 over three prompts; b: 0.5 and 0.25 over one
    means = two_tasks().matrix("score").means
    np.testing.assert_allclose(means, [0.75, (2 / 3 + 0.5) / 2, (1 / 3 + 0.25) / 2])


def test_rows_with_an_error_stay_out_of_the_mean():
    rows = curve("full", "a", {0: [1, 1]}) + curve("snapkv", "a", {0.5: [1]})
    rows.append(row("a-1", "a", "snapkv", 0.5, error="out of memory"))
    np.testing.assert_allclose(study(rows, ratios=[0.5]).matrix("score").means, [1, 1])


def test_a_policy_of_its_own_size_is_one_place():
    rows = curve("full", "a", {0: [1, 1]}) + curve("snapkv", "a", {0.5: [1, 0]})
    rows += [
        row("a-0", "a", "LagKV", 0.6, key="lagkv", score=1.0),
        row("a-1", "a", "LagKV", 0.7, key="lagkv", score=0.5),
    ]
    found = study(rows, ratios=[0.5])
    assert found.places[-1] == Place("LagKV", None)
    assert found.own_ratio("LagKV") == pytest.approx(0.65)
    assert found.matrix("score").means[-1] == pytest.approx(0.75)


def test_budgets_are_places_too():
    rows = curve("full", "a", {0: [1]})
    rows += [row("a-0", "a", "snapkv", 0.93, budget=64, score=0.5)]
    rows += [row("a-0", "a", "snapkv", 0.87, budget=128, score=1.0)]
    found = study(rows, budgets=[64, 128])
    assert found.axis == "budget"
    assert found.places[1:] == (Place("snapkv", 64.0), Place("snapkv", 128.0))


def test_what_is_not_there_is_said():
    with pytest.raises(AnalysisError, match="no snapkv at ratio"):
        two_tasks().place("snapkv", 0.1)
    with pytest.raises(AnalysisError, match="no task 'c', it has a, b"):
        two_tasks().matrix("score", "c")


def test_resampled_means_are_those_of_draws_within_each_task():
    # naive: draw prompts of each task with the same counts and average
    values = np.array([[1.0, 0.0], [0.0, 0.5], [1.0, 1.0], [0.2, 0.4]])
    groups = np.array([0, 0, 0, 1])
    drawn = Matrix(values, groups).resampled(50, seed=7)
    rng = np.random.default_rng(7)
    first = rng.multinomial(3, np.full(3, 1 / 3), 50)
    for k in range(50):
        chosen = np.repeat(values[:3], first[k], axis=0)
        np.testing.assert_allclose(drawn[k], (chosen.mean(axis=0) + values[3]) / 2)


def test_bands_enclose_the_mean_and_shrink_to_it_without_spread():
    rng = np.random.default_rng(0)
    matrix = Matrix(rng.random((20, 3)), np.zeros(20, int))
    low, high = matrix.band()
    assert (low <= matrix.means).all() and (matrix.means <= high).all()
    same = Matrix(np.full((5, 1), 0.25), np.zeros(5, int))
    assert same.band() == (np.array([0.25]), np.array([0.25]))
    alone = Matrix(np.array([[0.3]]), np.zeros(1, int))
    assert np.isnan(alone.band()).all()


def test_a_band_is_about_two_standard_errors_wide():
    # mean of 400 draws of a coin: standard error 0.5 / sqrt(400) = 0.025, ± 1.96 of it
    matrix = Matrix(np.repeat([0.0, 1.0], 200)[:, None], np.zeros(400, int))
    low, high = matrix.band()
    assert (high - low)[0] == pytest.approx(2 * 1.96 * 0.025, rel=0.15)


def test_variants_of_a_method_share_its_colour_and_differ_in_dash():
    rows = curve("full", "a", {0: [1]})
    rows += curve("W 8", "a", {0.5: [1]}, key="snapkv", options={"window": 8})
    rows += curve("W 64", "a", {0.5: [1]}, key="snapkv", options={"window": 64})
    first, second = study(rows, ratios=[0.5]).series(["W 8", "W 64"])
    assert first.colour == second.colour and first.dash != second.dash
