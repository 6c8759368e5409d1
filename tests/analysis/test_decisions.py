"""Scores at a decision and the entries most regretted, against loops and hand-made cases."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from analysis.costs import MEAN, most_regretted, score_distribution
from analysis.decisions import REASON_KEYS
from analysis.errors import AnalysisError
from analysis.figure import Figure
from analysis.plotly_renderer import to_plotly
from analysis.replays import Replayed
from kvpolicies.choice import policy_of
from kvpolicies.decisions import Reason
from kvpolicies.replayer import Result, replay
from tests.analysis.conftest import KINDS, Opener
from tests.analysis.policies import made_replay, whole_replay
from tests.synthetic import Synthetic

KEPT, PROTECTED, EVICTED = range(3)


def by_hand(made: Synthetic, entries: list[tuple[float, int, int, int]]) -> Replayed:
    """A replay whose first head has these entries: score, rank, reason and evicted_at of each.

    The rest of the prompt has no score and stays.
    """
    shape = (made.layers, made.kv_heads, made.length)
    score = np.full(shape, np.nan, np.float32)
    rank, reason = np.zeros(shape, np.int32), np.zeros(shape, np.uint8)
    evicted_at = np.full(shape, made.response_length + 1, np.int32)
    for position, (value, place, why, step) in enumerate(entries):
        at = 0, 0, position
        score[at], rank[at], reason[at], evicted_at[at] = value, place, why, step
    return made_replay(made, score=score, rank=rank, reason=reason, evicted_at=evicted_at)


def from_result(made: Synthetic, choice: dict, result: Result) -> Replayed:
    return made_replay(
        made,
        choice,
        evicted_at=result.evicted_at.numpy(),
        score=result.scores.numpy(),
        rank=result.ranks.numpy(),
        reason=result.reasons.numpy(),
    )


def counts(figure: Figure) -> list[int]:
    return [int(total) for total in figure.arrays["y"].sum(axis=1)]


def told(figure: Figure) -> list[int]:
    """Kept, evicted, protected and unscored entries as the caption counts them."""
    found = re.search(
        r"([\d,]+) kept, ([\d,]+) evicted, ([\d,]+) protected, ([\d,]+) without", figure.caption
    )
    assert found is not None, figure.caption
    return [int(part.replace(",", "")) for part in found.groups()]


def test_reasons_are_the_codes_of_the_policies() -> None:
    assert tuple(reason.name.lower() for reason in Reason) == REASON_KEYS


def test_the_cut_lies_between_the_lowest_kept_and_the_highest_evicted(
    open_capture: Opener,
) -> None:
    made, capture = open_capture("grouped")
    selected, evicted, recent = Reason.SELECTED, Reason.EVICTED, Reason.RECENT
    entries = [
        (0.9, 1, selected, 13),
        (0.5, 2, selected, 13),
        (0.3, 3, evicted, 0),
        (0.1, 4, evicted, 0),
        (0.2, 0, recent, 13),
        (0.7, 0, Reason.NEVER_SCORED, 13),
    ]
    figure = score_distribution(capture, by_hand(made, entries), 0, 0, 5)
    assert counts(figure) == [2, 1, 2]
    assert told(figure) == [2, 2, 1, made.prompt_length - 5]
    assert [(m.kind, m.label) for m in figure.markers] == [("x", "cut")]
    assert figure.markers[0].x == pytest.approx(0.4)
    assert "The cut lies at 0.4" in figure.caption and "end of prefill" in figure.caption
    assert figure.x.values is not None and figure.x.unit == ""
    width = (0.9 - 0.1) / figure.arrays["y"].shape[1]
    for group, scores in ((KEPT, (0.9, 0.5)), (PROTECTED, (0.2,)), (EVICTED, (0.3, 0.1))):
        bars = figure.x.values[np.flatnonzero(figure.arrays["y"][group])]
        np.testing.assert_allclose(sorted(scores), bars, atol=width / 2 + 1e-6)


def test_scores_over_orders_of_magnitude_are_placed_by_their_logarithm(
    open_capture: Opener,
) -> None:
    made, capture = open_capture("grouped")
    entries = [
        (1e-1, 1, Reason.SELECTED, 13),
        (1e-3, 2, Reason.EVICTED, 0),
        (1e-5, 3, Reason.EVICTED, 0),
        (0.0, 4, Reason.EVICTED, 0),
    ]
    figure = score_distribution(capture, by_hand(made, entries), 0, 0, 0)
    assert figure.x.unit == "log₁₀" and figure.x.values is not None
    places = figure.x.values[np.flatnonzero(figure.arrays["y"][EVICTED])]
    np.testing.assert_allclose(places, [-5, -3], atol=0.06)  # half a bin of 4 decades in 40
    assert figure.arrays["y"][EVICTED, 0] == 2  # a score of 0 has no logarithm: the first bin
    assert figure.markers[0].x == pytest.approx(math.log10((1e-1 + 1e-3) / 2), abs=1e-5)


def test_an_earlier_decision_says_what_it_cannot_know(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    entries = [
        (0.9, 1, Reason.SELECTED, 13),
        (0.4, 2, Reason.EVICTED, 6),
        (0.3, 3, Reason.EVICTED, 2),
        (0.8, 3, Reason.EVICTED, 0),
    ]
    policy = by_hand(made, entries)
    first, early, late = (score_distribution(capture, policy, 0, 0, step) for step in (1, 4, 12))
    assert counts(first) == [3, 0, 1]  # what leaves later was kept here
    assert counts(early) == [2, 0, 1] and "eviction at step 2" in early.caption
    assert not first.markers and not early.markers
    assert "the score of a later decision; the highest evicted is 0.3" in early.caption
    assert counts(late) == [1, 0, 1] and "eviction at step 6" in late.caption
    assert late.markers[0].x == pytest.approx(0.65)


def test_partitions_that_did_not_compete_have_no_single_cut(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    entries = [(0.2, 1, Reason.SELECTED, 13), (0.6, 1, Reason.EVICTED, 0)]
    figure = score_distribution(capture, by_hand(made, entries), 0, 0, 0)
    assert not figure.markers and "overlap" in figure.caption


@pytest.mark.parametrize(
    "choice",
    [
        {"key": "snapkv", "options": {"budget": 12, "window": 4, "kernel": 3}},
        {"key": "h2o", "options": {"budget": 12}},
        {"key": "lazyeviction", "options": {"budget": 12, "window": 4, "alpha": 0.05}},
        {"key": "lagkv", "options": {"sink": 2, "lag": 4, "keep_ratio": 0.5}},
        {"key": "tova", "options": {"budget": 9, "granularity": "query_head"}},
    ],
)
def test_every_cached_entry_of_a_replayed_decision_is_counted_once(
    open_capture: Opener, choice: dict
) -> None:
    made, capture = open_capture("grouped")
    result = replay(policy_of(choice), capture.trace())
    policy = from_result(made, choice, result)
    sets = range(made.kv_heads, made.kv_heads + made.kv_heads)  # of KV head 1: two query heads
    heads = [1] if result.evicted_at.shape[1] == made.kv_heads else list(sets)
    for step in range(made.response_length + 1):
        decisions = [d for d in result.decisions if d.layer == 1 and d.step <= step]
        acted = [d.step for d in decisions for h in heads if h in d.gone()[0].tolist()]
        figure = score_distribution(capture, policy, 1, 1, step)
        if not acted:
            assert "nothing was evicted" in figure.caption and counts(figure) == [0, 0, 0]
            continue
        decision = next(d for d in decisions if d.step == max(acted))
        cached = sum(int((decision.classes[head] > 0).sum()) for head in heads)
        assert sum(told(figure)) == cached
        gone = sum(
            int((~decision.keep[head] & (decision.classes[head] > 0)).sum()) for head in heads
        )
        assert told(figure)[1] == gone
        if len(result.decisions) == made.layers:  # one decision a layer: every score is its own
            kept = decision.scores[1][decision.keep[1] & (decision.ranks[1] > 0)]
            assert told(figure)[0] == len(kept)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_every_run_are_drawn(open_capture: Opener, kind: str) -> None:
    made, capture = open_capture(kind)
    for policy in (made_replay(made), whole_replay(made), made_replay(made, by_query=True)):
        figure = score_distribution(capture, policy, 0, 0, made.response_length)
        assert figure.alt and figure.note is not None and figure.arrays["y"].shape[0] == 3
    assert "nothing was evicted" in score_distribution(capture, whole_replay(made), 0, 0, 0).caption
    assert to_plotly(score_distribution(capture, made_replay(made), 0, 0, 0)).data


def test_scores_that_are_all_equal_or_missing_are_drawn(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    same = [(0.5, rank, Reason.SELECTED, 13) for rank in range(1, 4)] + [(0.5, 4, 4, 0)]
    figure = score_distribution(capture, by_hand(made, same), 0, 0, 0)
    assert counts(figure) == [3, 0, 1] and figure.markers[0].x == pytest.approx(0.5)
    missing = [(math.nan, 0, Reason.SELECTED, 13), (math.nan, 0, Reason.EVICTED, 0)]
    figure = score_distribution(capture, by_hand(made, missing), 0, 0, 0)
    assert counts(figure) == [0, 0, 0] and told(figure)[3] == made.prompt_length


@pytest.mark.parametrize(
    ("layer", "head", "message"),
    [(MEAN, 0, "no common scale"), (0, MEAN, "no common scale"), (9, 0, "layer 9"), (0, 5, "KV")],
)
def test_scores_of_no_single_head_are_refused(
    open_capture: Opener, layer: int, head: int, message: str
) -> None:
    made, capture = open_capture("grouped")
    with pytest.raises(AnalysisError, match=message):
        score_distribution(capture, made_replay(made), layer, head, 0)


# --- regret ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_query", [False, True])
@pytest.mark.parametrize(("layer", "head"), [(0, 1), (MEAN, MEAN), (1, MEAN)])
def test_the_most_regretted_are_those_with_the_largest_sums(
    open_capture: Opener, layer: int | str, head: int | str, by_query: bool
) -> None:
    made, capture = open_capture("grouped")
    policy = made_replay(made, by_query=by_query)
    sets = policy.regret_entry.shape[1]
    places = [
        (number, index)
        for number in range(made.layers)
        for index in range(sets)
        if layer in (MEAN, number) and head in (MEAN, index * made.kv_heads // sets)
    ]
    sums = [
        sum(float(policy.regret_entry[number, index, position]) for number, index in places)
        for position in range(made.length)
    ]
    ranked = sorted(range(made.length), key=lambda position: -sums[position])[:10]
    table = most_regretted(capture, policy, layer, head)
    assert table["position"].tolist() == ranked
    assert table["rank"].tolist() == list(range(1, 11))
    for row in table.itertuples():
        position = row.position
        own = {place: float(policy.regret_entry[(*place, position)]) for place in places}
        assert row.regret == pytest.approx(sums[position], rel=1e-5)
        assert row.missed == sum(int(policy.missed_entry[(*place, position)]) for place in places)
        assert row.heads == sum(value > 0 for value in own.values())
        worst = max(own, key=lambda place: own[place])
        assert (row.layer, row.head) == worst
        assert row.evicted_at == policy.evicted_at[(*worst, position)]
        assert row.score == pytest.approx(float(policy.score[(*worst, position)]))
        assert row.score_rank == policy.rank[(*worst, position)] and row.reason == "evicted"
        assert row.segment == made.segments[position]


def test_regretted_entries_stand_in_their_text(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    policy = made_replay(made)
    policy.regret_entry[:] = 0
    policy.regret_entry[0, 0, 7], policy.regret_entry[0, 1, 4] = 2.0, 1.0
    table = most_regretted(capture, policy)
    assert table["position"].tolist() == [7, 4]
    assert table["token"].tolist() == ["␣<b>", "71"]
    assert table["before"].tolist() == [" is 4071.⏎", "The river is 40"]
    assert table["after"].tolist()[0] == "</b> &amp;é⇥"
    assert most_regretted(capture, policy, count=1)["position"].tolist() == [7]
    first = made_replay(made)
    first.regret_entry[:] = 0
    first.regret_entry[1, 1, 0] = first.regret_entry[1, 1, made.length - 1] = 1.0
    edge = most_regretted(capture, first)
    assert edge["position"].tolist() == [0, made.length - 1]  # equal regrets: by position
    assert (edge["before"][0], edge["after"][1]) == ("", "")


def test_what_was_never_evicted_but_not_read_has_no_step(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    policy = whole_replay(made)
    policy.regret_entry[0, 0, 3] = 0.5  # a page that Quest did not read
    table = most_regretted(capture, policy)
    assert table["evicted_at"].isna().tolist() == [True] and math.isnan(table["score"][0])


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_regretted_is_an_empty_table(open_capture: Opener, kind: str) -> None:
    made, capture = open_capture(kind)
    table = most_regretted(capture, whole_replay(made))
    assert table.empty and "regret" in table.columns
    untouched = made_replay(made, exempt=range(made.layers))
    assert most_regretted(capture, untouched).empty
    assert len(most_regretted(capture, made_replay(made))) <= 10
