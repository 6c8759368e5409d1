"""LagKV's and SAGE-KV's roles on the text, token by token, against loops and the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.errors import AnalysisError
from analysis.eviction_codes import Code
from analysis.partitions import lag_scores
from analysis.picks import last_rows, partition, picks
from analysis.role_texts import lag_text, sage_text
from tests.analysis.conftest import Opener
from tests.kvpolicies import reference
from tests.synthetic import Synthetic

KINDS = ("grouped", "one_to_one", "short_prompt", "one_token", "nothing_generated", "smallest")
SINK, LAG, RATIO = 3, 5, 0.4  # two of five entries stay


def arrays(made: Synthetic) -> list[list[np.ndarray]]:
    return [list(made.states[kind]) for kind in ("q", "k", "v")]


def check(view: Any, expected: list[list[list[int]]], head: int) -> None:
    """expected: `Code` by step, head and position, for the steps 0 ... T."""
    gone = (Code.NOTHING, Code.EVICTED, Code.UNSEEN)
    for index, step in enumerate(view.steps.tolist()):
        heads = expected[step]
        assert view.codes.at(index).tolist() == heads[head]
        assert view.kept[index] == sum(code not in gone for code in heads[head])
        held = [sum(codes[place] not in gone for codes in heads) for place in range(view.length)]
        assert view.holders.at(index).tolist() == held
    assert view.sets == len(expected[0])


def lag_codes(made: Synthetic, layer: int) -> list[list[list[int]]]:
    """The reference's replay of LagKV with the role of each entry, one position at a time."""
    options = {"sink": SINK, "lag": LAG, "keep_ratio": RATIO}
    kept = reference.replay("lagkv", *arrays(made), made.prompt_length, **options)
    steps = []
    for step in range(made.response_length + 1):
        seen = made.prompt_length + step
        complete = max(0, seen - SINK) // LAG
        ranked = SINK + max(0, complete - 1) * LAG
        heads = []
        for head in range(made.kv_heads):
            codes = []
            for place in range(made.length):
                if place >= seen:
                    codes.append(Code.NOTHING)
                elif place < SINK:
                    codes.append(Code.SINK)
                elif kept.evicted_at[layer, head, place] <= step:
                    codes.append(Code.EVICTED)
                else:
                    codes.append(Code.SELECTED if place < ranked else Code.RECENT)
            heads.append([int(code) for code in codes])
        steps.append(heads)
    return steps


@pytest.mark.parametrize("kind", KINDS)
def test_lagkv_s_roles_are_the_reference_s(open_capture: Opener, kind: str) -> None:
    made, capture = open_capture(kind)
    layer, head = made.layers - 1, made.kv_heads - 1
    scores = lag_scores(capture, layer, sink=SINK, lag=LAG)
    view = lag_text(capture, scores, RATIO, layer, head, made.response_length)
    check(view, lag_codes(made, layer), head)
    options = {"sink": SINK, "lag": LAG, "keep_ratio": RATIO}
    kept = reference.replay("lagkv", *arrays(made), made.prompt_length, **options)
    assert view.evicted_at.tolist() == kept.evicted_at[layer, head].tolist()
    assert f"layer {layer}, KV head {head}" in view.caption


def sage_sizes(budget: int, group: int) -> tuple[int, int, int]:
    """METHODS, SAGE-KV: S = B/4, k = B/(2G) rounded down to a power of two, R the rest."""
    sink, most = budget // 4, budget // (2 * group)
    own = 0
    while own < most and max(1, own * 2) <= most:
        own = max(1, own * 2)
    return sink, own, budget - sink - group * own


def sage_codes(made: Synthetic, layer: int, budget: int) -> list[list[list[int]]]:
    """SAGE-KV from the attention of the last prompt token, one position at a time."""
    group, prompt = made.query_heads // made.kv_heads, made.prompt_length
    sink, own, recent = sage_sizes(budget, group)
    selects = prompt > max(budget, sink + own + recent + 1)
    picked = []
    for head in range(made.query_heads):
        row = made.row(layer, head, prompt - 1)
        places = range(sink, prompt - 1 - recent) if selects else ()
        picked.append(set(sorted(places, key=lambda place: (-row[place], place))[:own]))
    steps = []
    for step in range(made.response_length + 1):
        heads = []
        for head in range(made.query_heads):
            first = head // group * group
            shared = set().union(*picked[first : first + group])
            codes = []
            for place in range(made.length):
                if place >= prompt + step:
                    codes.append(Code.NOTHING)
                elif place < sink:
                    codes.append(Code.SINK)
                elif not selects:
                    codes.append(Code.RECENT)
                elif place in picked[head]:
                    codes.append(Code.SELECTED)
                elif place in shared:
                    codes.append(Code.UNSEEN)
                elif place >= prompt + step - recent - 1:
                    codes.append(Code.RECENT)
                else:
                    codes.append(Code.EVICTED)
            heads.append([int(code) for code in codes])
        steps.append(heads)
    return steps


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [1, 9, 16, 60])
def test_sage_kv_s_roles_are_those_of_loops(open_capture: Opener, kind: str, budget: int) -> None:
    made, capture = open_capture(kind)
    layer, head = made.layers - 1, made.query_heads - 1
    group = made.query_heads // made.kv_heads
    parts = partition(budget, group, made.prompt_length)
    assert (parts.sink, parts.picks, parts.recent) == sage_sizes(budget, group)
    rows = last_rows(capture)
    chosen = picks(rows, parts)[layer]
    view = sage_text(capture, rows[layer], chosen, parts, layer, head, 0)
    expected = sage_codes(made, layer, budget)
    check(view, expected, head)
    for place in range(made.length):  # when it leaves the KV head's cache, hidden or not
        codes = [expected[step][head][place] for step in range(made.response_length + 1)]
        gone = [step for step, code in enumerate(codes) if code == Code.EVICTED]
        assert view.evicted_at[place] == (gone[0] if gone else made.response_length + 1)


def test_the_score_of_a_candidate_is_its_attention(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    parts = partition(16, 2, made.prompt_length)  # S 4, k 4, R 4: candidates 4 ... 34
    rows = last_rows(capture)
    view = sage_text(capture, rows[1], picks(rows, parts)[1], parts, 1, 2, 3)
    row = made.row(1, 2, made.prompt_length - 1)
    assert np.isnan(view.score[:4]).all() and np.isnan(view.score[35:]).all()
    assert view.score[4:35] == pytest.approx(row[4:35], abs=1e-5)
    order = sorted(range(4, 35), key=lambda place: (-row[place], place))
    assert view.rank[order].tolist() == list(range(1, 32))
    assert view.rank[:4].tolist() == [0] * 4


@pytest.mark.parametrize("head", [-1, 2])
def test_a_head_that_does_not_exist_is_one_sentence(open_capture: Opener, head: int) -> None:
    made, capture = open_capture("smallest")
    scores = lag_scores(capture, 0, sink=SINK, lag=LAG)
    with pytest.raises(AnalysisError, match=f"no KV head {head}; it has 0 to 0"):
        lag_text(capture, scores, RATIO, 0, head, 0)
    with pytest.raises(AnalysisError, match="no step 9"):
        lag_text(capture, scores, RATIO, 0, 0, 9)
    parts = partition(4, 1, made.prompt_length)
    rows = last_rows(capture)
    with pytest.raises(AnalysisError, match=f"no query head {head}; it has 0 to 0"):
        sage_text(capture, rows[0], picks(rows, parts)[0], parts, 0, head, 0)
