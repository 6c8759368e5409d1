"""Writing what was computed from a capture, under a name that says what it is."""

import contextlib
import hashlib
import json
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cache_store.errors import StoreError
from cache_store.file_writer import FileWriter, one_row, versions
from cache_store.files import DERIVED_FOLDER, PARTIAL, Closing, check_run_id
from cache_store.schema import DERIVED_TABLES, SCHEMA_VERSION, blob_array


class DerivedWriter(Closing):
    """Writes `derived/<hash>.duckdb` beside a capture; a file that exists already is kept.

        with DerivedWriter(home / run_id, "prompt_attention", {"layers": [0, 1]}) as writer:
            if not writer.exists:
                writer.add_array("sum", sums)
                writer.finish()

    Leaving the block without `finish` removes the partial file.
    """

    def __init__(
        self,
        run_folder: Path,
        kind: str,
        spec: Mapping[str, Any],
        *,
        memory_limit: str = "512MB",
        threads: int = 1,
    ) -> None:
        self.path = derived_path(Path(run_folder), kind, spec)
        self.kind, self.spec = kind, dict(spec)
        self.capture_id = check_run_id(Path(run_folder).name)
        self._created: set[str] = set()
        self._file: FileWriter | None = None
        if not self.path.exists():
            if not Path(run_folder).is_dir():
                raise StoreError(f"Run {self.capture_id} is gone; its results cannot be kept.")
            # Its own name: a task that runs twice at once writes twice and publishes once.
            partial = self.path.with_name(f"{self.path.stem}.{secrets.token_hex(4)}{PARTIAL}")
            self._file = FileWriter(
                self.path, partial, DERIVED_TABLES, memory_limit=memory_limit, threads=threads
            )

    @property
    def exists(self) -> bool:
        """Whether this was computed before: then nothing needs to be computed or written."""
        return self._file is None

    def add(self, table: str, columns: Mapping[str, Any] | pa.Table) -> None:
        """Append rows to a table of its own name; the first call fixes its columns."""
        if table in DERIVED_TABLES:
            raise StoreError(f"The table name {table!r} is taken; choose another.")
        if self._file is None:
            return
        try:
            batch = columns if isinstance(columns, pa.Table) else pa.table(dict(columns))
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise StoreError(f"Table {table} cannot hold these values: {error}") from error
        if table in self._created:
            self._file.insert(table, batch)
        else:
            self._created.add(table)
            self._file.create(table, batch)

    def add_array(self, name: str, values: np.ndarray) -> None:
        """Keep one named numeric array of any shape."""
        if self._file is None:
            return
        values = np.asarray(values)
        if values.dtype.kind not in "biuf":
            raise StoreError(f"Array {name} holds {values.dtype}; only numbers can be stored.")
        row = {
            "name": [name],
            "dtype": [values.dtype.newbyteorder("=").name],
            "shape": [list(values.shape)],
            "data": blob_array(values[None]),
        }
        self._file.insert("array", self._file.batch("array", row))

    def finish(self) -> Path:
        """Make the file visible and return its path; a twin that came first is kept."""
        if self._file is None:
            return self.path
        row = {
            "kind": self.kind,
            "spec": self.spec,
            "capture_id": self.capture_id,
            "created_at": datetime.now(UTC).replace(tzinfo=None),
            "schema_version": SCHEMA_VERSION,
            "versions": versions(),
        }
        self._file.insert("derived", self._file.batch("derived", one_row("derived", row)))
        with contextlib.suppress(FileExistsError):
            self._file.publish()
        return self.path

    def close(self) -> None:
        """Give up: remove the partial file. Does nothing after `finish`."""
        if self._file is not None:
            self._file.discard()


def derived_key(kind: str, spec: Mapping[str, Any]) -> str:
    """The name of what was computed: a hash of kind and parameters, whatever their order."""
    try:
        text = json.dumps([kind, spec], sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(f"The parameters of {kind} cannot be written as JSON: {error}") from error
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def derived_path(run_folder: Path, kind: str, spec: Mapping[str, Any]) -> Path:
    return Path(run_folder) / DERIVED_FOLDER / f"{derived_key(kind, spec)}.duckdb"
