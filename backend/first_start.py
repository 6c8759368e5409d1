"""The samples that ship with the embedded model, and the few captured when the library is empty."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from backend.jobs import Jobs, capture_job
from backend.spec import CaptureSpec
from cache_store.errors import KVScopeError
from cache_store.files import is_run_id

SAMPLES = Path(__file__).resolve().parents[1] / "models" / "demo" / "samples" / "samples.json"
MODEL_ID = "demo"


@dataclass(frozen=True)
class Sample:
    """A prompt whose answer is known. `evidence` are character ranges of the prompt that the
    answer rests on, `look_for` says what its attention shows."""

    id: str
    title: str
    task: str
    context: str
    question: str
    answer: str
    evidence: tuple[tuple[int, int], ...]
    max_new_tokens: int
    look_for: str
    first_start: bool

    def spec(self) -> CaptureSpec:
        """A greedy run of this sample on the embedded model."""
        return CaptureSpec(
            context=self.context,
            question=self.question,
            model_id=MODEL_ID,
            max_new_tokens=self.max_new_tokens,
            title=self.title,
            source=f"sample {self.id}",
        )


@functools.cache
def samples() -> tuple[Sample, ...]:
    """All samples, in the order of the gallery. Raises KVScopeError when the file is damaged."""
    try:
        entries = json.loads(SAMPLES.read_text("utf-8"))
        return tuple(
            Sample(**{**entry, "evidence": tuple((a, b) for a, b in entry["evidence"])})
            for entry in entries
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise KVScopeError(
            f"The samples cannot be read from {SAMPLES} ({type(error).__name__}): install KVScope "
            "again."
        ) from error


def first_start(jobs: Jobs, chosen: Iterable[Sample] | None = None) -> list[str]:
    """Queues the first-start samples when the home has never had a run; returns the job ids.

    Done once per home, whatever becomes of those runs: a reader who deletes them meant it. Safe
    to call on every start and from several processes.
    """
    mark = jobs.home / ".jobs" / "first_start"
    if mark.exists() or _has_runs(jobs.home):
        return []
    chosen = [sample for sample in samples() if sample.first_start] if chosen is None else chosen
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))  # one process wins
    except OSError:
        return []
    return [jobs.submit(capture_job(sample.spec())) for sample in chosen]


def _has_runs(home: Path) -> bool:
    return any(is_run_id(entry.name) for entry in home.iterdir() if entry.is_dir())
