"""What one layer's cache holds, as a policy sees it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

ROOM = 128  # entries that a room has free when it is made


class Entries:
    """The cached entries of one layer, in order of position.

    keys, values: (heads, n, d); positions: int64 (heads, n), ascending per head; `alive`:
    bool (heads, n) where heads hold different numbers of entries, None where all hold n;
    `statistics`: tensors (heads, n, ...) that travel with the entries when others leave;
    `memory`: what a score worked out once for this layer.
    """

    def __init__(self, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        self._keys = keys
        self._values = values
        self.positions = positions
        self.alive: Tensor | None = None
        self.aligned = True  # nothing was evicted: every head holds all positions
        self.statistics: dict[str, Tensor] = {}
        self.memory: dict[str, Any] = {}
        self._room: tuple[Tensor, Tensor] | None = None  # ours alone, longer than the states

    @property
    def keys(self) -> Tensor:
        return self._keys

    @property
    def values(self) -> Tensor:
        return self._values

    @property
    def heads(self) -> int:
        return self.positions.shape[0]

    def __len__(self) -> int:
        return self.positions.shape[1]

    def counts(self) -> Tensor:
        """How many entries each head holds; int64 (heads,)."""
        if self.alive is None:
            return torch.full((self.heads,), len(self), device=self.positions.device)
        return self.alive.sum(1)

    def total(self) -> int:
        """How many entries all heads hold together."""
        return self.positions.numel() if self.alive is None else int(self.alive.sum())

    def append(self, keys: Tensor, values: Tensor, position: int) -> None:
        """Add the entries of `position` and the following ones; (heads, m, d)."""
        self._keys = torch.cat([self._keys, keys], 1)
        self._values = torch.cat([self._values, values], 1)
        self._append_positions(position, keys.shape[1])

    def append_in_place(self, keys: Tensor, values: Tensor, position: int) -> None:
        """`append` for entries that never leave again: what is held is not copied every time."""
        first, last = len(self), len(self) + keys.shape[1]
        if self._room is None or self._room[0].shape[1] < last:
            length = last + ROOM
            self._room = _roomy(self._keys, length), _roomy(self._values, length)
        for room, new in zip(self._room, (keys, values), strict=True):
            room[:, first:last] = new
        self._keys, self._values = (room[:, :last] for room in self._room)
        self._append_positions(position, keys.shape[1])

    def _append_positions(self, position: int, count: int) -> None:
        new = torch.arange(position, position + count, device=self.positions.device)
        self.positions = torch.cat([self.positions, new.expand(self.heads, count)], 1)
        if self.alive is not None:
            self.alive = torch.nn.functional.pad(self.alive, (0, count), value=True)
        for name, statistic in self.statistics.items():
            padding = statistic.new_zeros((self.heads, count, *statistic.shape[2:]))
            self.statistics[name] = torch.cat([statistic, padding], 1)

    def evict(self, keep: Tensor) -> None:
        """Drop what `keep` (heads, n) does not name.

        Heads that keep equally many are gathered; otherwise all are cut to the longest, and
        `alive` says which entries of the shorter ones count.
        """
        length = len(self)
        rows = keep.flatten().nonzero()[:, 0]  # head by head
        ends = torch.arange(1, self.heads + 1, device=rows.device) * length
        counts = torch.searchsorted(rows, ends).diff(prepend=ends.new_zeros(1))
        each = counts.tolist()
        longest, equal = max(each), min(each) == max(each)
        if sum(each) == self.total():
            return
        if equal:
            index = rows.view(self.heads, longest) - (ends - length)[:, None]
        else:
            index = torch.sort((~keep).to(torch.uint8), dim=1, stable=True)[1][:, :longest]
            rows = flat_rows(index, length)
        self._gather(index, rows)
        self.aligned = False
        columns = torch.arange(longest, device=keep.device)
        self.alive = None if equal else columns < counts[:, None]

    def fork(self) -> Entries:
        """An independent copy; states are shared, since they are never written in place."""
        other = copy.copy(self)
        other.statistics = {name: held.clone() for name, held in self.statistics.items()}
        other.memory = dict(self.memory)
        other._room = None  # what comes after the shared states is not shared
        return other

    def _gather(self, index: Tensor, rows: Tensor) -> None:
        self._room = None
        self._keys, self._values = take(self._keys, index, rows), take(self._values, index, rows)
        self.positions = index if self.aligned else self.positions.gather(1, index)
        self.statistics = {name: take(held, index, rows) for name, held in self.statistics.items()}


class RecordedEntries(Entries):
    """Entries whose states stay in a recording and are looked up when a score asks for them.

    keys, values: (heads, positions, d), row p belonging to position p.
    """

    def __init__(self, keys: Tensor, values: Tensor, length: int) -> None:
        positions = torch.arange(length, device=keys.device).expand(keys.shape[0], length)
        super().__init__(keys, values, positions)

    @property
    def keys(self) -> Tensor:
        return self._look_up(self._keys)

    @property
    def values(self) -> Tensor:
        return self._look_up(self._values)

    def _look_up(self, recorded: Tensor) -> Tensor:
        return recorded[:, : len(self)] if self.aligned else take(recorded, self.positions)

    def append(self, keys: Tensor, values: Tensor, position: int) -> None:
        self._append_positions(position, keys.shape[1])

    def _gather(self, index: Tensor, rows: Tensor) -> None:
        self.positions = index if self.aligned else self.positions.gather(1, index)
        self.statistics = {name: take(held, index, rows) for name, held in self.statistics.items()}


def _roomy(states: Tensor, length: int) -> Tensor:
    """States (heads, n, d) at the beginning of (heads, length, d)."""
    room = states.new_empty((states.shape[0], length, states.shape[2]))
    room[:, : states.shape[1]] = states
    return room


def flat_rows(index: Tensor, length: int) -> Tensor:
    """`index` (heads, m) into (heads, length) as rows of (heads * length); int64 (heads * m,)."""
    heads = torch.arange(0, len(index) * length, length, device=index.device)
    return (index + heads[:, None]).flatten()


def take(states: Tensor, index: Tensor, rows: Tensor | None = None) -> Tensor:
    """Rows `index` (heads, m) of `states` (heads, n, ...); (heads, m, ...).

    `rows` is `flat_rows` of the index, where that is at hand.
    """
    if states.dim() == 2:
        return states.gather(1, index)
    if not states.is_contiguous():
        return states[torch.arange(len(index), device=index.device)[:, None], index]
    rows = flat_rows(index, states.shape[1]) if rows is None else rows
    taken = states.flatten(0, 1).index_select(0, rows)  # copies whole rows
    return taken.view(*index.shape, *states.shape[2:])
