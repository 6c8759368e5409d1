"""How long work reports and stops: shared by captures, derived results, jobs and the CLI."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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
