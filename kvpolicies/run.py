"""One policy at work on one sequence: what replay and the live cache both call, layer by layer."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from torch import Tensor

from kvpolicies.allocations import PerHead
from kvpolicies.candidates import Candidates
from kvpolicies.decisions import Decision
from kvpolicies.entries import Entries
from kvpolicies.plan import Plan
from kvpolicies.schedules import PerPartition, Select, Sliding, sage_picks
from kvpolicies.scores.selection import Selection
from kvpolicies.view import Extras, View


class LayerRun:
    """One layer of one run: its entries, their statistics and the decisions taken.

    `layer` counts the layers the policy may touch, `model_layer` the model's.
    """

    def __init__(
        self, plan: Plan, layer: int, model_layer: int, scaling: float, softcap: float | None
    ) -> None:
        self.plan, self.layer, self.model_layer = plan, layer, model_layer
        self.scaling, self.softcap = scaling, softcap
        self.entries: Entries
        self.extras = Extras()
        self.step = 0
        self.whole = plan.keeps_whole(layer) or not plan.evicts
        self.active = not isinstance(plan.schedule, Sliding)  # SAGE-KV: did it select at prefill
        self.streaming: Tensor | None = None  # DuoAttention's streaming heads, bool (heads,)
        self.scores: Tensor | None = None

    @property
    def watches(self) -> bool:
        """Whether the newest query's attention is needed at every step."""
        sliding = isinstance(self.plan.schedule, Sliding)
        return self.plan.score.uses_attention and not self.still and not sliding

    @property
    def _decodes(self) -> bool:
        return self.plan.schedule.decodes or isinstance(self.plan.schedule, Select)

    @property
    def still(self) -> bool:
        """Whether nothing can change any more after prefill."""
        return self.whole or not self._decodes

    def view(self, queries: Tensor, first_query: int, attention: Tensor | None = None) -> View:
        plan = self.plan
        return View(
            self.entries,
            queries,
            first_query,
            self.scaling,
            self.softcap,
            layer=self.layer,
            step=self.step,
            ranked=min(plan.shape.ranked, len(self.entries)),
            prompt_length=plan.shape.prompt_length,
            pinned=plan.policy.pin_prompt,
            budget=plan.budget or 0,
            open_from=self._open_from(first_query + queries.shape[1]),
            group_reduce=plan.policy.group_reduce,
            attention=attention,
            extras=self.extras,
        )

    def _open_from(self, seen: int) -> int:
        """First column that LagKV has not compressed yet."""
        schedule = self.plan.schedule
        lag = getattr(self.plan.score, "lag", None) or getattr(schedule, "lag", None)
        if self.step == 0 or not isinstance(schedule, PerPartition) or lag is None:
            return self.plan.sink
        done = self.entries.memory.get("compressed", 0)
        uncompressed = seen - self.plan.sink - done * lag
        return len(self.entries) - uncompressed

    def fork(self) -> LayerRun:
        """An independent copy of this layer's state."""
        other = copy.copy(self)
        other.entries = self.entries.fork()
        return other

    # --- end of prefill ---------------------------------------------------------------------

    def begin(self, entries: Entries, queries: Tensor, extras: Extras) -> None:
        """Take over the prompt's entries; queries (query_heads, n, d) are all of the prompt's."""
        self.entries, self.extras, self.step = entries, extras, 0
        if self.whole:
            return
        view = self.view(queries, 0)
        if isinstance(self.plan.allocation, PerHead):
            self._measure_outside(view)
        if self._decodes or self.plan.score.uses_attention:
            self.plan.score.begin(view)
        if self.plan.schedule.at_prefill and not isinstance(self.plan.schedule, Sliding):
            self.scores = view.scored(self.plan.score)
        elif isinstance(self.plan.schedule, Sliding):
            self.scores = view.rows(1)[:, 0]  # (query_heads, n): each query head's own

    def finish_prefill(self) -> Decision | None:
        """Evict at the end of prefill, where the budget is the layer's own."""
        plan = self.plan
        if self.whole or not plan.schedule.at_prefill:
            return None
        if isinstance(plan.schedule, Sliding):
            return self._select_sage()
        assert self.scores is not None
        decision = self._evict(self.scores, plan.shape.ranked)
        self.forget()
        return decision

    def forget(self) -> None:
        """Let go of what only the end of the prompt needed."""
        self.scores = None
        if "future" not in self.plan.score.needs:
            self.extras = Extras()

    def candidates(self, scores: Tensor, seen: int) -> Candidates:
        plan, entries = self.plan, self.entries
        prompt = plan.shape.prompt_length
        return Candidates(
            scores,
            entries.positions,
            sink=max(plan.sink, prompt) if plan.policy.pin_prompt else plan.sink,
            recent=(seen - plan.recent, seen),
            free=seen if self.step == 0 and len(entries) > seen else None,
            alive=entries.alive,
            ties_to_newest=plan.score.ties_to_newest,
            newest_first=plan.score.newest_first,
        )

    def _evict(self, scores: Tensor, seen: int) -> Decision | None:
        plan = self.plan
        candidates = self.candidates(scores, seen)
        if isinstance(plan.schedule, PerPartition):
            first = self._open_from(seen)
            keep = plan.schedule.keep(scores, plan.kept_per_partition(self.layer), first)
            complete = max(0, plan.schedule.partitions(seen, plan.sink) - 1)
            done = self.entries.memory.get("compressed", 0)
            self.entries.memory["compressed"] = complete
            columns = torch.arange(len(self.entries), device=scores.device)
            last = first + (complete - done) * plan.schedule.lag
            unranked = (columns < first) | (columns >= last)
            candidates = replace(candidates, scores=scores.masked_fill(unranked, math.nan))
        elif isinstance(plan.allocation, PerHead):
            keep = self._keep_streaming(candidates)
        else:
            budget = plan.layer_budget(self.layer)
            if len(self.entries) <= budget:
                return None
            keep = plan.allocation.keep(candidates, budget)
        return self.apply(candidates, keep)

    def apply(self, candidates: Candidates, keep: Tensor) -> Decision | None:
        """Evict what `keep` does not name. None when nothing leaves."""
        before = self.entries.total()
        self.entries.evict(keep)
        if self.entries.total() == before:
            return None
        return Decision(self.model_layer, self.step, candidates, keep, self.plan.sink)

    # --- one more token ---------------------------------------------------------------------

    def visible(self, queries: Tensor, first_query: int) -> Tensor | None:
        """What the newest query attends to, where that is less than all entries.

        Its entry is already appended. bool (query_heads, n), or None.
        """
        if self.whole:
            return None
        if isinstance(self.plan.score, Selection):
            return self.plan.score.choose(self.view(queries, first_query))
        if isinstance(self.plan.schedule, Sliding) and self.plan.schedule.view == "query_head":
            return self._sage_visible()
        return None

    def attention(self, queries: Tensor, first_query: int) -> Tensor:
        """Softmax of the newest query over everything retained; (query_heads, n)."""
        return self.view(queries, first_query).rows(1)[:, 0]

    def observe(self, queries: Tensor, first_query: int, attention: Tensor | None) -> None:
        """Update statistics after one more token, the newest of `queries`."""
        self.step = first_query + queries.shape[1] - self.plan.shape.prompt_length
        if not self.still:
            self.plan.score.update(self.view(queries, first_query, attention))

    def finish_step(
        self, queries: Tensor, first_query: int, attention: Tensor | None, tokens: int = 1
    ) -> Decision | None:
        """Evict after a forward of `tokens` tokens, where the schedule says so."""
        plan = self.plan
        if self.still or not plan.schedule.due(self.step - tokens + 1, self.step):
            return None
        seen = first_query + queries.shape[1]
        if isinstance(plan.schedule, Sliding):
            return self._slide(seen)
        if isinstance(plan.schedule, PerPartition):
            done = self.entries.memory.get("compressed", 0)
            if plan.schedule.partitions(seen, plan.sink) - 1 <= done:
                return None
        elif not isinstance(plan.allocation, PerHead) and len(self.entries) <= plan.layer_budget(
            self.layer
        ):
            return None
        return self._evict(plan.score.score(self.view(queries, first_query, attention)), seen)

    # --- SAGE-KV ----------------------------------------------------------------------------

    def _select_sage(self) -> Decision | None:
        plan, entries = self.plan, self.entries
        length, picks = len(entries), plan.picks
        assert plan.budget is not None
        self.active = length > max(plan.budget, plan.sink + picks + plan.recent + 1)
        if not self.active:
            return None
        assert self.scores is not None
        rows = self.scores
        picked = sage_picks(rows, plan.sink, plan.recent, picks)
        own = picked.view(entries.heads, -1, length)  # (kv_heads, group, n)
        columns = torch.arange(length, device=rows.device)
        last = length - 1 - plan.recent
        window = ((columns < plan.sink) | (columns >= last)).expand(entries.heads, -1)
        entries.statistics["picked"] = own.transpose(1, 2).contiguous()
        grouped = rows.view(entries.heads, -1, length).amax(1)
        candidates = Candidates(
            grouped.masked_fill(window, math.nan), entries.positions, plan.sink, (last, length)
        )
        return self.apply(candidates, window | own.any(1))

    def _sage_visible(self) -> Tensor | None:
        """Each query head sees sinks, its own picks and what came after the candidates."""
        if not self.active:
            return None
        plan, entries = self.plan, self.entries
        picked = entries.statistics["picked"]
        outside = (entries.positions < plan.sink) | (
            entries.positions >= plan.shape.ranked - 1 - plan.recent
        )
        seen = picked | outside[:, :, None]
        if entries.alive is not None:
            seen = seen & entries.alive[:, :, None]
        return seen.transpose(1, 2).reshape(-1, len(entries))

    def _slide(self, seen: int) -> Decision | None:
        if not self.active:
            return None
        plan, entries = self.plan, self.entries
        recent = entries.positions >= seen - plan.recent - 1
        window = (entries.positions < plan.sink) | recent
        scores = torch.full_like(entries.positions, math.nan, dtype=torch.float32)
        keep = window | entries.statistics["picked"].any(2)
        if entries.alive is not None:
            keep = keep & entries.alive
        newest = (seen - plan.recent - 1, seen)
        candidates = Candidates(scores, entries.positions, plan.sink, newest, alive=entries.alive)
        return self.apply(candidates, keep)

    # --- DuoAttention -----------------------------------------------------------------------

    def _measure_outside(self, view: View) -> None:
        """Attention that falls outside sinks and recent entries, summed over prompt queries."""
        allocation = self.plan.allocation
        assert isinstance(allocation, PerHead)
        self.streaming, weights = allocation.pattern(self.model_layer, view.heads)
        if self.streaming is not None or weights is not None:
            self.entries.memory["outside"] = weights
            return
        name = f"outside {self.plan.sink} {self.plan.recent} {view.heads} {view.seen}"
        self.entries.memory["outside"] = view.once(name, lambda: self._sum_outside(view))

    def _sum_outside(self, view: View) -> Tensor:
        total = torch.zeros(view.heads, device=view.queries.device)
        for first, rows in view.prompt_rows():
            positions = torch.arange(first, first + rows.shape[1], device=rows.device)
            columns = torch.arange(rows.shape[2], device=rows.device)
            outside = (columns >= self.plan.sink) & (
                columns <= positions[:, None] - self.plan.recent
            )
            total += view.reduce((rows * outside).sum((1, 2)), "mean")
        return total

    def _keep_streaming(self, candidates: Candidates) -> Tensor:
        assert self.streaming is not None
        everything = torch.ones_like(candidates.protected)
        keep = torch.where(self.streaming[:, None], candidates.protected, everything)
        return keep if candidates.alive is None else keep & candidates.alive
