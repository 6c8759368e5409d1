"""An attached DuckDB file: read-only, bounded, usable from several threads."""

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from cache_store.files import Closing
from cache_store.storage import DATABASE, attach, connect_reader, unreadable


class AttachedFile(Closing):
    """An attached, checked, read-only DuckDB file."""

    def __init__(self, path: Path, *, memory_limit: str, threads: int) -> None:
        self.path = path
        self.connection = connect_reader(
            memory_limit=memory_limit,
            threads=threads,
            paths=[path, path.with_name(path.name + ".wal")],  # DuckDB looks for a log, too
        )
        try:
            attach(self.connection, path, DATABASE)
        except BaseException:
            self.connection.close()
            raise

    @property
    def file_bytes(self) -> int:
        """Size of the file."""
        return self.path.stat().st_size

    def query(self, sql: str, parameters: list[Any] | dict[str, Any] | None = None) -> pa.Table:
        """Run one SELECT over the tables `run.…`; each call has its own cursor."""
        try:
            with self.connection.cursor() as cursor:
                return cursor.sql(sql, params=parameters).to_arrow_table()
        except duckdb.Error as error:
            raise unreadable(self.path, error) from error

    def close(self) -> None:
        """Let the file go; dropping the last reference does the same."""
        self.connection.close()
