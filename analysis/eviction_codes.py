"""Why one head holds each entry at each step, as codes of categories: what masks and text show.

A replay keeps the step at which each entry goes and the reason at its last decision. The reasons
before follow from them: windows keep their length, everything else that was ranked was selected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.colours import REASONS, Category
from analysis.errors import AnalysisError
from cache_store.reader import Capture
from kvpolicies.methods import catalogue
from kvpolicies.parameters import PARAMETERS

if TYPE_CHECKING:
    from analysis.replays import Replayed


class Code(IntEnum):
    """0 is "not yet there"; 1 to 5 are `kvpolicies.decisions.Reason`."""

    NOTHING = 0
    SINK = 1
    RECENT = 2
    SELECTED = 3
    EVICTED = 4
    NEVER_SCORED = 5
    UNSEEN = 6
    EXEMPT = 7


CATEGORIES: tuple[Category, ...] = (
    REASONS["sink"],
    REASONS["recent"],
    REASONS["selected"],
    REASONS["evicted"],
    REASONS["never_scored"],
    Category("unseen", "cached, not attended", "#B8A04A", "o", "-"),
    Category("exempt", "exempt (sliding window)", "#9A8FB0", "W", "."),
)


@dataclass(frozen=True)
class HeadEntries:
    """All entries of one head in one layer, each array (P + T,).

    evicted_at int32, score float32 (NaN: not ranked), rank int32 (0: not ranked) and reason uint8
    as in `Replayed`; decisions: steps after which the layer evicted anything, ascending; attended:
    bool (T + 1, P + T) where a step attends to less than what is cached, else None; partitions:
    (sink, lag) of a schedule that ranks each partition once, else None.
    """

    prompt_length: int
    evicted_at: np.ndarray
    score: np.ndarray
    rank: np.ndarray
    reason: np.ndarray
    decisions: np.ndarray
    exempt: bool
    attended: np.ndarray | None
    partitions: tuple[int, int] | None = None

    @property
    def response_length(self) -> int:
        return len(self.evicted_at) - self.prompt_length


def head_entries(replayed: Replayed, layer: int, head: int) -> HeadEntries:
    """The entries of one keep-set. Raises AnalysisError for a layer or head without one."""
    check_head(replayed, layer, head)
    gone = np.unique(replayed.evicted_at[layer])
    seen = None
    if replayed.visible is not None:
        group = replayed.query_heads // replayed.evicted_at.shape[1]
        queries = range(head * group, (head + 1) * group)
        seen = np.any([replayed.visible[layer, query] for query in queries], axis=0)
    reason = replayed.reason[layer, head]
    if _ranks_by_position(replayed.choice):  # the newest win the budget: they are the window
        reason = np.where(reason == Code.SELECTED, np.uint8(Code.RECENT), reason)
    return HeadEntries(
        replayed.prompt_length,
        replayed.evicted_at[layer, head],
        replayed.score[layer, head],
        replayed.rank[layer, head],
        reason,
        gone[gone <= replayed.response_length],
        bool(replayed.exempt[layer]),
        seen,
        _partitions(replayed.choice),
    )


def check_head(replayed: Replayed, layer: int, head: int) -> None:
    """Raises AnalysisError for a layer or head for which the policy has no keep-set."""
    layers, heads = replayed.evicted_at.shape[:2]
    for what, index, count in (("layer", layer, layers), ("head", head, heads)):
        if isinstance(index, str) or not 0 <= index < count:
            raise AnalysisError(
                f"{replayed.title} has no {what} {index}: choose one of 0 to {count - 1}."
            )


def place_words(capture: Capture, replayed: Replayed, layer: int, head: int) -> str:
    """A keep-set in words: "layer 3, KV head 1", or "query head" where each has its own."""
    return f"layer {layer}, {head_name(capture, replayed)} {head}"


def head_name(capture: Capture, replayed: Replayed) -> str:
    """What the policy keeps a set for: a KV head or, with its own granularity, a query head."""
    return "KV head" if replayed.evicted_at.shape[1] == capture.info.kv_heads else "query head"


def check_eviction_step(replayed: Replayed, step: int) -> int:
    """The step, if it is one after which a policy may evict: 0 (end of prefill) to the last."""
    last = replayed.response_length
    if not 0 <= step <= last:
        raise AnalysisError(
            f"This run has no step {step}; eviction is shown for steps 0 (end of prefill) to "
            f"{last:,}."
        )
    return int(step)


def codes_of(entries: HeadEntries, steps: np.ndarray, first: int, stop: int) -> np.ndarray:
    """`Code` of positions first ... stop - 1 after each of `steps`; uint8 (steps, positions)."""
    positions = np.arange(first, stop)
    seen = entries.prompt_length + steps[:, None]  # positions that exist after the step
    born = positions < seen
    if entries.exempt:
        return np.where(born, Code.EXEMPT, Code.NOTHING).astype(np.uint8)
    codes = _kept_codes(entries, steps, positions)
    if entries.attended is not None:
        _unseen(codes, entries, steps, positions)
    codes[entries.evicted_at[first:stop] <= steps[:, None]] = Code.EVICTED
    codes[~born] = Code.NOTHING
    return codes


def _kept_codes(entries: HeadEntries, steps: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Reasons of entries as if none was evicted: the last decision's, or what precedes it."""
    index = np.searchsorted(entries.decisions, steps, side="right") - 1
    if not len(entries.decisions):
        return np.full((len(steps), len(positions)), Code.NEVER_SCORED, np.uint8)
    considered = np.where(index >= 0, entries.prompt_length + entries.decisions[index], 0)[:, None]
    fixed, recent = _windows(entries)
    codes = np.where(positions < considered, fixed[positions], np.uint8(Code.NEVER_SCORED))
    codes[(positions >= considered - recent) & (positions < considered)] = Code.RECENT
    if entries.partitions is not None:
        ranked = _ranked_at(entries)[positions]
        codes[(codes == Code.SELECTED) & (ranked > steps[:, None])] = Code.NEVER_SCORED
    return codes.astype(np.uint8, copy=False)


