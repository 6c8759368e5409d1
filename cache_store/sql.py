"""A reader's own SQL over captures: read-only, bounded in time, memory and rows."""

import contextlib
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa

from cache_store.errors import StoreError
from cache_store.files import DERIVED_FOLDER
from cache_store.reader import Capture, Derived
from cache_store.storage import attach, connect
from cache_store.tabular import MAX_CELL_BYTES, bounded, cell_limit, to_frame

_ALIAS = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_RESERVED = {"memory", "main", "system", "temp", "information_schema", "pg_catalog"}
_MAX_RESULT_BYTES = 20 * 1000 * 1000  # what a browser still takes as one table
_MAX_SQL = 20_000  # characters: DuckDB's parser heeds no interrupt
_BATCH_ROWS = 8  # of cells up to MAX_CELL_BYTES each


@dataclass(frozen=True)
class QueryResult:
    """A query's first rows, plain enough for CSV and Parquet; `truncated` when there were more.

    Besides numbers, text, blobs, dates and lists of numbers, values come as DuckDB writes them.
    """

    frame: pd.DataFrame
    truncated: bool
    seconds: float


def run_sql(
    paths: Mapping[str, Path],
    sql: str,
    *,
    timeout_s: float = 10,
    row_limit: int = 10_000,
    memory_limit: str = "512MB",
) -> QueryResult:
    """Run one SELECT over captures attached under their aliases; the first is the default.

    paths: alias to capture file. Derived files are attached as `<alias>_<kind>`, where a kind has
    one file. The instance is in memory and new; it reaches no other file, no network, no
    extension, no Python variable, and its settings are locked. Raises StoreError, one sentence.
    """
    if len(sql) > _MAX_SQL:
        raise StoreError(
            f"A query has at most {_MAX_SQL:,} characters, this one {len(sql):,}; shorten it."
        )
    connection = connect(memory_limit=memory_limit, threads=2)
    try:
        for alias, path in _databases(paths).items():
            attach(connection, path, alias)
        if paths:
            connection.execute(f'USE "{next(iter(paths))}"')
        # It would compute what has no column in it, range(30000000) say, before the query runs,
        # one boxed value at a time, and heeds no interrupt.
        connection.execute("SET disabled_optimizers = 'expression_rewriter'")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        return _run(connection, sql, timeout_s, row_limit)
    finally:
        connection.close()


def _databases(paths: Mapping[str, Path]) -> dict[str, Path]:
    """Every file to attach by its alias, each checked to be ours."""
    databases: dict[str, Path] = {}
    for alias, path in paths.items():
        if not _ALIAS.fullmatch(alias) or alias.lower() in _RESERVED:
            raise StoreError(f"{alias!r} cannot name a run in SQL; use letters, digits and _.")
        if alias.lower() in {known.lower() for known in databases}:
            raise StoreError(f"Two runs are called {alias!r} in this query; rename one.")
        Capture.open(path).close()
        databases[alias] = Path(path)
    for alias, path in paths.items():
        kinds: dict[str, list[Path]] = {}
        for file in sorted((Path(path).parent / DERIVED_FOLDER).glob("*.duckdb")):
            try:
                with Derived.open(file) as derived:
                    kinds.setdefault(derived.kind, []).append(file)
            except StoreError:
                continue  # the page that needs this file says what is wrong with it
        taken = {known.lower() for known in databases}
        for kind, files in kinds.items():
            name = f"{alias}_{kind}"
            if len(files) == 1 and _ALIAS.fullmatch(name) and name.lower() not in taken:
                databases[name] = files[0]
    return databases


def _parse(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    try:
        sql.encode()
        statements = connection.extract_statements(sql)
    except UnicodeEncodeError as error:
        raise StoreError("The query holds half a character; remove it.") from error
    except duckdb.Error as error:
        raise StoreError(_sentence(error)) from error
    if len(statements) != 1:
        found = "none" if not statements else str(len(statements))
        raise StoreError(f"The box runs one statement at a time, and this is {found}.")
    # DESCRIBE, SUMMARIZE and SHOW are SELECT to DuckDB. EXPLAIN ANALYZE would run what it explains,
    # a COPY onto the attached file for one.
    if statements[0].type is not duckdb.StatementType.SELECT:
        raise StoreError(
            f"Captures never change: {statements[0].type.name} is refused, "
            "write a SELECT, DESCRIBE, SUMMARIZE or SHOW."
        )
    return statements[0]


def _run(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    timeout_s: float,
    row_limit: int,
) -> QueryResult:
    started = time.perf_counter()
    late = threading.Event()

    def interrupt() -> None:
        late.set()
        with contextlib.suppress(duckdb.Error):  # it may have ended this very moment
            connection.interrupt()

    timer = threading.Timer(timeout_s, interrupt)
    timer.daemon = True
    timer.start()
    batches: list[pa.RecordBatch] = []
    rows = size = 0
    try:
        relation = connection.sql(_parse(connection, sql))
        names = relation.columns
        reader = bounded(relation).to_arrow_reader(_BATCH_ROWS)
        while rows <= row_limit and size <= _MAX_RESULT_BYTES and not late.is_set():
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                break
            batches.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
        schema = reader.schema
    except StoreError:
        if not late.is_set():
            raise
    except (duckdb.Error, pa.ArrowException, OSError) as error:  # a reader's are OSError
        if not late.is_set():
            raise StoreError(_sentence(error)) from error
    finally:
        timer.cancel()
    if late.is_set():
        raise StoreError(f"The query took longer than {timeout_s:g} s; ask for less, or use LIMIT.")
    table = pa.Table.from_batches(batches, schema).slice(0, row_limit)
    kept = _fitting(table)
    frame = to_frame(kept.rename_columns(_distinct(names)))
    truncated = rows > row_limit or len(kept) < len(table) or size > _MAX_RESULT_BYTES
    return QueryResult(frame, truncated, time.perf_counter() - started)


def _fitting(table: pa.Table) -> pa.Table:
    """The first rows that fit into `_MAX_RESULT_BYTES`."""
    rows = len(table)
    while rows and table.slice(0, rows).nbytes > _MAX_RESULT_BYTES:
        rows -= max(1, rows // 16)
    if len(table) and not rows:
        raise StoreError(
            f"One row of the result holds {table.slice(0, 1).nbytes:,} bytes, and the box shows "
            f"at most {_MAX_RESULT_BYTES:,}; select fewer columns or shorter values."
        )
    return table.slice(0, rows)


def _distinct(names: list[str]) -> list[str]:
    """Column names with repeats numbered: a table on screen needs each name once."""
    taken: set[str] = set()
    result = []
    for name in names:
        fresh, number = name, 2
        while fresh in taken:
            fresh, number = f"{name}_{number}", number + 1
        taken.add(fresh)
        result.append(fresh)
    return result


def _sentence(error: Exception) -> str:
    """DuckDB's own words: the lines up to the first blank one, where the query is repeated."""
    if isinstance(error, duckdb.OutOfMemoryException):
        return "The query needs more memory than it may use; ask for fewer rows or columns."
    if isinstance(error, duckdb.PermissionException):
        return "A query reads the attached runs and nothing else: no files, network or settings."
    if cell_limit(error):
        return (
            f"A value in the result is larger than {MAX_CELL_BYTES:,} bytes; "
            "select its length, or a part of it such as left(text, 1000) or list[1:1000]."
        )
    lines = [line.strip() for line in str(error).split("\n\n")[0].splitlines()]
    return " ".join(line for line in lines if line) or type(error).__name__
