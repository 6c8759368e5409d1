"""One DuckDB file under its partial name: batches go in, then it is renamed or vanishes."""

import contextlib
import errno
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from cache_store.errors import StoreError
from cache_store.files import (
    DERIVED_FOLDER,
    LOCK,
    EarlySync,
    FileLock,
    publish_file,
    remove_partial,
    spill_folder,
    sync,
)
from cache_store.schema import DERIVED_TABLES, TABLES, Table, blob_array
from cache_store.storage import connect

# Small blocks: a short capture is not padded to 256 kB per column. Small row groups: what is not on
# disk yet, at most one of each table, fits in memory. No log: a crash discards the whole file.
_STORAGE = "BLOCK_SIZE 16384, ROW_GROUP_SIZE 2048, RECOVERY_MODE no_wal_writes"
_DATABASE = "target"


class FileWriter:
    """One DuckDB file under its partial name: insert batches, then rename or vanish.

    The file is opened in a thread, while its writer prepares what goes in; what stands in the way
    is raised by `check` or by whatever comes first.
    """

    def __init__(
        self,
        path: Path,
        partial: Path,
        tables: Mapping[str, Table],
        *,
        memory_limit: str,
        threads: int,
    ) -> None:
        self.path = path
        self.partial = partial
        self.raw_bytes = 0
        self._tables = tables
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._early = EarlySync(partial)
        self._lock = FileLock(self.partial.with_name(self.partial.name + LOCK))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not self._lock.acquire(wait=False):
                raise StoreError(f"Another process is already writing {path}; wait for it to end.")
        except OSError as error:
            raise _write_error(path, error) from error
        self._error: duckdb.Error | OSError | None = None
        self._opening = threading.Thread(
            target=self._open, args=(memory_limit, threads), name="open", daemon=True
        )
        self._opening.start()

    def _open(self, memory_limit: str, threads: int) -> None:
        try:
            remove_partial(self.partial)  # its writer is gone: we hold the lock
            self._connection = connection = connect(
                memory_limit=memory_limit, threads=threads, spill=spill_folder(self.partial)
            )
            # A full row group goes to disk at once instead of with four others: less memory, and
            # less left to write when the run is over.
            connection.execute("SET write_buffer_row_group_count = 1")
            target = str(self.partial).replace("'", "''")
            connection.execute(f"ATTACH '{target}' AS {_DATABASE} ({_STORAGE})")
            for table in self._tables.values():
                connection.execute(table.create(_DATABASE))
            # One transaction for the whole file: each row group goes to disk once, when it is
            # full. After a commit or checkpoint the last one of every table would be written anew.
            connection.execute("BEGIN")
        except (duckdb.Error, OSError) as error:
            self._error = error

    def check(self) -> None:
        """Raises StoreError where the file could not be opened, as far as that is known."""
        if self._error is not None:
            self.discard()
            raise _write_error(self.path, self._error) from self._error

    def _opened(self) -> duckdb.DuckDBPyConnection:
        self._opening.join()
        self.check()
        if self._connection is None:
            raise StoreError(f"{self.path} is already closed; open a new writer.")
        return self._connection

    def insert(self, name: str, batch: pa.Table) -> None:
        """Append an Arrow table whose columns are in the table's order."""
        connection = self._opened()
        try:
            connection.register("batch", batch)
            connection.execute(f"INSERT INTO {_DATABASE}.main.{_quote(name)} FROM batch")
            connection.unregister("batch")
            self.raw_bytes += batch.nbytes
            self._early.grown(batch.nbytes)
        except (duckdb.Error, OSError) as error:
            self.discard()
            raise _write_error(self.path, error) from error

    def create(self, name: str, batch: pa.Table) -> None:
        """Create a table with the Arrow table's own columns, then append it."""
        connection = self._opened()
        try:
            connection.register("batch", batch)
            connection.execute(
                f"CREATE TABLE {_DATABASE}.main.{_quote(name)} AS FROM batch LIMIT 0"
            )
            connection.unregister("batch")
        except duckdb.Error as error:
            self.discard()
            raise _write_error(self.path, error) from error
        self.insert(name, batch)

    def end_is_near(self) -> None:
        """Little is still to come: what there is goes to disk meanwhile."""
        self._early.now()

    def publish(self) -> None:
        """Make the file visible: checkpoint, close, flush to disk, rename."""
        connection = self._opened()
        try:
            connection.execute("COMMIT")
            connection.execute(f"CHECKPOINT {_DATABASE}")
            connection.execute(f"DETACH {_DATABASE}")
            # What is left of it is memory to give back, which nobody needs to wait for.
            threading.Thread(target=connection.close, name="close").start()
            self._connection = None
            self._early.stop()
            sync(self.partial)
            publish_file(self.partial, self.path)
        except FileExistsError:
            self.discard()
            raise
        except (duckdb.Error, OSError) as error:
            self.discard()
            raise _write_error(self.path, error) from error
        self._lock.release(remove=True)

    def discard(self) -> None:
        """Close and remove the partial file; nothing was ever visible."""
        self._opening.join()
        if self._connection is not None:
            with contextlib.suppress(duckdb.Error):
                self._connection.close()
            self._connection = None
        self._early.stop()
        with contextlib.suppress(OSError):
            remove_partial(self.partial)
        with contextlib.suppress(OSError):
            self._lock.release(remove=True)

    def batch(self, name: str, columns: Mapping[str, Any]) -> pa.Table:
        """Columns in any order as one Arrow table of the declared types."""
        table = self._tables.get(name)
        if table is None:
            raise StoreError(f"There is no table {name!r}; there are {', '.join(self._tables)}.")
        expected = [column.name for column in table.columns]
        if sorted(columns) != sorted(expected):
            wrong = sorted(set(columns) ^ set(expected))
            raise StoreError(f"Table {name} has the columns {', '.join(expected)}; see {wrong}.")
        try:
            arrays = [_arrow(columns[column.name], column.arrow) for column in table.columns]
            return pa.table(arrays, names=expected)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise StoreError(f"Table {name} cannot hold these values: {error}") from error


