"""LagKV and its two variants."""

import math

import numpy as np

from .attention import softmax
from .common import Array, Decision, Outcome, Trace, best, budget_over, margin, outcome, whole


def length_after(total: int, sink: int, lag: int, kept: int) -> int:
    """METHODS 6: cache length `S + ⌊rL⌋(P−1) + L + (N−S) mod L`; if `N < S + 2L` nothing is
    evicted."""
    if total < sink + 2 * lag:
        return total
    partitions = (total - sink) // lag
    return sink + kept * (partitions - 1) + lag + (total - sink) % lag


def keep_ratio_for(budget: int, total: int, sink: int, lag: int) -> float:
    """METHODS 5: given a budget, the largest r whose length does not exceed it, or refused with
    the attainable range."""
    for kept in range(lag, -1, -1):
        if length_after(total, sink, lag, kept) <= budget:
            return kept / lag
    low, high = (length_after(total, sink, lag, kept) for kept in (0, lag))
    raise ValueError(f"budget {budget} is out of reach: {low} to {high} entries can be kept")


def token_deviation(partition: Array, reference: Array) -> Array:
    """METHODS 6: per channel `min` and `max` over the reference's tokens,
    `z = (x − min)/(max − min)`; a channel with `max == min` contributes 0. Token value = unbiased
    standard deviation of `z` over channels (0 when `d = 1`). `z` is not clamped."""
    tokens, channels = partition.shape
    z = np.zeros((tokens, channels))
    for channel in range(channels):
        low = min(reference[:, channel])
        high = max(reference[:, channel])
        if high != low:
            for token in range(tokens):
                z[token, channel] = (partition[token, channel] - low) / (high - low)
    deviations = np.zeros(tokens)
    if channels > 1:
        for token in range(tokens):
            mean = sum(z[token]) / channels
            deviations[token] = math.sqrt(sum((z[token] - mean) ** 2) / (channels - 1))
    return deviations


def partition_scores(
    keys: Array, values: Array, part: slice, reference: slice, variant: str
) -> list[float]:
    """METHODS 6: for keys and values separately, with the next complete, uncompressed partition as
    reference; softmax over the partition's tokens; score = key part + value part. `localkv` uses
    its own partition as the reference; `l2_lag` scores −‖k‖."""
    if variant == "l2_lag":
        return [-float(np.linalg.norm(key)) for key in keys[part]]
    if variant == "localkv":
        reference = part
    key_part = softmax(token_deviation(keys[part], keys[reference]))
    value_part = softmax(token_deviation(values[part], values[reference]))
    return list(key_part + value_part)


def lag_policy(trace: Trace, variant: str, sink: int, lag: int, keep_ratio: float) -> Outcome:
    """METHODS 6: for partitions `p = 0 … P−2` keep the top `⌊rL⌋` per head and partition, all
    sinks, the last complete partition and the remainder. Decode continues the same rule: whenever
    another partition completes, the one before it is compressed; what was compressed is never
    rescored."""
    if trace.budget is not None or trace.compression_ratio is not None:
        budget = budget_over(trace, trace.total)
        keep_ratio = keep_ratio_for(budget, trace.prompt_length, sink, lag)
    number = whole(keep_ratio * lag)
    result = outcome(trace)
    for layer in range(trace.layers):
        if variant == "l2_lag" and layer < 2:  # METHODS 5: leaves layers 0 and 1 whole
            continue
        for head in range(trace.heads):
            keys, values = trace.keys[layer][head], trace.values[layer][head]
            done = 0  # partitions already compressed
            for step in range(trace.steps + 1):
                cached = trace.prompt_length + step
                complete = max(0, cached - sink) // lag
                while done < complete - 1:
                    start = sink + done * lag
                    part = slice(start, start + lag)
                    scores = partition_scores(
                        keys, values, part, slice(start + lag, start + 2 * lag), variant
                    )
                    positions = list(range(start, start + lag))
                    kept = best(positions, scores, number)
                    for position in positions:
                        if position not in kept:
                            result.evicted_at[layer, head, position] = step
                    gap = margin(positions, scores, kept)
                    result.decisions.append(
                        Decision(layer, head, step, positions, scores, kept, gap)
                    )
                    done += 1
    return result


def lagkv(trace: Trace, *, sink: int = 16, lag: int = 128, keep_ratio: float = 0.25) -> Outcome:
    """METHODS 5: lag_relative, per_partition, S 16, L 128, r 0.25."""
    return lag_policy(trace, "lagkv", sink, lag, keep_ratio)


def localkv(trace: Trace, *, sink: int = 16, lag: int = 128, keep_ratio: float = 0.25) -> Outcome:
    """METHODS 5: local_relative (reference is the partition itself)."""
    return lag_policy(trace, "localkv", sink, lag, keep_ratio)


def l2_lag(trace: Trace, *, sink: int = 16, lag: int = 128, keep_ratio: float = 0.25) -> Outcome:
    """METHODS 5: key_norm, per_partition; leaves layers 0 and 1 whole."""
    return lag_policy(trace, "l2_lag", sink, lag, keep_ratio)
