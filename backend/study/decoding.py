"""Responses of many cells of one prompt at once, and how far each is from the full cache's.

A cell follows the full cache's response for as long as it would choose the same tokens: that
stretch is its own response and the forced one in one pass. Where it first chooses another token it
parts in two, one that goes on by itself and one that is forced on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from backend.policy_run import compare
from kvpolicies.batched import batchable, feed_together
from kvpolicies.cache import EvictingCache
from kvpolicies.passes import feed


@dataclass
class Response:
    """What comes of one cell: its own tokens, and its distance from the full cache's response.

    `nll` and `kl` are of each step of the full cache's response, in nats, and empty where they
    are not measured; `peak_bytes` is the largest the cache was; `step_ms` is empty where several
    cells were decoded together.
    """

    tokens: list[int] = field(default_factory=list)
    nll: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    step_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Reference:
    """The full cache's response, with its logits (T, vocabulary) where others are compared."""

    tokens: list[int]
    logits: Tensor | None


@dataclass
class _Branch:
    """A cache on its way: it writes its own response, is forced along the reference, or both.

    `logits` predict token `step`, which `token` is once it is decided.
    """

    cache: EvictingCache
    logits: Tensor  # float32 (vocabulary,)
    response: Response
    own: bool = True
    forced: bool = False
    step: int = 1
    token: int = 0

    def goes_on(self, token: int, **changed: bool) -> _Branch:
        """The same branch, or with `changed` a part of it, with its next token decided."""
        cache = self.cache.fork() if changed else self.cache
        kind = {"own": self.own, "forced": self.forced, **changed}
        return _Branch(cache, self.logits, self.response, step=self.step + 1, token=token, **kind)


class Decoder:
    """Greedy decoding of one prompt's cells.

    Responses end after `limit` tokens or with one of `ends`, which is part of them. `together`
    bounds how many caches share a forward; with `alone` every cell is decoded by itself and its
    steps are timed. `check` is called before each forward and may raise.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        limit: int,
        ends: set[int],
        check: Callable[[], None],
        *,
        together: int = 1,
        alone: bool = False,
    ) -> None:
        self.model, self.limit, self.ends, self.check = model, limit, ends, check
        self.together, self.alone = together, alone

    def reference(
        self, cache: EvictingCache, logits: Tensor, *, keep_logits: bool
    ) -> tuple[Response, Reference]:
        """The full cache's own response."""
        branch, rows = _Branch(cache, logits, Response()), []
        response = branch.response
        self._note_bytes(branch, last=True)
        going = True
        while going:
            if keep_logits:
                rows.append(branch.logits.cpu())
            following = self._decide(branch, Reference([], None))
            going = bool(following)
            if going:
                branch = following[0]
                self._feed(following, timed=self.alone)
        self._note_bytes(branch, last=True)
        kept = torch.stack(rows) if keep_logits else None
        if kept is not None:
            kl, nll, _ = compare(kept, kept, response.tokens)
            response.kl, response.nll = kl.tolist(), nll.tolist()
        return response, Reference(response.tokens, kept)

    def responses(
        self, cells: Sequence[tuple[EvictingCache, Tensor]], reference: Reference
    ) -> list[Response]:
        """One response per cell: a compressed cache with the logits of its first token."""
        forced = reference.logits is not None
        branches = [_Branch(cache, row, Response(), forced=forced) for cache, row in cells]
        for branch in branches:
            self._note_bytes(branch, last=True)
        if not self.alone:
            self._run(branches, reference)
            return [branch.response for branch in branches]
        for branch in branches:
            waiting: list[_Branch] = []
            self._run([branch], reference, waiting)
            for other in waiting:
                self._feed([other])
            self._run(waiting, reference)
        return [branch.response for branch in branches]

    def _run(
        self, live: list[_Branch], reference: Reference, waiting: list[_Branch] | None = None
    ) -> None:
        """Decide and feed until all are over; with `waiting`, what only follows the reference is
        put there, so that the steps of the own response are timed alone."""
        while live:
            following = []
            for branch in live:
                parts = self._decide(branch, reference)
                if not any(part.own for part in parts):
                    self._note_bytes(branch, last=True)
                following += parts
            if waiting is not None:
                waiting += [part for part in following if not part.own]
                following = [part for part in following if part.own]
            live = following
            self._feed(live, timed=waiting is not None)

    def _decide(self, branch: _Branch, reference: Reference) -> list[_Branch]:
        """The next token, or two where own and forced response part; none when all is over."""
        step, response = branch.step, branch.response
        target = reference.tokens[step - 1] if step <= len(reference.tokens) else None
        forced = branch.forced and target is not None
        if forced:
            self._measure(branch, reference, step)
        forced = forced and step < len(reference.tokens)
        own = branch.own
        if own:
            token = int(branch.logits.argmax())
            response.tokens.append(token)
            own = token not in self.ends and step < self.limit
            if own and forced and token != target:
                return [
                    branch.goes_on(token, forced=False),
                    branch.goes_on(_known(target), own=False),
                ]
            if own:
                return [branch.goes_on(token)]
        return [branch.goes_on(_known(target), own=False)] if forced else []

    def _measure(self, branch: _Branch, reference: Reference, step: int) -> None:
        assert reference.logits is not None
        row = reference.logits[step - 1 : step]
        kl, _, nll = compare(row, branch.logits[None].cpu(), reference.tokens[step - 1 : step])
        branch.response.kl.append(float(kl[0]))
        branch.response.nll.append(float(nll[0]))

    def _feed(self, live: list[_Branch], timed: bool = False) -> None:
        """One forward, or as many as their number or sliding windows take."""
        size = self.together if all(batchable(branch.cache) for branch in live) else 1
        for start in range(0, len(live), max(1, size)):
            part = live[start : start + max(1, size)]
            self.check()
            began = time.perf_counter()
            if len(part) == 1:
                ids = torch.tensor([[part[0].token]], device=self.model.device)
                rows = feed(self.model, part[0].cache, ids)[None]
            else:
                caches = [branch.cache for branch in part]
                rows = feed_together(self.model, caches, [branch.token for branch in part])
            if timed:
                part[0].response.step_ms.append(1000 * (time.perf_counter() - began))
            for branch, row in zip(part, rows, strict=True):
                branch.logits = row
                self._note_bytes(branch)

    @staticmethod
    def _note_bytes(branch: _Branch, last: bool = False) -> None:
        """The own response's largest cache; where nothing leaves any more, the last one is it."""
        layers = branch.cache.own_layers
        if branch.own and (last or not all(layer.run and layer.run.still for layer in layers)):
            response = branch.response
            response.peak_bytes = max(response.peak_bytes, branch.cache.bytes)


def _known(token: int | None) -> int:
    assert token is not None
    return token
