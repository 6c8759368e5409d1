"""SAGE-KV's view in numbers: which entries each query head of the last prompt token picks.

The attention of the last prompt token is computed once per run; a budget only sorts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from analysis.errors import AnalysisError
from analysis.traces import full_rows, trace_from

if TYPE_CHECKING:
    from torch import Tensor

    from analysis.traces import Source
    from kvpolicies.trace import Trace

STREAMING_SINK = 4


@dataclass(frozen=True)
class Partition:
    """How SAGE-KV divides a budget over a prompt (its Figure 1).

    sink S, picks k per query head, recent R before the last prompt token; candidates lie between.
    """

    budget: int
    group: int
    prompt_length: int
    sink: int
    picks: int
    recent: int

    @property
    def selects(self) -> bool:
        """Whether anything is selected at all; otherwise everything stays, while decoding too."""
        return self.prompt_length > max(self.budget, self.sink + self.picks + self.recent + 1)

    @property
    def candidates(self) -> tuple[int, int]:
        """First candidate position and the one after the last; empty where nothing is selected."""
        if not self.selects:
            return self.prompt_length, self.prompt_length
        return self.sink, self.prompt_length - 1 - self.recent

    def window(self, step: int) -> tuple[int, int]:
        """The recent window after a step, [first, last + 1): it holds R + 1 and slides."""
        stop = self.prompt_length + step
        return max(self.sink, stop - self.recent - 1), stop


def partition(budget: int, group: int, prompt_length: int) -> Partition:
    """S = B/4, k = B/(2G) rounded down to a power of two, R = the rest (SAGE-KV, Section 3).

    Raises AnalysisError for a budget below 1.
    """
    from kvpolicies.schedules import sage_partition

    if budget < 1:
        raise AnalysisError(f"A budget is at least 1 entry, not {budget}.")
    sink, picks, recent = sage_partition(budget, group)
    return Partition(budget, group, prompt_length, sink, picks, recent)


def last_rows(source: Source, layers: Sequence[int] | None = None) -> np.ndarray:
    """Attention of the last prompt token; float32 (layers, query_heads, P). Once per run."""
    import torch

    trace = trace_from(source, layers)
    prompt = trace.prompt_length
    with torch.inference_mode():
        rows = [full_rows(trace, n, prompt - 1, prompt)[:, 0] for n in range(trace.layers)]
        return np.asarray(torch.stack(rows).numpy())


def picks(rows: np.ndarray, parts: Partition) -> np.ndarray:
    """What each query head picks; bool (layers, query_heads, P), all False if nothing is."""
    import torch

    from kvpolicies.schedules import sage_picks

    if not parts.selects or parts.picks < 1:
        return np.zeros(rows.shape, bool)
    flat = torch.from_numpy(rows).flatten(0, 1)
    chosen = sage_picks(flat, parts.sink, parts.recent, parts.picks)
    return np.asarray(chosen.view(rows.shape).numpy())


def unions(picked: np.ndarray, group: int) -> np.ndarray:
    """Picks of each KV head's query heads together; bool (layers, kv_heads, P)."""
    layers, heads, length = picked.shape
    return np.asarray(picked.reshape(layers, heads // group, group, length).any(axis=2))


def stored_sizes(picked: np.ndarray, parts: Partition) -> np.ndarray:
    """Entries each KV head stores after prefill: sinks, the union, recent, the last token.

    picked: (layers, query_heads, P). Returns int64 (layers, kv_heads).
    """
    union = unions(picked, parts.group).sum(axis=-1)
    if not parts.selects:
        return np.full(union.shape, parts.prompt_length, np.int64)
    return np.asarray(parts.sink + union + parts.recent + 1, np.int64)


def jaccard(picked: np.ndarray) -> np.ndarray:
    """Overlap |both| / |either| of every two sets; bool (heads, P) -> float64 (heads, heads).

    NaN where neither picks anything.
    """
    sets = picked.astype(np.float32)
    both = (sets @ sets.T).astype(np.float64)
    sizes = picked.sum(axis=1)
    either = sizes[:, None] + sizes[None, :] - both
    return np.where(either > 0, both / np.where(either > 0, either, 1), np.nan)


@dataclass(frozen=True)
class Retained:
    """What a static choice keeps of the full cache's attention while decoding.

    mass, error: float32 (budgets, query_heads, T), attention mass kept and relative L2 error of
    the attention output (renormalised over what is visible), per query head of one layer.
    """

    budgets: tuple[int, ...]
    mass: np.ndarray
    error: np.ndarray


def retained(
    source: Source,
    layer: int,
    budgets: Sequence[int],
    *,
    method: str = "sage_kv",
    view: str = "query_head",
) -> Retained:
    """Score SAGE-KV over budgets on one prompt (its Figure 2, without a task).

    method: "sage_kv", or "streaming_llm" with 4 sinks, what the paper compares with; view:
    "query_head" (a head sees its own picks) or "union" (its group's). The responses' queries are
    those of the full cache. Raises AnalysisError without a response.
    """
    import torch

    if method not in ("sage_kv", "streaming_llm") or view not in ("query_head", "union"):
        raise AnalysisError(f"{method!r} with view {view!r} cannot be measured here.")
    trace = trace_from(source, [layer])
    prompt, steps = trace.prompt_length, trace.response_length
    if steps == 0:
        raise AnalysisError(
            "Nothing was generated in this run, so no step can miss anything; capture the prompt "
            "with a response."
        )
    shape = (len(budgets), trace.query_heads, steps)
    mass, error = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    last = last_rows(trace)
    with torch.inference_mode():
        visible = [_visible(trace, last, budget, method, view) for budget in budgets]
        block = max(1, 4_000_000 // (trace.query_heads * trace.length))
        for start in range(0, steps, block):
            stop = min(steps, start + block)
            rows = full_rows(trace, 0, prompt + start, prompt + stop)
            full = _output(trace, rows)
            for index, seen in enumerate(visible):
                kept = rows * seen[:, start:stop, : prompt + stop]
                total = kept.sum(-1)
                own = _output(trace, kept) / total.clamp(min=1e-12)[..., None]
                gap = (full - own).norm(dim=-1) / full.norm(dim=-1).clamp(min=1e-12)
                mass[index, :, start:stop] = total.numpy()
                error[index, :, start:stop] = gap.numpy()
    return Retained(tuple(int(budget) for budget in budgets), mass, error)


def _output(trace: Trace, rows: Tensor) -> Tensor:
    """Rows (query_heads, m, n) times the values; (query_heads, m, d)."""
    values = trace.values[0][:, : rows.shape[2]].float()
    grouped = rows.reshape(trace.kv_heads, -1, rows.shape[2])
    return (grouped @ values).view(rows.shape[0], rows.shape[1], -1)


def _visible(trace: Trace, last: np.ndarray, budget: int, method: str, view: str) -> Tensor:
    """What the query of each step attends to; bool (query_heads, T, P + T)."""
    import torch

    prompt, length = trace.prompt_length, trace.length
    own = torch.zeros(trace.query_heads, length, dtype=torch.bool)
    columns = torch.arange(length)
    if method == "streaming_llm":
        sink = min(STREAMING_SINK, budget - 1)
        selects, newest = True, budget - sink + 1  # appended before the oldest leaves
    else:
        parts = partition(budget, trace.group, prompt)
        sink, selects = parts.sink, parts.selects
        newest = parts.recent + 2
        chosen = picks(last, parts)
        if view == "union":
            chosen = unions(chosen, parts.group).repeat(parts.group, axis=1)
        own[:, :prompt] = torch.from_numpy(chosen[0])
    at = torch.arange(prompt, length)[:, None]
    causal = columns <= at
    if not selects:
        return causal.expand(trace.query_heads, -1, -1)
    window = (columns < sink) | (columns > at - newest)
    return causal & (window | own[:, None])
