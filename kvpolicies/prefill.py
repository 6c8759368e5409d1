"""The end of prefill over all layers, where a policy draws up its budgets together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from kvpolicies.allocations import PerHead
from kvpolicies.decisions import Decision
from kvpolicies.run import LayerRun


def finish_prefill(runs: Sequence[LayerRun]) -> list[Decision]:
    """End of prefill over all layers, for policies that draw up their budgets together."""
    if not runs or not runs[0].plan.evicts:
        return []
    plan = runs[0].plan
    if isinstance(plan.allocation, PerHead):
        _mark_streaming(runs)
        decisions = [run.finish_prefill() for run in runs]
    elif plan.together:
        touched = [run for run in runs if not run.whole]
        if not touched:
            return []
        seen = plan.shape.ranked
        candidates = []
        for run in touched:
            assert run.scores is not None
            candidates.append(run.candidates(run.scores, seen))
        budgets = [plan.layer_budget(run.layer) for run in touched]
        keeps = plan.allocation.keep_all(candidates, budgets, plan.share)
        decisions = [
            run.apply(layer, keep)
            for run, layer, keep in zip(touched, candidates, keeps, strict=True)
        ]
        for run in touched:
            run.forget()
    else:
        decisions = [run.finish_prefill() for run in runs]
    return [decision for decision in decisions if decision is not None]


def _mark_streaming(runs: Sequence[LayerRun]) -> None:
    """The heads with the least attention outside sinks and recent entries stream."""
    if runs[0].streaming is not None:
        return
    outside = torch.stack([run.entries.memory["outside"] for run in runs])
    allocation = runs[0].plan.allocation
    assert isinstance(allocation, PerHead)
    share = allocation.streaming
    count = math.floor(share * outside.numel() + 1e-9)
    least = torch.sort(outside.flatten(), stable=True)[1][:count]
    streaming = torch.zeros(outside.numel(), dtype=torch.bool, device=outside.device)
    streaming[least] = True
    for run, heads in zip(runs, streaming.view_as(outside), strict=True):
        run.streaming = heads
