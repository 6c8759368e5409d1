"""Processes for a reader's SQL: one idle one is kept, and one that is overdue is killed."""

import atexit
import json
import os
import subprocess
import sys
import threading
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pyarrow as pa

from cache_store.errors import StoreError
from cache_store.sql_child import STARTED, too_long

_GRACE_S = 1.0  # for a query that heeds its interrupt
_ATTACH_S = 60.0  # to start, and to attach the runs
_ROOT = Path(__file__).resolve().parents[1]


class _Child:
    """One process of `cache_store.sql_child` and our end of its pipe."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        known = os.environ.get("PYTHONPATH")
        environment = os.environ | {
            "PYTHONPATH": str(_ROOT) if not known else f"{_ROOT}{os.pathsep}{known}"
        }
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cache_store.sql_child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def ask(self, request: dict[str, Any], timeout_s: float) -> tuple[dict[str, Any], bytes]:
        """Raises StoreError when it must be killed, EOFError or OSError when it has died."""
        self._pipe.send_bytes(json.dumps(request).encode())
        head = self._receive(_ATTACH_S, "The runs could not be opened in time; try again.")
        late = too_long(timeout_s)
        if head == STARTED:
            head = self._receive(timeout_s + _GRACE_S, late)
        return json.loads(head), self._receive(_ATTACH_S, late)

    def _receive(self, seconds: float, otherwise: str) -> bytes:
        if not self._pipe.poll(seconds):
            raise StoreError(otherwise)
        return self._pipe.recv_bytes()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.wait()


_idle: list[_Child] = []
_lock = threading.Lock()


def ask(request: dict[str, Any], timeout_s: float) -> tuple[pa.Table, dict[str, Any]]:
    """Run a request of `cache_store.sql_child.answer` in a process of its own.

    Returns the rows and the facts. Raises StoreError, one sentence; a process that is not done a
    second after its time is killed.
    """
    child = _take()
    try:
        facts, rows = child.ask(request, timeout_s)
    except StoreError:
        child.kill()
        raise
    except (EOFError, OSError) as error:
        child.kill()
        raise StoreError(
            "The query's process ended before it was done, most likely for lack of memory; ask "
            "for fewer rows or columns."
        ) from error
    except BaseException:
        child.kill()
        raise
    _give_back(child)
    if "error" in facts:
        raise StoreError(facts["error"])
    with pa.ipc.open_stream(pa.py_buffer(rows)) as reader:
        return reader.read_all(), facts


def _take() -> _Child:
    with _lock:
        while _idle:
            child = _idle.pop()
            if child.alive:
                return child
            child.kill()
    return _Child()


def _give_back(child: _Child) -> None:
    with _lock:
        if not _idle:
            _idle.append(child)
            return
    child.kill()


@atexit.register
def _end() -> None:
    with _lock:
        while _idle:
            _idle.pop().kill()
