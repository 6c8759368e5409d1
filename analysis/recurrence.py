"""LazyEviction's view in numbers: when tokens are attended to, fall silent, and come back.

All of it is taken from the full cache's attention of the generated steps 1 ... T, the mean over
each KV head's query heads. What a slider changes (α) works on arrays computed once per run.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from analysis.errors import AnalysisError
from analysis.traces import grouped_rows, trace_from

if TYPE_CHECKING:
    from analysis.traces import Source

COUNTS = ("from_birth", "from_first")
SWEEPS = 2  # layers are tracked by that many threads
SHARE = 0.8  # of the tokens whose MRI the proposed window covers
NO_RESPONSE = (
    "Nothing was generated in this run, so no token can recur; capture the prompt with a response."
)


@dataclass(frozen=True)
class Tracked:
    """When entries were active.

    mri: int32 (..., n), longest interval between two active steps; last_active: int32 (..., n),
    the last of them (TS); active: bool (..., T, n), index t - 1 is step t.
    """

    mri: np.ndarray
    last_active: np.ndarray
    active: np.ndarray

    @property
    def ever(self) -> np.ndarray:
        """Which entries were active at all; bool (..., n)."""
        return np.asarray(self.active.any(axis=-2))

    def __getitem__(self, place: int | tuple[int, ...]) -> Tracked:
        """One layer or head of a tracking of several."""
        return Tracked(self.mri[place], self.last_active[place], self.active[place])


def track(
    attention: np.ndarray,
    alpha: float | str = 5e-4,
    prompt_length: int = 0,
    *,
    count: str = "from_birth",
) -> Tracked:
    """LazyEviction's time stamps and maximum recurrence intervals (its Section 4.2).

    attention: (..., T, n), of T steps over n entries, NaN where an entry is not yet born. alpha: a
    number, or "3/n" for three times uniform attention over the entries there are. Prompt entries
    start with TS = 0 and entry P + t - 1 with TS = t - 1, so that a first activation already counts
    as an interval; `count="from_first"` starts at each entry's first activation instead. Raises
    AnalysisError for another `count` or an alpha that is none.
    """
    if count not in COUNTS:
        raise AnalysisError(f"Intervals are counted {' or '.join(COUNTS)}, not {count!r}.")
    attention = np.asarray(attention)
    active = attention >= threshold(attention, alpha)
    born = np.maximum(0, np.arange(attention.shape[-1]) - prompt_length)
    parts = np.array_split(active, SWEEPS) if active.ndim > 2 else [active]
    with ThreadPoolExecutor(len(parts)) as pool:  # numpy leaves the interpreter to others meanwhile
        swept = list(pool.map(lambda part: _swept(part, born, count == "from_first"), parts))
    mri, last = (np.concatenate(own).astype(np.int32) for own in zip(*swept, strict=True))
    return Tracked(mri, last, active)


def _swept(active: np.ndarray, born: np.ndarray, from_first: bool) -> tuple[np.ndarray, np.ndarray]:
    """MRI and TS (..., n) of which entries were active (..., T, n), all heads in one sweep."""
    steps = active.shape[-2]
    kind = np.int16 if max(steps, born.max(initial=0)) < 1 << 15 else np.int32
    shape = (*active.shape[:-2], len(born))
    last = np.broadcast_to(born, shape).astype(kind)
    mri, on, interval = np.zeros(shape, kind), np.empty(shape, kind), np.empty(shape, kind)
    seen = np.zeros(shape, kind)
    for step in range(1, steps + 1):  # without branches, and of one type, which is much faster
        np.copyto(on, active[..., step - 1, :])
        np.subtract(kind(step), last, out=interval)
        np.multiply(interval, on, out=interval)
        np.add(last, interval, out=last)  # the step where it is active
        if from_first:
            np.multiply(interval, seen, out=interval)
            np.maximum(seen, on, out=seen)
        np.maximum(mri, interval, out=mri)
    return mri, last


def threshold(attention: np.ndarray, alpha: float | str) -> np.ndarray | float:
    """α as a number, or per step for a multiple of uniform attention; broadcasts to (..., T, n)."""
    if not isinstance(alpha, str):
        if not alpha >= 0:
            raise AnalysisError(f"α is {alpha}; it must be a number of at least 0.")
        return float(alpha)
    from kvpolicies.errors import PolicyError
    from kvpolicies.parameters import multiple_of_uniform

    try:
        multiple = multiple_of_uniform(alpha)
    except PolicyError as error:
        raise AnalysisError(error.sentence) from error
    born = (~np.isnan(attention)).sum(axis=-1, keepdims=True)
    level: np.ndarray = (multiple / np.maximum(born, 1)).astype(attention.dtype)
    return level


def response_attention(source: Source, layers: Sequence[int] | None = None) -> np.ndarray:
    """The full cache's attention of steps 1 ... T, per KV head: what `track` takes.

    float32 (layers, kv_heads, T, P + T), NaN where an entry is not yet born, 0 where a sliding
    window hides it. Computed once per run; `analysis.traces.layers_within` says which layers fit.
    """
    trace = trace_from(source, layers)
    prompt, length = trace.prompt_length, trace.length
    shape = (trace.layers, trace.kv_heads, length - prompt, length)
    attention = np.empty(shape, np.float32)
    for layer in range(trace.layers):
        if length > prompt:
            attention[layer] = grouped_rows(trace, layer, prompt, length, columns=length)
    unborn = np.arange(length) > prompt + np.arange(length - prompt)[:, None]
    attention[..., unborn] = np.nan
    return attention


@dataclass(frozen=True)
class Distribution:
    """How long tokens stay silent: MRI over all (layer, head, token) that were ever active.

    counts: int64 (longest MRI + 1,), how many have each value, summed over `runs` captures;
    considered: all of them, active or not.
    """

    counts: np.ndarray
    considered: int
    runs: int = 1

    @property
    def tokens(self) -> int:
        """How many were ever active."""
        return int(self.counts.sum())

    @property
    def cdf(self) -> np.ndarray:
        """Share of them with at most each MRI; float64, NaN where there are none."""
        if not self.tokens:
            return np.full(len(self.counts), np.nan)
        return np.cumsum(self.counts) / self.tokens

    @property
    def share_above_one(self) -> float:
        """Share of them that recurred (MRI > 1); NaN where there are none."""
        return float(self.counts[2:].sum()) / self.tokens if self.tokens else float("nan")

    def window(self, share: float = SHARE) -> int | None:
        """The smallest W with at least `share` of the MRIs within it, at least 1; None if none."""
        if not self.tokens:
            return None
        reached = np.cumsum(self.counts) >= share * self.tokens - 1e-9
        return max(1, int(np.argmax(reached)))


def distribution(tracked: Sequence[Tracked]) -> Distribution:
    """The MRIs of one or several runs, pooled."""
    values = [run.mri[run.ever] for run in tracked]
    longest = max((int(part.max()) for part in values if part.size), default=0)
    counts = np.zeros(max(2, longest + 1), np.int64)
    for part in values:
        counts += np.bincount(part, minlength=len(counts))
    return Distribution(counts, sum(run.mri.size for run in tracked), len(tracked))


def head_distributions(tracked: Tracked, share: float = SHARE) -> tuple[np.ndarray, np.ndarray]:
    """By layer and head: share of ever active tokens with MRI > 1, and the window W they propose.

    tracked: of (layers, kv_heads); share: of the tokens that W covers. Returns float32 (layers,
    kv_heads) twice, NaN where no token was ever active.
    """
    shape = tracked.mri.shape[:-1]
    shares, windows = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    for place in np.ndindex(shape):
        own = distribution([tracked[place]])
        shares[place] = own.share_above_one
        window = own.window(share)
        windows[place] = np.nan if window is None else window
    return shares, windows


def alpha_advice(alpha: float | str, length: int) -> str | None:
    """What to know of an α: None, or why it marks nearly everything and what to choose instead."""
    if isinstance(alpha, str) or alpha > 1 / max(1, length):
        return None
    return (
        f"α = {alpha:g} is not above uniform attention over {length:,} entries "
        f"(1/n = {1 / max(1, length):.2g}), so it marks nearly every token as active; choose a "
        "multiple of uniform attention such as 3/n."
    )


@dataclass(frozen=True)
class Recurring:
    """A token that came back, numbered as in the paper's Figure 3.

    returned: the step that ended its longest pause since an earlier activation; pause: that many
    steps; weight: its attention then; activations: how often it was active.
    """

    number: int
    position: int
    returned: int
    pause: int
    weight: float
    activations: int


def recurring_tokens(tracked: Tracked, attention: np.ndarray, limit: int = 6) -> list[Recurring]:
    """The tokens of one head whose return after their longest pause drew most attention.

    tracked and attention (T, n) of one head. A return is an active step more than one step after
    the active step before it. Numbered from 1 by position.
    """
    place, row = np.nonzero(tracked.active.T)  # by position, then by step
    pause = np.where(np.diff(place) == 0, np.diff(row), 0)
    ended = np.flatnonzero(pause > 1)
    ended = ended[np.lexsort((ended, -pause[ended], place[ended]))]
    ended = ended[np.unique(place[ended], return_index=True)[1]]  # the first of its longest pauses
    weight = attention[row[ended + 1], place[ended]]
    best = np.sort(np.lexsort((place[ended], -weight))[:limit])
    activations = np.bincount(place)
    return [
        Recurring(
            number,
            position=int(place[at]),
            returned=int(row[at + 1]) + 1,
            pause=int(pause[at]),
            weight=float(attention[row[at + 1], place[at]]),
            activations=int(activations[place[at]]),
        )
        for number, at in enumerate(ended[best].tolist(), start=1)
    ]


def state_at(tracked: Tracked, step: int, prompt_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Pause t - TS and MRI of one head's entries after step t; int32 (P + t,) each.

    tracked: counted from birth.
    """
    until = Tracked(tracked.mri, tracked.last_active, tracked.active[:step])
    weights = np.where(until.active, 1.0, 0.0)
    again = track(weights, 0.5, prompt_length)
    born = prompt_length + step
    return (step - again.last_active[:born]).astype(np.int32), again.mri[:born]


def pooled_distribution(parts: Sequence[Distribution]) -> Distribution:
    """Several runs' MRIs as one distribution."""
    counts = np.zeros(max((len(part.counts) for part in parts), default=2), np.int64)
    for part in parts:
        counts[: len(part.counts)] += part.counts
    runs = sum(part.runs for part in parts)
    return Distribution(counts, sum(part.considered for part in parts), runs)
