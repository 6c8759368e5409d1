"""Jobs that misbehave in every way a real one can, for test_jobs.py; they run in a worker."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backend.progress import Cancelled, Progress
from cache_store.errors import StoreError


def count(
    params: dict[str, Any], home: Path, progress: Callable[..., None], cancelled: Callable[[], bool]
) -> dict[str, Any]:
    """Reports `steps` steps; goes on until `home/<name>.go` exists when params asks for it."""
    steps, name = params.get("steps", 3), params.get("name", "count")
    with (home / "order.txt").open("a") as order:
        order.write(f"{name}\n")
    for step in range(steps):
        progress(Progress("tokens", step + 1, steps, "x" * 10 * step))
    while params.get("wait") and not (home / f"{name}.go").exists():
        if cancelled():
            raise Cancelled
        progress(Progress("waiting", 1, 10, "so far"))
        time.sleep(0.02)
    return {"steps": steps, "pid": os.getpid()}


def fail(
    params: dict[str, Any], home: Path, progress: Callable[..., None], cancelled: Callable[[], bool]
) -> dict[str, Any]:
    match params["how"]:
        case "ours":
            raise StoreError("The file is upside down: turn it.")
        case "other":
            raise ValueError("first line\nsecond line")
        case "disk":
            raise OSError(errno.ENOSPC, "No space left on device")
        case "disk below":
            try:
                raise OSError(errno.ENOSPC, "No space left on device")
            except OSError as error:
                raise RuntimeError("could not write") from error
        case "memory":
            raise MemoryError
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), 9)
            time.sleep(60)
        case "segfault":
            os.kill(os.getpid(), 11)
            time.sleep(60)
        case "eat":
            eaten = []
            while True:
                eaten.append(bytearray(50_000_000))
                time.sleep(0.05)
    raise AssertionError(params)
