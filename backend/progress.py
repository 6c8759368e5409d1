"""How long work reports and stops: shared by captures, derived results, jobs and the CLI."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Progress:
    """Where a piece of work is: `done` of `total` units of `phase`, and the text so far."""

    phase: str
    done: int
    total: int
    text: str = ""


class Cancelled(Exception):
    """Someone asked to stop; nothing was left behind."""


ProgressCallback = Callable[[Progress], None]
CancelCheck = Callable[[], bool]


class Watch:
    """Reports one phase after another, and stops between two units of work.

    As an observer of the model's attention it counts the layers that have run, unless the phase
    counts something else (`by_layer=False`); `check` and `advance` raise Cancelled.
    """

    def __init__(self, report: ProgressCallback | None, cancelled: CancelCheck | None) -> None:
        self._report = report or (lambda _: None)
        self._cancelled = cancelled or (lambda: False)
        self._phase, self._done, self._total, self._by_layer = "", 0, 1, False

    def begin(self, phase: str, total: int, *, by_layer: bool = True) -> None:
        self._phase, self._done, self._total, self._by_layer = phase, 0, total, by_layer
        self.check()
        self._report(Progress(phase, 0, total))

    def advance(self) -> None:
        self.check()
        self._done = min(self._done + 1, self._total)
        self._report(Progress(self._phase, self._done, self._total))

    def check(self) -> None:
        if self._cancelled():
            raise Cancelled

    def __call__(self, layer: int, *states: Any, **terms: Any) -> None:
        """Each attention call of the model: a layer of a prompt, or of one more token."""
        if self._by_layer:
            self.advance()
        else:
            self.check()
