"""Jobs that are cut into parts: tasks of one job that run on as many workers as there are.

What is left of such a job is counted from what its parts have written, never remembered, so that
it goes on after a kill of any process by doing what is left.
"""

from __future__ import annotations

import importlib
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.jobs.board import Board
from backend.jobs.registry import KINDS, sentence
from backend.jobs.states import JobSpec

HOPELESS = 5  # parts that fail before any succeeds: the others would fail as well


@dataclass(frozen=True)
class Work:
    """What is left of a job: its next parts, which may run at the same time and in any order.

    When all of them are done the job is asked again; no parts means that it is complete. Each
    part is JSON that is joined to the job's parameters; `units` in it is what it counts for of
    `total`, of which `done` are done.
    """

    phase: str
    parts: list[dict[str, Any]]
    done: int
    total: int


@dataclass
class Fan:
    """A running job in parts, as the queue keeps it."""

    work: Work
    waiting: list[dict[str, Any]] = field(default_factory=list)
    out: dict[str, dict[str, Any]] = field(default_factory=dict)  # by task: its part
    inner: dict[str, int] = field(default_factory=dict)  # by task: units done of its part
    done: int = 0
    succeeded: int = 0
    failures: list[tuple[dict[str, Any], str]] = field(default_factory=list)  # part, sentence
    stopped: str = ""  # a status, when no more parts are to be sent out

    def __post_init__(self) -> None:
        self.waiting, self.done = list(self.work.parts), self.work.done

    @property
    def units(self) -> int:
        """Units done, those of running parts included."""
        return min(self.work.total, self.done + sum(self.inner.values()))

    def ended(self, task: str, outcome: dict[str, Any]) -> None:
        """One of its tasks is over; `outcome` as `run_job` says it."""
        part = self.out.pop(task)
        self.inner.pop(task, None)
        if outcome["status"] == "done":
            self.succeeded += 1
            self.done += int(part.get("units", 0))
        elif outcome["status"] == "failed":
            self.failures.append((part, str(outcome["error"])))
            if not self.succeeded and len(self.failures) == HOPELESS:
                self.stopped = self.stopped or "failed"
        elif not self.stopped:  # cancelled between two tokens, or the scheduler went away
            self.stopped = outcome["status"]
            self.failures += [(part, outcome["error"])] if outcome["error"] else []

    @property
    def error(self) -> str | None:
        """What failed, in one sentence."""
        count = len(self.failures)
        if count == 0:
            return None
        first = self.failures[0][1]
        return first if count == 1 else f"{count} parts failed, the first for this reason: {first}"


class Fans:
    """The running jobs in parts of one board. Not locked: its `Jobs` does."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._fans: dict[str, Fan] = {}  # by job
        self._jobs: dict[str, str] = {}  # by task: its job
        self._since: dict[str, tuple[float, int]] = {}  # by job: seconds, units done then

    def __contains__(self, job_or_task: str) -> bool:
        return job_or_task in self._fans or job_or_task in self._jobs

    def out(self, lane: str) -> int:
        """How many tasks of a lane are with the workers."""
        return sum(self._board.lane(job_id) == lane for job_id in self._jobs.values())

    @property
    def waiting(self) -> bool:
        return any(fan.waiting for fan in self._fans.values())

    def begin(self, job_id: str) -> None:
        """Count what is left of a job and get its parts ready; a complete job is done."""
        record = self._board.records[job_id]
        try:
            work = _work(record.spec, self._board.home)
        except Exception as error:
            self._end(job_id, "failed", sentence(error, self._board.home))
            return
        before = self._fans.get(job_id)
        if before is not None:
            # A worker may have died after its part was written: the files know, not the worker.
            before.failures = [item for item in before.failures if item[0] in work.parts]
        if not work.parts:
            self._end(job_id, "done", None)
        elif before is not None and before.failures:
            self._end(job_id, "failed", before.error)
        elif before is not None and before.work.parts == work.parts:
            self._end(job_id, "failed", "Its parts ended without leaving a result: run it again.")
        else:
            self._fans[job_id] = Fan(work)
            self._since.setdefault(job_id, (time.monotonic(), work.done))
            self._show(job_id)

    def next(self, lane: str) -> tuple[str, str, dict[str, Any]] | None:
        """Job, task and parameters of the next part of a lane, which is then out."""
        for job_id, fan in self._fans.items():
            if fan.waiting and self._board.lane(job_id) == lane:
                part = fan.waiting.pop(0)
                task = f"{job_id}-{secrets.token_hex(4)}"
                fan.out[task], self._jobs[task] = part, job_id
                return job_id, task, {**self._board.records[job_id].spec.params, **part}
        return None

    def ended(self, task: str, outcome: dict[str, Any]) -> None:
        """Account for a task; the job goes on with its next parts, or ends."""
        job_id = self._jobs.pop(task)
        fan = self._fans[job_id]
        fan.ended(task, outcome)
        self._show(job_id)
        self.settle(job_id)

    def settle(self, job_id: str) -> None:
        fan = self._fans[job_id]
        if fan.stopped:
            fan.waiting.clear()
        if fan.out or fan.waiting:
            return
        if fan.stopped:
            asked = fan.stopped in ("cancelled", "paused")
            self._end(job_id, fan.stopped, None if asked else fan.error)
        else:
            self.begin(job_id)

    def strand(self, error: str) -> None:
        """No worker can be reached: what waits to be sent out is not done."""
        for job_id, fan in list(self._fans.items()):
            if fan.waiting and not fan.stopped:
                fan.stopped = "failed"
                fan.failures.append((fan.waiting[0], error))
                self.settle(job_id)

    def read_flags(self) -> None:
        """Stop what was asked to pause or to be cancelled, here or in another process."""
        files = self._board.files
        for job_id, fan in list(self._fans.items()):
            if files.cancel_flag(job_id).exists():
                fan.stopped = "cancelled"
            elif files.pause_flag(job_id).exists():
                fan.stopped = fan.stopped or "paused"
            if fan.stopped:
                self.settle(job_id)

    def heard(self, task: str, units: int) -> None:
        """A worker's report on one of the tasks."""
        job_id = self._jobs.get(task)
        if job_id is not None:
            self._fans[job_id].inner[task] = units
            self._show(job_id)

    def _show(self, job_id: str) -> None:
        fan = self._fans[job_id]
        began, before = self._since[job_id]
        spent, done = time.monotonic() - began, fan.units - before
        rate = done / spent if done > 0 and spent > 0 else None
        left = fan.work.total - fan.units
        self._board.update(
            job_id,
            phase=fan.work.phase,
            done=fan.units,
            total=fan.work.total,
            rate=rate,
            eta_s=left / rate if rate else None,
        )

    def _end(self, job_id: str, status: str, error: str | None) -> None:
        self._fans.pop(job_id, None)
        self._since.pop(job_id, None)
        spec = self._board.records[job_id].spec
        self._board.finish(job_id, status, error, dict(spec.params) if status == "done" else None)


def _work(spec: JobSpec, home: Path) -> Work:
    module, _, name = KINDS[spec.kind].parts.partition(":")
    work: Work = getattr(importlib.import_module(module), name)(spec.params, home)
    return work
