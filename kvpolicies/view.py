"""What a score looks at: one layer's entries and the queries that have seen them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kvpolicies.attention import LayerStates, row_blocks, scaled_logits
from kvpolicies.entries import Entries
from kvpolicies.errors import MissingInput

if TYPE_CHECKING:
    from kvpolicies.scores.base import Score


@dataclass
class Extras:
    """What some scores need besides the states; None where it was not recorded."""

    lookahead: Tensor | None = None  # (query_heads, n, d)
    second_queries: Tensor | None = None  # (query_heads, context, d)
    second_keys: Tensor | None = None  # (kv_heads, context, d)
    question: Tensor | None = None  # (query_heads, m, d), the newest prompt queries
    output_norms: Tensor | None = None  # (query_heads, positions)
    rotary: tuple[Tensor, Tensor] | None = None  # cos and sin, (positions, d)
    future: Tensor | None = None  # (kv_heads, T, P + T), the full cache's attention
    prompt_attention: Tensor | None = None  # (query_heads, P), summed over the prompt's queries
    statistics: dict[str, Tensor] = field(default_factory=dict)  # of the prompt, worked out before
    scores: dict[Any, Tensor] | None = None  # of the prompt, shared by all sizes of a policy


@dataclass
class View:
    """One layer at one step.

    `queries` (query_heads, m, d) are the newest ones, the first of them at `first_query`: all of
    the prompt at its end, a short history while decoding. `attention` (query_heads, n) is the
    newest query's over the entries, after a generated token. `ranked` is how many of the first
    positions may be evicted.
    """

    entries: Entries
    queries: Tensor
    first_query: int
    scaling: float
    softcap: float | None = None
    layer: int = 0
    step: int = 0
    ranked: int = 0
    prompt_length: int = 0
    pinned: bool = False  # prompt entries are never ranked
    budget: int = 0
    open_from: int = 0
    group_reduce: str = "mean"
    attention: Tensor | None = None
    extras: Extras = field(default_factory=Extras)

    @property
    def heads(self) -> int:
        return self.entries.heads

    @property
    def seen(self) -> int:
        """Tokens the model has seen so far."""
        return self.first_query + self.queries.shape[1]

    def need(self, name: str, hint: str) -> Tensor:
        """One of the extras. Raises `MissingInput` saying what the policy needs."""
        value = getattr(self.extras, name)
        if value is None:
            word = "second_reading" if name.startswith("second_") else name
            raise MissingInput(word, hint)
        return value

    def once(self, name: str, work: Callable[[], Tensor]) -> Tensor:
        """A statistic of the whole prompt or its second reading, worked out once for a trace.

        `name` says which and holds every parameter it depends on.
        """
        held = self.extras.statistics
        if name not in held:
            held[name] = work()
        return held[name]

    def scored(self, score: Score) -> Tensor:
        """The prompt's scores; float32 (kv_heads, n).

        A size does not change them, so that runs of one policy at several sizes may share them.
        Those that every step adds to stay each run's own.
        """
        held = self.extras.scores
        if held is None or score.uses_attention:
            return score.score(self)
        name = (score, self.group_reduce, len(self.entries), self.ranked, self.open_from)
        if name not in held:
            held[name] = score.score(self)
        return held[name]

    def reduce(self, heads: Tensor, how: str | None = None) -> Tensor:
        """(query_heads, ...) to one number per KV head: (kv_heads, ...)."""
        grouped = heads.view(self.heads, -1, *heads.shape[1:])
        how = how or self.group_reduce
        if how == "max":
            return grouped.amax(1)
        return grouped.sum(1) if how == "sum" else grouped.mean(1)

    def received(self) -> Tensor:
        """Attention of the newest query per KV head; float32 (kv_heads, n)."""
        assert self.attention is not None
        return self.reduce(self.attention)

    def reduced_prompt_sum(self) -> Tensor:
        """Attention each entry received from all prompt queries; float32 (kv_heads, n)."""
        derived = self.extras.prompt_attention
        whole = derived is not None and derived.shape[1] == self.queries.shape[1]
        if derived is not None and whole and self.group_reduce != "max":
            return self.reduce(derived.float()).clone()
        name = f"prompt sum {self.group_reduce} {self.heads} {self.seen}"
        return self.once(name, self._sum_prompt_rows).clone()

    def _sum_prompt_rows(self) -> Tensor:
        total = self.queries.new_zeros((self.heads, len(self.entries)), dtype=torch.float32)
        for _, rows in self.prompt_rows():
            total[:, : rows.shape[2]] += self.reduce(rows).sum(1)
        return total

    def uniform_multiple(self, alpha: float | str) -> float | Tensor:
        """The threshold α: a number, or c/n over the entries each head holds, (kv_heads, 1)."""
        from kvpolicies.parameters import multiple_of_uniform

        if isinstance(alpha, str):
            return multiple_of_uniform(alpha) / self.entries.counts()[:, None].float()
        return alpha

    def logits(self, queries: Tensor) -> Tensor:
        """Scaled, soft-capped logits of some queries over all entries; (query_heads, m, n)."""
        return scaled_logits(queries, self.entries.keys, self.scaling, self.softcap)

    def rows(self, count: int) -> Tensor:
        """Softmax rows of the newest `count` queries over the entries; (query_heads, m, n)."""
        queries = self.queries[:, -min(count, self.queries.shape[1]) :]
        return self.softmax(self.logits(queries), self.seen - queries.shape[1])

    def sum_of_rows(self, count: int) -> Tensor:
        """Attention that the newest `count` queries give together; float32 (query_heads, n).

        One KV head after another: temporaries too large for the allocator to keep are taken from
        the system and given back each time, which costs more than the arithmetic.
        """
        if not self.entries.aligned:
            return self.rows(count).sum(1)
        queries, keys = self.queries[:, -min(count, self.queries.shape[1]) :], self.entries.keys
        total = queries.new_zeros((queries.shape[0], len(self.entries)), dtype=torch.float32)
        group = queries.shape[0] // self.heads
        for head in range(self.heads):
            own = slice(head * group, (head + 1) * group)
            states = LayerStates(queries[own], keys[head : head + 1], self.scaling, self.softcap)
            for _, _, rows in row_blocks([states], self.seen - queries.shape[1]):
                total[own, : rows.shape[2]] += rows.sum(1)
        return total

    def softmax(self, logits: Tensor, first_query: int) -> Tensor:
        """Causal softmax of logits (query_heads, m, n), whose queries start at `first_query`.

        The logits are overwritten.
        """
        asked = torch.arange(first_query, first_query + logits.shape[1], device=logits.device)
        if self.entries.aligned:  # column j holds position j
            first = min(first_query + 1, logits.shape[2])
            later = torch.arange(first, logits.shape[2], device=logits.device) > asked[:, None]
            logits[:, :, first:].masked_fill_(later, -math.inf)
            return logits.softmax(-1)
        hidden = self.entries.positions[:, None, :] > asked[:, None]  # (kv_heads, m, n)
        if self.entries.alive is not None:
            hidden = hidden | ~self.entries.alive[:, None, :]
        grouped = logits.view(self.heads, -1, *logits.shape[1:])
        weights = grouped.masked_fill_(hidden[:, None], -math.inf).softmax(-1)
        return weights.nan_to_num_(0.0).view_as(logits)  # a query all of whose entries are gone

    def prompt_rows(self) -> Iterator[tuple[int, Tensor]]:
        """Causal rows of every prompt query in blocks: (first position, (query_heads, m, last))."""
        states = LayerStates(self.queries, self.entries.keys, self.scaling, self.softcap)
        for first, _, rows in row_blocks([states], self.first_query):
            yield first, rows
