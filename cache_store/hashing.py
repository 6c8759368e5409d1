"""The hash by which anybody can tell a capture file: what `sha256sum capture.duckdb` prints."""

import hashlib
from functools import lru_cache
from pathlib import Path

from cache_store.errors import StoreError
from cache_store.listing import file_mark

_KNOWN = 256  # files whose hash a process remembers


def file_sha256(path: Path) -> str:
    """SHA-256 of a file in hexadecimal; read once per process while the file is the same.

    Raises StoreError for a file that cannot be read.
    """
    try:
        return _sha256(path, file_mark(path))
    except OSError as error:
        raise StoreError(f"{path.name} cannot be read: {error.strerror}.") from error


@lru_cache(maxsize=_KNOWN)
def _sha256(path: Path, mark: tuple[int, ...]) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
