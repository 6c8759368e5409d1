"""Writing captures and derived files: streamed under a partial name, renamed when complete."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cache_store.derived_writer import DerivedWriter, derived_key, derived_path
from cache_store.errors import StoreError
from cache_store.file_writer import FileWriter, one_row, versions
from cache_store.files import (
    CAPTURE_FILE,
    PARTIAL,
    Closing,
    check_run_id,
    sweep_partials,
)
from cache_store.schema import (
    LARGEST,
    REQUIRED,
    SCHEMA_VERSION,
    STATE_KINDS,
    TABLES,
    blob_array,
    view_array,
)

__all__ = ["CaptureWriter", "DerivedWriter", "derived_key", "derived_path", "sweep_partials"]

# Of one state blob. DuckDB holds a row group of 2,048 of them in memory until it is full.
_BLOCK_BYTES = 8 * 1024
_FLUSH_BYTES = 16 * 1024 * 1024  # of attention rows held back
_STATE_BYTES = 4 * 1024 * 1024  # of states held back: an insert costs as much as half a megabyte


class CaptureWriter(Closing):
    """Writes one capture while the model runs; nothing is visible before `finish`.

        with CaptureWriter(home / run_id, run_id) as writer:
            writer.add_states(0, "k", 0, keys)                 # (kv_heads, n, head_dim) float16
            writer.add_attention(0, step, rows)                # (query_heads, n) float16
            writer.add("token", {"position": …, "token_id": …, …})
            writer.finish({"model_id": …, …})

    Leaving the block without `finish` removes everything. Small pieces (one decoding step at a
    time) are gathered into blocks and batches here. Not thread-safe: one thread writes.
    """

    def __init__(
        self, folder: Path, run_id: str, *, memory_limit: str = "512MB", threads: int = 1
    ) -> None:
        self.run_id = check_run_id(run_id)
        path = Path(folder) / CAPTURE_FILE
        if path.exists():
            raise StoreError(f"Run {run_id} exists already; a new run needs a new id.")
        partial = path.with_name(path.name + PARTIAL)
        self._file = FileWriter(path, partial, TABLES, memory_limit=memory_limit, threads=threads)
        self._states: dict[tuple[int, str], _Pending] = {}
        self._blocks: list[_Blocks] = []  # of states, complete, not yet inserted
        self._block_bytes = 0
        self._attention: list[_Rows] = []  # held back
        self._attention_bytes = 0
        self._created_at = datetime.now(UTC).replace(tzinfo=None)

    @property
    def raw_bytes(self) -> int:
        """Bytes of the values handed over so far, before storage."""
        return self._file.raw_bytes

    def check(self) -> None:
        """Raises StoreError where the file cannot be written, as far as that is known by now."""
        self._file.check()

    def add(self, table: str, columns: Mapping[str, Any]) -> None:
        """Append rows to `token`, `attention_top`, `step_stat` or `kv_stat` as one Arrow batch.

        columns: every column of the table as numpy array, Arrow array or list (None is NULL).
        """
        if table == "capture":
            raise StoreError("The capture row is written by finish().")
        self._file.insert(table, self._file.batch(table, columns))

    def add_states(self, layer: int, kind: str, position: int, states: np.ndarray) -> None:
        """Append the states (heads, n, head_dim) float16 of positions position…position+n-1.

        Positions of one layer and kind come in order, without gaps, in pieces of any length.
        """
        states = np.asarray(states)
        if kind not in STATE_KINDS or states.ndim != 3:
            raise StoreError(f"States are (heads, n, head_dim) of kind q, k or v, not {kind!r}.")
        pending = self._states.setdefault((layer, kind), _Pending())
        if position != pending.end:
            raise StoreError(
                f"States of layer {layer}, {kind} continue at position {pending.end}, "
                f"not {position}."
            )
        pending.add(np.asarray(states, dtype=np.float16))
        size = max(1, _BLOCK_BYTES // max(1, states.shape[0] * states.shape[2] * 2))
        self._hold_states(layer, kind, pending.take(size, partly=False))
        if self._block_bytes >= _STATE_BYTES:
            self._write_states()

    def add_attention(
        self, layer: int, step: int | Sequence[int] | np.ndarray, rows: np.ndarray
    ) -> None:
        """Append attention rows of every query head.

        One step: rows (query_heads, n), the query sits at position n - 1.
        Steps (m,), consecutive: rows (query_heads, m, n), zero where a row is shorter than n;
        the last query sits at position n - 1, the others right before it. These are held back as
        they are, if float16: do not change them afterwards.
        """
        steps = np.atleast_1d(np.asarray(step, dtype=np.int32))
        if rows.ndim == 2:
            rows = rows.astype(np.float16)[:, None, :]  # (heads, 1, n), a copy
        rows = np.ascontiguousarray(rows, dtype=np.float16)
        _, count, length = rows.shape
        if count != len(steps) or np.any(np.diff(steps) != 1) or length < count:
            raise StoreError(
                f"Attention rows {rows.shape} do not fit the consecutive steps {steps.tolist()}."
            )
        if rows.nbytes > LARGEST:
            raise StoreError(
                f"Attention rows {rows.shape} are {rows.nbytes:,} bytes; hand over at most "
                f"{LARGEST:,} at once."
            )
        positions = length - count + np.arange(count, dtype=np.int32)
        self._attention.append(_Rows(layer, steps, positions, rows))
        self._attention_bytes += rows.nbytes
        if self._attention_bytes >= _FLUSH_BYTES:
            self._write_attention()

    def end_is_near(self) -> None:
        """Write what is held back so far, so that less is left to `finish`."""
        self._write_held()
        self._file.end_is_near()

    def finish(self, capture: Mapping[str, Any]) -> Path:
        """Write the capture row, make the file visible and return its path.

        capture: the columns of table `capture`; missing ones are NULL, JSON columns are dicts;
        id, created_at, finished_at, schema_version, versions and complete have defaults.
        """
        for (layer, kind), pending in self._states.items():
            self._hold_states(layer, kind, pending.take(1 << 30, partly=True))
        self._write_held()
        now = datetime.now(UTC).replace(tzinfo=None)
        row: dict[str, Any] = {column.name: None for column in TABLES["capture"].columns}
        row |= {"created_at": self._created_at, "finished_at": now, "versions": versions()}
        row |= capture
        missing = [name for name in REQUIRED if row[name] is None]
        if missing:
            raise StoreError(f"The capture row lacks {', '.join(missing)}.")
        row |= {"id": self.run_id, "schema_version": SCHEMA_VERSION, "complete": True}
        self._file.insert("capture", self._file.batch("capture", one_row("capture", row)))
        try:
            self._file.publish()
        except FileExistsError as error:
            raise StoreError(f"Run {self.run_id} exists already and never changes.") from error
        return self._file.path

    def close(self) -> None:
        """Give up: remove the partial file. Does nothing after `finish`."""
        self._file.discard()

    def _write_held(self) -> None:
        self._write_states()
        self._write_attention()

    def _hold_states(
        self, layer: int, kind: str, blocks: list[tuple[int, int, np.ndarray]]
    ) -> None:
        for first, block, states in blocks:
            self._blocks.append(_Blocks(layer, kind, first, block, states))
            self._block_bytes += states.nbytes

    def _write_states(self) -> None:
        held, self._blocks, self._block_bytes = self._blocks, [], 0
        if not held:
            return
        each = [len(blocks.states) for blocks in held]
        order = np.concatenate([np.arange(number, dtype=np.int32) for number in each])

        def column(name: str) -> np.ndarray:
            values = [getattr(blocks, name) for blocks in held]
            return np.repeat(np.array(values, np.int32), each)

        count = column("count")
        batch = {
            "layer": column("layer"),
            "kind": np.repeat([blocks.kind for blocks in held], each),
            "block": column("block") + order,
            "position": column("first") + order * count,
            "count": count,
            "data": pa.chunked_array([blob_array(blocks.states) for blocks in held]),
        }
        self._file.insert("state", self._file.batch("state", batch))

    def _write_attention(self) -> None:
        """Write the rows held back, ordered by layer, head and step so that zone maps work."""
        held, self._attention, self._attention_bytes = self._attention, [], 0
        if not held:
            return
        each = [own.rows.shape[0] * own.rows.shape[1] for own in held]  # heads x steps
        columns = {
            "layer": np.repeat([own.layer for own in held], each),
            "head": np.concatenate(
                [np.arange(len(own.rows)).repeat(len(own.steps)) for own in held]
            ),
            "step": np.concatenate([np.tile(own.steps, len(own.rows)) for own in held]),
            "position": np.concatenate([np.tile(own.positions, len(own.rows)) for own in held]),
        }
        sorting = np.lexsort((columns["step"], columns["head"], columns["layer"]))
        batch = {name: values[sorting].astype(np.int32) for name, values in columns.items()}
        lengths = [own.positions + 1 for own in held]
        rows = view_array([own.rows for own in held], lengths, sorting)
        self._file.insert("attention", self._file.batch("attention", batch | {"row": rows}))


@dataclass(frozen=True)
class _Rows:
    """Attention rows (heads, m, n) float16 of consecutive steps and their positions, (m,) each."""

    layer: int
    steps: np.ndarray
    positions: np.ndarray
    rows: np.ndarray


@dataclass(frozen=True)
class _Blocks:
    """Blocks of states (blocks, heads, count, head_dim), the first of them with number `block`."""

    layer: int
    kind: str
    first: int
    block: int
    states: np.ndarray

    @property
    def count(self) -> int:
        return int(self.states.shape[2])


class _Pending:
    """States of one layer and kind that do not fill a block yet."""

    def __init__(self) -> None:
        self.end = 0  # next position
        self._first = 0
        self._block = 0
        self._pieces: list[np.ndarray] = []

    def add(self, states: np.ndarray) -> None:
        self._pieces.append(states)
        self.end += states.shape[1]

    def take(self, size: int, *, partly: bool) -> list[tuple[int, int, np.ndarray]]:
        """Whole blocks of `size` positions, and the rest too when `partly`.

        Returns (first position, first block index, states (blocks, heads, count, head_dim)).
        """
        ready = self.end - self._first
        if ready == 0:
            return []
        if ready < size and not partly:
            # The piece may be a view of a buffer that the model overwrites at its next step.
            self._pieces[-1] = self._pieces[-1].copy()
            return []
        pieces = self._pieces
        states = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)
        heads, _, dim = states.shape
        whole = ready // size
        taken = []
        if whole:
            blocks = states[:, : whole * size].reshape(heads, whole, size, dim).swapaxes(0, 1)
            taken.append((self._first, self._block, blocks))
        rest = states[:, whole * size :]
        if partly and rest.shape[1]:
            taken.append((self._first + whole * size, self._block + whole, rest[None]))
            rest = rest[:, :0]
        self._first = self.end - rest.shape[1]
        self._block += whole
        self._pieces = [rest.copy()] if rest.shape[1] else []
        return taken
