"""Text columns of an uploaded Parquet file, which may unpack to far more than it weighs."""

from __future__ import annotations

from typing import Any

from backend.spec import PromptError

BATCH_ROWS = 65_536  # whole row groups, mostly: each batch brings its dictionary again


def text_rows(
    name: str, data: bytes, *, max_bytes: int, max_rows: int, max_cells: int
) -> list[dict[str, Any]]:
    """The rows of `data` with the columns that hold text; other columns are not even unpacked.

    Raises PromptError, one sentence, for what is no Parquet file, has no column of text, or has
    more than `max_rows` rows, `max_cells` cells or `max_bytes` bytes of text. Text stays packed
    (a dictionary and indices) until its length is known.
    """
    import pyarrow as pa

    try:
        return _read(name, data, max_bytes, max_rows, max_cells)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise PromptError(
            f"{name} is not a readable Parquet file: write it again, or upload .jsonl or .csv."
        ) from error


def _read(
    name: str, data: bytes, max_bytes: int, max_rows: int, max_cells: int
) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(data))
    metadata = file.metadata
    if metadata.num_rows > max_rows:
        raise _too_many(name, max_rows, "rows")
    if not metadata.num_rows:
        return []
    unpacked = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    if unpacked > max_bytes:
        raise _too_long(name, max_bytes)
    schema = file.schema_arrow
    columns = [field.name for field in schema if _is_text(field.type)]
    if not columns:
        there = ", ".join(
            f"'{field.name[:40]}' ({str(field.type)[:20]})" for field in list(schema)[:4]
        )
        raise PromptError(
            f"{name} has no column of text, it has {there or 'none at all'}: upload a file with a "
            "column of prompts."
        )
    if metadata.num_rows * len(columns) > max_cells:
        raise _too_many(name, max_cells, "cells")
    packed = pq.ParquetFile(pa.BufferReader(data), read_dictionary=columns)
    rows: list[dict[str, Any]] = []
    length = 0
    for batch in packed.iter_batches(BATCH_ROWS, columns=columns, use_threads=False):
        if len(rows) + batch.num_rows > max_rows:
            raise _too_many(name, max_rows, "rows")
        cells: dict[str, list[Any]] = {}
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if not _is_text(field.type):
                continue  # a nested column whose path begins with a wanted name
            words, indices = _packed(column)
            length += _bytes(words, indices)
            if length > max_bytes:
                raise _too_long(name, max_bytes)
            texts = words.to_pylist()
            cells[field.name] = [
                None if index is None else texts[index] for index in indices.to_pylist()
            ]
        rows.extend(
            {column: values[row] for column, values in cells.items()}
            for row in range(batch.num_rows)
        )
    return rows


def _is_text(kind: Any) -> bool:
    import pyarrow.types as types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _packed(column: Any) -> tuple[Any, Any]:
    """The distinct texts of a column and which of them each row has."""
    import pyarrow.types as types

    packed = column if types.is_dictionary(column.type) else column.dictionary_encode()
    return packed.dictionary, packed.indices


def _bytes(words: Any, indices: Any) -> int:
    """UTF-8 bytes of all rows' texts together."""
    import pyarrow.compute as pc

    lengths = pc.binary_length(words).cast("int64").take(indices)
    return int(pc.sum(lengths).as_py() or 0)


def _too_many(name: str, most: int, what: str) -> PromptError:
    return PromptError(f"{name} has more than {most:,} {what}: upload a part of it.")


def _too_long(name: str, most: int) -> PromptError:
    return PromptError(
        f"{name} unpacks to more than {most / 1e6:.3g} MB: upload fewer rows or shorter texts."
    )
