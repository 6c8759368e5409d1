"""Names, locks and renames on disk: what makes a half-written file invisible."""

import contextlib
import fcntl
import os
import queue
import re
import secrets
import shutil
import stat
import threading
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from cache_store.errors import StoreError

CAPTURE_FILE = "capture.duckdb"
DERIVED_FOLDER = "derived"
STUDIES = "studies"
PARTIAL = ".partial"
LOCK = ".lock"
TRASH = ".trash-"
IMPORT = ".import-"

_RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
_DERIVED_FILE = re.compile(r"[0-9a-f]{24}\.duckdb")


def new_run_id() -> str:
    """A fresh run id: UTC time and 24 random bits."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def is_run_id(text: str) -> bool:
    return _RUN_ID.fullmatch(text) is not None


def check_run_id(text: str) -> str:
    """`text` itself, when it is a run id and therefore safe as a folder name."""
    if not isinstance(text, str) or not is_run_id(text):
        raise StoreError(f"{text!r} is not a run id: it looks like 20260131-235959-0a1b2c.")
    return text


def is_derived_file(name: str) -> bool:
    """Whether a file in `derived/` has the name that `DerivedWriter` gives."""
    return _DERIVED_FILE.fullmatch(name) is not None


def check_regular(path: Path) -> os.stat_result:
    """The status of a regular file, or of the one a link names, without opening it.

    Opening a named pipe would wait for ever. Raises StoreError for anything else.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StoreError(f"{path} cannot be opened: {reason}.") from error
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{path} is no regular file; remove it or put the file itself there.")
    return status


def remove_anything(path: Path) -> bool:
    """Remove a folder with all it holds, a file or a link (never what it names).

    Returns whether it is gone; what could not be removed stays for the next sweep.
    """
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    except OSError:
        pass
    return not os.path.lexists(path)


class Closing(ABC):
    """Leaving the block closes, with an error and without."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...


class FileLock:
    """An exclusive lock on `path` that dies with its process, also across hosts on NFS.

    Not on the DuckDB file itself: DuckDB holds POSIX locks there, which a process loses as soon
    as it closes any descriptor of that file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, *, wait: bool) -> bool:
        """Take the lock; without `wait`, False when another holder is alive."""
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                os.close(descriptor)
                return False
            except OSError:
                os.close(descriptor)
                raise
            # A holder that released by unlinking leaves us with a lock on a file nobody sees.
            try:
                current = os.stat(self.path).st_ino == os.fstat(descriptor).st_ino
            except FileNotFoundError:
                current = False
            if current:
                self._descriptor = descriptor
                return True
            os.close(descriptor)

    def release(self, *, remove: bool = False) -> None:
        if self._descriptor is None:
            return
        if remove:
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None

    def __enter__(self) -> Self:
        self.acquire(wait=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


_SYNC_BYTES = 12 * 1024 * 1024  # of an early flush: about as much as is written in one go


def sync(path: Path) -> None:
    """Flush a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class EarlySync:
    """Flushes a growing file to disk beside its writer, so that little is left to wait for at its
    end. `grown` says that something was written; nothing is promised before `sync`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes = 0
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def grown(self, count: int) -> None:
        """Another `count` bytes were handed over."""
        self._bytes += count
        if self._bytes >= _SYNC_BYTES:
            self.now()

    def now(self) -> None:
        """Flush what there is."""
        self._bytes = 0
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sync", daemon=True)
            self._thread.start()
        self._asked.put(True)

    def stop(self) -> None:
        """The file is complete, or will never be."""
        if self._thread is not None:
            self._asked.put(False)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the flush that counts reports it, too
            # Open until `stop`: closing it would end the locks that this process has on the file.
            descriptor = os.open(self._path, os.O_RDONLY)
            try:
                while self._asked.get():
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)


def publish_file(partial: Path, path: Path) -> None:
    """Give a complete file its final name; FileExistsError when that name is taken.

    A link fails where a rename would replace, and no path may ever change what it holds. File
    systems without links get the rename.
    """
    try:
        os.link(partial, path)
        partial.unlink()
    except FileExistsError:
        raise
    except OSError:
        if path.exists():
            raise FileExistsError(path) from None
        os.rename(partial, path)
    sync(path.parent)


def spill_folder(partial: Path) -> Path:
    """Where DuckDB may put what does not fit into its memory while `partial` is written."""
    return partial.with_name(partial.name + ".tmp")


def remove_partial(partial: Path) -> None:
    """Remove a partial file and what was spilled beside it."""
    partial.unlink(missing_ok=True)
    partial.with_name(partial.name + ".wal").unlink(missing_ok=True)
    shutil.rmtree(spill_folder(partial), ignore_errors=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data` so that readers see the old or the new bytes, never a mixture."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sweep_partials(home: Path) -> list[Path]:
    """Remove what killed processes left: partial files, half-made imports, half-done deletions.

    A file whose writer is alive (its lock is held) stays. Returns what was removed.
    """
    removed: list[Path] = []
    if not home.is_dir():
        return removed
    for folder in sorted(home.iterdir()):
        if folder.name.startswith(TRASH):
            if remove_anything(folder):
                removed.append(folder)
        elif not folder.is_dir() or folder.is_symlink():
            continue
        elif folder.name.startswith(IMPORT):
            lock = FileLock(home / f"{folder.name}{LOCK}")
            if lock.acquire(wait=False):
                shutil.rmtree(folder, ignore_errors=True)
                lock.release(remove=True)
                removed.append(folder)
        elif is_run_id(folder.name):
            removed += _sweep_run(folder)
        elif folder.name == STUDIES:
            for study in sorted(folder.iterdir()):
                removed += _sweep_run(study)
    return removed


def _sweep_run(folder: Path) -> list[Path]:
    removed = []
    derived = folder / DERIVED_FOLDER
    partials = {*folder.glob(f"*{PARTIAL}"), *derived.glob(f"*{PARTIAL}")}
    # The lock file comes first and goes last, so a killed writer may have left nothing else.
    for lock_path in (*folder.glob(f"*{PARTIAL}{LOCK}"), *derived.glob(f"*{PARTIAL}{LOCK}")):
        partials.add(lock_path.with_name(lock_path.name.removesuffix(LOCK)))
    for partial in sorted(partials):
        lock = FileLock(partial.with_name(partial.name + LOCK))
        if not lock.acquire(wait=False):
            continue
        remove_partial(partial)
        lock.release(remove=True)
        removed.append(partial)
    for empty in (derived, folder):
        # Never a folder that holds anything.
        if removed and empty.is_dir() and not any(empty.iterdir()):
            empty.rmdir()
    return removed
