"""Masks, grids and text of what policies keep, against hand calculations and naive loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from analysis.errors import AnalysisError
from analysis.eviction import (
    eviction_table,
    eviction_text,
    kept_difference,
    kept_grid,
    mask,
    mask_difference,
)
from analysis.eviction_codes import (
    CATEGORIES,
    Code,
    attended,
    codes_of,
    counts_over_steps,
    head_entries,
    held,
)
from analysis.eviction_text import EvictionView
from analysis.pooling import pool_codes
from analysis.replays import Replayed
from kvpolicies import Trace, replay
from kvpolicies.choice import policy_of
from kvpolicies.decisions import Reason
from tests.analysis.conftest import Opener
from tests.analysis.replaying import by_hand, of_result

P, T = 40, 12  # of the "grouped" capture
LAYERS, HEADS, QUERIES = 2, 2, 4

CHOICES: tuple[dict[str, Any], ...] = (
    {"key": "streaming_llm", "options": {"budget": 12}},
    {"key": "h2o", "options": {"budget": 9}},
    {"key": "tova", "options": {"budget": 10}},
    {"key": "snapkv", "options": {"budget": 12, "window": 4}},
    {"key": "snapkv", "options": {"budget": 12, "window": 4, "scope": "context"}},
    {"key": "ada_snapkv", "options": {"budget": 12, "window": 4}},
    {"key": "raas", "options": {"budget": 44}},
    {"key": "lazyeviction", "options": {"budget": 16, "window": 4}},
    {"key": "h2o_window", "options": {"budget": 16, "window": 5}},
    {"key": "lagkv", "options": {"lag": 8, "sink": 4, "keep_ratio": 0.5}},
    {"key": "sage_kv", "options": {"budget": 16, "view": "union"}},
    {"key": "random", "options": {"budget": 7}},
)


def drawn(seed: int = 0) -> Trace:
    draw = torch.Generator().manual_seed(seed)
    shapes = ((QUERIES, P + T, 8), (HEADS, P + T, 8), (HEADS, P + T, 8))
    states = [[torch.randn(shape, generator=draw) for _ in range(LAYERS)] for shape in shapes]
    return Trace(*states, prompt_length=P, context_length=P - 8)


def replayed_of(choice: dict[str, Any]) -> Replayed:
    return of_result(replay(policy_of(choice), drawn()), choice, QUERIES)


def random_replayed(seed: int = 0, layers: int = LAYERS, heads: int = HEADS) -> Replayed:
    """Every entry goes at a random step from the first one after which it exists, or never."""
    draw = np.random.default_rng(seed)
    birth = np.maximum(0, np.arange(P + T) - P + 1)
    evicted_at = birth + draw.integers(0, T + 2, (layers, heads, P + T))
    return by_hand(np.minimum(evicted_at, T + 1), P, group=QUERIES // heads)


def test_the_codes_of_masks_are_the_codes_of_reasons() -> None:
    assert [(code.name, code.value) for code in Reason if code] == [
        (code.name, code.value) for code in Code if 0 < code <= Code.NEVER_SCORED
    ]
    assert [kind.label for kind in CATEGORIES[:5]] == [code.label for code in Reason if code]


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: str(choice["key"]))
def test_reasons_at_every_step_are_those_of_its_decision(choice: dict[str, Any]) -> None:
    """What a mask says is worked out from the last decisions alone; here against all of them.

    Entries that a decision did not rank keep what the one before it said. What a ranking by
    position selects is the recent window.
    """
    newest_win = choice["key"] == "streaming_llm"
    result = replay(policy_of(choice), drawn())
    replayed = of_result(result, choice, QUERIES)
    heads = result.evicted_at.shape[1]
    for layer in range(LAYERS):
        for head in range(heads):
            said = np.full(P + T, Reason.NEVER_SCORED)
            told = codes_of(head_entries(replayed, layer, head), np.arange(T + 1), 0, P + T)
            for step in range(T + 1):
                decision = result.decision(layer, step)
                if decision is not None:
                    for column, position in enumerate(decision.positions[head].tolist()):
                        reason = int(decision.reasons[head, column])
                        ranked_before = said[position] != Reason.NEVER_SCORED
                        if newest_win and reason == Reason.SELECTED:
                            reason = Reason.RECENT
                        if reason and not (reason == Reason.NEVER_SCORED and ranked_before):
                            said[position] = reason
                np.testing.assert_array_equal(told[step, : P + step], said[: P + step])
                assert (told[step, P + step :] == Code.NOTHING).all()


def test_a_policy_that_chooses_is_shown_by_what_it_attends_to() -> None:
    choice = {"key": "quest", "options": {"budget": 32, "page": 8, "skip_layers": 1}}
    result = replay(policy_of(choice), drawn())
    replayed = of_result(result, choice, QUERIES)
    assert result.visible is not None
    seen = result.visible.numpy()
    dense = codes_of(head_entries(replayed, 0, 1), np.arange(T + 1), 0, P + T)
    told = codes_of(head_entries(replayed, 1, 1), np.arange(T + 1), 0, P + T)
    for step in range(T + 1):
        for position in range(P + step):
            assert dense[step, position] == Code.NEVER_SCORED
            group = seen[1, 2, step, position] or seen[1, 3, step, position]
            whole = (seen[1, 2, step] | seen[1, 3, step]).sum() == P + step
            expected = Code.SELECTED if group else Code.UNSEEN
            assert told[step, position] == (Code.NEVER_SCORED if whole else expected)
        np.testing.assert_array_equal(
            held(replayed, step)[1, 1], seen[1, 2, step] | seen[1, 3, step]
        )
    part = attended(replayed, slice(3, 5), 5, 23)
    np.testing.assert_array_equal(part[1, 0], (seen[1, 0] | seen[1, 1])[3:5, 5:23])


def test_a_layer_with_a_sliding_window_is_drawn_as_exempt(open_capture: Opener) -> None:
    _, capture = open_capture("sliding")
    evicted_at = np.full((2, 2, P + T), T + 1)
    evicted_at[1, :, :10] = 0
    replayed = by_hand(evicted_at, P, group=2, exempt=np.array([True, False]))
    figure = mask(capture, replayed, 0, 1, 2)
    assert set(np.unique(figure.arrays["codes"])) == {Code.NOTHING, Code.EXEMPT}
    assert "exempt" in figure.caption
    grid = kept_grid(capture, replayed, 2).arrays["z"]
    assert np.isnan(grid[0]).all() and np.allclose(grid[1], (P + 2 - 10) / (P + 2))


def test_a_mask_shows_every_entry_of_a_narrow_range(open_capture: Opener) -> None:
    _, capture = open_capture("grouped")
    replayed = random_replayed()
    figure = mask(capture, replayed, 1, 0, 4, (35, 50))
    codes = figure.arrays["codes"]
    assert codes.shape == (T + 1, 15) and codes.dtype == np.uint8
    for step in range(T + 1):
        for column, position in enumerate(range(35, 50)):
            code = codes[step, column]
            assert (code == Code.NOTHING) == (position >= P + step)
            if code:
                gone = replayed.evicted_at[1, 0, position] <= step
                assert (code == Code.EVICTED) == gone
    kept = replayed.kept(1, 0, 4).sum()
    assert f"{kept} of {P + 4} entries cached after step 4" in figure.caption
    assert "every entry shown" in figure.caption
    assert [marker.kind for marker in figure.markers] == ["x", "y"]


@pytest.mark.parametrize("seed", range(4))
def test_pooling_never_hides_a_category_and_says_how_much_of_a_cell_it_is(seed: int) -> None:
    draw = np.random.default_rng(seed)
    codes = draw.choice(6, (23, 91), p=[0.1, 0.002, 0.01, 0.088, 0.3, 0.5]).astype(np.uint8)
    pooled = pool_codes(codes, 8, 10)
    totals = np.bincount(codes.reshape(-1), minlength=6)
    assert pooled.codes.shape == (8, 10) and pooled.block == (3, 10)
    for row in range(8):
        for column in range(10):
            block = codes[3 * row : 3 * row + 3, 10 * column : 10 * column + 10]
            present = sorted(set(block.reshape(-1).tolist()) - {0}, key=lambda code: totals[code])
            assert pooled.codes[row, column] == (present[0] if present else 0)
            if present:
                share = (block == present[0]).sum() / (block > 0).sum()
                assert pooled.share[row, column] == pytest.approx(share)


def test_one_kept_entry_of_4224_by_129_is_seen() -> None:
    codes = np.full((129, 4224), 4, np.uint8)
    codes[77, 3001] = 3
    pooled = pool_codes(codes, 240, 320)
    assert pooled.codes.shape == (129, 302)
    assert np.argwhere(pooled.codes == 3).tolist() == [[77, 3001 // 14]]
    assert pooled.share[77, 3001 // 14] == pytest.approx(1 / 14)


def test_the_difference_of_two_masks_counts_both_one_other_neither(open_capture: Opener) -> None:
    _, capture = open_capture("grouped")
    first, second = random_replayed(1), random_replayed(2)
    figure = mask_difference(capture, first, second, 0, 1, 5)
    codes = figure.arrays["codes"]
    for step in range(T + 1):
        one, other = first.kept(0, 1, step), second.kept(0, 1, step)
        for position in range(P + T):
            expected = 0
            if position < P + step:
                expected = {(True, True): 1, (True, False): 2, (False, True): 3}.get(
                    (bool(one[position]), bool(other[position])), 4
                )
            assert codes[step, position] == expected
    counts = np.bincount(codes[5], minlength=5)
    assert (
        f"{counts[1]} entries kept by both, {counts[2]} only by A, {counts[3]} only by B, "
        f"{counts[4]} by neither" in figure.caption
    )


def test_two_policies_with_other_heads_cannot_be_compared(open_capture: Opener) -> None:
    _, capture = open_capture("grouped")
    with pytest.raises(AnalysisError, match="granularity"):
        mask_difference(capture, random_replayed(), random_replayed(heads=QUERIES), 0, 0)


def test_grids_hold_shares_and_differences_of_counts(open_capture: Opener) -> None:
    _, capture = open_capture("grouped")
    first, second = random_replayed(1), random_replayed(2)
    for step in (0, 7, T):
        grid = kept_grid(capture, first, step, selected=(1, 0))
        np.testing.assert_allclose(grid.arrays["z"], first.counts(step) / (P + step), rtol=1e-6)
        assert grid.colour is not None and grid.colour.range == (0.0, 1.0)
        np.testing.assert_array_equal(counts_over_steps(first)[:, :, step], first.counts(step))
        difference = kept_difference(capture, first, second, step)
        expected = first.counts(step) - second.counts(step)
        np.testing.assert_array_equal(difference.arrays["z"], expected)
    assert difference.colour is not None
    low, high = difference.colour.range
    steps = [np.abs(first.counts(step) - second.counts(step)).max() for step in range(T + 1)]
    assert high == -low == max(steps)


@pytest.mark.parametrize(
    ("place", "words"),
    [((2, 0, 0), "no layer 2"), ((0, 2, 0), "no head 2"), ((0, 0, 13), "no step 13")],
)
def test_what_does_not_exist_is_refused(
    open_capture: Opener, place: tuple[int, int, int], words: str
) -> None:
    _, capture = open_capture("grouped")
    for ask in (mask, eviction_text, eviction_table):
        with pytest.raises(AnalysisError, match=words):
            ask(capture, random_replayed(), *place)


def at_step(view: EvictionView, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes and holders of the page after a step, as the browser works them out."""
    index = step - int(view.steps[0])
    return view.codes.at(index), view.holders.at(index)


