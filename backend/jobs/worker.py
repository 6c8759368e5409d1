"""The process that keeps the worker processes: `python -m backend.jobs.worker tcp://host:8786`.

The app starts one for itself; on a cluster the same command adds a machine to the scheduler that
KVSCOPE_SCHEDULER names. It holds one Dask nanny per lane, which restarts its worker when it dies.
It is a process of its own because a worker is spawned, and spawning re-imports the main module:
in the app that is Streamlit's script, here it is this small file.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

EXIT_TOPIC = "kvscope-worker-exit"
MEMORY_TOPIC = "worker-restart-memory"  # Dask's own: a nanny stops a worker above its limit
LANES = ("run", "short")
CLOSE_S = 0.5  # grace for a worker that is asked to stop
WORKER_SETTINGS = {
    # Our states are not Dask's to spill, and a paused worker would leave the queue standing.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.profile.enabled": False,
    "distributed.worker.http.routes": [],
    # A capture in one long kernel does not answer; that is no reason to warn.
    "distributed.admin.tick.limit": "1h",
}


def default_memory(lane: str) -> int:
    """Bytes a worker may use before its nanny stops it, the model counted: most of the machine
    for model runs, a third for the short jobs beside them."""
    from distributed.system import MEMORY_LIMIT

    return int(MEMORY_LIMIT * (0.8 if lane == "run" else 0.33))


def parse_memory(text: str) -> int:
    """ "12GB", "500 MiB" or a number of bytes; "0" is no limit. Raises ValueError."""
    from dask.utils import parse_bytes

    limit = int(parse_bytes(text))
    if limit < 0:
        raise ValueError(text)
    return limit


async def keep(arguments: argparse.Namespace) -> int:
    """Runs one nanny per lane until one of them gives up or the parent is gone; returns the exit
    status."""
    import dask
    from distributed import Nanny, Status

    dask.config.set(WORKER_SETTINGS)

    class ReportingNanny(Nanny):
        """Says how its worker ended, for the sentence the reader gets."""

        stopped_at: int | None = None  # bytes in use when it stopped the worker for its memory

        def log_event(self, topic: Any, msg: Any) -> None:
            if topic == MEMORY_TOPIC:
                self.stopped_at = msg["rss"]
            super().log_event(topic, msg)

        def _on_worker_exit_sync(self, exitcode: int) -> None:
            if self.status in (Status.init, Status.running):
                note = {"name": self.name, "exitcode": exitcode, "rss": self.stopped_at}
                self.log_event(EXIT_TOPIC, note)
            self.stopped_at = None
            super()._on_worker_exit_sync(exitcode)

    def nanny(lane: str) -> Any:
        limit = default_memory(lane) if arguments.memory is None else arguments.memory
        return ReportingNanny(
            arguments.scheduler,
            nthreads=1,
            name=f"{lane}-{os.uname().nodename}-{os.getpid()}",
            resources={lane: 1},
            memory_limit=limit,
            local_directory=arguments.scratch,
            config=WORKER_SETTINGS,
            silence_logs=40,
            dashboard=False,
            death_timeout=60,
        )

    nannies = [nanny(lane) for lane in arguments.lanes]
    orphaned = asyncio.Event()
    if arguments.with_parent:
        _watch_parent(asyncio.get_running_loop(), orphaned)
    try:
        await asyncio.gather(*nannies)
        while all(item.status.name not in ("failed", "closed") for item in nannies):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(orphaned.wait(), 0.5)
                return 0
        return 1
    except RuntimeError as error:
        print(f"The worker processes cannot be started: {error}", file=sys.stderr)
        return 1
    finally:
        await asyncio.gather(*(item.close(timeout=CLOSE_S) for item in nannies))


def _watch_parent(loop: asyncio.AbstractEventLoop, orphaned: asyncio.Event) -> None:
    """Ends this process, and with it its workers, when the app that started it is gone: the app
    holds the other end of our standard input."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        loop.call_soon_threadsafe(orphaned.set)
        time.sleep(4 * CLOSE_S)
        os._exit(0)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m backend.jobs.worker",
        description="Run KVScope's jobs for a Dask scheduler, one worker process per lane.",
    )
    parser.add_argument("scheduler", help="address of the Dask scheduler, tcp://host:8786")
    parser.add_argument(
        "--lanes",
        nargs="+",
        choices=LANES,
        default=list(LANES),
        help="run: model runs; short: statistics and projections (default: both)",
    )
    parser.add_argument(
        "--memory",
        type=parse_memory,
        default=None,
        help="memory of each worker with the model, for example 12GB; 0: no limit "
        "(default: 80 %% of the machine for runs, a third for short jobs)",
    )
    parser.add_argument("--scratch", default=None, help="folder for Dask's temporary files")
    parser.add_argument("--with-parent", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    with contextlib.suppress(KeyboardInterrupt):
        return asyncio.run(keep(arguments))
    return 130


if __name__ == "__main__":
    sys.exit(main())