def versions() -> dict[str, str]:
    """Versions of the libraries that write the file."""
    return {"duckdb": duckdb.__version__, "numpy": np.__version__, "pyarrow": pa.__version__}


def one_row(table: str, row: Mapping[str, Any]) -> dict[str, list[Any]]:
    kinds = {c.name: c.type for c in (TABLES | DERIVED_TABLES)[table].columns}
    columns = {}
    for name, value in row.items():
        if kinds.get(name) == "JSON" and value is not None:
            try:
                value = json.dumps(value, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise StoreError(f"{table}.{name} cannot be written as JSON: {error}") from error
        columns[name] = [value]
    return columns


def _arrow(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        views = pa.types.is_large_binary(kind) and pa.types.is_binary_view(values.type)
        return values if views or values.type == kind else values.cast(kind)
    if kind == pa.large_binary() and isinstance(values, np.ndarray):
        return blob_array(values)
    return pa.array(values, kind)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _write_error(path: Path, error: Exception) -> StoreError:
    # The folder of a derived file is in the run's own.
    run = path.parent.parent if path.parent.name == DERIVED_FOLDER else path.parent
    missing = not isinstance(error, OSError) or error.errno == errno.ENOENT
    if missing and not run.is_dir():
        return StoreError(f"Run {run.name} was deleted meanwhile; its results cannot be kept.")
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
    if full or "No space left" in text or "File too large" in text or "Disk quota" in text:
        return StoreError(
            f"The disk is full: {path.name} could not be written to {path.parent}; "
            "free some space or choose another KVSCOPE_HOME."
        )
    return StoreError(f"{path.name} could not be written to {path.parent}: {text}")
