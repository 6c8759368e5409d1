"""Jobs that misbehave in every way a real one can, for test_jobs.py; they run in a worker."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backend.jobs.parts import Work
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


def parts_left(params: dict[str, Any], home: Path) -> Work:
    """First `prepare`, then one part for each number, then `merge`; see `part`."""
    folder, total = home / params["name"], params["parts"]
    if not (folder / "prepared").exists():
        return Work("preparing", [{"piece": "prepare"}], 0, total)
    left = [number for number in range(total) if not (folder / str(number)).exists()]
    if left:
        parts = [{"piece": "number", "number": number, "units": 1} for number in left]
        return Work("counting", parts, total - len(left), total)
    if not (folder / "merged").exists():
        return Work("merging", [{"piece": "merge"}], total, total)
    return Work("merged", [], total, total)


def part(
    params: dict[str, Any], home: Path, progress: Callable[..., None], cancelled: Callable[[], bool]
) -> dict[str, Any]:
    """Leaves one file. `trouble` {"number": how} happens as long as `home/<name>/calm` is not
    there; "wait" waits for it."""
    folder = home / params["name"]
    folder.mkdir(exist_ok=True)
    if params["piece"] != "number":
        name = {"prepare": "prepared", "merge": "merged"}[params["piece"]]
        (folder / name).write_text("")
        return {}
    number = params["number"]
    with (folder / "order.txt").open("a") as order:
        order.write(f"{number} {os.getpid()}\n")
    how = params.get("trouble", {}).get(str(number))
    while how == "wait" and not (folder / "calm").exists():
        if cancelled():
            raise Cancelled
        progress(Progress("waiting", 0, 1))
        time.sleep(0.02)
    if how not in (None, "wait") and not (folder / "calm").exists():
        fail({"how": how}, home, progress, cancelled)
    (folder / str(number)).write_text("")
    return {}
