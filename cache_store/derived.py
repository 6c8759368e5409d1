"""Reading what was computed from a capture."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cache_store.attached import AttachedFile
from cache_store.errors import StoreError
from cache_store.storage import DATABASE, check_tables


@dataclass(frozen=True)
class Heading:
    """What a derived file says of itself."""

    kind: str
    spec: Mapping[str, Any]
    capture_id: str
    created_at: datetime
    file_bytes: int


def heading(path: Path) -> Heading:
    """The heading of a derived file, read once as long as the file stays the same: a run may have
    hundreds, and opening one costs as much as drawing a figure. Raises StoreError."""
    try:
        facts = path.stat()
    except OSError as error:
        raise StoreError(f"There is no file {path}.") from error
    return _heading(path, facts.st_ino, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=4096)
def _heading(path: Path, *_unchanged: int) -> Heading:
    with Derived.open(path) as derived:
        return Heading(
            derived.kind, derived.spec, derived.capture_id, derived.created_at, derived.file_bytes
        )


class Derived(AttachedFile):
    """One derived file, read-only: arrays by name and its own tables."""

    kind: str
    spec: dict[str, Any]
    capture_id: str
    created_at: datetime
    versions: dict[str, str]

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        capture_id: str | None = None,
        memory_limit: str = "512MB",
        threads: int = 1,
    ) -> "Derived":
        """Open a derived file; with `capture_id`, one that belongs to that run."""
        derived = cls(Path(path), memory_limit=memory_limit, threads=threads)
        try:
            check_tables(derived.connection, derived.path, DATABASE, "derived")
            rows = derived.query(f"FROM {DATABASE}.derived").to_pylist()
            if len(rows) != 1:
                raise StoreError(f"{derived.path} is incomplete; compute it again.")
            derived.kind, derived.capture_id = rows[0]["kind"], rows[0]["capture_id"]
            try:
                derived.spec = dict(json.loads(rows[0]["spec"]))
                derived.versions = dict(json.loads(rows[0]["versions"]))
            except (ValueError, TypeError, RecursionError) as error:
                raise StoreError(f"{derived.path} is damaged; compute it again.") from error
            derived.created_at = rows[0]["created_at"]
            if capture_id is not None and derived.capture_id != capture_id:
                raise StoreError(
                    f"{derived.path} belongs to run {derived.capture_id}, not to {capture_id}."
                )
        except BaseException:
            derived.close()
            raise
        return derived

    def array_names(self) -> list[str]:
        return self.query(f"SELECT name FROM {DATABASE}.array").column(0).to_pylist()

    def array(self, name: str) -> np.ndarray:
        """A named array, read-only, in its own shape and number format."""
        table = self.query(
            f"SELECT dtype, shape, data FROM {DATABASE}.array WHERE name = ?", [name]
        )
        if len(table) != 1:
            raise StoreError(f"{self.path.name} has no array {name!r}: {self.array_names()}.")
        kind, shape = table.column("dtype")[0].as_py(), table.column("shape")[0].as_py()
        data = table.column("data").combine_chunks()[0].as_buffer()
        try:
            return np.frombuffer(data, np.dtype(kind)).reshape(shape)
        except (TypeError, ValueError) as error:
            raise StoreError(
                f"{self.path} is damaged: array {name!r}; compute it again."
            ) from error

    def table(self, name: str) -> pd.DataFrame:
        """One of the file's own tables, rows in the order written."""
        quoted = name.replace('"', '""')
        return self.query(f'FROM {DATABASE}."{quoted}"').to_pandas()
