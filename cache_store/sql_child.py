"""The process that runs a reader's SQL: one that can be killed when a query heeds no interrupt.

`python -m cache_store.sql_child FD` answers requests over a pipe until the app closes it. Nothing
heavy is imported: a query waits for this to start when no idle one is left.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from cache_store.cells import MAX_CELL_BYTES, bounded, cell_limit
from cache_store.errors import StoreError
from cache_store.storage import attach, connect

STARTED = b"started"  # the files are attached, the time of the query runs
ORPHAN_S = 3.0  # beyond its time, when nobody is left to kill this process
_BATCH_ROWS = 8  # of cells up to MAX_CELL_BYTES each


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            request = json.loads(connection.recv_bytes())
            for part in _reply(request, connection):
                connection.send_bytes(part)


def _reply(request: dict[str, Any], connection: Connection) -> tuple[bytes, bytes]:
    """What is sent back: a JSON head, {"error": sentence} or the facts of the result, and the
    result's rows as an Arrow stream."""

    def started() -> None:
        # The system itself ends a process that is overdue, even if the app is gone by then.
        signal.setitimer(signal.ITIMER_REAL, request["query"]["timeout_s"] + ORPHAN_S)
        connection.send_bytes(STARTED)

    try:
        table, facts = answer(request, started)
    except StoreError as error:
        return json.dumps({"error": str(error)}).encode(), b""
    except MemoryError:
        return json.dumps({"error": _TOO_MUCH_MEMORY}).encode(), b""
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return json.dumps(facts).encode(), sink.getvalue().to_pybytes()


def answer(request: dict[str, Any], started: Callable[[], None]) -> tuple[pa.Table, dict[str, Any]]:
    """Attach the files, lock the instance and run one SELECT; its rows, whether there were more,
    and the seconds it took. `started` is called when its time begins."""
    connection = connect(memory_limit=request["memory_limit"], threads=2)
    try:
        for alias, path in request["databases"]:
            attach(connection, Path(path), alias)
        if request["default"] is not None:
            connection.execute(f'USE "{request["default"]}"')
        # It would compute what has no column in it, range(30000000) say, before the query runs,
        # one boxed value at a time, and heeds no interrupt.
        connection.execute("SET disabled_optimizers = 'expression_rewriter'")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        started()
        return _run(connection, **request["query"])
    finally:
        connection.close()


def _run(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    timeout_s: float,
    row_limit: int,
    max_bytes: int,
) -> tuple[pa.Table, dict[str, Any]]:
    began = time.perf_counter()
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
        while rows <= row_limit and size <= max_bytes and not late.is_set():
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
        raise StoreError(too_long(timeout_s))
    table = pa.Table.from_batches(batches, schema).slice(0, row_limit)
    kept = _fitting(table, max_bytes).rename_columns(_distinct(names))
    truncated = rows > row_limit or len(kept) < len(table) or size > max_bytes
    return kept, {"truncated": truncated, "seconds": time.perf_counter() - began}


def too_long(timeout_s: float) -> str:
    return f"The query took longer than {timeout_s:g} s; ask for less, or use LIMIT."


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


def _fitting(table: pa.Table, max_bytes: int) -> pa.Table:
    """The first rows that fit into `max_bytes`."""
    rows = len(table)
    while rows and table.slice(0, rows).nbytes > max_bytes:
        rows -= max(1, rows // 16)
    if len(table) and not rows:
        raise StoreError(
            f"One row of the result holds {table.slice(0, 1).nbytes:,} bytes, and the box shows "
            f"at most {max_bytes:,}; select fewer columns or shorter values."
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


_TOO_MUCH_MEMORY = "The query needs more memory than it may use; ask for fewer rows or columns."


def _sentence(error: Exception) -> str:
    """DuckDB's own words: the lines up to the first blank one, where the query is repeated."""
    if isinstance(error, duckdb.OutOfMemoryException):
        return _TOO_MUCH_MEMORY
    if isinstance(error, duckdb.PermissionException):
        return "A query reads the attached runs and nothing else: no files, network or settings."
    if cell_limit(error):
        return (
            f"A value in the result is larger than {MAX_CELL_BYTES:,} bytes; "
            "select its length, or a part of it such as left(text, 1000) or list[1:1000]."
        )
    lines = [line.strip() for line in str(error).split("\n\n")[0].splitlines()]
    return " ".join(line for line in lines if line) or type(error).__name__


if __name__ == "__main__":
    main()
