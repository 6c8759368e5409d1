"""A growing file goes to disk beside its writer."""

import os
import threading
from pathlib import Path

import pytest

from cache_store.files import EarlySync


def test_a_growing_file_is_flushed_early_and_stays_open_until_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing a file ends the locks that a process has on it."""
    path = tmp_path / "growing"
    path.write_bytes(b"x")
    flushed, closed = threading.Event(), []
    real_close = os.close
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.set())
    monkeypatch.setattr(os, "close", lambda descriptor: closed.append(real_close(descriptor)))
    early = EarlySync(path)
    early.grown(1)
    assert not flushed.is_set()
    early.grown(64 * 1024 * 1024)
    assert flushed.wait(10) and not closed
    early.stop()
    assert len(closed) == 1
    early.stop()


def test_an_early_flush_that_fails_is_left_to_the_last_one(tmp_path: Path) -> None:
    early = EarlySync(tmp_path / "gone")
    early.grown(64 * 1024 * 1024)
    early.stop()