def kept_share(replayed: Replayed, step: int) -> np.ndarray:
    """Share of the touched layers' heads that hold each position after a step; (P + T,)."""
    kept = [
        replayed.kept(layer, head, step)
        for layer, head in np.ndindex(*replayed.evicted_at.shape[:2])
        if not replayed.exempt[layer]
    ]
    return np.mean(kept, axis=0)


@pytest.mark.parametrize("page", [0, 1, None])
def test_the_text_holds_every_step_as_changes(open_capture: Opener, page: int | None) -> None:
    _, capture = open_capture("grouped")
    replayed = random_replayed(3)
    view = eviction_text(capture, replayed, 1, 1, 2, page, page_tokens=30, evidence=[(3, 6)])
    assert view.pages == 2 and view.steps.tolist() == list(range(T + 1))
    assert view.page == (1 if page is None else page)  # the step's own token is on the second
    positions = slice(view.first, view.first + len(view.pieces))
    expected = codes_of(head_entries(replayed, 1, 1), np.arange(T + 1), 0, P + T)[:, positions]
    for step in range(T + 1):
        codes, holders = at_step(view, step)
        np.testing.assert_array_equal(codes, expected[step])
        np.testing.assert_allclose(holders / view.sets, kept_share(replayed, step)[positions])
        assert view.kept[step] == replayed.kept(1, 1, step).sum()
    assert "of 42 tokens kept after step 2 in layer 1, KV head 1" in view.caption


