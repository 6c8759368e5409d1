"""What commands share in a terminal: Ctrl-C between two tokens, and a progress bar."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Event
from typing import Any

from backend.progress import Progress


@contextmanager
def interrupt_flag() -> Iterator[Event]:
    """The first Ctrl-C sets the flag, so that the run ends between two tokens; the second one
    interrupts whatever is going on."""
    flag = Event()

    def on_interrupt(*_: Any) -> None:
        if flag.is_set():
            raise KeyboardInterrupt
        flag.set()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, before)


class Bar:
    """One progress bar per phase on standard error; `phases` are its words for them."""

    def __init__(self, phases: Mapping[str, str], otherwise: str = "", unit: str = "it") -> None:
        self._phases, self._otherwise, self._unit = phases, otherwise, unit
        self._bar: Any = None
        self._phase = ""

    def __call__(self, progress: Progress) -> None:
        from tqdm import tqdm  # type: ignore[import-untyped]

        if progress.phase != self._phase:
            self.close()
            self._phase = progress.phase
            self._bar = tqdm(
                desc=self._phases.get(progress.phase, self._otherwise or progress.phase),
                total=progress.total,
                initial=progress.done,  # what was finished before counts for no speed
                unit=self._unit,
                file=sys.stderr,
                mininterval=0.2,
            )
        self._bar.update(progress.done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
