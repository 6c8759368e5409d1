"""Figures of a study hold the numbers that hand calculation gives."""

import numpy as np
import pytest

from analysis.errors import AnalysisError
from analysis.study import costs, curves, grids, options
from tests.analysis.study.frames import curve, row, study


def test_lines_begin_at_the_full_cache():
    found = study(
        curve("full", "a", {0: [1, 0.5]}) + curve("snapkv", "a", {0.5: [1, 0], 0.75: [0, 0]}),
        ratios=[0.5, 0.75],
    )
    figure = curves.over_size(found)
    np.testing.assert_allclose(figure.x.values, [0, 0.5, 0.75])
    np.testing.assert_allclose(figure.arrays["y"], [[0.75, 0.5, 0]])
    assert (figure.arrays["low"] <= figure.arrays["y"]).all()
    assert figure.series[0].name == "snapkv"


def test_over_budgets_the_full_cache_is_a_line_of_its_own():
    rows = curve("full", "a", {0: [0.75]})
    rows += [row("a-0", "a", "snapkv", 0.9, budget=b, score=s) for b, s in ((32, 0.1), (64, 0.4))]
    figure = curves.over_size(study(rows, budgets=[64, 32]))
    np.testing.assert_allclose(figure.x.values, [32, 64])
    np.testing.assert_allclose(figure.arrays["y"], [[0.1, 0.4], [0.75, 0.75]])


def test_a_policy_of_its_own_size_is_a_point():
    rows = curve("full", "a", {0: [1]}) + curve("snapkv", "a", {0.5: [0.5]})
    rows += [row("a-0", "a", "LagKV", 0.6, key="lagkv", score=0.9)]
    figure = curves.over_size(study(rows, ratios=[0.5]))
    assert figure.arrays["point_x"].tolist() == pytest.approx([0.6])
    assert figure.arrays["point_y"].tolist() == pytest.approx([0.9])
    assert figure.series[int(figure.arrays["point_series"][0])].name == "LagKV"


def test_the_caption_says_when_the_full_cache_fails_and_how_tasks_are_averaged():
    # task a: 0.5 over two prompts, task b: 0 over one; each counts the same, so 0.25
    rows = curve("full", "a", {0: [1, 0]}) + curve("full", "b", {0: [0]})
    rows += curve("snapkv", "a", {0.5: [0, 0]}) + curve("snapkv", "b", {0.5: [0]})
    caption = curves.over_size(study(rows, ratios=[0.5])).caption
    assert "The full cache itself scores 0.25: little can be lost here" in caption
    assert "3 prompts of 2 tasks that count alike" in caption
    whole = curve("full", "a", {0: [1]}) + curve("snapkv", "a", {0.5: [0]})
    caption = curves.over_size(study(whole, ratios=[0.5])).caption
    assert "The full cache itself" not in caption and "count alike" not in caption


def test_the_front_by_hand():
    # (1, .2) and (2, .8) are on it; (2, .5) and (3, .8) are beaten, (4, .9) is the best score
    costs_, scores = np.array([1, 2, 2, 3, 4.0]), np.array([0.2, 0.5, 0.8, 0.8, 0.9])
    assert curves.front(costs_, scores).tolist() == [0, 2, 4]


def test_no_point_is_beaten_on_the_front():
    rng = np.random.default_rng(1)
    costs_, scores = rng.integers(0, 9, 60).astype(float), rng.integers(0, 9, 60).astype(float)
    kept = set(curves.front(costs_, scores).tolist())
    for i in range(60):
        beaten = any(
            (costs_[j] <= costs_[i] and scores[j] >= scores[i])
            and (costs_[j] < costs_[i] or scores[j] > scores[i])
            for j in range(60)
        )
        same = any(j in kept and costs_[j] == costs_[i] and scores[j] == scores[i] for j in kept)
        assert same == (not beaten)


def test_score_over_bytes_in_megabytes():
    rows = [row("a-0", "a", "full", 0, score=1.0, peak_bytes=4e6)]
    rows += [row("a-0", "a", "snapkv", 0.5, score=0.5, peak_bytes=2e6)]
    figure = curves.over_bytes(study(rows, ratios=[0.5]))
    assert figure.arrays["point_x"].tolist() == [4, 2]
    assert figure.arrays["y"][0].tolist() == [0.5, 1]  # the front, by bytes
    assert figure.point_text == ("full cache", "snapkv, 50% evicted")


