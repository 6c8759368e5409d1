"""Reading captures and derived files: small, read-only, safe to use from several threads."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from cache_store.attached import AttachedFile
from cache_store.derived import Derived, heading
from cache_store.derived_writer import derived_path
from cache_store.errors import StoreError
from cache_store.files import DERIVED_FOLDER
from cache_store.schema import REQUIRED, STATE_KINDS, STEP_STAT
from cache_store.storage import DATABASE, check_tables
from cache_store.tracing import trace_of

if TYPE_CHECKING:
    from kvpolicies.trace import Trace

__all__ = ["STEP_MEASURES", "Capture", "CaptureInfo", "Derived"]

STEP_MEASURES = tuple(column.name for column in STEP_STAT.columns[3:])


@dataclass(frozen=True)
class CaptureInfo:
    """The capture row (see `schema.CAPTURE` for units and meanings)."""

    id: str
    title: str | None
    created_at: datetime | None
    model_id: str | None
    model_revision: str | None
    architecture: str | None
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    dtype: str | None
    device: str | None
    scaling: tuple[float, ...]
    softcap: float | None
    sliding_window: tuple[int | None, ...]
    prompt_length: int
    context_length: int
    response_length: int
    stored_layers: tuple[int, ...]
    window: int
    top_k: int
    sink: int
    recent: int
    settings: dict[str, Any]
    seed: int | None
    schema_version: int
    versions: dict[str, str]
    started_at: datetime | None
    finished_at: datetime | None
    peak_memory_bytes: int | None
    timings: dict[str, float]
    finish_reason: str | None
    complete: bool

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.query_heads // self.kv_heads

    @property
    def length(self) -> int:
        """Prompt and response tokens."""
        return self.prompt_length + self.response_length


class Capture(AttachedFile):
    """One run, read-only.

        capture = Capture.open("runs/20260131-235959-0a1b2c/capture.duckdb")
        keys = capture.states(layer=3, kind="k")                    # (kv_heads, n, head_dim)
        steps, rows = capture.attention_rows(layer=3, head=5)       # (m,), (m, n)

    Every method may be called from any thread. Raises StoreError, one sentence, for a file that is
    missing, damaged, incomplete, newer than this program, or no capture.
    """

    info: CaptureInfo

    @classmethod
    def open(cls, path: Path | str, *, memory_limit: str = "512MB", threads: int = 1) -> "Capture":
        capture = cls(Path(path), memory_limit=memory_limit, threads=threads)
        try:
            check_tables(capture.connection, capture.path, DATABASE, "capture")
            capture.info = capture._read_info()
        except BaseException:
            capture.close()
            raise
        return capture

    @property
    def id(self) -> str:
        return self.info.id

    def tokens(self) -> pd.DataFrame:
        """Position, token_id, text, segment, char_start, char_end of every token, in order."""
        return self._tokens.copy(deep=False)

    @cached_property
    def _tokens(self) -> pd.DataFrame:
        """Read once: nearly every figure names positions by their text."""
        return self.query(f"FROM {DATABASE}.token ORDER BY position").to_pandas()

    def prompt_text(self) -> str:
        """The prompt, exactly as the model read it."""
        return self._text("<")

    def response_text(self) -> str:
        """What the model generated."""
        return self._text(">=")

    def states(
        self,
        layer: int,
        kind: str,
        start: int = 0,
        stop: int | None = None,
        head: int | None = None,
    ) -> np.ndarray:
        """States after rotary embedding of positions [start, stop).

        kind: q, k or v. Returns float16 (heads, n, head_dim), read-only where it could be taken
        without a copy, or (n, head_dim) with `head`.
        """
        self._check_layer(layer)
        if kind not in STATE_KINDS:
            raise StoreError(f"There are states of kind q, k and v, not {kind!r}.")
        heads = self.info.query_heads if kind == "q" else self.info.kv_heads
        if head is not None:
            self._check_head(head, heads)
        start, stop, _ = slice(start, stop).indices(self.info.length)
        stop = max(start, stop)
        table = self.query(
            f"SELECT position, count, data FROM {DATABASE}.state WHERE layer = ? AND kind = ? "
            "AND position < ? AND position + count > ? ORDER BY position",
            [layer, kind, stop, start],
        )
        dim = self.info.head_dim
        chosen = slice(None) if head is None else slice(head, head + 1)
        states = np.empty((heads if head is None else 1, stop - start, dim), np.float16)
        reached = start
        counts = table.column("count").to_numpy()
        for first, count, blob in zip(
            table.column("position").to_numpy(), counts, _blobs(table.column("data")), strict=True
        ):
            if first > reached or len(blob) != heads * count * dim:
                break
            block = blob.reshape(heads, count, dim)[chosen]
            end = min(int(first + count), stop)
            states[:, reached - start : end - start] = block[:, reached - first : end - first]
            reached = end
        if reached < stop:
            raise StoreError(
                f"{self.path.name} of run {self.id} lacks states of layer {layer} from position "
                f"{reached} on; the file is damaged, capture the prompt again."
            )
        return states if head is None else states[0]

    def attention_rows(
        self, layer: int, head: int | None, steps: tuple[int, int] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The stored attention rows of one query head (or of all, with None).

        steps: first and last step, both included. Returns the steps int32 (m,) and the rows
        float16 (m, n), or (query_heads, m, n); n is prompt + response, invisible positions are 0.
        m is 0 for a layer whose rows are not stored.
        """
        self._check_layer(layer)
        first, last = steps or (-self.info.prompt_length, self.info.length)
        condition = "layer = ? AND step BETWEEN ? AND ?"
        parameters: list[Any] = [layer, first, last]
        if head is not None:
            self._check_head(head, self.info.query_heads)
            condition += " AND head = ?"
            parameters.append(head)
        table = self.query(
            f"SELECT step, position, row FROM {DATABASE}.attention WHERE {condition} "
            "ORDER BY head, step",
            parameters,
        )
        length = self.info.length
        rows = np.zeros((len(table), length), np.float16)
        positions = table.column("position").to_numpy()
        for row, position, blob in zip(rows, positions, _blobs(table.column("row")), strict=True):
            if len(blob) != position + 1 or position >= length:
                raise self._damaged(f"an attention row of layer {layer} has {len(blob)} entries")
            row[: position + 1] = blob
        found = table.column("step").to_numpy()
        if head is not None:
            return found, rows
        heads = self.info.query_heads
        if len(found) % heads:
            raise self._damaged(f"attention rows of layer {layer} are missing")
        count = len(found) // heads
        return found[:count], rows.reshape(heads, count, length)

    def attention_top(self, layer: int, head: int, step: int | None = None) -> pd.DataFrame:
        """Step, rank, position, weight of the largest entries of one head's stored rows."""
        self._check_layer(layer)
        self._check_head(head, self.info.query_heads)
        return self.query(
            f"SELECT step, rank, position, weight FROM {DATABASE}.attention_top "
            "WHERE layer = ? AND head = ? AND (?::INTEGER IS NULL OR step = ?) "
            "ORDER BY step, rank",
            [layer, head, step, step],
        ).to_pandas()

    def step_stats(self, layer: int | None = None, head: int | None = None) -> pd.DataFrame:
        """Table `step_stat`, of one layer or query head where given, in order."""
        return self._statistics("step_stat", "step", layer, head)

    def kv_stats(self, layer: int, head: int | None = None) -> pd.DataFrame:
        """Table `kv_stat` of a layer, of one KV head where given, in order."""
        return self._statistics("kv_stat", "position", layer, head)

    def step_stat_grid(self, measure: str, step: int | None = None) -> np.ndarray:
        """One measure of `step_stat` as float32 (layers, query_heads), NaN where not stored.

        At one step, or the mean over the generated steps.
        """
        if measure not in STEP_MEASURES:
            raise StoreError(f"There is no measure {measure!r}; choose {', '.join(STEP_MEASURES)}.")
        condition = "step >= 1" if step is None else "step = ?"
        table = self.query(
            f"SELECT layer, head, avg({measure})::FLOAT AS value FROM {DATABASE}.step_stat "
            f"WHERE {condition} GROUP BY layer, head",
            [] if step is None else [step],
        )
        grid = np.full((self.info.layers, self.info.query_heads), np.nan, np.float32)
        layers, heads = table.column("layer").to_numpy(), table.column("head").to_numpy()
        grid[layers, heads] = table.column("value").to_numpy()
        return grid

    def trace(
        self,
        *,
        lookahead: Mapping[str, Any] | None = None,
        second_reading: bool = False,
        layers: Sequence[int] | None = None,
        dtype: Any = np.float32,
    ) -> "Trace":
        """What policies are replayed over: `kvpolicies.Trace`, its states as CPU tensors of dtype.

        lookahead: the specification of a derived `lookahead` to take along; second_reading: take
        the context's second copy along. layers: only these, numbered from 0 in the trace.
        `prompt_attention`, `rotary` and `output_norms` come along where they are known: rotary
        from the capture itself, the others from the derived `prompt_attention` and `model_facts`.
        Raises StoreError when a pass that was asked for was not recorded.
        """
        return trace_of(self, lookahead, second_reading, layers, dtype)

    def derived(self, kind: str, spec: dict[str, Any]) -> "Derived | None":
        """What was computed from this capture with these parameters, or None."""
        path = derived_path(self.path.parent, kind, spec)
        return Derived.open(path, capture_id=self.id) if path.exists() else None

    def derived_list(self) -> pd.DataFrame:
        """Kind, spec, created_at, file_bytes, path of every derived file, oldest first.

        Files that cannot be read or belong to another run are left out.
        """
        rows = []
        for path in sorted((self.path.parent / DERIVED_FOLDER).glob("*.duckdb")):
            with contextlib.suppress(StoreError):
                one = heading(path)
                if one.capture_id == self.id:
                    spec = dict(one.spec)
                    rows.append((one.kind, spec, one.created_at, one.file_bytes, path))
        frame = pd.DataFrame(rows, columns=["kind", "spec", "created_at", "file_bytes", "path"])
        return frame.sort_values("created_at", ignore_index=True)

    def _read_info(self) -> CaptureInfo:
        rows = self.query(f"FROM {DATABASE}.capture").to_pylist()
        if len(rows) != 1 or not rows[0]["complete"]:
            raise StoreError(
                f"{self.path} is incomplete: the run that wrote it did not finish; run it again."
            )
        values = rows[0]
        if any(values[name] is None for name in REQUIRED):
            raise StoreError(f"{self.path} is damaged: it does not say how large its model is.")
        for name in ("settings", "versions", "timings"):
            try:
                values[name] = dict(json.loads(values[name] or "{}"))
            except (ValueError, TypeError, RecursionError) as error:
                raise StoreError(f"{self.path} is damaged: its {name} are no JSON.") from error
        for name in ("scaling", "sliding_window", "stored_layers"):
            values[name] = tuple(values[name] or ())
        return CaptureInfo(**{field.name: values[field.name] for field in fields(CaptureInfo)})

    def _text(self, comparison: str) -> str:
        table = self.query(
            f"SELECT text FROM {DATABASE}.token WHERE position {comparison} ? ORDER BY position",
            [self.info.prompt_length],
        )
        return "".join(table.column("text").to_pylist())

    def _statistics(
        self, table: str, order: str, layer: int | None, head: int | None
    ) -> pd.DataFrame:
        conditions, parameters = ["true"], []
        for name, value in (("layer", layer), ("head", head)):
            if value is not None:
                conditions.append(f"{name} = ?")
                parameters.append(value)
        where = " AND ".join(conditions)
        return self.query(
            f"FROM {DATABASE}.{table} WHERE {where} ORDER BY layer, head, {order}", parameters
        ).to_pandas()

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < self.info.layers:
            raise StoreError(
                f"There is no layer {layer}; this run has 0 to {self.info.layers - 1}."
            )

    def _check_head(self, head: int, heads: int) -> None:
        if not 0 <= head < heads:
            raise StoreError(f"There is no head {head}; this run has 0 to {heads - 1}.")

    def _damaged(self, what: str) -> StoreError:
        return StoreError(f"{self.path} is damaged: {what}; capture the prompt again.")


def _blobs(column: pa.ChunkedArray) -> list[np.ndarray]:
    """Each binary value as a float16 view of Arrow's own buffer, without copying."""
    views: list[np.ndarray] = []
    for chunk in column.chunks:
        if chunk.null_count or len(chunk) == 0:
            continue
        _, offset_buffer, data = chunk.buffers()
        wide = pa.types.is_large_binary(chunk.type)
        offsets = np.frombuffer(offset_buffer, np.int64 if wide else np.int32)
        offsets = offsets[chunk.offset : chunk.offset + len(chunk) + 1]
        content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            views.append(content[begin : end - (end - begin) % 2].view(np.float16))
    return views
