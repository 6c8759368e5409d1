"""Scores that read attention: of a window, of the newest query, summed, or of a lookahead."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kvpolicies.attention import BLOCK_CELLS, scaled_logits
from kvpolicies.scores.base import Score, pooled, score, unranked_after
from kvpolicies.view import View


@score
@dataclass(frozen=True)
class WindowAttention(Score):
    """Attention of the last `window` queries, summed over them, pooled along positions."""

    name = "window_attention"
    idea = "What the last queries of the prompt attend to is what the answer will need."
    needs = ("queries",)
    keeps_window = True

    window: int = 32
    kernel: int = 7
    pool: str = "max"

    @property
    def history(self) -> int:  # type: ignore[override]
        return self.window

    def score(self, view: View) -> Tensor:
        received = view.reduce(view.sum_of_rows(self.window))  # (kv_heads, n)
        outside = received[:, : max(0, received.shape[1] - self.window)]
        return unranked_after(pooled(outside, self.kernel, self.pool), received.shape[1])


@score
@dataclass(frozen=True)
class LastAttention(Score):
    """Attention of the newest query, averaged over all query heads: one set per layer (TOVA)."""

    name = "last_attention"
    idea = "What the newest token does not look at can go."
    needs = ("queries",)
    uses_attention = True

    def score(self, view: View) -> Tensor:
        newest = view.rows(1)[:, 0] if view.attention is None else view.attention
        return newest.mean(0).expand(view.heads, -1)


@score
@dataclass(frozen=True)
class CumulativeAttention(Score):
    """Attention received so far, by all prompt queries and every step since (H2O)."""

    name = "cumulative_attention"
    idea = "A few entries gather most of the attention; keep those heavy hitters."
    needs = ("queries",)
    uses_attention = True

    average: bool = False

    def begin(self, view: View) -> None:
        view.entries.statistics["cumulative"] = view.reduced_prompt_sum()

    def update(self, view: View) -> None:
        view.entries.statistics["cumulative"] += view.received()

    def score(self, view: View) -> Tensor:
        received = view.entries.statistics["cumulative"]
        return received / (view.seen - view.entries.positions) if self.average else received


@score
@dataclass(frozen=True)
class LookaheadAttention(Score):
    """Attention of pseudo queries, joined with the last `window` prompt queries (LAQ, LAQ++).

    Rows see the prompt's keys only. `mask="released"` places all rows at the prompt's end, as the
    authors' code does, which hides up to as many keys as there are pseudo queries.
    """

    name = "lookahead_attention"
    idea = "Queries of a rough draft of the answer know better what it needs than the prompt's."
    needs = ("queries", "lookahead")
    after_prompt = False
    keeps_window = True

    window: int = 0
    kernel: int = 7
    pool: str = "max"
    lookahead_steps: int = 8
    lookahead_policy: str = "snapkv"
    lookahead_budget: int | None = None
    mask: str = "correct"

    def score(self, view: View) -> Tensor:
        pseudo = view.need(
            "lookahead", "lookahead attention needs the queries of a recorded lookahead response"
        )[:, : self.lookahead_steps]
        window = min(self.window, view.queries.shape[1])
        queries = torch.cat([view.queries[:, view.queries.shape[1] - window :], pseudo], 1)
        length, count = len(view.entries), queries.shape[1]
        last = torch.arange(length - window, length - window + count, device=queries.device)
        if self.mask == "released":
            last = (last - pseudo.shape[1]).clamp(min=0)
        columns = torch.arange(length, device=queries.device)
        logits = view.logits(queries).masked_fill(columns > last[:, None], -math.inf)
        received = view.reduce(logits.softmax(-1).sum(1))
        return pooled(received, self.kernel, self.pool)


def second_copy_rows(view: View, context: int, chunk: int) -> Iterator[Tensor]:
    """Attention of a second reading to the first copy of the context, block by block.

    Each chunk of the second copy sees the whole first copy and, causally, itself. Yields tensors
    (query_heads, m, context) that together cover every query of the second copy.
    """
    hint = "this policy needs the context's second reading (queries and keys of its second copy)"
    queries, keys = view.need("second_queries", hint), view.need("second_keys", hint)
    first = view.entries.keys[:, :context]
    for start in range(0, queries.shape[1], chunk):
        stop = min(start + chunk, queries.shape[1])
        joined = torch.cat([first, keys[:, start:stop].to(first.dtype)], 1).float()
        size = max(1, BLOCK_CELLS // (queries.shape[0] * (context + stop - start)))
        for row in range(start, stop, size):
            last = min(stop, row + size)
            visible = joined[:, : context + last - start]
            logits = scaled_logits(queries[:, row:last], visible, view.scaling, view.softcap)
            later = torch.ones(last - row, last - row, dtype=torch.bool, device=logits.device)
            logits[:, :, context + row - start :].masked_fill_(later.triu(1), -math.inf)
            yield logits.softmax(-1)[:, :, :context]


@score
@dataclass(frozen=True)
class Reconstruction(Score):
    """Largest attention an entry receives while the model repeats the context (KVzip)."""

    name = "reconstruction"
    idea = "An entry that is not needed to repeat the context is not needed to use it."
    needs = ("second_reading",)
    after_prompt = False
    sees_question = True

    chunk: int = 2000

    def score(self, view: View) -> Tensor:
        name = f"reconstruction {self.chunk} {view.group_reduce} {view.heads} {view.ranked}"
        return unranked_after(view.once(name, lambda: self._largest(view)), len(view.entries))

    def _largest(self, view: View) -> Tensor:
        largest = view.queries.new_zeros((view.heads, view.ranked), dtype=torch.float32)
        for rows in second_copy_rows(view, view.ranked, self.chunk):
            torch.maximum(largest, view.reduce(rows).amax(1), out=largest)
        return largest


@score
@dataclass(frozen=True)
class ContextAttention(Score):
    """KVCompose's attention of task tokens to the context, Eqs. 14-16."""

    name = "context_attention"
    idea = "Tokens that the task attends to strongly, anywhere, deserve a slot."
    needs = ("queries", "second_reading")
    after_prompt = False
    sees_question = True

    source: str = "context"
    agg_task: str = "max"
    agg_group: str = "mean"
    head_mean: bool = True
    value_norm: str = "none"

    def score(self, view: View) -> Tensor:
        context = view.ranked
        name = f"context_attention {self.source} {context}"
        largest, mean = view.once(name, lambda: torch.stack(self.task(view)))
        return self.combine(view, largest if self.agg_task == "max" else mean, context)

    def combine(self, view: View, task: Tensor, context: int) -> Tensor:
        """Eqs. 15 and 16 from the aggregate over task tokens (query_heads, context)."""
        if self.value_norm == "output":
            norms = view.need("output_norms", "value_norm='output' needs the norms of v W_O")
            task = task * norms[:, :context]
        grouped = view.reduce(task, self.agg_group)  # (kv_heads, context), Eq. 15
        if self.value_norm == "value":
            grouped = grouped * view.entries.values[:, :context].float().norm(dim=-1)
        if self.head_mean:
            grouped = with_head_mean(grouped)
        return unranked_after(grouped, len(view.entries))

    def task(self, view: View) -> tuple[Tensor, Tensor]:
        """Eq. 14: maximum and mean over the task's tokens; each (query_heads, context)."""
        context, count = view.ranked, 0
        total = view.queries.new_zeros((view.queries.shape[0], context), dtype=torch.float32)
        largest = torch.zeros_like(total)
        for rows in self._task_rows(view, context):
            count += rows.shape[1]
            seen = rows.shape[2]  # causal rows of the prefill see only what came before
            total[:, :seen] += rows.sum(1)
            largest[:, :seen] = torch.maximum(largest[:, :seen], rows.amax(1))
        return largest, total / max(1, count)

    def _task_rows(self, view: View, context: int) -> Iterator[Tensor]:
        """Attention of the task's tokens to the context; blocks (query_heads, m, <= context)."""
        if self.source == "context":
            yield from second_copy_rows(view, context, max(1, context))
        elif self.source == "self":
            for first, rows in view.prompt_rows():
                if first < context:
                    yield rows[:, : context - first, :context]
        else:
            asked = view.queries.shape[1] - context
            if asked < 1:
                view.need("question", "source='question' needs a question after the context")
            yield view.rows(asked)[:, :, :context]


def with_head_mean(scores: Tensor) -> Tensor:
    """Eq. 16: each score plus the mean over KV heads; (..., kv_heads, context)."""
    return scores + scores.mean(-2, keepdim=True)
