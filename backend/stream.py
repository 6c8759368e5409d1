"""A thread beside the model's: what must happen in order, but need not be waited for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch

SHORTEST_QUEUE = 3


class Background:
    """Runs submitted calls one after the other; the first error stops everything.

    Nothing runs before `start` or until `length` calls wait: prefill keeps all cores busy, decode
    does not. From then on a full queue makes `submit` wait. Its tensors use one core, which the
    submitting thread's leave to it after `start` and until the block's end. Leaving the block
    without an error waits for what was submitted and raises its error; with one, what waits is
    dropped.
    """

    def __init__(self, length: int = SHORTEST_QUEUE) -> None:
        length = max(length, SHORTEST_QUEUE)
        self._queue: queue.Queue[Callable[[], object] | None] = queue.Queue(length)
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)
        self._threads = torch.get_num_threads()

    def submit(self, call: Callable[..., object], *arguments: Any) -> None:
        """Raises the error of an earlier call, after which nothing more is run."""
        if self._error is not None:
            raise self._error
        if self._queue.full():
            self.start()
        self._queue.put(lambda: call(*arguments))

    def start(self) -> None:
        """Begin with what was submitted, if that has not happened yet."""
        if not self._started.is_set():
            torch.set_num_threads(max(1, self._threads - 1))
            self._started.set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        # The number is each thread's own, its default is shared.
        torch.set_num_threads(self._threads)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and self._error is None:
            self._error = error
        self.start()
        self._queue.put(None)
        self._thread.join()
        torch.set_num_threads(self._threads)
        if error is None and self._error is not None:
            raise self._error

    def _run(self) -> None:
        torch.get_num_threads()  # a thread takes the shared number over when it first asks for it
        torch.set_num_threads(1)
        self._ready.set()
        self._started.wait()
        with torch.inference_mode():
            while (call := self._queue.get()) is not None:
                if self._error is None:
                    try:
                        call()
                    except BaseException as error:
                        self._error = error
                del call  # its tensors go now, not when the next call comes