def needles():
    rows = []
    for length in (500, 1000):
        for depth in (0, 0.5, 1):
            for i, score in enumerate((1.0, 0.0 if depth == 0.5 and length == 1000 else 1.0)):
                name = f"passkey-{length}-{depth}-{i}"
                facts = {"depth": depth, "length": length}
                rows.append(row(name, "passkey", "full", 0, score=1.0, **facts))
                rows.append(row(name, "passkey", "snapkv", 0.5, score=score, **facts))
    return rows


def test_needle_heatmap_by_hand():
    figure = grids.needle(study(needles(), ratios=[0.5]), "snapkv", 0.5, "passkey")
    np.testing.assert_allclose(figure.arrays["z"], [[1, 1], [1, 0.5], [1, 1]])
    assert [text for _, text in figure.x.ticks] == ["500", "1,000"]
    assert [text for _, text in figure.y.ticks] == ["0%", "50%", "100%"]
    assert figure.y.reversed  # the start of the prompt is at the top


def test_the_prompts_behind_a_cell():
    found = study(needles(), ratios=[0.5])
    assert grids.cell(found, "passkey", 1, 1) == ("50%", 1000)
    assert grids.prompts_in(found, "passkey", "50%", 1000) == [
        "passkey-1000-0.5-0",
        "passkey-1000-0.5-1",
    ]
    assert grids.prompts_in(found, "passkey", "40%", 1000) == []
    assert grids.prompts_in(found, "passkey", "50%", 700) == []


def test_random_depths_are_binned():
    rows = [
        row(f"p-{i}", "p", "full", 0, score=float(i < 10), depth=(i + 0.5) / 20, length=500)
        for i in range(20)
    ]
    figure = grids.needle(study(rows, ratios=[0.5]), "full", None, "p")
    # four depths of 5 % each per bin of 20 %: the third bin has two right, two wrong
    np.testing.assert_allclose(figure.arrays["z"][:, 0], [1, 1, 0.5, 0, 0])
    # 0.225, 0.275, 0.325 and 0.375 are the fifth to the eighth
    behind = grids.prompts_in(study(rows, ratios=[0.5]), "p", "20%–40%", 500)
    assert behind == ["p-4", "p-5", "p-6", "p-7"]


def test_prompts_without_depth_have_no_heatmap():
    rows = curve("full", "a", {0: [1]})
    with pytest.raises(AnalysisError, match="how deep"):
        grids.needle(study(rows, ratios=[0.5]), "full", None, "a")


def variants(key, settings, scores):
    rows = curve("full", "a", {0: [1.0]})
    for values, score in zip(settings, scores, strict=True):
        rows += curve(f"{key} {values}", "a", {0.5: [score]}, key=key, options=values)
    return study(rows, ratios=[0.5])


def test_score_over_a_number():
    found = variants("lazyeviction", [{"window": 5}, {}, {"window": 50}], [0.1, 0.2, 0.3])
    assert options.varied(found) == {"lazyeviction": ["window"]}
    figure = options.over_option(found, "lazyeviction", "window", 0.5)
    np.testing.assert_allclose(figure.x.values, [5, 25, 50])  # 25 is the paper's default
    np.testing.assert_allclose(figure.arrays["y"], [[0.1, 0.2, 0.3]])


def test_score_over_words_is_bars():
    found = variants("lazyeviction", [{"h1": "off"}, {"h2": "off"}, {}], [0.1, 0.2, 0.3])
    figure = options.over_option(found, "lazyeviction", "h1", 0.5)
    assert figure.mark == "bars"
    assert {text for _, text in figure.x.ticks} == {"off", "sigmoid"}


def test_entries_kept_per_partition():
    settings = [{"lag": 64, "keep_ratio": 0.5}, {"lag": 128, "keep_ratio": 0.25}, {"lag": 64}]
    rows = curve("full", "a", {0: [1.0]})
    for i, values in enumerate(settings):
        rows += [row("a-0", "a", f"v{i}", 0.4 + i / 10, key="lagkv", options=values, score=i / 2)]
    found = study(rows, ratios=[0.5])
    assert options.KEPT_PER_LAG in options.varied(found)["lagkv"]
    figure = options.over_option(found, "lagkv", options.KEPT_PER_LAG)
    # rL: 32, 32 and 64 · 0.25 = 16 (the default share)
    np.testing.assert_allclose(figure.x.values, [16, 32])
    assert [line.name for line in figure.series] == ["lag 64", "lag 128"]
    np.testing.assert_allclose(figure.arrays["y"], [[1, 0], [np.nan, 0.5]])