def _windows(entries: HeadEntries) -> tuple[np.ndarray, int]:
    """Each entry's reason outside the recent window, and the length of that window.

    The window is the unbroken run of recent entries up to the newest at the last decision; recent
    entries elsewhere (a pinned prompt, the end of a context) stay where they are.
    """
    held = entries.reason == Code.RECENT
    fixed = np.where(entries.reason == Code.EVICTED, Code.SELECTED, entries.reason)
    fixed = fixed.astype(np.uint8)
    # masks of another tool give no reasons; a policy's decisions leave out what is not ranked
    unexplained = Code.NEVER_SCORED if entries.reason.any() else Code.SELECTED
    fixed[fixed == Code.NOTHING] = unexplained
    high = entries.prompt_length + int(entries.decisions[-1])
    if not held[:high][-1:].any():
        return fixed, 0
    breaks = np.flatnonzero(~held[:high])
    low = int(breaks[-1]) + 1 if len(breaks) else 0
    fixed[low:high] = Code.SELECTED
    return fixed, high - low


def _ranked_at(entries: HeadEntries) -> np.ndarray:
    """The step at which each entry's partition was compressed; 0 outside partitions, T + 1 where
    that is still to come; int32 (P + T,)."""
    assert entries.partitions is not None
    sink, lag = entries.partitions
    ranked = entries.evicted_at.copy()
    ranked[:sink] = 0
    for first in range(sink, len(ranked), lag):
        ranked[first : first + lag] = ranked[first : first + lag].min()
    return ranked


