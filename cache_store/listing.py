"""What the library lists about each run, without opening each as a capture."""

import os
from pathlib import Path
from typing import Any

import duckdb

from cache_store.errors import StoreError
from cache_store.files import CAPTURE_FILE, DERIVED_FOLDER, is_run_id
from cache_store.schema import REQUIRED
from cache_store.storage import attach, check_tables, connect_reader, unreadable

_FACTS = (
    "id",
    "title",
    "model_id",
    "architecture",
    "layers",
    "query_heads",
    "kv_heads",
    "head_dim",
    "dtype",
    "device",
    "prompt_length",
    "context_length",
    "response_length",
    "finish_reason",
    "created_at",
    "started_at",
    "finished_at",
)


def run_marks(home: Path) -> dict[str, tuple[int, ...]]:
    """Every run with a complete capture file, by id, with a mark that changes with the file."""
    marks = {}
    for name in os.listdir(home) if home.is_dir() else []:
        if is_run_id(name):
            try:
                marks[name] = file_mark(home / name / CAPTURE_FILE)
            except OSError:
                continue  # still running, or it failed
    return marks


def file_mark(path: Path) -> tuple[int, ...]:
    """Tells a file from any other that had its path before."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def folder_size(folder: Path) -> tuple[int, int]:
    """Bytes of the capture and its derived files, and how many derived files there are."""
    size = derived = 0
    for path in (folder / CAPTURE_FILE, *(folder / DERIVED_FOLDER).glob("*.duckdb")):
        try:
            size += path.stat().st_size
        except OSError:
            continue  # deleted meanwhile
        derived += path.name != CAPTURE_FILE
    return size, derived


def read_facts(home: Path, run_ids: list[str]) -> dict[str, dict[str, Any]]:
    """The listed columns of each run's capture row; `error` instead where it cannot be read.

    One DuckDB instance for all of them: making one takes ten times as long as reading a row.
    """
    facts: dict[str, dict[str, Any]] = {}
    if not run_ids:
        return facts
    connection = connect_reader(memory_limit="256MB", threads=1, folders=[home])
    try:
        for run_id in run_ids:
            path = home / run_id / CAPTURE_FILE
            try:
                facts[run_id] = _read_row(connection, path, run_id)
            except StoreError as error:
                facts[run_id] = {"error": str(error)}
    finally:
        connection.close()
    return facts


def _read_row(connection: duckdb.DuckDBPyConnection, path: Path, run_id: str) -> dict[str, Any]:
    try:
        attach(connection, path, "listed")
        check_tables(connection, path, "listed", "capture")
        rows = (
            connection.sql(f"SELECT {', '.join(_FACTS)}, complete FROM listed.capture")
            .to_arrow_table()
            .to_pylist()
        )
    except duckdb.Error as error:
        raise unreadable(path, error) from error
    finally:
        connection.execute("DETACH DATABASE IF EXISTS listed")
    if len(rows) != 1 or not rows[0].pop("complete"):
        raise StoreError(f"{path} is incomplete: the run that wrote it did not finish.")
    row = rows[0]
    if any(row[name] is None for name in REQUIRED):
        raise StoreError(f"{path} is damaged: it does not say how large its model is.")
    if row["id"] != run_id:
        raise StoreError(f"The folder {run_id} holds the run {row['id']}; rename it back.")
    started, finished = row.pop("started_at"), row.pop("finished_at")
    seconds = (finished - started).total_seconds() if started and finished else None
    return row | {"seconds": seconds, "error": None}
