"""What may leave one layer at one eviction, and the keep mask of its best entries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Candidates:
    """One layer at one eviction.

    scores: float32 (heads, n), NaN where not ranked; positions: int64 (heads, n), ascending per
    head. The windows, which fit the budget, are protected: positions below `sink`, and those from
    `recent` (first, one past the last). Entries from position `free` on are kept and not counted.
    With `newest_first` the scores rise with the positions.
    alive: bool (heads, n), or None where all entries count.
    """

    scores: Tensor
    positions: Tensor
    sink: int = 0
    recent: tuple[int, int] = (0, 0)
    free: int | None = None
    alive: Tensor | None = None
    ties_to_newest: bool = False
    newest_first: bool = False

    @cached_property
    def protected(self) -> Tensor:
        """bool (heads, n): entries inside the windows."""
        first, last = self.recent
        protected = self.positions < self.sink
        if first < last:
            protected = protected | ((self.positions >= first) & (self.positions < last))
        return protected

    @cached_property
    def classes(self) -> Tensor:
        """uint8 (heads, n): 4 free, 3 protected, 2 unranked, 1 ranked, 0 gone before."""
        classes = self.scores.isnan().to(torch.uint8).add_(1)
        classes.masked_fill_(self.protected, 3)
        if self.free is not None:
            classes.masked_fill_(self.positions >= self.free, 4)
        if self.alive is not None:
            classes.masked_fill_(~self.alive, 0)
        return classes

    def between(self) -> tuple[int, int] | None:
        """The columns between the windows, first and one past the last; None where heads differ."""
        if self.alive is not None or self.free is not None:
            return None
        length = self.positions.shape[1]
        first, last = self.recent
        low, high = min(self.sink, length), length - min(last - first, length)
        # ascending positions: a window is whole where its innermost entry is in its place
        places = [(low - 1, low - 1)] if low else []
        places += [(high, first)] if high < length else []
        whole = all(bool((self.positions[:, at] == held).all()) for at, held in places)
        return (low, high) if whole and low < high else None

    @cached_property
    def ranked(self) -> Tensor:
        """bool (heads, n): entries that compete by their scores."""
        return self.classes == 1

    @cached_property
    def before_ranking(self) -> Tensor:
        """How many entries of each head are kept before any ranking: protected and unranked ones;
        int64 (heads,)."""
        return ((self.classes == 3) | (self.classes == 2)).sum(1)

    def first(self, budget: int) -> Tensor:
        """Entries kept before any ranking within a budget; int64 (heads,)."""
        return self.before_ranking.clamp(max=budget)

    def counted(self) -> Tensor:
        """How many entries per head count towards a budget; int64 (heads,)."""
        return self.before_ranking + self.ranked.sum(1)

    def order(self) -> Tensor:
        """Indices (heads, n) from the first to be kept to the first to go.

        Free, then protected entries, then unranked ones from newest to oldest, then by score;
        ties go to the lower position (the higher for `ties_to_newest`).
        """
        length = self.scores.shape[1]
        columns = torch.arange(length, device=self.scores.device)
        values = torch.where(self.scores.isnan(), columns.float(), self.scores)
        flip = self.ties_to_newest
        first = torch.sort(values.flip(1) if flip else values, dim=1, descending=True, stable=True)[
            1
        ]
        if flip:
            first = length - 1 - first
        second = torch.sort(self.classes.gather(1, first), dim=1, descending=True, stable=True)[1]
        return first.gather(1, second)


def keep_best(candidates: Candidates, counts: int | Tensor) -> Tensor:
    """The keep mask (heads, n) of the best `counts` entries per head, free ones besides."""
    if isinstance(counts, int):
        keep = _keep_between(candidates, counts)
        if keep is not None:
            return keep
    wanted = counts - candidates.before_ranking
    if bool((wanted < 0).any()):  # the windows alone exceed the budget
        return _first_in_order(candidates, counts)
    best = top_marked(candidates.scores, candidates.ranked, wanted, candidates.ties_to_newest)
    return best | (candidates.classes > 1)


def _keep_between(candidates: Candidates, count: int) -> Tensor | None:
    """`keep_best` where all heads rank the same columns and none ties at the cut, else None."""
    columns = candidates.between()
    if columns is None:
        return None
    first, last = columns
    length = candidates.scores.shape[1]
    wanted = count - first - (length - last)
    if not 0 < wanted < last - first:
        return None
    ranked = candidates.scores[:, first:last]
    if candidates.newest_first:
        places = torch.arange(first, last, device=ranked.device)
        best = (places >= last - wanted).expand(ranked.shape)
    else:
        cut = ranked.topk(wanted, sorted=False)[0].amin(1, keepdim=True)
        best = ranked >= cut  # nothing where a score is NaN, which topk takes for the largest
        if best.sum(1).tolist() != [wanted] * len(best):
            return None
    if first == 0 and last == length:
        return best
    return torch.nn.functional.pad(best, (first, length - last), value=True)


def top_marked(
    scores: Tensor, marked: Tensor, wanted: Tensor, ties_to_newest: bool = False
) -> Tensor:
    """The `wanted` (rows,) highest scores among the marked ones of each row; bool (rows, n).

    Where fewer are marked, all of them are taken. Ties go to the lower column (the higher for
    `ties_to_newest`). A selection is several times faster than a stable sort.
    """
    most = min(int(wanted.max()), scores.shape[1])
    if most <= 0:
        return torch.zeros_like(marked)
    values = scores.masked_fill(~marked, -math.inf)
    if bool((wanted == most).all()):
        last = values.topk(most, sorted=False)[0].amin(1, keepdim=True)
    else:
        place = (wanted - 1).clamp(0, most - 1)[:, None]
        last = values.topk(most)[0].gather(1, place)
        last.masked_fill_(wanted[:, None] <= 0, math.inf)
    above = values > last
    tied = (values == last) & marked
    room = (wanted - above.sum(1))[:, None]
    if bool((tied.sum(1, keepdim=True) > room).any()):
        places = tied.flip(1).cumsum(1).flip(1) if ties_to_newest else tied.cumsum(1)
        tied &= places <= room
    return above | tied


def _first_in_order(candidates: Candidates, counts: int | Tensor) -> Tensor:
    heads, length = candidates.scores.shape
    free = (candidates.classes == 4).sum(1)
    wanted = torch.as_tensor(counts, device=candidates.scores.device) + free
    places = torch.arange(length, device=candidates.scores.device)
    best = (places < wanted.reshape(-1, 1)).expand(heads, length)
    keep = torch.zeros_like(candidates.protected).scatter_(1, candidates.order(), best)
    return keep if candidates.alive is None else keep & candidates.alive
