"""A reader's own SQL over captures: read-only, bounded in time, memory and rows."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from cache_store.errors import StoreError
from cache_store.files import DERIVED_FOLDER
from cache_store.reader import Capture, Derived
from cache_store.sql_process import ask
from cache_store.tabular import to_frame

_ALIAS = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_RESERVED = {"memory", "main", "system", "temp", "information_schema", "pg_catalog"}
_MAX_RESULT_BYTES = 20 * 1000 * 1000  # what a browser still takes as one table
_MAX_SQL = 20_000  # characters: DuckDB's parser heeds no interrupt


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
    one file. The instance is in memory and new, in a process of its own that is ended when the
    query heeds no interrupt; it reaches no other file, no network, no extension, no Python
    variable, and its settings are locked. Raises StoreError, one sentence.
    """
    if len(sql) > _MAX_SQL:
        raise StoreError(
            f"A query has at most {_MAX_SQL:,} characters, this one {len(sql):,}; shorten it."
        )
    request = {
        "databases": [(alias, str(path)) for alias, path in _databases(paths).items()],
        "default": next(iter(paths), None),
        "memory_limit": memory_limit,
        "query": {
            "sql": sql,
            "timeout_s": timeout_s,
            "row_limit": row_limit,
            "max_bytes": _MAX_RESULT_BYTES,
        },
    }
    table, facts = ask(request, timeout_s)
    return QueryResult(to_frame(table), facts["truncated"], facts["seconds"])


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
