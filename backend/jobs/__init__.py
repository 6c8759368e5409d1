"""Long work in worker processes: queued, watched, cancelled, and remembered across restarts."""

from backend.jobs.queue import Jobs, capture_job, derive_job
from backend.jobs.registry import register
from backend.jobs.states import JobError, JobSpec, JobState

__all__ = [
    "JobError",
    "JobSpec",
    "JobState",
    "Jobs",
    "capture_job",
    "derive_job",
    "register",
]
