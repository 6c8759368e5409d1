"""Expected attention: a Gaussian fit of the queries to come."""

import numpy as np

from .attention import softmax
from .common import Array, Trace


def rotate_half(x: Array) -> Array:
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], axis=-1)


def rotation(cos: Array, sin: Array, width: int) -> Array:
    """The matrix of `x·cos + rotate_half(x)·sin`; channels beyond the rotary ones stay."""
    turned = len(cos)
    matrix = np.eye(width)
    for column in range(turned):
        unit = np.zeros(turned)
        unit[column] = 1.0
        matrix[:turned, column] = unit * cos + rotate_half(unit) * sin
    return matrix


def expected_attention_scores(
    trace: Trace, layer: int, head: int, span: int, n_future: int, sink: int
) -> Array:
    """METHODS 2: expected exp-logit under a Gaussian fit of future queries (mean and covariance of
    the prompt's queries without the sinks, rotary averaged over the next `n_future` positions),
    normalised over keys by softmax per query head, then group mean, times ‖v‖.

    E exp(s·q·k) = exp(s·μ·k + s²·kᵀΣk / 2). The queries are unrotated first, one position each.
    """
    keys = trace.keys[layer][head, :span]
    width = keys.shape[1]
    rows = []
    for query_head in trace.group_of(head):
        queries = [trace.queries[layer][query_head, at] for at in range(sink, span)]
        average = np.eye(width)
        if trace.rotary is not None:
            cos, sin = trace.rotary
            if len(cos) < span + n_future:
                raise ValueError(f"rotary covers {len(cos)} positions of {span + n_future}")
            queries = [
                np.linalg.solve(rotation(cos[at], sin[at], width), query)
                for at, query in zip(range(sink, span), queries, strict=True)
            ]
            future = [rotation(cos[at], sin[at], width) for at in range(span, span + n_future)]
            average = np.sum(future, axis=0) / n_future
        mean = np.sum(queries, axis=0) / len(queries)
        covariance = np.zeros((width, width))
        for query in queries:
            covariance += np.outer(query - mean, query - mean) / len(queries)
        mean = average @ mean
        covariance = average @ covariance @ average.T
        exponents = [
            trace.scaling * (mean @ key) + trace.scaling**2 * (key @ covariance @ key) / 2
            for key in keys
        ]
        rows.append(softmax(np.array(exponents)))
    norms = np.linalg.norm(trace.values[layer][head, :span], axis=1)
    return np.sum(rows, axis=0) / len(rows) * norms
