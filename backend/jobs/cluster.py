"""The Dask cluster behind the jobs: our own on this machine, or the one KVSCOPE_SCHEDULER names.

Imported only by the jobs' own thread: `distributed` takes a good part of a second to import.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
from distributed import Client, Future, KilledWorker, Scheduler, SpecCluster
from distributed.deploy.spec import ProcessInterface

from backend.jobs.registry import TOPIC, run_job
from backend.jobs.states import GONE, JobError, one_line
from backend.jobs.worker import EXIT_TOPIC, LANES, parse_memory

SCHEDULER_SETTINGS: dict[str, Any] = {
    "distributed.scheduler.worker-ttl": None,  # a worker deep in a kernel is alive
    "distributed.scheduler.http.routes": [],
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.admin.tick.limit": "1h",
}
CONNECT_S = 10
HOST_CLOSE_S = 4
EXIT_NOTE_S = 2.0  # how long to wait for the nanny's word on why its worker died


class WorkerHost(ProcessInterface):
    """Our `backend.jobs.worker` process as one entry of a SpecCluster; started again when it
    dies, gone when this process is."""

    def __init__(self, scheduler: str, *, scratch: Path, memory: int | None, name: str) -> None:
        super().__init__()
        self._command = [sys.executable, "-m", "backend.jobs.worker", scheduler, "--with-parent"]
        self._command += ["--scratch", str(scratch)]
        if memory is not None:
            self._command += ["--memory", str(memory)]
        self._closing = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        threading.Thread(target=self._keep, name="kvscope-workers", daemon=True).start()
        await super().start()

    async def close(self) -> None:
        self._closing.set()
        process = self._process
        if process is not None:
            await asyncio.to_thread(_end, process)
        await super().close()

    def _keep(self) -> None:
        while not self._closing.is_set():
            with subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,  # Ctrl-C in the terminal is for the app
            ) as process:
                self._process = process
                if self._closing.is_set():
                    process.kill()
                process.wait()
            self._closing.wait(1)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Asks the host to leave by closing its input, and makes it; its workers go with it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        process.stdin.close()  # type: ignore[union-attr]
    try:
        process.wait(HOST_CLOSE_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _environment() -> dict[str, str]:
    """One job at a time may use all cores: Dask would otherwise limit each worker to one thread."""
    from dask.system import CPU_COUNT

    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    threads = {
        name: os.environ.get(name, str(CPU_COUNT))
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    }
    logs = {"DASK_LOGGING__DISTRIBUTED": os.environ.get("DASK_LOGGING__DISTRIBUTED", "critical")}
    return {**os.environ, **threads, **logs, "PYTHONPATH": os.pathsep.join(paths)}


def worker_memory() -> int | None:
    """KVSCOPE_WORKER_MEMORY in bytes, 0 for no limit, None when it is not set."""
    text = os.environ.get("KVSCOPE_WORKER_MEMORY")
    if not text:
        return None
    try:
        return parse_memory(text)
    except ValueError as error:
        raise JobError(
            f"KVSCOPE_WORKER_MEMORY is '{text}': give a size such as 12GB, or 0 for no limit."
        ) from error


class Backend:
    """A connection to a scheduler: submits one task at a time and says how each one ended.

    Raises JobError, one sentence, when the scheduler cannot be reached.
    """

    def __init__(
        self, scheduler: str | None, scratch: Path, on_event: Callable[[dict[str, Any]], None]
    ) -> None:
        self.external = scheduler is not None
        self._exits: dict[str, tuple[float, dict[str, Any]]] = {}  # by worker name
        self._exits_changed = threading.Condition()
        self._cluster: SpecCluster | None = None
        if scheduler is None:
            scheduler = self._start_cluster(scratch)
        try:
            self._client = Client(
                scheduler, timeout=CONNECT_S, set_as_default=False, name="kvscope"
            )
        except Exception as error:
            self._close_cluster()
            raise JobError(
                f"The Dask scheduler at {scheduler} does not answer: start it, or unset "
                "KVSCOPE_SCHEDULER to run on this machine."
            ) from error
        self._client.subscribe_topic(TOPIC, lambda event: on_event(event[1]))
        self._client.subscribe_topic(EXIT_TOPIC, self._note_exit)

    def _start_cluster(self, scratch: Path) -> str:
        memory = worker_memory()
        try:
            with dask.config.set(SCHEDULER_SETTINGS):
                self._cluster = SpecCluster(
                    name="kvscope",
                    scheduler={
                        "cls": Scheduler,
                        "options": {
                            "host": "127.0.0.1",
                            "port": 0,
                            "dashboard": False,
                            "dashboard_address": "127.0.0.1:0",
                            "allowed_failures": 0,
                        },
                    },
                    workers={
                        "host": {
                            "cls": WorkerHost,
                            "options": {"scratch": scratch, "memory": memory},
                        }
                    },
                    silence_logs=logging.CRITICAL,
                )
        except (RuntimeError, OSError) as error:
            raise JobError(
                f"The worker processes cannot be started ({one_line(str(error), 200)}): "
                "check that this machine lets programs listen on 127.0.0.1."
            ) from error
        return str(self._cluster.scheduler_address)

    @property
    def connected(self) -> bool:
        return self._client.status == "running"

    def slots(self) -> dict[str, int]:
        """How many tasks of each lane may be out at once: one here, on a cluster one per worker
        that offers the lane, or per worker where none says what it offers; more would only wait
        inside Dask, where a worker's death takes the waiting tasks with it."""
        if not self.external:
            return dict.fromkeys(LANES, 1)
        workers = self._workers()
        slots = {}
        for lane in LANES:
            offered = sum(int(worker["resources"].get(lane, 0)) for worker in workers)
            slots[lane] = max(1, offered if _offered(lane, workers) else len(workers))
        return slots

    def _workers(self) -> list[dict[str, Any]]:
        return list(self._client.scheduler_info(n_workers=-1)["workers"].values())

    def submit(
        self,
        job_id: str,
        attempt: str,
        lane: str,
        path: str,
        params: dict[str, Any],
        home: Path,
        task: str = "",
    ) -> Future:
        ours = not self.external or _offered(lane, self._workers())
        future = self._client.submit(
            run_job,
            job_id,
            path,
            params,
            str(home),
            task,
            key=f"kvscope-{job_id}-{attempt}",
            resources={lane: 1} if ours else None,
            retries=0,
            pure=False,
        )
        if self.external and not task:  # so that the task outlives this app
            self._client.publish_dataset(future, name=_dataset(job_id), override=True)
        return future

    def attach(self, job_id: str) -> Future | None:
        """The task of an earlier app that a shared scheduler still knows."""
        if not self.external or _dataset(job_id) not in self._client.list_datasets():
            return None
        return self._client.get_dataset(_dataset(job_id))

    def forget(self, job_id: str, future: Future) -> None:
        with contextlib.suppress(Exception):
            if self.external:
                self._client.unpublish_dataset(_dataset(job_id))
            future.release()

    def outcome(self, future: Future) -> dict[str, Any]:
        """How a task that is over ended, as `run_job` says it."""
        if future.status == "finished":
            try:
                result: dict[str, Any] = future.result(timeout=CONNECT_S)
                return result
            except Exception as error:
                return _failed(f"The result was lost ({one_line(str(error), 200)}): run it again.")
        if future.status == "error":
            cause = future.exception(timeout=CONNECT_S)
            if isinstance(cause, KilledWorker):
                return _failed(self._why(str(cause.last_worker.name)))
            return _failed(one_line(f"{type(cause).__name__}: {cause}"))
        return {"status": "lost", "error": GONE, "summary": {}}

    def _note_exit(self, event: tuple[float, dict[str, Any]]) -> None:
        with self._exits_changed:
            self._exits[event[1]["name"]] = (time.monotonic(), event[1])
            self._exits_changed.notify_all()

    def _why(self, worker: str) -> str:
        """Why the worker of this name has just died, in one sentence. Its address would not do:
        a worker that dies at once does so before its nanny has learnt it."""
        at = time.monotonic()

        def fresh() -> bool:
            return worker in self._exits and self._exits[worker][0] > at - EXIT_NOTE_S

        with self._exits_changed:
            self._exits_changed.wait_for(fresh, EXIT_NOTE_S)
            note = self._exits.pop(worker)[1] if fresh() else {}
        if note.get("rss"):
            return (
                f"The worker process was stopped at {note['rss'] / 1e9:.3g} GB of memory, its "
                "limit: use fewer tokens, a smaller number format or fewer stored layers, or "
                "raise KVSCOPE_WORKER_MEMORY."
            )
        code = note.get("exitcode")
        if code == -signal.SIGKILL:
            return (
                "The worker process was killed (signal 9), as systems do when memory runs out: "
                "use fewer tokens or free memory, then run it again."
            )
        if code is None:
            return "The worker process died while it was on this job: run it again."
        if code < 0:
            with contextlib.suppress(ValueError):
                name = signal.Signals(-code).name
                return f"The worker process crashed (signal {-code}, {name}): run it again."
        return f"The worker process ended by itself (exit code {code}): run it again."

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._client.close(timeout=2)
        self._close_cluster()

    def _close_cluster(self) -> None:
        if self._cluster is not None:
            with contextlib.suppress(Exception):
                self._cluster.close(timeout=5)
            self._cluster = None


def _offered(lane: str, workers: list[dict[str, Any]]) -> bool:
    """Whether workers say what they are for; those that anyone started need not."""
    return not workers or any(lane in worker["resources"] for worker in workers)


def _dataset(job_id: str) -> str:
    return f"kvscope-{job_id}"


def _failed(error: str) -> dict[str, Any]:
    return {"status": "failed", "error": error, "summary": {}}
