"""What a policy cost, held against the full cache's attention (docs/methods.md, section 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvpolicies.attention import BLOCK_CELLS, attention_rows
from kvpolicies.result import Result
from kvpolicies.trace import Trace
from kvpolicies.view import scaled_logits

ALPHA = 5e-4  # attention from which an entry counts as active, LazyEviction's
TINY = 1e-30  # below it a row is renormalised from its logits instead of from its weights


@dataclass
class Costs:
    """Costs of one replay over L layers, Q query heads, H keep-sets per layer and T steps.

    Step t is at index t - 1; "full" is the attention that the full cache's queries give. Of
    entries that are gone before step t's query (or that this query head does not see, where a
    policy lets the heads of a group see different ones):

    mass_kept: float32 (L, Q, T), full attention on the entries that are left.
    recall: float32 (L, H, T), share of the gold set that is left; gold are as many entries as are
    left, those with the largest full attention, mean over the group, ties to the lower position.
    recall_response: float32 (L, H), the same over prompt entries with the sum over all queries of
    the response, against what the first eviction keeps of the prompt (LAQ, Eqs. 1-3); 1 without a
    response, 0 where nothing of the prompt is kept.
    output_error: float32 (L, Q, T), |o_full - o_policy| / |o_full| of the head's attention output,
    Euclidean norms, o_policy renormalised over what is left (LazyEviction, Eq. 4).
    regret_step: float32 (L, H, T), full attention, mean over the group, on entries not left.
    regret_entry: float32 (L, H, P + T), the same by entry, summed over the steps.
    missed_step, missed_entry: int32 (L, H, T) and (L, H, P + T), recurrences missed: entries not
    left whose part of the regret is at least alpha at a step.
    """

    mass_kept: Tensor
    recall: Tensor
    recall_response: Tensor
    output_error: Tensor
    regret_step: Tensor
    regret_entry: Tensor
    missed_step: Tensor
    missed_entry: Tensor


def costs(
    trace: Trace,
    result: Result,
    alpha: float = ALPHA,
    progress: Callable[[int, int], None] | None = None,
) -> Costs:
    """The costs of a replayed policy.

    Layers that lose nothing cost nothing and are not computed. `progress(done, total)` counts
    (layer, step) pairs and may raise to stop.
    """
    report = progress or (lambda done, total: None)
    steps = trace.response_length
    out = _nothing_lost(trace, result.evicted_at.shape[1])
    with torch.inference_mode():
        for layer in range(trace.layers):
            report(layer * steps, trace.layers * steps)
            if steps and _loses(result, layer):
                of_layer = _Layer(trace, result, layer, alpha)
                for done in of_layer.walk(out):
                    report(layer * steps + done, trace.layers * steps)
        report(trace.layers * steps, trace.layers * steps)
    return out


def _nothing_lost(trace: Trace, heads: int) -> Costs:
    layers, steps, length = trace.layers, trace.response_length, trace.length
    by_query = (layers, trace.query_heads, steps)
    return Costs(
        mass_kept=torch.ones(by_query),
        recall=torch.ones((layers, heads, steps)),
        recall_response=torch.ones((layers, heads)),
        output_error=torch.zeros(by_query),
        regret_step=torch.zeros((layers, heads, steps)),
        regret_entry=torch.zeros((layers, heads, length)),
        missed_step=torch.zeros((layers, heads, steps), dtype=torch.int32),
        missed_entry=torch.zeros((layers, heads, length), dtype=torch.int32),
    )


def _loses(result: Result, layer: int) -> bool:
    if result.exempt[layer]:
        return False
    return result.visible is not None or bool(
        (result.evicted_at[layer] <= result.response_length).any()
    )


class _Layer:
    """One layer's full-cache rows of the response, in blocks of steps, and what was lost of them.

    H keep-sets, each looked through by `share` query heads.
    """

    def __init__(self, trace: Trace, result: Result, layer: int, alpha: float) -> None:
        self.trace, self.result, self.layer, self.alpha = trace, result, layer, alpha
        self.evicted_at = result.evicted_at[layer]  # (H, P + T)
        self.heads = self.evicted_at.shape[0]
        self.share = trace.query_heads // self.heads
        self.values = trace.values[layer].float()
        self.received = torch.zeros((self.heads, trace.prompt_length))  # from the whole response

    def walk(self, out: Costs) -> Iterator[int]:
        """Fill in this layer's costs; yields how many steps are done."""
        trace, layer = self.trace, self.layer
        size = max(1, BLOCK_CELLS // (trace.query_heads * trace.length))
        for first in range(0, trace.response_length, size):
            last = min(first + size, trace.response_length)
            self._block(out, first, last)
            yield last
        out.recall_response[layer] = self._recall_response()

    def _block(self, out: Costs, first: int, last: int) -> None:
        """Steps first + 1 ... last."""
        trace, layer, prompt = self.trace, self.layer, self.trace.prompt_length
        start, stop = prompt + first, prompt + last  # positions of the queries
        queries, keys = trace.queries[layer][:, start:stop], trace.keys[layer][:, :stop]
        full = attention_rows(
            queries,
            keys,
            torch.arange(start, stop),
            scaling=trace.scaling_of(layer),
            softcap=trace.softcap,
            sliding_window=trace.window_of(layer),
        )  # (Q, m, n)
        seen = self._seen(first, last)
        left = seen.any(1)  # (H, m, n)
        by_set = full.view(self.heads, self.share, *full.shape[1:])
        kept = by_set * seen
        rows = by_set.mean(1)
        gone = by_set - kept
        self.received += rows[:, :, :prompt].sum(1)
        steps, flat = slice(first, last), full.shape[:2]
        mass, missing = kept.sum(-1).view(flat), gone.sum(-1).view(flat)  # (Q, m)
        out.mass_kept[layer, :, steps] = mass / (mass + missing)
        whole = self._outputs(full) / (mass + missing)[..., None]  # (Q, m, d)
        part = self._outputs(kept) / mass[..., None]
        if bool((mass < TINY).any()):
            part = self._outputs(self._renormalised(queries, keys, seen))
        out.output_error[layer, :, steps] = _relative_error(whole, part)
        lost = gone.mean(1)  # (H, m, n)
        out.regret_step[layer, :, steps] = lost.sum(-1)
        out.regret_entry[layer, :, :stop] += lost.sum(1)
        missed = lost >= self.alpha
        out.missed_step[layer, :, steps] = missed.sum(-1, dtype=torch.int32)
        out.missed_entry[layer, :, :stop] += missed.sum(1, dtype=torch.int32)
        out.recall[layer, :, steps] = recall(rows, left)

    def _seen(self, first: int, last: int) -> Tensor:
        """What queries look through; bool (H, share, m, n), or (H, 1, m, n) if heads agree."""
        stop = self.trace.prompt_length + last
        visible = self.result.visible
        if visible is not None:
            chosen = visible[self.layer, :, first + 1 : last + 1, :stop]
            return chosen.view(self.heads, self.share, *chosen.shape[1:])
        steps = torch.arange(first + 1, last + 1)[:, None]  # (m, 1)
        born = torch.arange(stop) < self.trace.prompt_length + steps  # (m, n)
        return ((self.evicted_at[:, None, :stop] >= steps) & born)[:, None]

    def _outputs(self, weights: Tensor) -> Tensor:
        """Weights (..., m, n) of all query heads times their values; (Q, m, d)."""
        count, length = weights.shape[-2:]
        grouped = weights.reshape(self.values.shape[0], -1, length)
        return (grouped @ self.values[:, :length]).view(self.trace.query_heads, count, -1)

    def _renormalised(self, queries: Tensor, keys: Tensor, seen: Tensor) -> Tensor:
        """Attention over what is seen alone, from the logits; (H, share, m, n)."""
        logits = scaled_logits(queries, keys, self.trace.scaling_of(self.layer), self.trace.softcap)
        by_set = logits.view(self.heads, self.share, *logits.shape[1:])
        return by_set.masked_fill(~seen, -torch.inf).softmax(-1)

    def _recall_response(self) -> Tensor:
        """float32 (H,)."""
        touched = self.result.evicted_at[~self.result.exempt]
        first = min(int(touched.min()), self.trace.response_length)
        return recall(self.received, self.evicted_at[:, : self.trace.prompt_length] > first)


def recall(attention: Tensor, left: Tensor) -> Tensor:
    """Share of the gold set that is left, 0 where nothing is; (..., n) both -> float32 (...).

    Gold are as many entries as are left, with the largest attention, ties to the lower position.
    attention: float32, not negative.
    """
    length = attention.shape[-1]
    count = _count(left)
    # As integers: the bits of non-negative floats have their order, and numpy sorts them faster.
    bits = attention.contiguous().numpy().view(np.int32)
    ordered = torch.from_numpy(np.sort(bits, -1)).view(torch.float32)
    least = ordered.gather(-1, (length - count).clamp_max(length - 1).long())
    gold, equal = attention > least, attention == least
    free = count - _count(gold)
    if bool((_count(equal) > free).any()):
        equal &= equal.cumsum(-1, dtype=torch.int32) <= free
    hits = _count((gold | equal) & left)
    return (hits / count.clamp_min(1))[..., 0]


def _count(chosen: Tensor) -> Tensor:
    """int32 (..., 1); eighteen times as fast as in the int64 that torch would take."""
    return chosen.sum(-1, keepdim=True, dtype=torch.int32)


def _relative_error(whole: Tensor, part: Tensor) -> Tensor:
    """|whole - part| / |whole| along the last axis, 0 where whole is 0."""
    size = torch.linalg.vector_norm(whole, dim=-1)
    error = torch.linalg.vector_norm(whole - part, dim=-1) / size
    return error.masked_fill(size == 0, 0.0)
