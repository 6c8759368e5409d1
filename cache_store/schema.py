"""The tables of a capture, stated once: CREATE TABLE, Arrow batches, checks and the docs use it.

Steps: the prompt token at position p of P prompt tokens has step p - P + 1 (0 is the last prompt
token, the one that predicts the first answer token); generated token t = 1…T has step t and sits at
position P + t - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

SCHEMA_VERSION = 1
# What no reader can do without; the other columns may be NULL.
REQUIRED = (
    *("layers", "query_heads", "kv_heads", "head_dim"),
    *("prompt_length", "context_length", "response_length"),
)
STATE_KINDS = ("q", "k", "v")
SEGMENTS = ("context", "question", "response")

_ARROW_TYPES: dict[str, pa.DataType] = {
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "VARCHAR": pa.string(),
    "JSON": pa.string(),
    "BLOB": pa.large_binary(),
    "TIMESTAMP": pa.timestamp("us"),
    "INTEGER[]": pa.list_(pa.int32()),
    "DOUBLE[]": pa.list_(pa.float64()),
}


@dataclass(frozen=True)
class Column:
    """One column: its DuckDB type and what it means, with unit."""

    name: str
    type: str
    meaning: str

    @property
    def arrow(self) -> pa.DataType:
        return _ARROW_TYPES[self.type]

    @property
    def definition(self) -> str:
        # Floats are noise to a compressor: every scheme DuckDB would try costs time, and for blobs
        # its dictionary ones leave most of a block empty when a value is longer than the block.
        plain = self.type in ("BLOB", "FLOAT")
        compression = " USING COMPRESSION uncompressed" if plain else ""
        return f'"{self.name}" {self.type}{compression}'


@dataclass(frozen=True)
class Table:
    """One table: what a row is (`grain`), what it holds, and its columns in order."""

    name: str
    grain: str
    meaning: str
    columns: tuple[Column, ...]

    def create(self, database: str) -> str:
        """The CREATE TABLE statement inside the attached `database`."""
        columns = ", ".join(column.definition for column in self.columns)
        return f'CREATE TABLE {database}.main."{self.name}" ({columns})'


def _table(name: str, grain: str, meaning: str, *columns: tuple[str, str, str]) -> Table:
    return Table(name, grain, meaning, tuple(Column(*column) for column in columns))


_LAYER = ("layer", "INTEGER", "layer index, 0 is the first")
_HEAD = ("head", "INTEGER", "query head index within the layer")
_STEP = (
    "step",
    "INTEGER",
    "step of the query: 0 and below are prompt tokens, 1 and above generated",
)

CAPTURE = _table(
    "capture",
    "one row",
    "the run: model, lengths, settings, times",
    ("id", "VARCHAR", "run id, never reused"),
    ("title", "VARCHAR", "title given when the run was made (the library may show another)"),
    ("created_at", "TIMESTAMP", "when the run was asked for, UTC"),
    ("model_id", "VARCHAR", "model name, folder or Hugging Face id"),
    ("model_revision", "VARCHAR", "exact revision of the weights"),
    ("architecture", "VARCHAR", "transformers model class"),
    ("layers", "INTEGER", "number of layers"),
    ("query_heads", "INTEGER", "query heads per layer"),
    ("kv_heads", "INTEGER", "KV heads per layer"),
    ("head_dim", "INTEGER", "entries of one head's query or key vector"),
    ("dtype", "VARCHAR", "number format the model ran in"),
    ("device", "VARCHAR", "device the model ran on"),
    ("scaling", "DOUBLE[]", "factor on the attention logits, per layer"),
    ("softcap", "DOUBLE", "logits are softcap * tanh(logit / softcap); NULL: not capped"),
    ("sliding_window", "INTEGER[]", "last positions a query sees, per layer; NULL: all of them"),
    ("prompt_length", "INTEGER", "prompt tokens"),
    ("context_length", "INTEGER", "prompt tokens of the context; the rest are the question"),
    ("response_length", "INTEGER", "generated tokens"),
    ("stored_layers", "INTEGER[]", "layers whose attention rows are stored"),
    (
        "window",
        "INTEGER",
        'observation window: last prompt tokens whose attention is stored ("window" in SQL)',
    ),
    ("top_k", "INTEGER", "entries per row in attention_top"),
    ("sink", "INTEGER", "first positions counted in sink_mass"),
    ("recent", "INTEGER", "last positions counted in recent_mass"),
    ("settings", "JSON", "generation settings, chat template, prompt source"),
    ("seed", "BIGINT", "random seed; NULL: none was set"),
    ("schema_version", "INTEGER", "version of these tables"),
    ("versions", "JSON", "library versions"),
    ("started_at", "TIMESTAMP", "when the model started, UTC"),
    ("finished_at", "TIMESTAMP", "when the file was complete, UTC"),
    ("peak_memory_bytes", "BIGINT", "largest memory of the process, bytes"),
    ("timings", "JSON", "seconds by phase"),
    ("finish_reason", "VARCHAR", "why generation ended: length or stop"),
    ("complete", "BOOLEAN", "true when everything was written"),
)

TOKEN = _table(
    "token",
    "position",
    "the tokens of prompt and response",
    ("position", "INTEGER", "absolute token index, 0 is the first"),
    ("token_id", "INTEGER", "index in the model's vocabulary"),
    ("text", "VARCHAR", "its text; a character split over tokens belongs to the last of them"),
    ("segment", "VARCHAR", "context, question or response"),
    ("char_start", "INTEGER", "first character in prompt + response text"),
    ("char_end", "INTEGER", "one past its last character"),
)

STATE = _table(
    "state",
    "layer x kind x block of positions",
    "float16 states after rotary embedding, as the cache stores them",
    _LAYER,
    ("kind", "VARCHAR", "q, k or v"),
    ("block", "INTEGER", "index of the block within layer and kind"),
    ("position", "INTEGER", "first position of the block"),
    ("count", "INTEGER", "positions in the block"),
    ("data", "BLOB", "float16, C order (heads, count, head_dim); KV heads for k and v"),
)

ATTENTION = _table(
    "attention",
    "layer x query head x step",
    "whole attention rows of the observation window and of each generated token",
    _LAYER,
    _HEAD,
    _STEP,
    ("position", "INTEGER", "position of the query"),
    ("row", "BLOB", "float16 attention weights of positions 0…position"),
)

ATTENTION_TOP = _table(
    "attention_top",
    "layer x query head x step x rank",
    "the largest entries of each stored row, for SQL",
    _LAYER,
    _HEAD,
    _STEP,
    ("rank", "INTEGER", "1 is the largest"),
    ("position", "INTEGER", "attended position"),
    ("weight", "FLOAT", "attention weight"),
)

STEP_STAT = _table(
    "step_stat",
    "layer x query head x step",
    "the shape of each stored row in a few numbers",
    _LAYER,
    _HEAD,
    _STEP,
    ("entropy", "FLOAT", "entropy of the row, nats"),
    ("effective_tokens", "FLOAT", "exp(entropy): tokens an even row would spread over"),
    ("top1_mass", "FLOAT", "largest weight"),
    ("sink_mass", "FLOAT", "weight on the first positions (capture.sink of them)"),
    ("recent_mass", "FLOAT", "weight on the last positions (capture.recent of them)"),
    ("far_top1_mass", "FLOAT", "largest weight between the first and the last ones; 0 if none is"),
)

KV_STAT = _table(
    "kv_stat",
    "layer x KV head x position",
    "cache entries: norms, and attention received, mean over the group's query heads",
    _LAYER,
    ("head", "INTEGER", "KV head index within the layer"),
    ("position", "INTEGER", "position of the cache entry"),
    ("key_norm", "FLOAT", "Euclidean norm of the key"),
    ("value_norm", "FLOAT", "Euclidean norm of the value"),
    (
        "attention_sum",
        "FLOAT",
        "attention received, summed over the stored rows; NULL: none stored",
    ),
    ("attention_max", "FLOAT", "largest of the stored rows; NULL: none stored"),
    ("attention_last", "FLOAT", "from the last stored row; NULL: none stored"),
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (CAPTURE, TOKEN, STATE, ATTENTION, ATTENTION_TOP, STEP_STAT, KV_STAT)
}

DERIVED = _table(
    "derived",
    "one row",
    "what was computed from a capture, and how",
    ("kind", "VARCHAR", "kind of the computation"),
    ("spec", "JSON", "its parameters"),
    ("capture_id", "VARCHAR", "run it belongs to"),
    ("created_at", "TIMESTAMP", "when it was written, UTC"),
    ("schema_version", "INTEGER", "version of these tables"),
    ("versions", "JSON", "library versions"),
)

ARRAY = _table(
    "array",
    "name",
    "named arrays",
    ("name", "VARCHAR", "name of the array"),
    ("dtype", "VARCHAR", "numpy name of its number format"),
    ("shape", "INTEGER[]", "length of each axis"),
    ("data", "BLOB", "its numbers, C order"),
)

DERIVED_TABLES: dict[str, Table] = {table.name: table for table in (DERIVED, ARRAY)}


def markdown() -> str:
    """The data model as Markdown tables, one per table."""
    parts = []
    for table in TABLES.values():
        rows = "\n".join(
            f"| `{column.name}` | {column.type} | {column.meaning} |" for column in table.columns
        )
        parts.append(
            f"**`{table.name}`** (one row per {table.grain.removeprefix('one row') or 'run'}): "
            f"{table.meaning}.\n\n| column | type | meaning |\n|---|---|---|\n{rows}\n"
        )
    return "\n".join(parts)


_VIEW = np.dtype([("length", "<i4"), ("prefix", "<u4"), ("buffer", "<i4"), ("offset", "<i4")])
INLINE = 12  # bytes of a value that is written into its view
LARGEST = (1 << 31) - 1  # bytes that the views of one part can reach


def view_array(
    parts: Sequence[np.ndarray], lengths: Sequence[np.ndarray], order: np.ndarray
) -> pa.Array:
    """The beginnings of many rows as one binary value each, without copying them.

    parts: (heads, m, n) float16 in C order; lengths: (m,) each, how many numbers of a row count;
    order: (total rows,), which row of all parts stands where.
    """
    views = []
    for number, (rows, counts) in enumerate(zip(parts, lengths, strict=True)):
        heads, count, width = rows.shape
        view = np.zeros((heads, count), _VIEW)
        view["length"] = 2 * counts
        view["buffer"] = number
        view["offset"] = 2 * width * np.arange(heads * count).reshape(heads, count)
        short = rows[:, :, : INLINE // 2]
        first = np.zeros((heads, count, INLINE // 2), np.float16)
        first[:, :, : short.shape[2]] = short
        words = first.view(np.uint32)  # what a short row holds instead of buffer and offset
        view["prefix"] = words[:, :, 0]
        inside = view["length"] <= INLINE
        first[np.arange(INLINE // 2) >= np.broadcast_to(counts[:, None], first.shape)] = 0
        for place, name in ((0, "prefix"), (1, "buffer"), (2, "offset")):
            view[name][inside] = words[:, :, place].view(view[name].dtype)[inside]
        views.append(view.ravel())
    buffers = [pa.py_buffer(np.concatenate(views)[order]), *map(pa.py_buffer, parts)]
    return pa.Array.from_buffers(pa.binary_view(), len(order), [None, *buffers])


def blob_array(values: np.ndarray) -> pa.Array:
    """Each entry of the first axis as one binary value, without copying a C-order array.

    values: (n, …), any number format; the rows' bytes become the blobs.
    """
    values = np.ascontiguousarray(values)
    count = len(values)
    width = values.nbytes // count if count else 0
    offsets = np.arange(count + 1, dtype=np.int64) * width
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values.reshape(-1).view(np.uint8))]
    return pa.Array.from_buffers(pa.large_binary(), count, buffers)
