"""Reading a whole file once, before a file from elsewhere becomes part of the library."""

from cache_store.derived import Derived
from cache_store.errors import StoreError
from cache_store.reader import Capture
from cache_store.schema import SEGMENTS
from cache_store.storage import DATABASE, check_no_code

_TABLE_CHECKS = (
    # Each counts rows that cannot be; parameters are named after CaptureInfo.
    ("tokens", "SELECT abs(count(*) - $length) + count(*) - count(DISTINCT position)"
     " + count(*) FILTER (NOT coalesce(position BETWEEN 0 AND $length - 1, false)"
     " OR text IS NULL OR token_id IS NULL OR NOT coalesce(0 <= char_start"
     " AND char_start <= char_end, false)"
     " OR NOT coalesce(segment IN ('{segments}'), false)) FROM {db}.token"),
    ("states", "SELECT count(*) FILTER (NOT coalesce(layer BETWEEN 0 AND $layers - 1"
     " AND kind IN ('q', 'k', 'v') AND position >= 0 AND count >= 1"
     " AND position + count <= $length AND octet_length(data) = 2 * count * $head_dim"
     " * CASE kind WHEN 'q' THEN $query_heads ELSE $kv_heads END, false))"
     " + abs(coalesce(sum(count), 0) - 3 * $layers * $length) FROM {db}.state"),
    ("attention rows", "SELECT count(*) FILTER (NOT coalesce(layer BETWEEN 0 AND $layers - 1"
     " AND head BETWEEN 0 AND $query_heads - 1 AND position BETWEEN 0 AND $length - 1"
     " AND step = position - $prompt_length + 1"
     " AND octet_length(row) = 2 * (position + 1), false)) FROM {db}.attention"),
    ("attention rows", "SELECT coalesce(sum(abs(rows - $query_heads * steps)"
     " + abs(rows - pairs)), 0) FROM (SELECT count(*) AS rows, count(DISTINCT step) AS steps,"
     " count(DISTINCT (head, step)) AS pairs FROM {db}.attention GROUP BY layer)"),
    ("largest entries", "SELECT count(*) FILTER (NOT coalesce(layer BETWEEN 0 AND $layers - 1"
     " AND head BETWEEN 0 AND $query_heads - 1 AND position BETWEEN 0 AND $length - 1"
     " AND rank >= 1, false)) FROM {db}.attention_top"),
    ("step statistics", "SELECT count(*) FILTER (NOT coalesce(layer BETWEEN 0 AND $layers - 1"
     " AND head BETWEEN 0 AND $query_heads - 1, false)) FROM {db}.step_stat"),
    ("KV statistics", "SELECT count(*) FILTER (NOT coalesce(layer BETWEEN 0 AND $layers - 1"
     " AND head BETWEEN 0 AND $kv_heads - 1 AND position BETWEEN 0 AND $length - 1, false))"
     " FROM {db}.kv_stat"),
)  # fmt: skip


def verify_capture(capture: Capture) -> None:
    """Check that a capture holds what its row promises, reading every block's checksum.

    Raises StoreError for the first thing that does not fit.
    """
    check_no_code(capture.connection, capture.path, DATABASE, "capture")
    info = capture.info
    lengths = (info.layers, info.query_heads, info.kv_heads, info.head_dim, info.prompt_length)
    if (
        any(not isinstance(length, int) or length < 1 for length in lengths)
        or not isinstance(info.response_length, int)
        or not info.response_length >= 0
        or info.query_heads % info.kv_heads
        or len(info.scaling) != info.layers
        or len(info.sliding_window) != info.layers
        or any(not 0 <= layer < info.layers for layer in info.stored_layers)
    ):
        raise StoreError(f"{capture.path} is damaged: its lengths do not fit each other.")
    values = {
        name: getattr(info, name)
        for name in ("length", "layers", "query_heads", "kv_heads", "head_dim", "prompt_length")
    }
    for what, sql in _TABLE_CHECKS:
        sql = sql.format(db=DATABASE, segments="', '".join(SEGMENTS))
        used = {name: value for name, value in values.items() if f"${name}" in sql}
        wrong = capture.query(sql, used).column(0)[0].as_py()
        if wrong:
            raise StoreError(f"{capture.path} is damaged: its {what} are not complete.")
    _read_all(capture)


def verify_derived(derived: Derived) -> None:
    """Check that a derived file holds plain tables only, and that its arrays fit their shapes."""
    check_no_code(derived.connection, derived.path, DATABASE, "derived")
    _read_all(derived)
    for name in derived.array_names():
        derived.array(name)


def _read_all(file: Capture | Derived) -> None:
    """Read every value once: DuckDB checks each block's checksum on the way."""
    tables = file.query(
        "SELECT table_name FROM duckdb_tables() WHERE database_name = ?", [DATABASE]
    )
    for name in tables.column(0).to_pylist():
        quoted = name.replace('"', '""')
        file.query(f'SELECT bit_xor(hash(t)) FROM {DATABASE}.main."{quoted}" t')
