"""What runs inside a worker process: the kinds of jobs and the frame around one of them.

A kind is a dotted path `module:function` of `function(params, home, progress, cancelled) -> dict`,
imported in the worker when the first such job arrives, so that neither the app nor an idle worker
loads torch. Only the path, the parameters and a small summary travel through the scheduler.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.jobs.states import JobFiles, one_line
from backend.progress import CancelCheck, Cancelled, Progress, ProgressCallback
from backend.spec import CaptureSpec
from cache_store.errors import KVScopeError
from cache_store.files import CAPTURE_FILE

TOPIC = "kvscope-jobs"
EVENTS_PER_SECOND = 5
TEXT_TAIL = 2_000  # characters of generated text sent along with the progress
RATE_WINDOW_S = 5.0
FLAG_CHECK_S = 0.1


JobFunction = Callable[[dict[str, Any], Path, ProgressCallback, CancelCheck], dict[str, Any]]


@dataclass(frozen=True)
class Kind:
    path: str
    lane: str  # "run": one at a time beside a loaded model; "short": the small worker
    parts: str = ""  # of a job cut into parts: what says which are left (backend.jobs.parts)


KINDS: dict[str, Kind] = {
    "capture": Kind("backend.jobs.registry:run_capture", "run"),
    "derive": Kind("backend.jobs.registry:run_derive", "short"),
    "model_pass": Kind("backend.jobs.registry:run_model_pass", "run"),
    "analysis": Kind("analysis.heavy:run", "short"),
    "figure_sheet": Kind("analysis.sheet_job:run", "short"),
    "study": Kind("backend.study.work:run_piece", "run", "backend.study.work:study_work"),
}
# Derived files that analysis computes by itself; only the worker imports it.
ANALYSES = ("context_attention", "projection", "retained")
# Derived files that take the model again, and so wait for the worker that holds it.
MODEL_PASSES = ("lookahead", "second_reading", "model_facts", "policy_run")


def register(kind: str, path: str, lane: str = "run", parts: str = "") -> None:
    """Adds a kind of job: `path` is `module:function`, importable in the worker processes, and
    so is `parts`, which says what is left of a job that is cut into parts."""
    KINDS[kind] = Kind(path, lane, parts)


def run_capture(
    params: dict[str, Any],
    home: Path,
    progress: ProgressCallback,
    cancelled: CancelCheck,
) -> dict[str, Any]:
    """params: {"spec": CaptureSpec.to_dict(), "run_id": …}. A finished file is kept as it is, and
    only the further passes that it lacks are recorded."""
    run_id, spec = params["run_id"], CaptureSpec.from_dict(params["spec"])
    if not (home / run_id / CAPTURE_FILE).exists():
        from backend.capture import capture

        try:
            capture(spec, home, run_id=run_id, progress=progress, cancelled=cancelled)
        except Cancelled:  # of a further pass: then the run itself is complete
            if not (home / run_id / CAPTURE_FILE).exists():
                raise
    elif spec.passes:
        from backend.passes import record_asked

        record_asked(spec, home, run_id, progress, cancelled)
    return {"run_id": run_id}


def run_derive(
    params: dict[str, Any],
    home: Path,
    progress: ProgressCallback,
    cancelled: CancelCheck,
) -> dict[str, Any]:
    """params: {"run_id": …, "kind": …, "spec": {…}}; an existing derived file is kept."""
    from backend.derive import derive

    derive(home, params["run_id"], params["kind"], params["spec"], progress, cancelled)
    return {"run_id": params["run_id"], "kind": params["kind"]}


def run_model_pass(
    params: dict[str, Any],
    home: Path,
    progress: ProgressCallback,
    cancelled: CancelCheck,
) -> dict[str, Any]:
    """params: {"run_id": …, "kind": one of MODEL_PASSES, "spec": {…}}; as `run_derive`."""
    if params["kind"] == "policy_run":
        from backend.policy_run import run_policy

        run_policy(home, params["run_id"], params["spec"], progress, cancelled)
    else:
        from backend.passes import record_pass

        record_pass(home, params["run_id"], params["kind"], params["spec"], progress, cancelled)
    return {"run_id": params["run_id"], "kind": params["kind"]}


class Reporter:
    """Turns the many reports of a job into at most five events a second, with rate and ETA.

    The rate is measured within one phase over the last five seconds, so that a slow prompt does
    not spoil the estimate for the tokens after it.
    """

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._phase: str | None = None
        self._points: deque[tuple[float, int]] = deque()  # (seconds, units done)
        self._sent_at = float("-inf")

    def __call__(self, progress: Progress) -> None:
        at = time.monotonic()
        new_phase = progress.phase != self._phase
        if new_phase:
            self._phase = progress.phase
            self._points.clear()
        if not new_phase and at - self._sent_at < 1 / EVENTS_PER_SECOND:
            return
        self._points.append((at, progress.done))
        while len(self._points) > 2 and at - self._points[0][0] > RATE_WINDOW_S:
            self._points.popleft()
        self._sent_at = at
        rate = self._rate()
        left = max(0, progress.total - progress.done)
        self._send(
            {
                "phase": progress.phase,
                "done": int(progress.done),
                "total": int(progress.total),
                "rate": rate,
                "eta_s": left / rate if rate and progress.total else None,
                "text": progress.text[-TEXT_TAIL:],
            }
        )

    def _rate(self) -> float | None:
        (start, first), (end, last) = self._points[0], self._points[-1]
        return (last - first) / (end - start) if last > first and end > start else None


def run_job(
    job_id: str, path: str, params: dict[str, Any], home: str, task: str = ""
) -> dict[str, Any]:
    """The Dask task: runs one job, or one `task` of a job in parts, and returns how it ended, so
    that no exception, and nothing that an exception refers to, has to travel.

    Returns {"status": "done" | "failed" | "cancelled", "error": sentence or None, "summary": {}}.
    """
    from distributed import get_worker

    worker = get_worker()
    worker.log_event(TOPIC, {"id": job_id, "started": time.time()})

    def send(event: dict[str, Any]) -> None:
        worker.log_event(TOPIC, {"id": job_id, "task": task, "progress": event})

    return execute(job_id, path, params, Path(home), Reporter(send), task)


def execute(
    job_id: str,
    path: str,
    params: dict[str, Any],
    home: Path,
    report: ProgressCallback,
    task: str = "",
) -> dict[str, Any]:
    """`run_job` without Dask around it."""
    files = JobFiles(home)
    attempt = files.attempt_flag(task or job_id)
    cancelled = _flag_reader(files.cancel_flag(job_id))
    if cancelled():
        return _ended("cancelled")
    try:
        attempt.open("x").close()
    except FileExistsError:
        attempt.unlink(missing_ok=True)
        return _ended("failed", "The worker process died while it was on this job: run it again.")
    except OSError as error:
        return _ended("failed", sentence(error, home))
    try:
        module, _, name = path.partition(":")
        function: JobFunction = getattr(importlib.import_module(module), name)
        return _ended("done", summary=function(params, home, report, cancelled) or {})
    except Cancelled:
        return _ended("cancelled")
    except Exception as error:
        if files.cancel_flag(job_id).exists():
            return _ended("cancelled")
        if not isinstance(error, KVScopeError):
            with contextlib.suppress(OSError):
                files.log(job_id).write_text(traceback.format_exc(), "utf-8")
        return _ended("failed", sentence(error, home))
    finally:
        attempt.unlink(missing_ok=True)


def sentence(error: BaseException, home: Path) -> str:
    """One line for the reader: our own errors as they are, a full disk and a lack of memory with
    the way out, anything else as `ExceptionType: message`."""
    if isinstance(error, KVScopeError):
        return one_line(str(error), 1_000)
    if _disk_full(error):
        return (
            f"The disk that holds {home} is full, so nothing of this run was kept: delete runs "
            "or free space there, then run it again."
        )
    if isinstance(error, MemoryError):
        return (
            "The worker process ran out of memory: use fewer tokens, a smaller model or a smaller "
            "number format, then run it again."
        )
    return one_line(f"{type(error).__name__}: {error}".rstrip(": "))


def _disk_full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if "No space left on device" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _flag_reader(flag: Path) -> CancelCheck:
    """Whether the flag file is there, looked up at most ten times a second."""
    looked_at, found = float("-inf"), False

    def cancelled() -> bool:
        nonlocal looked_at, found
        if not found and time.monotonic() - looked_at >= FLAG_CHECK_S:
            found, looked_at = flag.exists(), time.monotonic()
        return found

    return cancelled


def _ended(
    status: str, error: str | None = None, summary: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"status": status, "error": error, "summary": summary or {}}
