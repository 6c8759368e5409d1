"""A query's result as a table of plain values: what pandas, CSV and Parquet all can hold."""

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from cache_store.errors import StoreError

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31, in days since 1970
_PER_DAY = {"s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}


def to_frame(table: pa.Table) -> pd.DataFrame:
    """The table in pandas; columns with values that pandas or CSV cannot hold become text."""
    for index, field in enumerate(table.schema):
        kind, column = field.type, table.column(index)
        if pa.types.is_decimal(kind) and kind.scale == 0:
            # DuckDB makes sums of integers 128 bits wide.
            try:
                table = table.set_column(index, field.name, column.cast(pa.int64()))
            except pa.ArrowException:
                continue
        elif pa.types.is_temporal(kind) and not _in_calendar(column):
            table = table.set_column(index, field.name, _as_text(column))
    try:
        return table.to_pandas()
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        columns = [_as_text(column) for column in table.columns]
        return pa.table(columns, names=table.column_names).to_pandas()


def _in_calendar(column: pa.ChunkedArray) -> bool:
    """Whether every date or time stamp lies in the years 1 to 9999; 'infinity' does not."""
    kind = column.type
    if pa.types.is_date32(kind):
        scale, numbers = 1, column.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        scale, numbers = _PER_DAY[kind.unit], column.cast(pa.int64())
    else:
        return True
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None:
        return True
    # A nanosecond count reaches from 1677 to 2262, with its largest value for 'infinity'.
    limit = min(_LAST_DAY * scale, 2**63 - 2)
    return ends["min"] >= max(_FIRST_DAY * scale, 1 - 2**63) and ends["max"] <= limit


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Each value as DuckDB writes it."""
    connection = duckdb.connect(":memory:")
    try:
        values = connection.from_arrow(pa.table({"value": column}))
        return values.project("CAST(value AS VARCHAR)").to_arrow_table().column(0)
    except (duckdb.Error, pa.ArrowException) as error:
        raise StoreError(
            "The result holds values that cannot be shown; write CAST(column AS VARCHAR)."
        ) from error
    finally:
        connection.close()
