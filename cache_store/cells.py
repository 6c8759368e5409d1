"""Bounding a query's cells inside DuckDB, before anything is copied out of it."""

import re

import duckdb

MAX_CELL_BYTES = 2_000_000
_MARK = "kvscope: a cell is too large"
_MAX_LIST = MAX_CELL_BYTES // 4

_NUMBER = r"(?:U?(?:TINY|SMALL|BIG)INT|U?INTEGER|FLOAT|DOUBLE|BOOLEAN)"
_NUMBERS = re.compile(_NUMBER)
_LIST = re.compile(rf"{_NUMBER}\[\]")
_PLAIN = re.compile(r"HUGEINT|DECIMAL\(.*\)|\"NULL\"|DATE|TIMESTAMP(?:_S|_MS|_NS)?")


def bounded(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """The same rows: no cell larger than MAX_CELL_BYTES, no type that only DuckDB knows.

    A larger cell ends the query with an error that `cell_limit` recognises, before it is copied.
    """
    types = [str(kind) for kind in relation.types]
    return relation.project(", ".join(_bounded(f"#{i}", kind) for i, kind in enumerate(types, 1)))


def cell_limit(error: Exception) -> bool:
    """Whether a query ended because of a cell that is too large."""
    return _MARK in str(error)


def _bounded(column: str, kind: str) -> str:
    if kind in ("VARCHAR", "JSON"):
        return _unless(f"strlen({column}) > {MAX_CELL_BYTES}", column)
    if kind == "BLOB":
        return _unless(f"octet_length({column}) > {MAX_CELL_BYTES}", column)
    if _LIST.fullmatch(kind):
        return _unless(f"len({column}) > {_MAX_LIST}", column)
    if _NUMBERS.fullmatch(kind) or _PLAIN.fullmatch(kind):
        return column
    text = f"CAST({column} AS VARCHAR)"
    return _unless(f"strlen({text}) > {MAX_CELL_BYTES}", text)


def _unless(large: str, value: str) -> str:
    return f"CASE WHEN {large} THEN error('{_MARK}') ELSE {value} END"
