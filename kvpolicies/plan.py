"""A policy's numbers for one run: its budget, windows and the budget of each layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvpolicies.errors import PolicyError
from kvpolicies.schedules import AfterPrefill, PerPartition, Select, Sliding, sage_partition

if TYPE_CHECKING:
    from kvpolicies.policy import Policy


@dataclass(frozen=True)
class Shape:
    """What a policy must know of a run before it starts.

    `layers` counts those the policy may touch; `ranked` is how many of the prompt's first
    positions may be evicted (the context, or all of it); `response_length` may be unknown (None).
    """

    layers: int
    kv_heads: int
    query_heads: int
    prompt_length: int
    ranked: int
    response_length: int | None = None


def ranked_length(policy: Policy, prompt_length: int, context_length: int) -> int:
    """How many of the prompt's first positions may be evicted. Raises `PolicyError` for a policy of
    the context where there is none."""
    if policy.scope != "context":
        return prompt_length
    if context_length < 1:
        raise PolicyError("scope='context' needs a context, and this prompt has none")
    return context_length


class Plan:
    """A policy's numbers for one run: budget, windows and the budget of each layer."""

    def __init__(self, policy: Policy, shape: Shape) -> None:
        self.policy, self.shape = policy, shape
        self.score, self.allocation = policy.score, policy.allocation
        self.schedule = policy.schedule
        self.budget = self._budget()
        self.share = None if policy.compression_ratio is None else 1 - policy.compression_ratio
        budget = self.budget
        sink, recent = policy.sink_of(budget), policy.recent_of(budget)
        if budget is not None and not isinstance(policy.schedule, PerPartition):
            sink = min(sink, budget - 1)
            recent = min(recent, budget - sink)
        self.sink, self.recent = sink, recent
        self.group = shape.query_heads // shape.kv_heads
        if isinstance(self.schedule, Sliding):
            assert budget is not None
            self.sink, self.picks, self.recent = sage_partition(budget, self.group)

    @property
    def heads(self) -> int:
        """Keep-sets per layer."""
        by_query = self.policy.granularity == "query_head"
        return self.shape.query_heads if by_query else self.shape.kv_heads

    def _budget(self) -> int | None:
        policy, shape = self.policy, self.shape
        ratio = policy.compression_ratio
        if ratio is None:
            return policy.budget
        if isinstance(self.schedule, AfterPrefill | Sliding):
            length = shape.ranked
        elif shape.response_length is None:
            raise PolicyError(
                f"{policy.title} needs a budget: a compression_ratio of the full cache is unknown "
                "until the response's length is"
            )
        else:
            length = shape.prompt_length + shape.response_length
        return max(1, math.floor((1 - ratio) * length + 1e-9))

    def keeps_whole(self, layer: int) -> bool:
        """Whether the policy leaves a layer alone."""
        if isinstance(self.schedule, AfterPrefill):
            if self.allocation.over_layers and self.share is not None:
                return self.share >= 1
            if (self.budget or 0) >= self.shape.ranked:
                return True
        return layer < self.policy.skip_layers and not isinstance(self.schedule, Select)

    def layer_budget(self, layer: int) -> int:
        """Entries per head of one layer, windows included."""
        budget, shape = self.budget, self.shape
        assert budget is not None
        if self.keeps_whole(layer):
            return shape.ranked
        windows = self.sink + self.recent
        if isinstance(self.schedule, PerPartition):
            windows = 0
        if self.policy.pin_prompt:
            budget = max(budget, shape.prompt_length + 1)
        return self.allocation.layer_budget(budget, layer, shape.layers, shape.ranked, windows)

    def kept_per_partition(self, layer: int) -> int:
        """LagKV's ⌊rL⌋ of one layer."""
        assert isinstance(self.schedule, PerPartition)
        budget = None if self.budget is None else self.layer_budget(layer)
        return self.schedule.kept_per_partition(self.shape.ranked, self.sink, budget)

    def check(self) -> None:
        """Raises `PolicyError` where no keep-set of this run can have the policy's budget."""
        if isinstance(self.schedule, PerPartition):
            for layer in range(self.shape.layers):
                self.kept_per_partition(layer)

    @property
    def evicts(self) -> bool:
        return self.policy.key != "full"

    @property
    def together(self) -> bool:
        """Whether prefill decisions need every layer's scores."""
        return self.allocation.over_layers
