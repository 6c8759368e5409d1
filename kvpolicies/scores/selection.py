"""Scores that choose what one step attends to, while nothing is evicted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvpolicies.entries import take
from kvpolicies.scores.base import Score, score
from kvpolicies.view import View


class Selection(Score):
    """A score for the schedule `select`: it chooses per step instead of ranking for eviction."""

    def choose(self, view: View) -> Tensor | None:
        """What each query head attends to; bool (query_heads, n), None for everything.

        `view.queries` ends with the newest query, whose entry is already appended.
        """
        raise NotImplementedError


@score
@dataclass(frozen=True)
class PageBound(Selection):
    """Quest: an upper bound of the logits of each page, from its keys' minima and maxima."""

    name = "page_bound"
    idea = "Bound each page's best logit by its channel-wise extremes and read only the best pages."
    needs = ("queries",)

    page: int = 16
    pages: int | None = None
    skip_layers: int = 2

    def bounds(self, view: View) -> Tensor:
        """Σ_c max(q_c·min_c, q_c·max_c); float32 (query_heads, number of pages)."""
        low, high = self._extremes(view)
        query = view.queries[:, -1].float().view(view.heads, -1, 1, view.queries.shape[-1])
        best = torch.maximum(query * low[:, None], query * high[:, None]).sum(-1)
        return best.flatten(0, 1)

    def _extremes(self, view: View) -> tuple[Tensor, Tensor]:
        """Channel-wise minima and maxima per page, (kv_heads, pages, d); full pages are kept."""
        memory, keys = view.entries.memory, view.entries.keys
        low, high = memory.get("page_extremes", (keys[:, :0].float(), keys[:, :0].float()))
        fresh, full = low.shape[1], keys.shape[1] // self.page
        if full > fresh:
            whole = keys[:, fresh * self.page : full * self.page].float()
            parts = whole.reshape(view.heads, full - fresh, self.page, -1)
            low = torch.cat([low, parts.amin(2)], 1)
            high = torch.cat([high, parts.amax(2)], 1)
            memory["page_extremes"] = (low, high)
        rest = keys[:, full * self.page :].float()
        if rest.shape[1]:
            low = torch.cat([low, rest.amin(1, keepdim=True)], 1)
            high = torch.cat([high, rest.amax(1, keepdim=True)], 1)
        return low, high

    def choose(self, view: View) -> Tensor | None:
        if view.layer < self.skip_layers or len(view.entries) <= view.budget:
            return None
        count = self.pages or max(3, view.budget // self.page)
        bounds = self.bounds(view)
        if count >= bounds.shape[1]:
            return None
        best = torch.sort(bounds, descending=True, stable=True, dim=1)[1][:, :count]
        chosen = torch.zeros_like(bounds, dtype=torch.bool).scatter_(1, best, True)
        return chosen.repeat_interleave(self.page, 1)[:, : len(view.entries)]


@score
@dataclass(frozen=True)
class BlockRepresentative(Selection):
    """InfLLM: blocks whose representative keys match the group's mean query best.

    A block's representatives are its `representatives` entries with most attention so far.
    First and newest entries are always attended to; they shrink together to the budget.
    """

    name = "block_representative"
    idea = "Look distant context up block by block through a few representative keys."
    needs = ("queries",)
    uses_attention = True

    sink: int = 128
    recent: int = 4096
    page: int = 128
    representatives: int = 4

    def begin(self, view: View) -> None:
        view.entries.statistics["cumulative"] = view.reduced_prompt_sum()

    def update(self, view: View) -> None:
        view.entries.statistics["cumulative"] += view.received()

    def windows(self, budget: int) -> tuple[int, int, int]:
        """Initial entries, local entries and number of blocks within a budget."""
        sink, recent = self.sink, self.recent
        if sink + recent > budget:
            sink, recent = (size * budget // (sink + recent) for size in (sink, recent))
        recent = max(1, recent)
        return sink, recent, max(0, (budget - sink - recent) // self.page)

    def choose(self, view: View) -> Tensor | None:
        length = len(view.entries)
        sink, recent, blocks = self.windows(view.budget)
        if length <= max(view.budget, sink + recent):
            return None
        chosen = torch.zeros(view.heads, length, dtype=torch.bool, device=view.queries.device)
        chosen[:, :sink] = True
        chosen[:, length - recent :] = True
        if blocks:
            middle = slice(sink, length - recent)
            match = self._match(view, middle)
            best = torch.sort(match, descending=True, stable=True, dim=1)[1][:, :blocks]
            picked = torch.zeros_like(match, dtype=torch.bool).scatter_(1, best, True)
            wide = picked.repeat_interleave(self.page, 1)
            chosen[:, middle] = wide[:, : middle.stop - middle.start]
        return chosen.repeat_interleave(view.queries.shape[0] // view.heads, 0)

    def _match(self, view: View, middle: slice) -> Tensor:
        """Mean query times mean representative key; (kv_heads, blocks), the last block partial."""
        keys = view.entries.keys[:, middle].float()
        length = keys.shape[1]
        padding = -length % self.page
        received = view.entries.statistics["cumulative"][:, middle]
        received = torch.nn.functional.pad(received, (0, padding), value=-1.0)
        received = received.view(view.heads, -1, self.page)
        top = torch.sort(received, descending=True, stable=True, dim=-1)
        index = top[1][..., : self.representatives]  # (kv_heads, blocks, representatives)
        real = top[0][..., : self.representatives, None] >= 0
        blocks = torch.arange(index.shape[1], device=index.device)[:, None] * self.page
        flat = (index + blocks).clamp(max=length - 1).flatten(1)
        taken = take(keys, flat).view(*index.shape, -1)
        means = (taken * real).sum(2) / real.sum(2)
        query = view.reduce(view.queries[:, -1].float(), "mean")
        return (means @ query[..., None])[..., 0]
