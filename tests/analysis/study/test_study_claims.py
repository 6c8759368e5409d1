"""Verdicts by hand, and that the shipped specifications hold what the claims compare."""

import numpy as np
import pandas as pd
import pytest

from analysis.study import claim_figures, claims
from analysis.study.claims import HOLDS, REVERSED, UNSEEN, Comparison, Measured
from backend.study.spec import load_spec
from tests.analysis.study.frames import curve, study

COMPARISON = Comparison("a", "b")


def measured(low, high, better=0.5, worse=0.5):
    return Measured(COMPARISON, better, worse, (low + high) / 2, low, high, 10)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.1, 0.3, HOLDS), (-0.3, -0.1, REVERSED), (-0.1, 0.3, UNSEEN), (0.0, 0.0, UNSEEN)],
)
def test_a_comparison_is_decided_by_its_interval(low, high, verdict):
    assert measured(low, high).verdict == verdict


def test_a_claim_needs_all_of_its_comparisons():
    up, down, flat = measured(0.1, 0.2), measured(-0.2, -0.1), measured(-0.1, 0.1)
    assert claims.verdict([up, up]) == HOLDS
    assert claims.verdict([up, flat]) == UNSEEN
    assert claims.verdict([up, flat, down]) == REVERSED


def test_why_nothing_is_seen():
    assert measured(-0.1, 0.1, 1, 1).reason == "both answer nearly everything"
    assert measured(-0.1, 0.1, 0, 0.01).reason == "both answer nearly nothing"
    assert measured(-0.1, 0.1).reason == "the difference is within chance"
    assert measured(0.1, 0.2).reason == ""


def test_numbers_of_a_comparison():
    values = np.array([[1.0, 0.5], [0.8, 0.3], [0.9, 0.4]])
    found = claims.compared(COMPARISON, values, np.zeros(3, int))
    assert (found.better, found.worse) == (pytest.approx(0.9), pytest.approx(0.4))
    assert found.low == found.high == found.difference == pytest.approx(0.5)
    assert found.prompts == 3 and found.verdict == HOLDS


def test_prompts_that_one_side_lacks_are_left_out():
    rows = curve("full", "t", {0: [1, 1]})
    rows += curve("a", "t", {0.5: [1, 1]}, key="snapkv") + curve("b", "t", {0.5: [0]}, key="h2o")
    claim = claims.Claim("", "", "", "t", (COMPARISON,))
    (found,) = claims.measure(claim, study(rows, ratios=[0.5]), None)
    assert (found.prompts, found.difference) == (1, 1)


def test_how_much_each_side_evicts():
    rows = curve("full", "t", {0: [1, 1]})
    rows += curve("a", "t", {0.5: [1, 1], 0.75: [1, 1]}, key="snapkv")
    rows += curve("b", "t", {0.5: [0, 0], 0.75: [0, 0]}, key="h2o")
    claim = claims.Claim("", "", "", "t", (COMPARISON,))
    (found,) = claims.measure(claim, study(rows, ratios=[0.5, 0.75]), None)
    assert (found.better_evicted, found.worse_evicted) == (0.625, 0.625)


def test_what_a_study_rests_on_is_told_from_its_rows():
    rows = curve("full", "t", {0: [1, 0.5]}, prompt_tokens=90, response_tokens=7)
    rows[1]["prompt_tokens"] = 1100
    rows += curve("a", "t", {0.5: [1, 1], 0.75: [0, 0]}, key="snapkv")
    found = claims.Findings({"t": study(rows, ratios=[0.5, 0.75])}, pd.DataFrame(), "")
    assert found.basis("t") == (
        "2 prompts of 90 to 1,100 tokens, 50% and 75% evicted. The full cache scores 0.75 "
        "and writes 7 tokens; what it does not answer, no policy can lose."
    )


def test_recall_over_the_start_of_the_window():
    recall = pd.DataFrame(
        [("a", -8, 0.2), ("a", 0, 0.8), ("b", -8, 0.4), ("b", 0, 0.6)],
        columns=["prompt", "offset", "recall"],
    )
    figure = claim_figures.recall_over_offsets(recall)
    np.testing.assert_allclose(figure.x.values, [-8, 0])
    np.testing.assert_allclose(figure.arrays["y"], [[0.3, 0.7]])
    assert "Highest at 0: 0.7." in figure.caption


def test_a_side_may_be_the_mean_of_several_policies_and_sizes():
    rows = curve("full", "t", {0: [1]})
    for name, scores in {"a1": (1, 0.5), "a2": (0.5, 0), "b": (0.5, 0)}.items():
        rows += curve(name, "t", {0.5: [scores[0]], 0.9: [scores[1]]}, key="snapkv")
    claim = claims.Claim("", "", "", "t", (Comparison("a", "b", ("a1", "a2")),))
    (found,) = claims.measure(claim, study(rows, ratios=[0.5, 0.9]), None)
    assert (found.better, found.worse) == (0.5, 0.25)


@pytest.mark.parametrize("name", claims.STUDIES)
def test_specifications_hold_every_policy_of_the_claims(name):
    spec, _ = load_spec(claims.FOLDER / f"{name}.toml")
    there = {policy.name for policy in spec.policies}
    for claim in claims.claims():
        for comparison in claim.comparisons if claim.study == name else ():
            assert {*(comparison.better_of or (comparison.better,))} <= there
            assert {*(comparison.worse_of or (comparison.worse,))} <= there


def test_every_claim_is_of_a_study_that_ships():
    assert {claim.study for claim in claims.claims()} == {*claims.STUDIES, claims.RECALL}
