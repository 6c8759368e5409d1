"""Waiting for something that another process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from backend.jobs import Jobs, JobState

DEADLINE_S = 150.0


def until(condition: Callable[[], Any], what: str) -> Any:
    """What `condition` returns as soon as it is true."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.005)
    raise AssertionError(f"not within {DEADLINE_S:g} s: {what}")


def ended(jobs: Jobs, job_id: str) -> JobState:
    """The state of a job that is over."""
    until(lambda: jobs.get(job_id).finished, f"the end of {jobs.get(job_id)}")
    return jobs.get(job_id)