def test_a_setting_that_was_run_once_is_no_line_of_an_ablation():
    settings = [{"window": 5}, {"window": 50}, {"alpha": 1e-3}, {}]
    found = variants("lazyeviction", settings, [0.1, 0.2, 0.3, 0.4])
    figure = options.over_option(found, "lazyeviction", "window", 0.5)
    assert [line.name for line in figure.series] == ["defaults otherwise"]
    np.testing.assert_allclose(figure.arrays["y"], [[0.1, 0.4, 0.2]])


def test_a_lookahead_without_a_budget_has_that_of_the_cache():
    rows = [row("a-0", "a", "full", 0, score=1.0)]
    for name, values, score in (("small", {"lookahead_budget": 16}, 0.2), ("same", {}, 0.6)):
        rows.append(row("a-0", "a", name, 0.9, budget=64, key="laq", options=values, score=score))
    figure = options.over_option(study(rows, budgets=[64]), "laq", "lookahead_budget", 64)
    np.testing.assert_allclose(figure.x.values, [16, 64])
    np.testing.assert_allclose(figure.arrays["y"], [[0.2, 0.6]])


def test_the_policy_behind_a_point_of_an_ablation():
    found = variants("lazyeviction", [{"window": 5}, {}, {"h1": "off"}], [0.1, 0.2, 0.3])
    assert options.policy_at(found, "lazyeviction", "window", 25, 0.2, 0.5) == "lazyeviction {}"
    assert options.policy_at(found, "lazyeviction", "window", 6, 0.9, 0.5).endswith("5}")
    # bars in order: off, sigmoid
    assert options.policy_at(found, "lazyeviction", "h1", 0, 0.3, 0.5).endswith("'off'}")


def test_an_option_that_does_not_vary():
    with pytest.raises(AnalysisError, match="do not differ in alpha"):
        options.over_option(variants("snapkv", [{}], [1]), "snapkv", "alpha", 0.5)


def timed():
    times = {"prefill_ms": 10.0, "score_ms": 2.0, "decode_ms": 20.0}
    rows = [row("a-0", "a", "full", 0, score=1.0, prefill_ms=10.0, decode_ms=30.0)]
    rows += [row("a-0", "a", "snapkv", 0.5, score=1.0, **times)]
    return rows


def test_stages_by_hand():
    figure = costs.by_stage(study(timed(), ratios=[0.5]), 0.5)
    assert [s.name for s in figure.series] == [
        "reading the prompt",
        "scoring and compression",
        "writing the response",
    ]
    np.testing.assert_allclose(figure.arrays["y"], [[10, 10], [0, 2], [30, 20]])
    assert "lookahead or second reading" in figure.caption


def test_bytes_over_generated_length():
    rows = [row("a-0", "a", "full", 0, score=1.0, peak_bytes=3e6, response_tokens=12)]
    rows += [row("a-0", "a", "snapkv", 0.5, score=1.0, peak_bytes=1e6, response_tokens=10)]
    figure = costs.over_generated(study(rows, ratios=[0.5]), "peak_bytes", 0.5)
    assert figure.arrays["x"].tolist() == [12, 10]
    assert figure.arrays["y"].tolist() == [3, 1]
    names, points = costs.generated_points(study(rows, ratios=[0.5]), "peak_bytes", 0.5)
    assert [names[owner] for owner in points["owner"]] == ["full", "snapkv"]
    assert points["example_id"].tolist() == ["a-0", "a-0"]


@pytest.mark.parametrize("value", ["score", "agreement", "nll", "kl", "peak_bytes"])
def test_figures_of_a_study_without_numbers_yet(value):
    found = study([row("a-0", "a", "full", 0)], ratios=[0.5])
    figure = curves.over_size(found, value)
    assert figure.arrays["y"].shape == (0, 2)
    assert curves.over_bytes(found).caption
    assert costs.by_stage(found, 0.5).caption


def test_every_figure_is_drawn_and_printed(tmp_path):
    from analysis.plotly_renderer import to_plotly

    rows = needles()
    found = study(rows, ratios=[0.5])
    for figure in (
        curves.over_size(found),
        curves.over_bytes(found),
        grids.needle(found, "snapkv", 0.5, "passkey"),
        costs.by_stage(found, 0.5),
    ):
        assert to_plotly(figure, theme="light") is not None
        assert len(figure.table()) or figure.mark in ("lines", "stacked_bars")
        figure.save(tmp_path / "figure.pdf")
