"""The texts beside a map of queries: every token names the point that is drawn for it."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.plotly_renderer import to_plotly
from analysis.projections import pca
from analysis.queries import Points
from analysis.queries_figures import projection_map
from cache_store.reader import Capture
from pages.parts.query_texts import texts_of
from tests.synthetic import Synthetic


@pytest.mark.parametrize("by", ["group", "segment", "token", "position", "step"])
def test_every_token_names_its_own_point(tmp_path_factory: pytest.TempPathFactory, by: str) -> None:
    made = Synthetic(prompt_length=4, response_length=3)
    points = Points(
        np.arange(14.0, dtype=np.float32).reshape(7, 2) ** 2,
        np.array([0, 0, 1, 1, 2, 2, 2]),
        ("prompt window", "lookahead", "response"),
        np.array([2, 3, 4, 5, 4, 5, 6]),
        ("context", "question", "lookahead", "lookahead", "response", "response", "response"),
        ("a", "b", "c", "", "a", "\n", "<b>"),
    )
    with Capture.open(made.write(tmp_path_factory.mktemp(by))) as capture:
        figure = projection_map(capture, points, pca(points.vectors), 0, 0, by=by, highlight=5)
    drawn = to_plotly(figure)
    sent = texts_of(points, figure, "map")
    assert sent["chart"] == ".st-key-map .js-plotly-plot"
    assert [group["name"] for group in sent["groups"]] == ["Prompt window", "Lookahead", "Response"]
    assert [group["pieces"] for group in sent["groups"]] == [
        ["a", "b"],
        ["c", ""],
        ["a", "\n", "<b>"],
    ]
    assert [group["positions"] for group in sent["groups"]] == [[2, 3], [4, 5], [4, 5, 6]]
    named = [place for group in sent["groups"] for place in group["points"]]
    assert len({tuple(place) for place in named}) == 7
    for index, (curve, number) in enumerate(named):
        trace = drawn.data[curve]
        assert trace.x[number] == pytest.approx(figure.arrays["x"][index])
        assert trace.y[number] == pytest.approx(figure.arrays["y"][index])
