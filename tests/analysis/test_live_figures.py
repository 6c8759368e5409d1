"""The figures of live runs, against hand-made runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.costs import (
    LIVE_COLUMNS,
    cache_bytes_over_steps,
    kl_over_steps,
    latency_by_stage,
    latency_over_steps,
    live_summary,
    response_diff,
)
from analysis.figure import Figure
from analysis.plotly_renderer import to_plotly
from analysis.replays import PolicyRun
from cache_store.reader import Capture
from tests.analysis.conftest import Opener
from tests.analysis.policies import made_run

Drawn = Callable[[Capture, Sequence[PolicyRun]], Figure]
FIGURES: dict[str, Drawn] = {
    "kl": lambda capture, runs: kl_over_steps(capture, runs, step=1),
    "bytes": lambda capture, runs: cache_bytes_over_steps(capture, runs),
    "latency": lambda capture, runs: latency_over_steps(capture, runs),
    "stages": lambda capture, runs: latency_by_stage(capture, runs),
}
H2O = {"key": "h2o", "options": {"budget": 8}}
edges = pytest.mark.parametrize("kind", ["grouped", "one_token", "nothing_generated", "smallest"])


def test_the_diff_tells_apart_what_agrees_differs_came_and_went(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    run = made_run(made, [1, 2, 9, 8, 5, 6, 3, 7, 11], [1, 2, 3, 4, 5, 6, 7, 11, 12])
    diff = response_diff(capture, run)
    assert [(part.kind, part.full, part.policy) for part in diff.parts] == [
        ("agrees", ("<1>", "<2>"), ("<1>", "<2>")),
        ("differs", ("<3>", "<4>"), ("<9>", "<8>")),
        ("agrees", ("<5>", "<6>"), ("<5>", "<6>")),
        ("inserted", (), ("<3>",)),
        ("agrees", ("<7>", "<11>"), ("<7>", "<11>")),
        ("deleted", ("<12>",), ()),
    ]
    assert [(part.full_step, part.policy_step) for part in diff.parts][3:] == [
        (7, 7),
        (7, 8),
        (9, 10),
    ]
    assert diff.first_difference == 3
    assert diff.agreement == pytest.approx(4 / 9)
    assert "first differing token is step 3 of 9" in diff.caption
    assert "6 agrees, 2 differs, 1 inserted, 1 deleted" in diff.alt
    table = diff.table()
    assert table["kind"].tolist()[:2] == ["agrees", "differs"] and table["policy"][1] == "<9><8>"


def test_lines_upon_each_other_are_told_and_seen(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    options = [{"budget": 8}, {"budget": 8, "positions": "cache"}, {"budget": 9}]
    runs = [
        made_run(made, choice={"key": "streaming_llm", "options": own}, seed=seed)
        for own, seed in zip(options, (1, 1, 2), strict=True)
    ]
    figure = kl_over_steps(capture, runs)
    names = [line.name for line in figure.series]
    assert f"{names[0]} and {names[1]} coincide; " in figure.caption
    assert figure.caption.count("coincide") == 1
    first, second, third = figure.series
    assert (first.colour, second.dash) != (second.colour, first.dash)
    assert first.colour != second.colour and first.dash == "solid" != second.dash
    assert third.colour == first.colour and third.dash not in (first.dash, second.dash)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    tokens=st.lists(st.integers(0, 4), max_size=14), full=st.lists(st.integers(0, 4), max_size=14)
)
def test_a_diff_holds_both_responses_whole(
    open_capture: Opener, tokens: list[int], full: list[int]
) -> None:
    made, capture = open_capture("grouped")
    diff = response_diff(capture, made_run(made, tokens, full))
    assert [text for part in diff.parts for text in part.full] == [f"<{t}>" for t in full]
    assert [text for part in diff.parts for text in part.policy] == [f"<{t}>" for t in tokens]
    for part in diff.parts:
        assert (part.full == part.policy) == (part.kind == "agrees")
        assert (part.full == ()) == (part.kind == "inserted")
        assert (part.policy == ()) == (part.kind == "deleted")
    pairs = [*zip(tokens, full, strict=False)]
    longest = max(len(tokens), len(full))
    differing = [step for step, (one, other) in enumerate(pairs, 1) if one != other]
    cut = len(pairs) + 1 if len(tokens) != len(full) else None
    assert diff.first_difference == (differing[0] if differing else cut)
    same = len(pairs) - len(differing)
    if longest:
        assert diff.agreement == pytest.approx(same / longest)
    else:
        assert math.isnan(diff.agreement) and "Nothing was generated" in diff.caption


def test_equal_responses_say_so(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    diff = response_diff(capture, made_run(made))
    assert [part.kind for part in diff.parts] == ["agrees"] and diff.first_difference is None
    assert diff.agreement == 1 and "All 12 tokens agree" in diff.caption


def test_lines_hold_the_measured_numbers_in_order_of_step(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    runs = [made_run(made, seed=1), made_run(made, choice=H2O, seed=2, simulated=1.0)]
    shuffled = runs[0].step.iloc[::-1]
    runs[0] = made_run(made, seed=1)
    object.__setattr__(runs[0], "step", shuffled)
    kl, size, time = (FIGURES[name](capture, runs) for name in ("kl", "bytes", "latency"))
    for index, run in enumerate(runs):
        for row in run.step.itertuples():
            column = row.step - 1
            assert kl.arrays["y"][index, column] == pytest.approx(row.kl, rel=1e-5)
            assert size.arrays["y"][index, column] == pytest.approx(row.cache_bytes / 1e6, rel=1e-5)
            assert time.arrays["y"][index, column] == pytest.approx(row.ms, rel=1e-5)
    assert [line.name for line in size.series] == [
        "SnapKV, budget 8",
        "H2O, budget 8 (simulated)",
        "full cache",
    ]
    assert "simulated runs are computed" in size.caption and "simulated" not in kl.caption
    full = [(2_000_000 + 1000 * step) / 1e6 for step in range(12)]
    np.testing.assert_allclose(size.arrays["y"][2], full, rtol=1e-5)
    both = [run.step.sort_values("step")["full_ms"].to_numpy() for run in runs]
    np.testing.assert_allclose(time.arrays["y"][2], (both[0] + both[1]) / 2, rtol=1e-5)
    median = sorted(runs[1].step["ms"])
    assert f"H2O, budget 8 {(median[5] + median[6]) / 2:.3g} ms" in time.caption
    assert size.y.unit == "MB" and time.y.unit == "ms" and kl.y.unit == "nats"


def test_a_run_that_ended_early_leaves_its_line_open(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    short = made_run(made, seed=1)
    object.__setattr__(short, "step", short.step[short.step["step"] <= 4])
    for name in ("kl", "latency", "bytes"):
        lines = FIGURES[name](capture, [made_run(made), short]).arrays["y"]
        assert np.isnan(lines[1]).tolist() == [False] * 4 + [True] * 8
        assert not np.isnan(lines[0]).any()


def test_stages_stack_to_the_time_of_the_run(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    runs = [made_run(made, seed=1), made_run(made, choice=H2O, seed=2)]
    runs[1].stage.loc[1, "stage"] = "lookahead"
    figure = latency_by_stage(capture, runs)
    assert [line.name for line in figure.series] == ["prefill", "lookahead", "evict", "decode"]
    assert [text for _, text in figure.x.ticks] == [
        "SnapKV, budget 8",
        "H2O, budget 8",
        "full cache",
    ]
    heights = figure.arrays["y"]
    for bar, run in enumerate(runs):
        assert heights[:, bar].sum() == pytest.approx(sum(run.stage["seconds"]), rel=1e-5)
    assert heights[1, 0] == 0 and heights[2, 1] == 0
    assert heights[1, 1] == pytest.approx(runs[1].stage["seconds"][1], rel=1e-5)
    np.testing.assert_allclose(heights[:, 2], [0.5, 0, 0, 2.0])


@edges
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_for_every_run(open_capture: Opener, kind: str, name: str) -> None:
    made, capture = open_capture(kind)
    figure = FIGURES[name](capture, [made_run(made), made_run(made, choice=H2O)])
    assert figure.alt and figure.note is not None and to_plotly(figure).data
    empty = FIGURES[name](capture, [])
    assert "No policy is chosen" in empty.caption and not to_plotly(empty).data
    if made.response_length == 0 and name != "stages":
        assert "Nothing was generated" in figure.caption


def test_unknown_numbers_stay_unknown(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    run = made_run(made)
    for column in ("kl", "ms", "full_ms", "cache_bytes"):
        run.step[column] = np.nan
    for name in ("kl", "latency", "bytes"):
        assert np.isnan(FIGURES[name](capture, [run]).arrays["y"][0]).all()
    row = live_summary(capture, [run]).iloc[0]
    assert math.isnan(row["kl_mean"]) and math.isnan(row["ms"])


@edges
def test_the_summary_holds_each_runs_numbers(open_capture: Opener, kind: str) -> None:
    made, capture = open_capture(kind)
    runs = [made_run(made, seed=1, agreement=0.5), made_run(made, choice=H2O, simulated=1.0)]
    table = live_summary(capture, runs)
    assert table.columns.tolist() == list(LIVE_COLUMNS)
    assert table["simulated"].tolist() == [False, True]
    assert table["agreement"].tolist() == [0.5, 1.0] and table["peak_bytes"][0] == 9e5
    assert table["forced_nll"].isna().all()
    kl = runs[0].step["kl"].tolist()
    if kl:
        assert table["kl_mean"][0] == pytest.approx(sum(kl) / len(kl))
        assert table["kl_max"][0] == pytest.approx(max(kl))
    else:
        assert math.isnan(table["kl_mean"][0])
    assert table["seconds"][0] == pytest.approx(sum(runs[0].stage["seconds"]))
    assert table["full_seconds"][0] == pytest.approx(2.5)
    assert live_summary(capture, []).empty
