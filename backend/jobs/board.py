"""What is known about the jobs of a home: in memory, on disk, and in other processes."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from backend.jobs.registry import KINDS
from backend.jobs.states import (
    UNFINISHED,
    JobError,
    JobFiles,
    JobSpec,
    JobState,
    Record,
    lives,
    new_owner,
    now,
    one_line,
)
from cache_store.files import CAPTURE_FILE

KEPT = 200  # finished jobs remembered
STOPPED = "The app stopped while this job was {}: run it again."


class Board:
    """The records of all jobs and the order of those that wait. Not locked: its `Jobs` does."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.files = JobFiles(home)
        self.owner = new_owner()
        self.records: dict[str, Record] = {}
        self.queue: list[str] = []  # ids, first in first out
        self.unsaved: set[str] = set()

    def mine(self, record: Record) -> bool:
        return record.owner == self.owner

    def record(self, job_id: str) -> Record:
        """Raises JobError when there is no such job."""
        try:
            return self.records[job_id]
        except KeyError:
            raise JobError(f"There is no job '{one_line(job_id, 40)}' any more.") from None

    def enqueue(self, spec: JobSpec) -> None:
        self.files.remove(spec.id)
        state = JobState(spec.id, spec.kind, spec.title, spec.run_id, "queued")
        self.records.pop(spec.id, None)
        self.records[spec.id] = Record(spec, state, self.owner)
        self.files.save(self.records[spec.id])
        self.queue.append(spec.id)

    def shown(self, record: Record) -> JobState:
        """The state with the place in the queue, which depends on the others."""
        state = record.state
        if state.status != "queued" or state.id not in self.queue:
            return state
        lane = KINDS[state.kind].lane
        ahead = [job_id for job_id in self.queue if self.lane(job_id) == lane]
        return dataclasses.replace(state, queue_position=ahead.index(state.id) + 1)

    def lane(self, job_id: str) -> str:
        return KINDS[self.records[job_id].spec.kind].lane

    def update(self, job_id: str, **changes: Any) -> None:
        record = self.records[job_id]
        state = dataclasses.replace(record.state, **changes)
        self.records[job_id] = dataclasses.replace(record, state=state)
        self.unsaved.add(job_id)

    def finish(
        self, job_id: str, status: str, error: str | None = None, summary: Any = None
    ) -> None:
        """The end of a job, on disk at once; the oldest ended ones are forgotten."""
        self.update(
            job_id,
            status=status,
            error=error,
            summary=summary or {},
            phase="",
            eta_s=None,
            cancelling=False,
            finished_at=now(),
        )
        self.files.save(self.records[job_id])
        self.unsaved.discard(job_id)
        with contextlib.suppress(OSError):
            self.files.cancel_flag(job_id).unlink(missing_ok=True)
            self.files.pause_flag(job_id).unlink(missing_ok=True)
        ended = [record.state for record in self.records.values() if record.state.finished]
        ended.sort(key=lambda state: state.finished_at or state.submitted_at)
        for state in ended[:-KEPT]:
            self.forget(state.id)

    def forget(self, job_id: str) -> None:
        self.records.pop(job_id, None)
        self.unsaved.discard(job_id)
        self.files.remove(job_id)

    def load(self, *, running_elsewhere: bool) -> list[str]:
        """Reads the files of earlier apps. What those that are gone left unfinished is lost;
        with a shared scheduler (`running_elsewhere`) the ids of jobs that may still be running
        are returned instead."""
        unsettled = []
        records = sorted(self.files.load().items(), key=lambda item: item[1].state.submitted_at)
        self.records.update(records)
        for job_id, record in records:
            if record.state.status in UNFINISHED and not lives(record.owner):
                self.records[job_id] = dataclasses.replace(record, owner=self.owner)
                if running_elsewhere and record.state.status == "running":
                    unsettled.append(job_id)
                else:
                    self.abandon(job_id)
        return unsettled

    def abandon(self, job_id: str) -> None:
        """An earlier app's job that nobody runs any more; its file may be complete all the same."""
        record = self.records[job_id]
        run_id = record.spec.run_id
        if record.spec.kind == "capture" and (self.home / str(run_id) / CAPTURE_FILE).exists():
            self.finish(job_id, "done", None, {"run_id": run_id})
        else:
            self.finish(job_id, "lost", STOPPED.format(record.state.status))

    def refresh_others(self) -> None:
        """Reads again what another process of the same home (a second app, the command line) is
        doing; takes over as lost what it left behind."""
        for job_id, record in list(self.records.items()):
            if self.mine(record) or record.state.finished:
                continue
            try:
                record = self.records[job_id] = self.files.read(job_id)
            except (OSError, ValueError):
                self.records.pop(job_id)
                continue
            if record.state.status in UNFINISHED and not lives(record.owner):
                self.records[job_id] = dataclasses.replace(record, owner=self.owner)
                self.abandon(job_id)

    def save_progress(self) -> None:
        """Writes down what has changed since the last time."""
        for job_id in self.unsaved:
            self.files.save(self.records[job_id])
        self.unsaved.clear()
