"""Queries and keys as points: which groups of them there are, and how far apart they lie.

LAQ's claim is that the queries of a rough draft lie closer to the response's than the prompt's do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.errors import AnalysisError
from analysis.lookaheads import Lookahead
from analysis.rows import MEAN, Selection, chosen_heads
from analysis.words import visible
from cache_store.reader import Capture

GROUPS = ("prompt window", "lookahead", "response")
WINDOW = 8
PAIRS = 192  # queries and keys whose pairs fit the scale of a joint space
KEYS = 1500  # keys of a joint map, evenly spread over the text


@dataclass(frozen=True)
class Points:
    """Vectors to be projected, with what each of them is.

    vectors: float32 (p, d); group: int64 (p,), index into `groups`; positions: int64 (p,) in the
    text (a lookahead token stands where it would follow the prompt); segments and texts (p,).
    """

    vectors: np.ndarray
    group: np.ndarray
    groups: tuple[str, ...]
    positions: np.ndarray
    segments: tuple[str, ...]
    texts: tuple[str, ...]

    def of(self, group: str) -> np.ndarray:
        """The vectors of one group; float32 (m, d)."""
        return self.vectors[self.group == self.groups.index(group)]


def query_points(
    capture: Capture,
    layer: int,
    head: Selection,
    *,
    window: int = WINDOW,
    lookahead: Lookahead | None = None,
    limit: int | None = None,
) -> Points:
    """Queries of the prompt's last `window` tokens, a lookahead response and the response itself.

    head: a query head, or MEAN: the mean of all heads' queries. limit: only the response's first
    so many tokens. Raises AnalysisError for a layer or head that does not exist.
    """
    info = capture.info
    if not 0 <= layer < info.layers:
        raise AnalysisError(f"This run has no layer {layer}; it has layers 0 to {info.layers - 1}.")
    heads = chosen_heads(capture, head)
    prompt = info.prompt_length
    first = max(0, prompt - max(1, window))
    stop = info.length if limit is None else min(info.length, prompt + limit)
    own = _mean(capture.states(layer, "q", first, stop), heads)
    tokens = capture.tokens()
    texts, segments = tokens["text"].tolist(), tokens["segment"].tolist()
    places = np.arange(first, stop)
    parts = [own[: prompt - first], own[prompt - first :]]
    positions = [places[: prompt - first], places[prompt - first :]]
    words = [texts[first:prompt], texts[prompt:stop]]
    kinds = [segments[first:prompt], segments[prompt:stop]]
    if lookahead is not None:
        drafted = _mean(lookahead.queries[layer], heads)
        parts.insert(1, drafted)
        positions.insert(1, prompt + np.arange(len(drafted)))
        words.insert(1, list(lookahead.texts))
        kinds.insert(1, ["lookahead"] * len(drafted))
    groups = GROUPS if lookahead is not None else (GROUPS[0], GROUPS[2])
    return Points(
        np.concatenate(parts).astype(np.float32),
        np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
        groups,
        np.concatenate(positions),
        tuple(kind for part in kinds for kind in part),
        tuple(word for part in words for word in part),
    )


def _mean(states: np.ndarray, heads: Sequence[int]) -> np.ndarray:
    """The mean over some heads of (heads, n, d); float32 (n, d)."""
    return np.asarray(states[list(heads)].astype(np.float32).mean(axis=0))


def centroid_distances(points: Points) -> pd.DataFrame:
    """The paper's claim in numbers: one row per pair of groups.

    Columns: first, second, distance (Euclidean, of the centroids), cosine (of the centroids),
    spread (mean distance of both groups' points to their own centroid), ratio (distance / spread).
    NaN where a group is empty.
    """
    rows = []
    for index, one in enumerate(points.groups):
        for other in points.groups[index + 1 :]:
            first, second = points.of(one), points.of(other)
            row: dict[str, object] = {"first": one, "second": other}
            if len(first) and len(second):
                a, b = first.mean(axis=0), second.mean(axis=0)
                distance = float(np.linalg.norm(a - b))
                inner = np.concatenate(
                    [np.linalg.norm(first - a, axis=1), np.linalg.norm(second - b, axis=1)]
                )
                spread = float(inner.mean())
                norms = float(np.linalg.norm(a) * np.linalg.norm(b))
                row |= {
                    "distance": distance,
                    "cosine": float(a @ b) / norms if norms else np.nan,
                    "spread": spread,
                    "ratio": distance / spread if spread else np.nan,
                }
            rows.append(row)
    names = ["first", "second", "distance", "cosine", "spread", "ratio"]
    return pd.DataFrame(rows, columns=names)


@dataclass(frozen=True)
class JointSpace:
    """Queries and keys of one head made comparable without changing its attention.

    queries: float32 (m, d), times `scale`; keys: float32 (n, d), moved by the queries' centroid
    minus the keys' and divided by `scale`. correlation: Pearson's, of −distance and dot product
    over the pairs used to choose the scale: 1 would mean that near is exactly attended.
    """

    queries: np.ndarray
    keys: np.ndarray
    scale: float
    shift: np.ndarray
    correlation: float


def joint_space(queries: np.ndarray, keys: np.ndarray) -> JointSpace:
    """Move the keys' centroid onto the queries', and scale so that distance tells dot product.

    queries (m, d), keys (n, d). Softmax attention is unchanged by one vector added to all keys and
    by queries times c with keys divided by c; c is chosen where −distance correlates best with the
    dot product (AttentionViz). Raises AnalysisError without queries or keys.
    """
    if not len(queries) or not len(keys):
        raise AnalysisError("A joint map needs at least one query and one key.")
    shift = queries.mean(axis=0) - keys.mean(axis=0)
    moved = (keys + shift).astype(np.float32)
    some, others = _spread(queries, PAIRS).astype(np.float64), _spread(moved, PAIRS)
    dots = some @ others.T.astype(np.float64)
    left, right = (some**2).sum(axis=1)[:, None], (others.astype(np.float64) ** 2).sum(axis=1)

    def fit(log_scale: float) -> float:
        square = np.exp(2 * log_scale)
        distance = np.sqrt(np.maximum(square * left + right / square - 2 * dots, 0))
        return _correlation(-distance, dots)

    middle = 0.0
    ratio = float(left.mean()) / max(float(right.mean()), 1e-30)
    if ratio > 0:
        middle = -0.25 * float(np.log(ratio))  # where both clouds are equally wide
    grid = middle + np.linspace(-2.5, 2.5, 21)
    for _ in range(3):
        best = int(np.argmax([fit(value) for value in grid]))
        step = grid[1] - grid[0]
        grid = grid[best] + np.linspace(-step, step, 9)
    log_scale = float(grid[len(grid) // 2])
    scale = float(np.exp(log_scale))
    return JointSpace(
        (queries * scale).astype(np.float32),
        (moved / scale).astype(np.float32),
        scale,
        shift.astype(np.float32),
        fit(log_scale),
    )


def _spread(rows: np.ndarray, limit: int) -> np.ndarray:
    """At most `limit` rows, evenly spread."""
    if len(rows) <= limit:
        return rows
    return rows[np.linspace(0, len(rows) - 1, limit).round().astype(int)]


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Pearson's; 0 where one side does not vary."""
    a, b = first.reshape(-1) - first.mean(), second.reshape(-1) - second.mean()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm > 0 else 0.0


def joint_points(
    capture: Capture, layer: int, query_head: int, *, limit: int = KEYS
) -> tuple[Points, JointSpace]:
    """Queries and keys of one query head in one space, at most `limit` of each, evenly spread."""
    info = capture.info
    if not 0 <= layer < info.layers:
        raise AnalysisError(f"This run has no layer {layer}; it has layers 0 to {info.layers - 1}.")
    chosen_heads(capture, query_head)
    if query_head == MEAN:
        raise AnalysisError("A joint map shows one query head; choose one.")
    places = _spread(np.arange(info.length), limit)
    queries = capture.states(layer, "q", head=query_head).astype(np.float32)
    keys = capture.states(layer, "k", head=query_head // info.group).astype(np.float32)
    space = joint_space(queries[places], keys[places])
    tokens = capture.tokens()
    words = [visible(tokens["text"].iloc[place]) for place in places]
    segments = [tokens["segment"].iloc[place] for place in places]
    points = Points(
        np.concatenate([space.queries, space.keys]),
        np.repeat([0, 1], len(places)),
        ("query", "key"),
        np.tile(places, 2),
        tuple(segments * 2),
        tuple(words * 2),
    )
    return points, space


def colours_of(points: Points, by: str, prompt_length: int) -> tuple[np.ndarray, Mapping[int, str]]:
    """Numbers to colour points by, and names where the numbers are categories.

    by: "group", "segment" or "token" (categories), "step" or "position" (numbers). Raises
    AnalysisError for another.
    """
    if by == "group":
        return points.group, dict(enumerate(points.groups))
    if by in ("segment", "token"):
        words = points.segments if by == "segment" else points.texts
        common = pd.Series(words).value_counts().index[:7].tolist()
        index = {word: place for place, word in enumerate(common)}
        codes = np.array([index.get(word, len(common)) for word in words])
        names = {place: visible(word) for word, place in index.items()}
        return codes, names | ({len(common): "other"} if (codes == len(common)).any() else {})
    if by == "position":
        return points.positions.astype(np.float32), {}
    if by == "step":
        return (points.positions - prompt_length + 1).astype(np.float32), {}
    raise AnalysisError(
        f"Points are coloured by group, segment, token, step or position, not {by}."
    )