def _unseen(
    codes: np.ndarray, entries: HeadEntries, steps: np.ndarray, positions: np.ndarray
) -> None:
    """Where a step attended to less than was cached: what it chose, and what it passed over."""
    assert entries.attended is not None
    attended = entries.attended[steps][:, positions]
    whole = entries.attended[steps].sum(1) == [_cached(entries, int(step)) for step in steps]
    chose = ~whole[:, None]
    codes[chose & attended & (codes == Code.NEVER_SCORED)] = Code.SELECTED
    codes[chose & ~attended] = Code.UNSEEN


def _cached(entries: HeadEntries, step: int) -> int:
    """How many entries the query of a step could attend to: what was there before it evicts."""
    positions = np.arange(len(entries.evicted_at))
    there = entries.evicted_at >= max(step, 1)
    return int((there & (positions < entries.prompt_length + step)).sum())


def counts_over_steps(replayed: Replayed) -> np.ndarray:
    """Entries cached after each step; int64 (layers, heads, T + 1)."""
    return _born(replayed) - gone_over_steps(replayed, 0, replayed.evicted_at.shape[2])


def gone_over_steps(replayed: Replayed, first: int, stop: int) -> np.ndarray:
    """How many of positions first ... stop - 1 are gone after each step; int64 (L, H, T + 1)."""
    columns = replayed.response_length + 2
    part = replayed.evicted_at[:, :, first:stop]
    rows = np.arange(part.shape[0] * part.shape[1])[:, None] * columns
    places = np.minimum(part, columns - 1).reshape(len(rows), -1) + rows
    counts = np.bincount(places.reshape(-1), minlength=len(rows) * columns)
    return counts.reshape(*part.shape[:2], columns)[:, :, :-1].cumsum(2)


def held(replayed: Replayed, step: int) -> np.ndarray:
    """What is cached after a step and, where policies choose, attended to; bool (L, H, P + T)."""
    there = np.arange(replayed.evicted_at.shape[2]) < replayed.prompt_length + step
    cached = (replayed.evicted_at > step) & there
    return (
        cached
        if replayed.visible is None
        else cached & attended(replayed, slice(step, step + 1))[:, :, 0]
    )


def attended(
    replayed: Replayed, steps: slice, first: int = 0, stop: int | None = None
) -> np.ndarray:
    """What any query head of each keep-set attends to; bool (L, H, steps, positions)."""
    assert replayed.visible is not None
    length = replayed.evicted_at.shape[2]
    stop = length if stop is None else stop
    packed = replayed.visible.packed[:, :, steps, first // 8 : -(-stop // 8)]
    layers, heads = replayed.evicted_at.shape[:2]
    packed = np.bitwise_or.reduce(packed.reshape(layers, heads, -1, *packed.shape[2:]), axis=2)
    bits = np.unpackbits(packed, axis=-1).view(np.bool_)
    return bits[..., first % 8 : first % 8 + stop - first]


def _born(replayed: Replayed) -> np.ndarray:
    return replayed.prompt_length + np.arange(replayed.response_length + 1)


def _ranks_by_position(choice: Mapping[str, Any]) -> bool:
    """Whether a policy keeps the newest entries of every head (StreamingLLM)."""
    method = catalogue().get(choice.get("key", ""))
    score = method.score if method else choice.get("score")
    allocate = choice.get("allocate") or (method.allocate if method else "uniform")
    return score == "position" and allocate != "per_head"  # retrieval heads keep everything


def _partitions(choice: Mapping[str, Any]) -> tuple[int, int] | None:
    """Sink and lag of a policy that compresses partition after partition (LagKV)."""
    method = catalogue().get(choice.get("key", ""))
    schedule = choice.get("schedule") or (method.schedule if method else "")
    if not str(schedule).startswith("per_partition"):
        return None
    known = dict(method.defaults) if method else {}
    options = known | choice.get("options", {})
    sink, lag = (options.get(name, PARAMETERS[name].default) for name in ("sink", "lag"))
    return int(sink), int(lag)
