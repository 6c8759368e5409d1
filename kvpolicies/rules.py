"""Which scores, allocations and schedules work together, and why the others do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvpolicies.allocations import PerHead
from kvpolicies.errors import PolicyError
from kvpolicies.schedules import AfterPrefill, Every, PerPartition, Select, Sliding
from kvpolicies.scores.selection import Selection

if TYPE_CHECKING:
    from kvpolicies.policy import Policy


def refuse_illegal(policy: Policy) -> None:
    """Raise `PolicyError` with the reason where the three choices do not work together."""
    score, allocation, schedule = policy.score, policy.allocation, policy.schedule
    needs_budget = not isinstance(schedule, PerPartition) and not isinstance(allocation, PerHead)
    if policy.key == "full":
        return
    if policy.budget is None and policy.compression_ratio is None and needs_budget:
        raise PolicyError(
            f"{policy.title} needs a budget (entries per KV head and layer) or a compression_ratio"
        )
    if isinstance(score, Selection) != isinstance(schedule, Select):
        raise PolicyError(
            f"{score.name} with {schedule.name} is not possible: page and block scores choose what "
            "a step attends to (schedule select), all other scores rank entries for eviction"
        )
    if isinstance(schedule, Select) and allocation.name != "uniform":
        raise PolicyError(
            f"select reads the same number of entries everywhere, so its allocation "
            f"must be uniform, not {allocation.name}"
        )
    if isinstance(schedule, Sliding) and (
        score.name != "last_attention" or allocation.name != "uniform"
    ):
        raise PolicyError(
            f"{schedule.name} is SAGE-KV's own selection by last_attention with uniform budgets; "
            f"{score.name} with {allocation.name} needs another schedule"
        )
    if isinstance(allocation, PerHead):
        if score.name != "position" or schedule.name != "every_step":
            raise PolicyError(
                "per_head keeps whole heads or their sinks and recent entries, so it needs the "
                f"score position and the schedule every_step, not {score.name} and {schedule.name}"
            )
    elif allocation.over_layers and not isinstance(schedule, AfterPrefill):
        raise PolicyError(
            f"{allocation.name} budgets are drawn up once over all layers, so the schedule must be "
            f"after_prefill, not {schedule.name}"
        )
    if schedule.decodes and not score.after_prompt and not isinstance(schedule, PerPartition):
        raise PolicyError(
            f"{score.name} is defined at the end of the prompt only, so the schedule must be "
            f"after_prefill, not {schedule.name}"
        )
    if isinstance(schedule, PerPartition):
        if not score.after_prompt and not hasattr(score, "lag"):
            raise PolicyError(
                f"{score.name} is defined at the end of the prompt only and cannot "
                "score the partitions that the response completes"
            )
        if not allocation.structured:
            raise PolicyError(
                f"{allocation.name} cannot split a partition: every head keeps the same share of it"
            )
    if policy.scope == "context" and not isinstance(schedule, AfterPrefill):
        raise PolicyError(
            f"scope='context' compresses once, before the question, so the schedule must be "
            f"after_prefill, not {schedule.name}"
        )
    if score.name in ("reconstruction", "context_attention") and policy.scope != "context":
        raise PolicyError(f"{score.name} ranks the context only; leave scope='context'")
    if score.name == "window_attention" and policy.options["window"] < 1:
        raise PolicyError("window (w) must be at least 1 for window_attention, not 0")
    for name in ("window", "interval"):
        if isinstance(schedule, Every) and policy.options.get(name) == 0:
            raise PolicyError(f"{name} (W) must be at least 1, not 0")
