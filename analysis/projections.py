"""Two-dimensional pictures of vectors: PCA at once, UMAP and t-SNE as jobs, and their trust."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.errors import AnalysisError, NeedsJob
from analysis.lookaheads import lookahead
from analysis.queries import JointSpace, Points, joint_points, query_points
from cache_store.reader import Capture

METHODS = ("pca", "umap", "tsne")
NAMES = {"pca": "PCA", "umap": "UMAP", "tsne": "t-SNE"}
METRICS = ("euclidean", "cosine")
KIND = "projection"
NEIGHBOURS = 15
ROWS = 96  # points whose neighbours are checked, evenly spread
FIRST_FIT_S = 20.0  # importing and compiling umap-learn in a fresh worker
POINTS_PER_S = 500.0


@dataclass(frozen=True)
class Projection:
    """coordinates: float32 (p, 2); trustworthiness: of the `neighbours` nearest (1 is perfect, NaN
    for too few points); explained: share of the variance on each axis (PCA only)."""

    method: str
    coordinates: np.ndarray
    trustworthiness: float
    neighbours: int
    explained: tuple[float, float] | None = None


def pca(vectors: np.ndarray, neighbours: int = NEIGHBOURS) -> Projection:
    """The two directions of largest variance, by SVD; signs so that the largest entry is positive.

    vectors (p, d). Raises AnalysisError without points.
    """
    if not len(vectors):
        raise AnalysisError("There is no point to project.")
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    axes = (
        axes[:2]
        * np.sign(axes[:2][np.arange(len(axes[:2])), np.abs(axes[:2]).argmax(axis=1)])[:, None]
    )
    coordinates = np.zeros((len(vectors), 2))
    coordinates[:, : len(axes)] = centred @ axes.T
    power = np.zeros(2)
    power[: len(sizes[:2])] = sizes[:2] ** 2
    total = float((sizes**2).sum())
    explained = power / total if total > 0 else power
    near = min(neighbours, max(1, (len(vectors) - 1) // 2))
    return Projection(
        "pca",
        coordinates.astype(np.float32),
        trustworthiness(vectors, coordinates, near),
        near,
        (float(explained[0]), float(explained[1])),
    )


def trustworthiness(vectors: np.ndarray, coordinates: np.ndarray, neighbours: int) -> float:
    """Whether neighbours in the picture are neighbours in truth (Venna and Kaski 2001).

    vectors (p, d), coordinates (p, 2): 1 − 2/(p k (2p − 3k − 1)) Σᵢ Σ_{j near in the picture}
    max(0, rank(i, j) − k), over at most ROWS evenly spread i. NaN where k is not below p / 2.
    """
    count, k = len(vectors), neighbours
    if k < 1 or 2 * k >= count:
        return float("nan")
    rows = np.unique(np.linspace(0, count - 1, min(count, ROWS)).round().astype(int))
    near = np.argsort(_distances(coordinates, rows), axis=1, kind="stable")[:, :k]
    order = np.argsort(_distances(vectors, rows), axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(count), order.shape), axis=1)
    true = np.take_along_axis(rank, near, axis=1) + 1  # 1 is the nearest
    penalty = int(np.maximum(0, true - k).sum())
    return 1 - 2 * penalty / (len(rows) * k * (2 * count - 3 * k - 1))


def _distances(points: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Squared distances of some points to all, infinite to themselves; float64 (m, p)."""
    every = points.astype(np.float64)
    norms = (every**2).sum(axis=1)
    squares = norms[rows, None] + norms - 2 * every[rows] @ every.T
    squares[np.arange(len(rows)), rows] = np.inf
    return np.asarray(squares)


