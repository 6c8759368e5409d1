"""The queue of jobs: what pages talk to. Importing it imports neither Dask nor torch."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import os
import secrets
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.jobs.board import STOPPED, Board
from backend.jobs.parts import Fans
from backend.jobs.registry import ANALYSES, KINDS, MODEL_PASSES
from backend.jobs.states import GONE, UNFINISHED, JobError, JobSpec, JobState, one_line
from backend.spec import CaptureSpec
from cache_store.files import is_run_id, new_run_id, sweep_partials

if TYPE_CHECKING:
    from distributed import Future

    from backend.jobs.cluster import Backend

logger = logging.getLogger(__name__)

TICK_S = 1.0  # how often progress is written down and other processes' flags are read


def capture_job(spec: CaptureSpec, *, run_id: str | None = None) -> JobSpec:
    """A model run. Every call is a new run, with a new id, unless one is given."""
    run_id = run_id or new_run_id()
    title = spec.title or one_line(spec.prompt, 60)
    return JobSpec("capture", {"spec": spec.to_dict(), "run_id": run_id}, title, run_id)


def derive_job(run_id: str, kind: str, spec: dict[str, Any], title: str = "") -> JobSpec:
    """A derived file of a run; asking twice for the same one is the same job."""
    params = {"run_id": run_id, "kind": kind, "spec": spec}
    job = "model_pass" if kind in MODEL_PASSES else "analysis" if kind in ANALYSES else "derive"
    return JobSpec(job, params, title or kind.replace("_", " "), run_id)


class Jobs:
    """All jobs of one home folder. Safe to use from several threads; returns at once everywhere.

    The cluster starts in the background. `scheduler` (default: KVSCOPE_SCHEDULER) names a Dask
    scheduler to use instead of processes on this machine. With `workers=False` nothing is run:
    jobs are listed and wait. Raises JobError, one sentence, for what cannot be accepted.
    """

    def __init__(
        self, home: Path | str, *, scheduler: str | None = None, workers: bool = True
    ) -> None:
        self.home = Path(home).resolve()
        self._scheduler = scheduler or os.environ.get("KVSCOPE_SCHEDULER") or None
        self._workers = workers
        self._lock = threading.RLock()  # around everything below
        self._board = Board(self.home)
        self._fans = Fans(self._board)
        self._out: dict[str, Future] = {}  # jobs and tasks with Dask, not yet accounted for
        self._over: list[str] = []  # ids of those whose future is done
        self._backend: Backend | None = None
        self._wake = threading.Event()
        self._closing = False
        shared = self._workers and self._scheduler is not None
        self._to_attach = self._board.load(running_elsewhere=shared)
        self._thread = threading.Thread(target=self._run, name="kvscope-jobs", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    # What pages call

    def submit(self, spec: JobSpec) -> str:
        """Queues a job and returns its id. One that is already queued or running is not queued
        again; one that has ended is run once more."""
        spec = self._accepted(spec)
        with self._lock:
            if self._closing:
                raise JobError("The app is stopping and takes no more jobs.")
            self._board.refresh_others()
            known = self._board.records.get(spec.id)
            if known is None or known.state.finished:
                self._board.enqueue(spec)
                self._wake.set()
        return spec.id

    def jobs(self) -> list[JobState]:
        """All known jobs, the newest first."""
        with self._lock:
            self._board.refresh_others()
            states = [self._board.shown(record) for record in self._board.records.values()]
        return sorted(states, key=lambda state: state.submitted_at, reverse=True)

    def get(self, job_id: str) -> JobState:
        with self._lock:
            self._board.refresh_others()
            return self._board.shown(self._board.record(job_id))

    def spec(self, job_id: str) -> JobSpec:
        """What a job computes, for a form that is filled in again."""
        with self._lock:
            return self._board.record(job_id).spec

    def cancel(self, job_id: str) -> None:
        """A queued job is cancelled at once, a running one between two tokens. One that is over
        stays as it is."""
        with self._lock:
            self._board.refresh_others()
            record = self._board.record(job_id)
            if record.state.finished:
                return
            if job_id in self._board.queue:
                self._board.queue.remove(job_id)
                self._board.finish(job_id, "cancelled")
                return
            self._flag(self._board.files.cancel_flag(job_id), "cancelled")
            self._board.update(job_id, cancelling=True)

    def pause(self, job_id: str) -> None:
        """A job in parts sends out no more of them and is paused when those on their way are
        finished; `retry` goes on with the rest. Raises JobError for a job without parts."""
        with self._lock:
            self._board.refresh_others()
            record = self._board.record(job_id)
            if not KINDS[record.spec.kind].parts:
                raise JobError(f"The job '{record.state.title}' cannot be paused: cancel it.")
            if record.state.finished:
                return
            if job_id in self._board.queue:
                self._board.queue.remove(job_id)
                self._board.finish(job_id, "paused")
                return
            self._flag(self._board.files.pause_flag(job_id), "paused")
            self._wake.set()

    def retry(self, job_id: str) -> str:
        """Queues a failed, cancelled, lost or paused job again, under the same id."""
        with self._lock:
            record = self._board.record(job_id)
            if record.state.status in UNFINISHED:
                raise JobError(f"The job '{record.state.title}' is still {record.state.status}.")
            self._board.enqueue(self._accepted(record.spec))
            self._wake.set()
        return job_id

    def dismiss(self, job_id: str) -> None:
        """Forgets a job that is over; what it wrote stays."""
        with self._lock:
            record = self._board.record(job_id)
            if not record.state.finished:
                raise JobError(
                    f"The job '{record.state.title}' is {record.state.status}: cancel it first."
                )
            self._board.forget(job_id)

    def close(self) -> None:
        """Stops the workers. What was not finished is lost, and can be run again after the next
        start; on a shared scheduler it goes on and is found again."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._wake.set()
        self._thread.join(timeout=15)
        with self._lock:
            for job_id, record in self._board.records.items():
                if not self._board.mine(record) or record.state.finished:
                    continue
                if self._scheduler and job_id in self._out:
                    self._board.records[job_id] = dataclasses.replace(record, owner="")
                    self._board.files.save(self._board.records[job_id])
                else:
                    self._board.finish(job_id, "lost", STOPPED.format(record.state.status))
            backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()
        atexit.unregister(self.close)

    # Under the lock

    def _flag(self, flag: Path, what: str) -> None:
        try:
            flag.touch()
        except OSError as error:
            raise JobError(
                f"The job cannot be {what}, its flag cannot be written ({error.strerror}): "
                f"free space in {self._board.files.folder}."
            ) from error

    def _accepted(self, spec: JobSpec) -> JobSpec:
        if spec.kind not in KINDS:
            raise JobError(f"There is no job of kind '{spec.kind}': use one of {', '.join(KINDS)}.")
        params = dict(spec.params)
        if spec.kind == "capture":
            CaptureSpec.from_dict(params.get("spec", {}))
            params.setdefault("run_id", spec.run_id or new_run_id())
        run_id = params.get("run_id", spec.run_id)
        if run_id is not None and not is_run_id(str(run_id)):
            raise JobError(f"'{one_line(str(run_id), 60)}' is not the id of a run.")
        accepted = JobSpec(spec.kind, params, spec.title, run_id)
        try:
            _ = accepted.id
        except (TypeError, ValueError) as error:
            raise JobError(f"The job's settings cannot be written as JSON: {error}.") from error
        return accepted

    # The jobs' own thread

    def _run(self) -> None:
        self._sweep()
        if self._workers:
            self._connect()
        while True:
            self._wake.wait(TICK_S)
            self._wake.clear()
            with self._lock:
                if self._closing:
                    return
                over, self._over = self._over, []
            try:
                for job_id in over:
                    self._account(job_id)
                if self._workers:
                    self._dispatch()
                with self._lock:
                    self._board.save_progress()
            except Exception:  # this thread is the queue: it goes on whatever one job does
                logger.exception("A job could not be handled")

    def _connect(self) -> None:
        """A connected backend in `self._backend`, or the waiting jobs failed with the reason."""
        from backend.jobs.cluster import Backend

        try:
            if self._backend is not None:
                self._backend.close()
                self._backend = None
                # Its futures may never say so: the loop that would tell is gone.
                for job_id in list(self._out):
                    self._account(job_id)
            self._backend = Backend(
                self._scheduler, self._board.files.folder / "scratch", self._heard
            )
        except JobError as error:
            with self._lock:
                for job_id in self._board.queue:
                    self._board.finish(job_id, "failed", str(error))
                self._board.queue.clear()
                self._fans.strand(str(error))
            return
        # Dask closes its clients at exit; ours has to come before that.
        atexit.unregister(self.close)
        atexit.register(self.close)
        waiting, self._to_attach = self._to_attach, []
        for job_id in waiting:
            future = self._backend.attach(job_id)
            with self._lock:
                if future is None:
                    self._board.abandon(job_id)
                else:
                    self._watch(job_id, future)

    def _dispatch(self) -> None:
        with self._lock:
            for job_id in [
                i for i in self._board.queue if self._board.files.cancel_flag(i).exists()
            ]:
                self._board.queue.remove(job_id)
                self._board.finish(job_id, "cancelled")
            self._fans.read_flags()
            if not self._board.queue and not self._fans.waiting:
                return
        if self._backend is None or not self._backend.connected:
            self._connect()
        if self._backend is None:
            return
        slots = self._backend.slots()
        chosen, parts = [], []
        with self._lock:
            for job_id in self._out:
                if job_id not in self._fans:
                    slots[self._board.lane(job_id)] -= 1
            for lane in slots:
                slots[lane] -= self._fans.out(lane)
            for job_id in list(self._board.queue):
                record = self._board.records[job_id]
                kind = KINDS[record.spec.kind]
                if slots[kind.lane] > 0:
                    self._board.queue.remove(job_id)
                    self._board.update(job_id, status="running", phase="starting")
                    self._board.files.save(self._board.records[job_id])
                    if kind.parts:
                        self._fans.begin(job_id)
                    else:
                        slots[kind.lane] -= 1
                        chosen.append(job_id)
            # Parts come last, so that nobody waits behind a job that has hundreds of them.
            for lane in slots:
                while slots[lane] > 0 and (part := self._fans.next(lane)):
                    slots[lane] -= 1
                    parts.append(part)
        for job_id in chosen:
            self._send(job_id)
        for job_id, task, params in parts:
            self._send(job_id, task, params)

    def _send(self, job_id: str, task: str = "", params: dict[str, Any] | None = None) -> None:
        """Not under the lock: the scheduler answers on the thread that also reports progress, and
        a report waits for the lock."""
        assert self._backend is not None
        with self._lock:
            spec = self._board.records[job_id].spec
        kind = KINDS[spec.kind]
        asked = spec.params if params is None else params
        try:
            future = self._backend.submit(
                job_id, secrets.token_hex(4), kind.lane, kind.path, asked, self.home, task
            )
        except Exception as error:
            reason = one_line(f"{type(error).__name__}: {error}")
            with self._lock:
                if task:
                    self._fans.ended(task, {"status": "failed", "error": reason, "summary": {}})
                else:
                    self._board.finish(job_id, "failed", reason)
            return
        with self._lock:
            self._watch(task or job_id, future)

    def _watch(self, job_id: str, future: Future) -> None:
        def over(_: Future) -> None:
            with self._lock:
                self._over.append(job_id)
            self._wake.set()

        self._out[job_id] = future
        future.add_done_callback(over)

    def _account(self, job_id: str) -> None:
        """Writes down how a job ended, after removing what a dead worker left half-written."""
        with self._lock:
            future = self._out.pop(job_id, None)
            backend = self._backend
        if future is None:
            return
        if backend is None:
            outcome: dict[str, Any] = {"status": "lost", "error": GONE, "summary": {}}
        else:
            outcome = backend.outcome(future)
            backend.forget(job_id, future)
        if outcome["status"] != "done":
            self._sweep()
        with self._lock:
            if job_id in self._fans:
                self._fans.ended(job_id, outcome)
            elif job_id in self._board.records:
                cancelling = self._board.records[job_id].state.cancelling
                if cancelling and outcome["status"] == "failed":
                    outcome = {"status": "cancelled", "error": None, "summary": {}}
                self._board.finish(job_id, outcome["status"], outcome["error"], outcome["summary"])

    def _heard(self, event: dict[str, Any]) -> None:
        """A worker's report, on the Dask client's thread."""
        job_id = event["id"]
        with self._lock:
            record = self._board.records.get(job_id)
            if record is None or not self._board.mine(record) or record.state.status != "running":
                return
            if event.get("task"):
                self._fans.heard(event["task"], event["progress"]["done"])
            elif "started" in event:
                started = record.state.started_at  # of its first part
                started = started or datetime.fromtimestamp(event["started"], UTC)
                self._board.update(job_id, started_at=started)
            else:
                self._board.update(job_id, **event["progress"])

    def _sweep(self) -> None:
        """Removes half-written files of writers that are dead."""
        with contextlib.suppress(OSError):
            sweep_partials(self.home)
