"""Opening DuckDB files that may come from anywhere: bounded, read-only, checked before use."""

import os
from collections.abc import Sequence
from pathlib import Path

import duckdb

from cache_store.errors import StoreError
from cache_store.files import check_regular
from cache_store.schema import DERIVED_TABLES, SCHEMA_VERSION, TABLES

DATABASE = "run"  # the name the reader attaches a file under

_HEADERS = 3 * 4096  # a DuckDB file: three headers, then blocks


def connect(
    *, memory_limit: str, threads: int, spill: Path | None = None
) -> duckdb.DuckDBPyConnection:
    """A fresh in-memory instance that loads no extensions and sees no Python variables.

    Fresh, because an instance that DuckDB keeps per path would go on reading a deleted file.
    What exceeds the memory limit goes to the folder `spill`; without one it is an error.
    """
    return duckdb.connect(
        ":memory:",
        config={
            "memory_limit": memory_limit,
            "threads": threads,
            "temp_directory": str(spill) if spill else "",
            "autoload_known_extensions": False,
            "autoinstall_known_extensions": False,
            "python_enable_replacements": False,
            "arrow_large_buffer_size": True,
        },
    )


def connect_reader(
    *, memory_limit: str, threads: int, paths: Sequence[Path] = (), folders: Sequence[Path] = ()
) -> duckdb.DuckDBPyConnection:
    """Like `connect`, and these paths and folders are all that is ever reachable from it.

    For the store's own SQL only: DuckDB would also write to what it is allowed to reach.
    """
    connection = connect(memory_limit=memory_limit, threads=threads)
    connection.execute(f"SET allowed_paths = {_list(paths)}")
    connection.execute(f"SET allowed_directories = {_list(folders)}")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def attach(connection: duckdb.DuckDBPyConnection, path: Path, alias: str) -> None:
    """Attach a file read-only and check that all of its blocks are there."""
    size = check_regular(path).st_size
    log = path.with_name(path.name + ".wal")  # DuckDB would open it, too
    if os.path.lexists(log):
        check_regular(log)
    try:
        with open(path, "rb") as file:
            header = file.read(12)
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror}.") from error
    # DuckDB would take an empty file for a new database.
    if size < _HEADERS or header[8:12] != b"DUCK":
        raise StoreError(f"{path} is not a complete DuckDB file, so it is no capture.")
    try:
        connection.execute(f'ATTACH {_quoted(path)} AS "{alias}" (READ_ONLY)')
        # Used blocks: free ones at the end may have been cut off by DuckDB itself.
        # fetchall throughout: DuckDB 2 refuses other work while a result has rows left.
        blocks = connection.execute(
            "SELECT block_size * used_blocks FROM pragma_database_size() WHERE database_name = ?",
            [alias],
        ).fetchall()
    except duckdb.Error as error:
        raise unreadable(path, error) from error
    if not blocks or size < _HEADERS + blocks[0][0]:
        raise StoreError(f"{path} is cut short; copy or import it again.")


def check_tables(connection: duckdb.DuckDBPyConnection, path: Path, alias: str, kind: str) -> None:
    """Refuse a file whose tables are not the ones the writer makes.

    kind: `capture` or `derived`. A view or a generated column under one of our names would run
    somebody else's SQL, so nothing but plain tables passes.
    """
    expected = TABLES if kind == "capture" else DERIVED_TABLES
    try:
        found: dict[str, dict[str, str]] = {
            table: {}
            for (table,) in connection.execute(
                "SELECT table_name FROM duckdb_tables() "
                "WHERE database_name = ? AND schema_name = 'main'",
                [alias],
            ).fetchall()
        }
        plain = True
        for schema, table, column, column_type, generated in connection.execute(
            "SELECT schema_name, table_name, column_name, data_type, is_generated "
            "FROM duckdb_columns() WHERE database_name = ? AND NOT internal "
            "ORDER BY column_index",
            [alias],
        ).fetchall():
            plain &= schema == "main" and table in found and not generated
            if plain:
                found[table][column] = column_type
        version = None
        if plain and found.get(kind, {}).get("schema_version") == "INTEGER":
            rows = connection.execute(f"SELECT schema_version FROM {alias}.main.{kind}").fetchall()
            version = rows[0][0] if rows else None
    except duckdb.Error as error:
        raise unreadable(path, error) from error
    if version is not None and version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} was made by a newer KVScope (schema {version}, this one reads up to "
            f"{SCHEMA_VERSION}); update KVScope to open it."
        )
    columns = {
        name: {column.name: column.type for column in table.columns}
        for name, table in expected.items()
    }
    strangers = set(found) - set(columns) if kind == "capture" else set()
    if not plain or strangers or any(found.get(name) != columns[name] for name in columns):
        raise StoreError(f"{path} is a DuckDB file, but not a KVScope {kind}.")


def check_no_code(connection: duckdb.DuckDBPyConnection, path: Path, alias: str, kind: str) -> None:
    """Refuse macros, types and sequences: they would change what a reader's SQL means.

    Listing functions takes longer than opening a file, so this is asked of imported files once.
    """
    try:
        rows = connection.execute(
            "SELECT (SELECT count(*) FROM duckdb_functions() "
            "        WHERE database_name = $1 AND NOT internal)"
            " + (SELECT count(*) FROM duckdb_types() WHERE database_name = $1 AND NOT internal)"
            " + (SELECT count(*) FROM duckdb_sequences() WHERE database_name = $1)",
            [alias],
        ).fetchall()
    except duckdb.Error as error:
        raise unreadable(path, error) from error
    if rows != [(0,)]:
        raise StoreError(f"{path} is a DuckDB file, but not a KVScope {kind}: it holds code.")


def unreadable(path: Path, error: Exception) -> StoreError:
    """The one sentence for whatever DuckDB said about a file."""
    if isinstance(error, StoreError):
        return error
    text = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
    if isinstance(error, duckdb.ConnectionException) and "closed" in text.lower():
        return StoreError(f"{path} was closed; open it again.")
    if isinstance(error, duckdb.OutOfMemoryException):
        return StoreError(f"Reading {path} needs more memory than it may use; ask for less of it.")
    return StoreError(f"{path} cannot be read, it is damaged or no capture ({text}).")


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _list(paths: Sequence[Path]) -> str:
    return "[" + ", ".join(_quoted(path) for path in paths) + "]::VARCHAR[]"