def project(
    vectors: np.ndarray,
    method: str,
    *,
    neighbours: int = NEIGHBOURS,
    distance: float = 0.1,
    metric: str = "euclidean",
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Projection:
    """A projection by any of METHODS; UMAP and t-SNE belong into a worker (one thread, fixed seed).

    distance: UMAP's min_dist; neighbours: UMAP's, and t-SNE's perplexity. `progress(done, total)`
    may raise to stop between stages. Raises AnalysisError for options that cannot be.
    """
    if method not in METHODS or metric not in METRICS:
        raise AnalysisError(
            f"Projections are {', '.join(METHODS)} with a metric of {' or '.join(METRICS)}, not "
            f"{method!r} with {metric!r}."
        )
    if not 0 <= distance <= 1 or neighbours < 2:
        raise AnalysisError(
            f"UMAP needs a distance of 0 to 1 and at least 2 neighbours, not {distance} and "
            f"{neighbours}."
        )
    report = progress or (lambda done, total: None)
    report(0, 3)
    if method == "pca":
        return pca(vectors, neighbours)
    if len(vectors) < 5:
        raise AnalysisError(f"{len(vectors)} points are too few for {method}; use PCA.")
    near = min(neighbours, len(vectors) - 2)
    fit = _umap if method == "umap" else _tsne
    report(1, 3)
    coordinates = fit(np.asarray(vectors, np.float32), near, distance, metric, seed)
    report(2, 3)
    trusted = min(neighbours, max(1, (len(vectors) - 1) // 2))
    found = Projection(method, coordinates, trustworthiness(vectors, coordinates, trusted), trusted)
    report(3, 3)
    return found


def _umap(
    vectors: np.ndarray, neighbours: int, distance: float, metric: str, seed: int
) -> np.ndarray:
    from umap import UMAP

    fitted = UMAP(
        n_neighbors=neighbours, min_dist=distance, metric=metric, random_state=seed, n_jobs=1
    )
    return np.asarray(fitted.fit_transform(vectors), np.float32)


def _tsne(
    vectors: np.ndarray, neighbours: int, distance: float, metric: str, seed: int
) -> np.ndarray:
    from sklearn.manifold import TSNE

    perplexity = min(float(neighbours), (len(vectors) - 1) / 3)
    fitted = TSNE(perplexity=perplexity, metric=metric, random_state=seed, init="random")
    return np.asarray(fitted.fit_transform(vectors), np.float32)


def projection_spec(
    what: str,
    layer: int,
    head: int | str,
    method: str,
    *,
    lookahead_spec: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """What identifies a projection of a capture. what: "queries" or "joint"; options of `project`
    (without progress) and, for queries, `window`."""
    return {
        "what": what,
        "layer": int(layer),
        "head": head,
        "method": method,
        "lookahead": None if lookahead_spec is None else dict(lookahead_spec),
        "options": dict(sorted(options.items())),
    }


def points_of(capture: Capture, spec: Mapping[str, Any]) -> tuple[Points, JointSpace | None]:
    """The points that a projection's specification stands for. Raises AnalysisError, NeedsJob."""
    layer, head = int(spec["layer"]), spec["head"]
    if spec["what"] == "joint":
        return joint_points(capture, layer, int(head))
    if spec["what"] != "queries":
        raise AnalysisError(f"Projections are of queries or joint, not {spec['what']!r}.")
    wanted = spec.get("lookahead")
    draft = None if not wanted else lookahead(capture, wanted["policy"], wanted["steps"])
    window = {key: spec["options"][key] for key in ("window",) if key in spec["options"]}
    return query_points(capture, layer, head, lookahead=draft, **window), None


def derive_projection(
    capture: Capture, spec: Mapping[str, Any], step: Callable[[int, int], None]
) -> dict[str, np.ndarray]:
    """The arrays of the derived file "projection"; spec of `projection_spec`."""
    points, _ = points_of(capture, spec)
    options = {key: value for key, value in spec["options"].items() if key != "window"}
    found = project(points.vectors, spec["method"], progress=step, **options)
    return {
        "coordinates": found.coordinates,
        "trustworthiness": np.array([found.trustworthiness]),
        "neighbours": np.array([found.neighbours]),
    }


def stored_projection(capture: Capture, spec: Mapping[str, Any]) -> Projection:
    """A projection of a capture: PCA at once, others from their derived file.

    Raises NeedsJob (kind "projection") for a UMAP or t-SNE that was not computed.
    """
    options = dict(spec["options"])
    if spec["method"] == "pca":
        points, _ = points_of(capture, spec)
        return pca(points.vectors, options.get("neighbours", NEIGHBOURS))
    derived = capture.derived(KIND, dict(spec))
    if derived is None:
        points, _ = points_of(capture, spec)
        seconds = FIRST_FIT_S + len(points.vectors) / POINTS_PER_S
        raise NeedsJob(KIND, dict(spec), seconds, f"A {NAMES[spec['method']]} map")
    with derived:
        return Projection(
            spec["method"],
            derived.array("coordinates"),
            float(derived.array("trustworthiness")[0]),
            int(derived.array("neighbours")[0]),
        )