def test_the_text_of_a_policy_that_chooses_comes_in_windows(open_capture: Opener) -> None:
    _, capture = open_capture("grouped")
    replayed = replayed_of({"key": "quest", "options": {"budget": 32, "page": 8}})
    view = eviction_text(capture, replayed, 1, 0, 6, window=4)
    assert 6 in view.steps and len(view.steps) == 4 and view.chooses
    for step in view.steps.tolist():
        codes, holders = at_step(view, step)
        np.testing.assert_array_equal(holders, held(replayed, step).sum((0, 1)))
        assert view.kept[step - view.steps[0]] == held(replayed, step)[1, 0].sum()
        assert (codes[: P + step] > 0).all()


def test_shares_leave_out_layers_the_policy_does_not_touch(open_capture: Opener) -> None:
    _, capture = open_capture("grouped")
    evicted_at = np.full((2, 2, P + T), T + 1)
    evicted_at[1, 0, 5] = 3
    replayed = by_hand(evicted_at, P, group=2, exempt=np.array([True, False]))
    view = eviction_text(capture, replayed, 1, 0, 3)
    assert view.sets == 2
    assert at_step(view, 2)[1][5] == 2 and at_step(view, 3)[1][5] == 1
    np.testing.assert_allclose(at_step(view, 3)[1] / 2, kept_share(replayed, 3))


def test_the_table_of_the_text_has_a_row_per_token(open_capture: Opener) -> None:
    _, capture = open_capture("grouped")
    replayed = random_replayed(3)
    table = eviction_table(capture, replayed, 0, 1, 4)
    assert table["position"].tolist() == list(range(P + 4))
    assert table["kept"].tolist() == replayed.kept(0, 1, 4)[: P + 4].tolist()
    np.testing.assert_allclose(table["kept_share"], kept_share(replayed, 4)[: P + 4])
    never = replayed.evicted_at[0, 1, : P + 4] > T
    assert table["evicted_at"].isna().tolist() == never.tolist()
    assert set(table.loc[~table["kept"], "reason"]) == {"evicted"}
    assert table["rank"].isna().all()  # nothing was ranked here
