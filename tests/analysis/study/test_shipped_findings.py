"""The shipped results belong to the shipped specifications and weights, and no claim is forced."""

import pytest

from analysis.study import claims
from backend.sources import resolve
from backend.study.spec import load_spec


@pytest.fixture(scope="module")
def found():
    return claims.load()


@pytest.mark.parametrize("name", claims.STUDIES)
def test_rows_are_those_of_the_specification(found, name):
    spec, _ = load_spec(claims.FOLDER / f"{name}.toml")
    rows = found.studies[name].frame
    assert len(rows) == spec.examples() * len(spec.cells())
    assert set(rows["policy"]) == {"Full cache", *(policy.name for policy in spec.policies)}
    assert rows["error"].isna().all()
    assert rows["score"].between(0, 1).all()


def test_results_are_of_the_shipped_weights(found):
    assert found.model_revision == resolve("demo", weights=False).revision


def test_recall_is_a_share_for_every_window_start(found):
    assert found.recall["recall"].between(0, 1).all()
    assert found.recall.groupby("prompt")["offset"].nunique().eq(25).all()


@pytest.mark.parametrize("claim", claims.claims(), ids=lambda claim: claim.title)
def test_numbers_of_every_claim_fit_together(found, claim):
    for one in found.measured(claim):
        assert one.difference == pytest.approx(one.better - one.worse)
        assert one.low <= one.difference <= one.high
        assert one.prompts >= 10
