"""Taking in a run from elsewhere: nothing is visible before every byte was checked."""

import json
import os
import secrets
import shutil
import stat
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any, BinaryIO

from cache_store.derived import Derived
from cache_store.errors import StoreError
from cache_store.files import (
    CAPTURE_FILE,
    DERIVED_FOLDER,
    IMPORT,
    LOCK,
    FileLock,
    check_regular,
    is_derived_file,
    is_run_id,
    sync,
)
from cache_store.reader import Capture
from cache_store.verify import verify_capture, verify_derived

ABOUT_FILE = "about.json"
_MAX_ENTRIES = 2_000
_MAX_ABOUT_BYTES = 1024 * 1024
# Float16 states hardly compress; a zip that grows this much was made to fill a disk.
_MAX_EXPANSION = 100
_KEEP_FREE_BYTES = 256 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024


def import_run(home: Path, source: Path | BinaryIO, name: str) -> tuple[str, dict[str, Any]]:
    """Check a zip made by export, or a bare capture file, and make it a run of this library.

    name: what the reader called the file, for the messages. Returns the run id and the zip's
    about.json (title and tags). Raises StoreError.
    """
    if isinstance(source, Path | str):
        check_regular(Path(source))
        try:
            with open(source, "rb") as file:
                return import_run(home, file, name)
        except OSError as error:
            raise StoreError(f"{name} cannot be read: {error.strerror}.") from error
    home.mkdir(parents=True, exist_ok=True)
    draft = home / f"{IMPORT}{secrets.token_hex(6)}"
    lock = FileLock(home / f"{draft.name}{LOCK}")
    lock.acquire(wait=False)
    try:
        draft.mkdir()
        about = _unpack(source, draft, name)
        run_id = _verify(draft, name)
        target = home / run_id
        if target.exists():
            raise StoreError(f"The run {run_id} in {name} is already in the library.")
        sync(draft)
        os.rename(draft, target)
        sync(home)
        return run_id, about
    except OSError as error:
        raise StoreError(f"{name} could not be imported into {home}: {error.strerror}.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        lock.release(remove=True)


def _unpack(source: BinaryIO, draft: Path, name: str) -> dict[str, Any]:
    source.seek(0)
    head = source.read(12)
    size = source.seek(0, os.SEEK_END)
    source.seek(0)
    if head[8:12] == b"DUCK":
        _check_space(draft, size, name)
        _copy(source, draft / CAPTURE_FILE, size)
        return {}
    if not head.startswith(b"PK"):
        what = "is empty" if size == 0 else "is neither a zip made by KVScope nor a capture file"
        raise StoreError(f"{name} {what}; export a run from the Library page and import that.")
    try:
        with zipfile.ZipFile(source) as archive:
            entries = _check_entries(archive, size, name)
            _check_space(draft, sum(entry.file_size for entry in entries), name)
            (draft / DERIVED_FOLDER).mkdir()
            for entry in entries:
                if entry.filename != ABOUT_FILE:
                    with archive.open(entry) as content:
                        _copy(content, draft / entry.filename, entry.file_size)
            if not any((draft / DERIVED_FOLDER).iterdir()):
                (draft / DERIVED_FOLDER).rmdir()
            return _read_about(archive, name)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise StoreError(f"{name} is a damaged zip file ({error}); export it again.") from error


def _check_entries(
    archive: zipfile.ZipFile, archive_bytes: int, name: str
) -> list[zipfile.ZipInfo]:
    """The files to unpack; one odd entry refuses the whole zip."""
    entries = archive.infolist()
    if len(entries) > _MAX_ENTRIES:
        raise StoreError(f"{name} holds {len(entries)} files; a run has at most {_MAX_ENTRIES}.")
    files: dict[str, zipfile.ZipInfo] = {}
    for entry in entries:
        path = entry.orig_filename
        mode = entry.external_attr >> 16
        if path == f"{DERIVED_FOLDER}/" and entry.file_size == 0:
            continue
        folder, _, file = path.rpartition("/")
        allowed = path in (CAPTURE_FILE, ABOUT_FILE) or (
            folder == DERIVED_FOLDER and is_derived_file(file)
        )
        if not allowed or path in files or (stat.S_IFMT(mode) not in (0, stat.S_IFREG)):
            raise StoreError(
                f"{name} holds {path!r}, which is no part of an exported run; nothing was imported."
            )
        if entry.flag_bits & 1:
            raise StoreError(f"{name} is encrypted; export the run again without a password.")
        files[path] = entry
    if CAPTURE_FILE not in files:
        raise StoreError(f"{name} holds no {CAPTURE_FILE}, so it is no exported run.")
    total = sum(entry.file_size for entry in files.values())
    if total > _MAX_EXPANSION * archive_bytes:
        raise StoreError(
            f"{name} would unpack from {archive_bytes:,} to {total:,} bytes; no run does, "
            "nothing was imported."
        )
    return list(files.values())


def _check_space(folder: Path, needed: int, name: str) -> None:
    free = shutil.disk_usage(folder).free - _KEEP_FREE_BYTES
    if needed > free:
        raise StoreError(
            f"{name} needs {needed / 1e6:,.0f} MB and the disk has {max(free, 0) / 1e6:,.0f} MB "
            "to spare; free some space and import it again."
        )


def _copy(source: IO[bytes], target: Path, size: int) -> None:
    """Copy at most `size` bytes: what a zip's directory says, not what its data would become."""
    with open(target, "xb") as file:
        while size > 0 and (chunk := source.read(min(size, _CHUNK_BYTES))):
            file.write(chunk)
            size -= len(chunk)
        file.flush()
        os.fsync(file.fileno())


def _read_about(archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    if ABOUT_FILE not in archive.namelist():
        return {}
    if archive.getinfo(ABOUT_FILE).file_size > _MAX_ABOUT_BYTES:
        raise StoreError(f"{name} holds an {ABOUT_FILE} of more than 1 MB; nothing was imported.")
    try:
        about = json.loads(archive.read(ABOUT_FILE))
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{name} holds an {ABOUT_FILE} that is no JSON: {error}.") from error
    return about if isinstance(about, dict) else {}


def _verify(draft: Path, name: str) -> str:
    """Check every file of the unpacked run; returns its id."""
    path = draft / CAPTURE_FILE
    try:
        with Capture.open(path) as capture:
            verify_capture(capture)
            run_id = capture.id
        if not isinstance(run_id, str) or not is_run_id(run_id):
            raise StoreError(f"{path} carries {run_id!r}, which is no run id.")
        for path in sorted((draft / DERIVED_FOLDER).glob("*.duckdb")):
            with Derived.open(path, capture_id=run_id) as derived:
                verify_derived(derived)
    except StoreError as error:
        # The reader knows the file by the name they gave it, not by our draft's path.
        shown = name if path.name == CAPTURE_FILE else f"{name} ({path.name})"
        raise StoreError(str(error).replace(str(path), shown)) from error
    return run_id
