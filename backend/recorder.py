"""Watches a model's attention and turns it into the rows of a capture, as the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from backend.models import ModelFacts
from backend.sources import ModelError
from backend.stream import Background
from cache_store.writer import CaptureWriter
from kvpolicies.attention import attention_rows

TINY = float(torch.finfo(torch.float32).tiny)
HALF_MAX = float(torch.finfo(torch.float16).max)
ROWS_AT_ONCE = 16  # attention rows computed together: 16 x heads x positions float32
FEWEST_ROWS = 2
HELD_BYTES = 64_000_000  # rows that the model computed and that are still to be handed over
ENDING_ROWS = 8  # as few as this, and the end is near
STATISTIC_ROWS = 40_000  # held back: an insert costs more than ten thousand of them
SINK = 4
RECENT = 32


@dataclass
class _Pending:
    """Decode steps of one layer whose rows are still to be computed."""

    queries: list[torch.Tensor] = field(default_factory=list)  # (H, 1, d) each
    keys: list[torch.Tensor] = field(default_factory=list)  # joined: the newest are the steps'
    values: list[torch.Tensor] = field(default_factory=list)
    rows: torch.Tensor | None = None  # (H, ROWS_AT_ONCE, positions), from the model's own calls
    filled: int = 0


class Recorder:
    """The observer of one run (`kvpolicies.attention.Observer`).

    The model's thread only notes what it saw; everything else (float16, attention rows, their
    statistics, the file) happens in the background thread, which alone touches the writer. States
    of every layer are stored. Attention rows of `stored_layers` come from the unrounded states:
    those of the last `window` prompt tokens with their layer, those of generated tokens for up to
    16 steps at a time; where the model's own call gives the row of a generated token, it is not
    computed again. `begin` comes before each forward, `finish` after the last.
    """

    def __init__(
        self,
        facts: ModelFacts,
        writer: CaptureWriter,
        background: Background,
        *,
        prompt_length: int,
        length: int,
        window: int,
        top_k: int,
        stored_layers: list[int],
        on_layer: Callable[[int], None],
    ) -> None:
        self._facts, self._writer, self._background = facts, writer, background
        self._prompt_length, self._window, self._top_k = prompt_length, window, top_k
        self._length = length  # at most
        self._on_layer = on_layer
        self._pending: dict[int, _Pending] = {}
        self._rooms: list[torch.Tensor] = []  # for rows; what is beyond a row's end is 0
        room_bytes = 4 * facts.query_heads * ROWS_AT_ONCE * length
        self._more_rooms = HELD_BYTES // room_bytes
        self._position = 0  # of the first token of the current forward
        self._seen = 0
        self.clamped = 0  # state values outside float16's range, stored as its largest number
        self._statistics: dict[str, list[dict[str, np.ndarray]]] = {}
        self._noted = 0  # rows of them
        shape = (facts.layers, facts.kv_heads, length)
        self._key_norm = np.zeros(shape, np.float32)
        self._value_norm = np.zeros(shape, np.float32)
        # Attention received (sum, maximum, last) by (KV head, position), per stored layer.
        self._received = {layer: np.zeros((3, *shape[1:]), np.float32) for layer in stored_layers}

    def begin(self, count: int) -> None:
        """A forward over `count` new tokens follows."""
        if self._pending and len(self._pending[0].queries) >= self._rows_at_once():
            self._flush()
        self._position = self._seen
        self._seen += count

    def _rows_at_once(self) -> int:
        """As many as are worth waiting for: towards the end half of what is still to come, so that
        little is left to do when the last token is there."""
        return min(ROWS_AT_ONCE, max(FEWEST_ROWS, self._length - self._seen))

    def __call__(
        self,
        layer: int,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float,
        softcap: float | None,
        sliding_window: int | None,
        plain: bool,
    ) -> torch.Tensor | None:
        self._on_layer(layer)
        if self._position < self._prompt_length:
            self._background.submit(
                self._prefilled, layer, self._position, query[0], key[0], value[0]
            )
            return None
        pending = self._pending.setdefault(layer, _Pending())
        pending.queries.append(query[0])
        if sliding_window is None or not pending.keys:  # the newest keys hold all earlier ones
            pending.keys, pending.values = [key[0]], [value[0]]
        else:  # a sliding layer forgets: the first step's window, then each later key
            pending.keys.append(key[0, :, -1:].clone())
            pending.values.append(value[0, :, -1:].clone())
        if not plain or query.device.type != "cpu" or layer not in self._received:
            return None
        return self._row(pending, key.shape[2])

    def _row(self, pending: _Pending, length: int) -> torch.Tensor | None:
        """Where the newest query's weights go, (H, length); None where there is no room for them.

        A room is used again for later tokens only, whose rows are longer."""
        if len(pending.queries) == 1:
            pending.rows = self._room()
        if pending.rows is None:
            return None
        pending.filled += 1
        return pending.rows[:, len(pending.queries) - 1, :length]

    def _room(self) -> torch.Tensor | None:
        if self._rooms:
            return self._rooms.pop()
        if not self._more_rooms:
            return None
        self._more_rooms -= 1
        return torch.zeros(self._facts.query_heads, ROWS_AT_ONCE, self._length)

    def finish(self) -> None:
        """The last forward is done: hand over what is left and the cache entries' statistics."""
        if self._pending:
            self._flush()
        self._background.submit(self._write_statistics)
        self._background.submit(self._write_kv_statistics, self._seen)

    def _flush(self) -> None:
        steps = len(self._pending[0].queries)
        self._background.submit(self._decoded, self._seen - steps, self._pending)
        self._pending = {}
        if ENDING_ROWS <= steps < ROWS_AT_ONCE:
            self._background.submit(self._write_statistics)
            self._background.submit(self._writer.end_is_near)

    def _prefilled(
        self,
        layer: int,
        first: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        """One layer of a prefill forward; queries (H, m, d) at `first` onwards, the last m keys
        (G, k, d) are theirs."""
        count = queries.shape[1]
        self._store_states(layer, first, queries, keys[:, -count:], values[:, -count:])
        skip = max(0, self._prompt_length - self._window - first)
        if skip < count:
            self._rows(layer, first + skip, queries[:, skip:], keys)

    def _decoded(self, first: int, layers: dict[int, _Pending]) -> None:
        """Some decode steps of all layers, the first at position `first`."""
        for layer, pending in sorted(layers.items()):
            queries = torch.cat(pending.queries, dim=1)
            keys = torch.cat(pending.keys, dim=1) if len(pending.keys) > 1 else pending.keys[0]
            values = torch.cat(pending.values, 1) if len(pending.values) > 1 else pending.values[0]
            steps = queries.shape[1]
            self._store_states(layer, first, queries, keys[:, -steps:], values[:, -steps:])
            if pending.rows is not None and pending.filled == steps:
                self._hand_over(layer, first, pending.rows[:, :steps, : first + steps])
            else:
                self._rows(layer, first, queries, keys)
            if pending.rows is not None:
                self._rooms.append(pending.rows)
        if self._noted >= STATISTIC_ROWS:
            self._write_statistics()

    def _write_kv_statistics(self, length: int) -> None:
        facts = self._facts
        shape = (facts.layers, facts.kv_heads, length)
        names = ("layer", "head", "position")
        columns: dict[str, Any] = {
            name: np.broadcast_to(place.astype(np.int32), shape).ravel()
            for name, place in zip(names, np.ogrid[tuple(map(slice, shape))], strict=True)
        }
        columns["key_norm"] = self._key_norm[:, :, :length].ravel()
        columns["value_norm"] = self._value_norm[:, :, :length].ravel()
        stored = np.repeat(
            [layer in self._received for layer in range(facts.layers)], facts.kv_heads * length
        )
        nothing = np.zeros((3, *shape[1:]), np.float32)
        for index, name in enumerate(("attention_sum", "attention_max", "attention_last")):
            received = [
                self._received.get(layer, nothing)[index, :, :length]
                for layer in range(facts.layers)
            ]
            columns[name] = pa.array(np.concatenate(received).ravel(), mask=~stored)
        self._writer.add("kv_stat", columns)

    def _store_states(
        self,
        layer: int,
        first: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        """(heads, n, d) each, positions `first` onwards, as float16."""
        for kind, states in (("q", queries), ("k", keys), ("v", values)):
            self._writer.add_states(layer, kind, first, self._half(layer, states))
        places = slice(first, first + keys.shape[1])
        self._key_norm[layer, :, places] = _norms(keys)
        self._value_norm[layer, :, places] = _norms(values)

    def _half(self, layer: int, states: torch.Tensor) -> np.ndarray:
        low, high = float(states.amin()), float(states.amax())  # aminmax is slow when strided
        if not (low >= -HALF_MAX and high <= HALF_MAX):
            if not (np.isfinite(low) and np.isfinite(high)):
                raise ModelError(
                    f"The model produced states that are not finite numbers in layer {layer}: run "
                    "it in another number format (dtype float32 or bfloat16)."
                )
            self.clamped += int((states.abs() > HALF_MAX).sum())
            states = states.clamp(-HALF_MAX, HALF_MAX)
        half = torch.empty(states.shape, dtype=torch.float16)
        return half.copy_(states).numpy()

    def _rows(self, layer: int, first: int, queries: torch.Tensor, keys: torch.Tensor) -> None:
        """Attention rows of queries (H, m, d) at `first` onwards; the last of the keys (G, k, d)
        belongs to the last query."""
        if layer not in self._received:
            return
        facts, count = self._facts, queries.shape[1]
        offset = first + count - keys.shape[1]  # positions that a sliding layer has forgotten
        for start in range(0, count, ROWS_AT_ONCE):
            stop = min(count, start + ROWS_AT_ONCE)
            end = first + stop
            rows = attention_rows(
                queries[:, start:stop],
                keys[:, : end - offset],
                torch.arange(first + start - offset, end - offset),
                scaling=facts.scaling[layer],
                softcap=facts.softcap,
                sliding_window=facts.sliding_window[layer],
            )
            if offset:
                rows = torch.nn.functional.pad(rows, (offset, 0))
            self._hand_over(layer, first + start, rows)

    def _hand_over(self, layer: int, first: int, rows: torch.Tensor) -> None:
        """Stored rows and all statistics of float32 rows (H, m, n), positions `first` onwards."""
        heads, count, length = rows.shape
        step = first - self._prompt_length + 1
        steps = np.arange(step, step + count, dtype=np.int32)
        self._writer.add_attention(layer, steps, rows.half().cpu().numpy())
        top = rows.topk(min(self._top_k, length), dim=-1)
        weights, positions = top.values.cpu().numpy(), top.indices.cpu().numpy()
        # Twice as fast as torch.special.entr; 0 log 0 is 0 here too.
        entropy = -rows.clamp_min(TINY).log_().mul_(rows).sum(-1)
        numbers = {
            "entropy": entropy,
            "effective_tokens": entropy.exp(),
            "top1_mass": top.values[..., 0],
            "sink_mass": rows[..., :SINK].sum(-1),
            "recent_mass": _recent_mass(rows),
            "far_top1_mass": _far_top1_mass(rows),
        }
        grid = _grid(heads, count, 1, layer=layer, step=step)
        self._note(
            "step_stat",
            {name: grid[name].ravel() for name in ("layer", "head", "step")}
            | {name: number.cpu().numpy().ravel() for name, number in numbers.items()},
        )
        grid = _grid(heads, count, weights.shape[2], layer=layer, step=step)
        seen = weights > 0  # short and sliding rows have fewer entries than ranks
        self._note(
            "attention_top",
            {name: values[seen] for name, values in grid.items()}
            | {"position": positions[seen].astype(np.int32), "weight": weights[seen]},
        )
        groups = rows.reshape(self._facts.kv_heads, -1, count, length).mean(1)  # (G, m, n)
        received = self._received[layer][:, :, :length]
        received[0] += groups.sum(1).cpu().numpy()
        np.maximum(received[1], groups.amax(1).cpu().numpy(), out=received[1])
        received[2] = groups[:, -1].cpu().numpy()

    def _note(self, table: str, columns: dict[str, np.ndarray]) -> None:
        self._statistics.setdefault(table, []).append(columns)
        self._noted += len(columns["step"])

    def _write_statistics(self) -> None:
        """One batch per table: many small ones would cost more than they hold."""
        for table, parts in self._statistics.items():
            self._writer.add(
                table, {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            )
        self._statistics.clear()
        self._noted = 0


def _grid(heads: int, steps: int, ranks: int, *, layer: int, step: int) -> dict[str, Any]:
    """Key columns of (heads, steps, ranks) cells, as views that take no memory of their own."""
    shape = (heads, steps, ranks)
    head, number, rank = np.ogrid[:heads, step : step + steps, 1 : ranks + 1]
    columns = {"layer": np.int32(layer), "head": head, "step": number, "rank": rank}
    return {
        name: np.broadcast_to(np.asarray(values, np.int32), shape)
        for name, values in columns.items()
    }


def _norms(states: torch.Tensor) -> np.ndarray:
    """Euclidean norms, float32; (heads, n, d) -> (heads, n)."""
    return torch.linalg.vector_norm(states, dim=-1, dtype=torch.float32).cpu().numpy()


def _recent_mass(rows: torch.Tensor) -> torch.Tensor:
    """Weight on the last `RECENT` visible positions; the last row sees them all.

    rows: (H, m, n), row j belongs to position n - m + j. Returns (H, m).
    """
    count, length = rows.shape[1:]
    width = min(length, RECENT + count - 1)
    tail = rows[..., length - width :]
    columns = torch.arange(width, device=rows.device)
    newest = torch.arange(width - count, width, device=rows.device)[:, None]  # (m, 1)
    return torch.where(columns > newest - RECENT, tail, 0.0).sum(-1)


def _far_top1_mass(rows: torch.Tensor) -> torch.Tensor:
    """Largest weight outside the first `SINK` and the last `RECENT` visible positions; 0 if none.

    rows: (H, m, n), row j belongs to position n - m + j. Returns (H, m).
    """
    count, length = rows.shape[1:]
    middle = max(SINK, length - count - RECENT + 1)  # far from every row before, from some after
    end = max(middle, length - RECENT)
    columns = torch.arange(middle, end, device=rows.device)
    newest = torch.arange(length - count, length, device=rows.device)[:, None]  # (m, 1)
    some = torch.where(columns <= newest - RECENT, rows[..., middle:end], 0.0)
    best = rows.new_zeros(rows.shape[:2])
    for part in (rows[..., SINK:middle], some):
        if part.shape[-1]:
            best = torch.maximum(best, part.amax(-1))
    return best
