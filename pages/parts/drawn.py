"""What a page draws, told to whoever listens: how a figure is exported without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from analysis.errors import NeedsJob
from analysis.figure import Figure
from backend.jobs import JobSpec


@dataclass
class Seen:
    """Figures by the key of their card, with what their link holds; and the jobs that figures
    which are not there yet wait for."""

    figures: dict[str, tuple[Figure, dict[str, Any]]] = field(default_factory=dict)
    jobs: dict[str, tuple[JobSpec, NeedsJob]] = field(default_factory=dict)


_listening: list[Seen] = []  # of the one process that exports; a server has none


@contextmanager
def listening() -> Iterator[Seen]:
    """Everything that pages draw in this process while the block runs."""
    seen = Seen()
    _listening.append(seen)
    try:
        yield seen
    finally:
        _listening.remove(seen)


def tell(key: str, figure: Figure, link_values: dict[str, Any]) -> None:
    """From a card: this figure is shown."""
    for seen in _listening:
        seen.figures[key] = (figure, link_values)


def tell_job(job: JobSpec, need: NeedsJob) -> None:
    """From a card: in place of a figure, this job is offered or under way."""
    for seen in _listening:
        seen.jobs[job.id] = (job, need)
