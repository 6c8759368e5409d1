"""Small captures from random states, with a deliberately naive reference for their attention.

Nothing of the product is used but the writer: rows, statistics and pooling are plain loops, so that
tests of `analysis` and `pages` compare against numbers worked out independently.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cache_store.writer import CaptureWriter

PIECES = (
    "The", " river", " is", " 40", "71", ".", "\n", " <b>", "</b>", " &amp;", "", "é", "\t",
    "<script>alert(1)</script>", "", "", "", "🙂", " $x$", " %{z}", " quiet", ",", " «", "»",
)  # fmt: skip
RUN_ID = "20261120-101112-abcdef"


@dataclass(frozen=True)
class Synthetic:
    """What a synthetic capture is made of, and the reference numbers that must come out of it."""

    layers: int = 2
    query_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    prompt_length: int = 40
    response_length: int = 12
    window: int = 32
    sink: int = 4
    recent: int = 8
    top_k: int = 4
    softcap: float | None = None
    sliding_window: tuple[int | None, ...] | None = None
    stored_layers: tuple[int, ...] | None = None
    seed: int = 0
    title: str = "synthetic"
    run_id: str = RUN_ID
    timings: dict[str, float] = field(default_factory=dict)
    states: dict[str, np.ndarray] = field(default_factory=dict)
    _rows: dict[tuple[int, int, int], np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draw = np.random.default_rng(self.seed)
        for kind, heads in (("q", self.query_heads), ("k", self.kv_heads), ("v", self.kv_heads)):
            shape = (self.layers, heads, self.length, self.head_dim)
            self.states[kind] = (1.5 * draw.standard_normal(shape)).astype(np.float16)

    @property
    def length(self) -> int:
        return self.prompt_length + self.response_length

    @property
    def stored(self) -> list[int]:
        return list(range(self.layers) if self.stored_layers is None else self.stored_layers)

    @property
    def pieces(self) -> list[str]:
        return [PIECES[position % len(PIECES)] for position in range(self.length)]

    @property
    def segments(self) -> list[str]:
        context = self.prompt_length - min(8, self.prompt_length // 2)
        question = self.prompt_length - context
        return ["context"] * context + ["question"] * question + ["response"] * self.response_length

    @property
    def steps(self) -> range:
        """Steps whose rows are stored."""
        return range(1 - min(self.window, self.prompt_length), self.response_length + 1)

    def position(self, step: int) -> int:
        return self.prompt_length + step - 1

    def row(self, layer: int, head: int, position: int) -> np.ndarray:
        """Attention of one query, one key at a time: float64 (length,), worked out once."""
        key = (layer, head, position)
        if key not in self._rows:
            self._rows[key] = self._row(layer, head, position)
        return self._rows[key].copy()

    def _row(self, layer: int, head: int, position: int) -> np.ndarray:
        kv_head = head // (self.query_heads // self.kv_heads)
        query = self.states["q"][layer, head, position].astype(np.float64)
        keys = self.states["k"][layer, kv_head].astype(np.float64)
        window = None if self.sliding_window is None else self.sliding_window[layer]
        exponentials = np.zeros(self.length)
        for key in range(position + 1):
            if window is not None and position - key >= window:
                continue
            logit = float(query @ keys[key]) / math.sqrt(self.head_dim)
            if self.softcap is not None:
                logit = self.softcap * math.tanh(logit / self.softcap)
            exponentials[key] = math.exp(logit)
        return exponentials / exponentials.sum()

    def matrix(self, layer: int, head: int) -> np.ndarray:
        """Every row: float64 (length, length), 0 in the future."""
        return np.stack([self.row(layer, head, position) for position in range(self.length)])

    def measures(self, layer: int, head: int, step: int) -> dict[str, float]:
        """The step statistics of one row, term by term."""
        position = self.position(step)
        row = self.row(layer, head, position)
        entropy = -sum(p * math.log(p) for p in row if p > 0)
        return {
            "entropy": entropy,
            "effective_tokens": math.exp(entropy),
            "top1_mass": max(row),
            "sink_mass": sum(row[: self.sink]),
            "recent_mass": sum(row[max(0, position - self.recent + 1) : position + 1]),
            "far_top1_mass": max(
                row[self.sink : max(self.sink, position - self.recent + 1)], default=0
            ),
        }

    def first_look(self) -> tuple[int, int]:
        """Layer and head with the highest mean far top-1 mass over the generated steps."""
        totals = {
            (layer, head): sum(
                self.measures(layer, head, step)["far_top1_mass"]
                for step in range(1, self.response_length + 1)
            )
            for layer in range(self.layers)
            for head in range(self.query_heads)
        }
        return max(totals, key=lambda place: totals[place])

    def received(self, layer: int, kv_head: int) -> np.ndarray:
        """Stored rows, mean over the KV head's query heads: float64 (stored steps, length)."""
        group = self.query_heads // self.kv_heads
        heads = range(kv_head * group, (kv_head + 1) * group)
        return np.stack(
            [
                np.mean([self.row(layer, head, self.position(step)) for head in heads], axis=0)
                for step in self.steps
            ]
        )

    def write(self, home: Path) -> Path:
        """Write the capture under `home` and return its path."""
        with CaptureWriter(home / self.run_id, self.run_id) as writer:
            self._write_tokens(writer)
            for layer in range(self.layers):
                for kind, states in self.states.items():
                    writer.add_states(layer, kind, 0, states[layer])
                self._write_rows(writer, layer)
            return writer.finish(self._facts())

    def _facts(self) -> dict[str, object]:
        return {
            "title": self.title,
            "model_id": "synthetic",
            "model_revision": "0",
            "architecture": "none",
            "layers": self.layers,
            "query_heads": self.query_heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "dtype": "float16",
            "device": "cpu",
            "scaling": [self.head_dim**-0.5] * self.layers,
            "softcap": self.softcap,
            "sliding_window": list(self.sliding_window or [None] * self.layers),
            "prompt_length": self.prompt_length,
            "context_length": self.segments.count("context"),
            "response_length": self.response_length,
            "stored_layers": self.stored,
            "window": self.window,
            "top_k": self.top_k,
            "sink": self.sink,
            "recent": self.recent,
            "settings": {},
            "seed": self.seed,
            "peak_memory_bytes": 0,
            "timings": self.timings,
            "finish_reason": "length",
        }

    def _write_tokens(self, writer: CaptureWriter) -> None:
        ends = np.cumsum([len(piece) for piece in self.pieces])
        writer.add(
            "token",
            {
                "position": np.arange(self.length),
                "token_id": np.arange(self.length) % len(PIECES),
                "text": self.pieces,
                "segment": self.segments,
                "char_start": ends - [len(piece) for piece in self.pieces],
                "char_end": ends,
            },
        )

    def _write_rows(self, writer: CaptureWriter, layer: int) -> None:
        stored = layer in self.stored
        heads, steps = range(self.query_heads), list(self.steps)
        if stored:
            for step in steps:
                position = self.position(step)
                rows = np.stack([self.row(layer, head, position) for head in heads])
                writer.add_attention(layer, step, rows[:, : position + 1].astype(np.float16))
            table: dict[str, list[float]] = {"layer": [], "head": [], "step": []}
            top: dict[str, list[float]] = {"layer": [], "head": [], "step": []}
            for head in heads:
                for step in steps:
                    for name, value in self._key(layer, head, step).items():
                        table[name].append(value)
                    for name, measure in self.measures(layer, head, step).items():
                        table.setdefault(name, []).append(measure)
                    row = self.row(layer, head, self.position(step))
                    best = np.argsort(-row, kind="stable")[: self.top_k]
                    for rank, position in enumerate(best.tolist(), start=1):
                        entry = {"rank": rank, "position": position, "weight": row[position]}
                        for name, value in (self._key(layer, head, step) | entry).items():
                            top.setdefault(name, []).append(value)
            writer.add("step_stat", table)
            writer.add("attention_top", top)
        self._write_kv_stats(writer, layer, stored)

    @staticmethod
    def _key(layer: int, head: int, step: int) -> dict[str, int]:
        return {"layer": layer, "head": head, "step": step}

    def _write_kv_stats(self, writer: CaptureWriter, layer: int, stored: bool) -> None:
        for kv_head in range(self.kv_heads):
            norms = {
                name: np.linalg.norm(self.states[kind][layer, kv_head].astype(float), axis=-1)
                for name, kind in (("key_norm", "k"), ("value_norm", "v"))
            }
            if stored:
                rows = self.received(layer, kv_head)
                attention = {"sum": rows.sum(0), "max": rows.max(0), "last": rows[-1]}
            else:
                attention = dict.fromkeys(("sum", "max", "last"), [None] * self.length)
            writer.add(
                "kv_stat",
                {
                    "layer": [layer] * self.length,
                    "head": [kv_head] * self.length,
                    "position": np.arange(self.length),
                    **norms,
                    **{f"attention_{name}": values for name, values in attention.items()},
                },
            )
