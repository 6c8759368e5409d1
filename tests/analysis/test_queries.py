"""Projections of queries and keys against plain loops and what must not change."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.errors import AnalysisError, NeedsJob
from analysis.heavy import run
from analysis.lookaheads import Lookahead
from analysis.projections import (
    pca,
    project,
    projection_spec,
    stored_projection,
    trustworthiness,
)
from analysis.queries import (
    Points,
    centroid_distances,
    colours_of,
    joint_points,
    joint_space,
    query_points,
)
from analysis.queries_figures import projection_map
from analysis.rows import MEAN
from cache_store.reader import Capture
from tests.analysis.conftest import KINDS, Opener
from tests.synthetic import Synthetic


def draft(made: Synthetic, steps: int = 3) -> Lookahead:
    shape = (made.layers, made.query_heads, steps, made.head_dim)
    queries = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    return Lookahead({}, "draft", queries, np.arange(steps), ("a", "b", "c")[:steps])


def test_points_are_the_stored_queries(open_capture: Opener) -> None:
    made, capture = open_capture("grouped")
    points = query_points(capture, 1, 2, window=5, lookahead=draft(made))
    states = made.states["q"][1, 2].astype(np.float32)
    assert (points.of("prompt window") == states[35:40]).all()
    assert (points.of("response") == states[40:]).all()
    assert (points.of("lookahead") == draft(made).queries[1, 2].astype(np.float32)).all()
    assert points.positions.tolist() == [*range(35, 40), 40, 41, 42, *range(40, 52)]
    assert [t for t, own in zip(points.texts, points.group, strict=True) if own == 1] == [*"abc"]
    assert list(points.texts[-len(made.pieces[40:]) :]) == made.pieces[40:]
    mean = query_points(capture, 1, MEAN, window=5, limit=4)
    assert mean.groups == ("prompt window", "response") and len(mean.vectors) == 9
    expected = made.states["q"][1].astype(np.float32).mean(axis=0)[35:44]
    np.testing.assert_allclose(mean.vectors, expected, rtol=1e-6)
    with pytest.raises(AnalysisError, match="no layer 9"):
        query_points(capture, 9, 0)
    with pytest.raises(AnalysisError, match="no query head 9"):
        query_points(capture, 0, 9)


def test_centroid_distances_by_hand() -> None:
    vectors = np.array([[0.0, 0], [2, 0], [4, 3], [4, 3]], np.float32)
    points = Points(
        vectors, np.array([0, 0, 1, 1]), ("a", "b", "c"), np.arange(4), ("",) * 4, ("",) * 4
    )
    table = centroid_distances(points).set_index(["first", "second"])
    # centroids (1, 0) and (4, 3); the first pair is 1 from its own, the second 0
    assert table.loc[("a", "b"), "distance"] == pytest.approx(math.sqrt(18))
    assert table.loc[("a", "b"), "cosine"] == pytest.approx(4 / 5)
    assert table.loc[("a", "b"), "spread"] == pytest.approx(0.5)
    assert table.loc[("a", "c")].isna().all()  # an empty group


def test_pca_finds_the_line_and_keeps_distances() -> None:
    draw = np.random.default_rng(1)
    line = np.outer(draw.standard_normal(30), [3.0, 4.0, 0.0]) + 7
    found = pca(line)
    assert found.explained is not None and found.explained[0] == pytest.approx(1)
    distances = np.abs(found.coordinates[:, :1] - found.coordinates[:, 0])
    np.testing.assert_allclose(
        distances, np.linalg.norm(line[:, None] - line[None], axis=2), atol=1e-4
    )
    assert found.trustworthiness == pytest.approx(1)
    plane = draw.standard_normal((20, 2))
    assert pca(plane).explained == pytest.approx(  # against the covariance's own eigenvalues
        tuple(sorted(np.linalg.eigvalsh(np.cov(plane.T)), reverse=True) / np.cov(plane.T).trace())
    )
    assert (pca(line).coordinates == pca(line.copy()).coordinates).all()
    one = pca(np.ones((1, 4)))
    assert one.coordinates.tolist() == [[0, 0]] and math.isnan(one.trustworthiness)


def naive_trust(vectors: np.ndarray, coordinates: np.ndarray, k: int) -> float:
    count, penalty = len(vectors), 0
    for i in range(count):
        far = [(float(np.linalg.norm(vectors[i] - vectors[j])), j) for j in range(count) if j != i]
        rank = {j: place for place, (_, j) in enumerate(sorted(far), start=1)}
        near = [
            (float(np.linalg.norm(coordinates[i] - coordinates[j])), j)
            for j in range(count)
            if j != i
        ]
        penalty += sum(max(0, rank[j] - k) for _, j in sorted(near)[:k])
    return 1 - 2 * penalty / (count * k * (2 * count - 3 * k - 1))


@pytest.mark.parametrize("neighbours", [1, 4, 9])
def test_trustworthiness_against_loops(neighbours: int) -> None:
    draw = np.random.default_rng(neighbours)
    vectors, coordinates = draw.standard_normal((23, 5)), draw.standard_normal((23, 2))
    assert trustworthiness(vectors, coordinates, neighbours) == pytest.approx(
        naive_trust(vectors, coordinates, neighbours)
    )
    assert trustworthiness(coordinates, coordinates, neighbours) == 1
    assert math.isnan(trustworthiness(vectors, coordinates, 12))


def test_the_joint_space_leaves_attention_as_it_is() -> None:
    draw = np.random.default_rng(2)
    queries, keys = draw.standard_normal((40, 6)) * 5 + 2, draw.standard_normal((60, 6)) - 3
    space = joint_space(queries, keys)

    def softmax(logits: np.ndarray) -> np.ndarray:
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    np.testing.assert_allclose(
        softmax(queries @ keys.T), softmax(space.queries @ space.keys.T), atol=1e-4
    )
    shifted = keys + queries.mean(axis=0) - keys.mean(axis=0)

    def fit(scale: float) -> float:
        distance = np.linalg.norm(queries[:, None] * scale - shifted[None] / scale, axis=2)
        return float(np.corrcoef(-distance.ravel(), (queries @ shifted.T).ravel())[0, 1])

    assert space.correlation == pytest.approx(fit(space.scale), abs=1e-6)
    assert space.correlation >= max(fit(scale) for scale in np.geomspace(0.05, 5, 60)) - 1e-4
    with pytest.raises(AnalysisError, match="at least one"):
        joint_space(queries[:0], keys)


@pytest.mark.parametrize("options", [{"method": "pca3"}, {"distance": 2.0}, {"neighbours": 1}])
def test_impossible_projections_are_one_sentence(options: dict[str, Any]) -> None:
    with pytest.raises(AnalysisError, match=r"Projections are|UMAP needs"):
        project(np.zeros((9, 2)), **({"method": "umap"} | options))
    with pytest.raises(AnalysisError, match="too few for umap"):
        project(np.zeros((3, 2)), "umap")
    with pytest.raises(AnalysisError, match="no point"):
        pca(np.zeros((0, 2)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_map_of_every_capture(open_capture: Opener, kind: str) -> None:
    from analysis.plotly_renderer import to_plotly

    made, capture = open_capture(kind)
    points = query_points(capture, 0, 0, lookahead=draft(made))
    joint, space = joint_points(capture, 0, made.query_heads - 1, limit=20)
    for shown, held in ((points, None), (joint, space)):
        projection = pca(shown.vectors)
        for by in ("group", "segment", "token", "step", "position"):
            figure = projection_map(
                capture, shown, projection, 0, 0, by=by, joint=held, highlight=0
            )
            assert figure.caption and figure.alt and figure.note and figure.note.source
            assert "trustworthiness" in figure.caption
            assert ("fit of nearness" in figure.caption) == (held is not None)
            figure.table()
            to_plotly(figure)
    centroid_distances(points)
    with pytest.raises(AnalysisError, match="not colour"):
        colours_of(points, "colour", 3)
    if len(points.vectors) != len(joint.vectors):
        with pytest.raises(AnalysisError, match="other points"):
            projection_map(capture, points, pca(joint.vectors), 0, 0)


def test_a_slow_projection_is_a_job_and_then_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Synthetic()
    path = made.write(tmp_path)
    spec = projection_spec("joint", 1, 3, "umap", neighbours=6, distance=0.2, seed=3)
    with Capture.open(path) as capture, pytest.raises(NeedsJob) as needed:
        stored_projection(capture, spec)
    assert needed.value.kind == "projection" and needed.value.seconds > 0
    asked: list[Any] = []

    def fit(vectors: np.ndarray, *options: Any) -> np.ndarray:  # umap-learn takes half a minute
        asked.append((vectors.shape, *options))
        return vectors[:, :2]

    monkeypatch.setattr("analysis.projections._umap", fit)
    params = {"run_id": made.run_id, "kind": "projection", "spec": needed.value.spec}
    run(params, tmp_path, lambda report: None, lambda: False)
    assert asked == [((2 * made.length, made.head_dim), 6, 0.2, "euclidean", 3)]
    with Capture.open(path) as capture:
        found = stored_projection(capture, spec)
        points, _ = joint_points(capture, 1, 3)
        assert (found.coordinates == points.vectors[:, :2]).all()
        assert found.trustworthiness == pytest.approx(
            trustworthiness(points.vectors, found.coordinates, 6)
        )
        at_once = stored_projection(capture, {**spec, "method": "pca"})
        assert at_once.method == "pca" and at_once.explained is not None


def test_every_heavy_kind_is_queued_as_an_analysis() -> None:
    from analysis.heavy import kinds
    from backend.jobs.queue import derive_job
    from backend.jobs.registry import ANALYSES, KINDS

    assert set(kinds()) == set(ANALYSES)
    for kind in ANALYSES:
        queued = KINDS[derive_job("x", kind, {}).kind]
        assert (queued.path, queued.lane) == ("analysis.heavy:run", "short")
