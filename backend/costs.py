"""What a capture costs: bytes of its file, bytes of memory, seconds. The formulas of admission.

Constants were measured on captures of the embedded model on two cores.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from backend.spec import CaptureSpec
from cache_store.schema import TABLES, Table

HALF = 2  # bytes of a float16

BLOCK_WASTE = 0.02  # DuckDB's blocks are 256 KiB, and long blobs do not fill theirs to the end
TOKEN_TEXT_BYTES = 24

# Memory besides weights and KV cache, measured on captures of the embedded model.
PROCESS_BYTES = 500_000_000  # Python with torch and transformers
QUEUE_BYTES = 64_000_000  # finished pieces waiting for the file
STORE_BYTES = 512_000_000  # what DuckDB may hold of the file in memory (cache_store.writer)
ACTIVATION_COPIES = 6  # hidden and intermediate states alive at once (backend.prefill)
ROW_COPIES = 5  # float32 attention rows of one layer: logits, softmax, statistics
ROWS_AT_ONCE = 16  # of backend.recorder

# Time: numpy's large matrix product is faster than a model's many small ones.
MODEL_EFFICIENCY = 0.2
START_S = 0.3  # of the first forward: memory is taken, threads are woken
LAYER_OVERHEAD_S = 7e-4  # one layer of one token: Python, kernel starts, handing rows over
LOAD_BYTES_PER_S = 400e6
IMPORT_S = 4.0  # torch and transformers, when the worker has not loaded them
WRITE_BYTES_PER_S = 150e6
WRITE_OVERLAP = 0.75  # of the writing happens while the model computes


class Facts(Protocol):
    """What an estimate needs of backend.models.ModelFacts."""

    @property
    def layers(self) -> int: ...
    @property
    def query_heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def max_positions(self) -> int | None: ...
    @property
    def parameters(self) -> int: ...
    @property
    def checkpoint_dtype(self) -> str: ...


@dataclass(frozen=True)
class Observed:
    """An earlier capture of the same model on this machine: tokens, and seconds by phase."""

    prompt_tokens: int
    new_tokens: int
    prefill_s: float
    decode_s: float

    @classmethod
    def of(cls, prompt_tokens: int, new_tokens: int, timings: Mapping[str, float]) -> Observed:
        """From a capture's lengths and its `timings` (seconds by phase)."""
        return cls(
            prompt_tokens, new_tokens, timings.get("prefill", 0.0), timings.get("decode", 0.0)
        )


def file_parts(facts: Facts, prompt_tokens: int, spec: CaptureSpec) -> dict[str, int]:
    """Bytes of a finished capture file, by what they hold, from the tables' columns.

    With P prompt tokens, T generated ones and W = min(window, P): a state row per position of
    each of H query heads and 2 G KV heads, and in each stored layer one attention row per head
    and query, of position + 1 entries.
    """
    generated, window = spec.max_new_tokens, min(spec.window, prompt_tokens)
    length = prompt_tokens + generated
    stored = facts.layers if spec.stored_layers is None else len(spec.stored_layers)
    rows = stored * facts.query_heads * (window + generated)
    first, last = prompt_tokens - window + 1, length  # entries of the first and the last row
    entries = stored * facts.query_heads * (first + last) * (window + generated) // 2
    heads = facts.query_heads + 2 * facts.kv_heads
    states = facts.layers * heads * facts.head_dim * length * HALF
    columns = (
        rows * (_row_bytes("attention") + spec.top_k * _row_bytes("attention_top"))
        + rows * _row_bytes("step_stat")
        + facts.layers * facts.kv_heads * length * _row_bytes("kv_stat")
        + length * (_row_bytes("token") + TOKEN_TEXT_BYTES)
    )
    return {
        "states": round(states * (1 + BLOCK_WASTE)),
        "attention rows": round(entries * HALF * (1 + BLOCK_WASTE)),
        "columns": columns,
    }


def pass_bytes(facts: Facts, prompt_tokens: int, spec: CaptureSpec) -> int:
    """Bytes of the files that the further passes of `spec` leave beside the capture: queries of
    the drafted tokens, and at most queries and keys of the whole prompt for a second reading."""
    drafted = len(spec.lookaheads) * spec.lookahead_steps * facts.query_heads
    read = prompt_tokens * (facts.query_heads + facts.kv_heads) * spec.second_reading
    return (drafted + read) * facts.layers * facts.head_dim * HALF


def pass_memory(facts: Facts, prompt_tokens: int, spec: CaptureSpec, dtype_bytes: int) -> int:
    """Bytes that further passes hold besides what the capture held: the prompt's queries, and
    twice keys, values and queries of the second copy."""
    row = facts.layers * facts.head_dim * prompt_tokens * dtype_bytes
    second = 2 * (facts.query_heads + 2 * facts.kv_heads) * spec.second_reading
    return row * ((facts.query_heads if spec.passes else 0) + second)


def pass_seconds(spec: CaptureSpec, prefill: float, decode: float) -> float:
    """Seconds of the further passes, from those of the prompt and of the answer.

    All of them start from one more prefill, or from one each where a question follows the
    context; the second copy attends to the first one and itself, at most three times a prefill.
    """
    prefills = bool(spec.lookaheads) + bool(spec.second_reading)
    if not spec.question:
        prefills = min(1, prefills)
    drafted = len(spec.lookaheads) * spec.lookahead_steps
    return prefill * (prefills + 3 * spec.second_reading) + decode * drafted / spec.max_new_tokens


def memory_parts(
    facts: Facts, prompt_tokens: int, new_tokens: int, dtype_bytes: int, file_bytes: int
) -> dict[str, int]:
    """Bytes of the worker process at its peak, by what they are for."""
    length = prompt_tokens + new_tokens
    cache = 2 * facts.layers * facts.kv_heads * facts.head_dim * length * dtype_bytes
    activations = prompt_tokens * dtype_bytes * ACTIVATION_COPIES
    activations *= facts.hidden_size + facts.intermediate_size
    rows = ROW_COPIES * ROWS_AT_ONCE * facts.query_heads * length * 4
    return {
        "weights": facts.parameters * dtype_bytes,
        "KV cache": cache + cache // max(1, facts.layers),  # one layer is copied as it grows
        "activations": activations + facts.vocabulary * 4,
        "rows and buffers": rows + QUEUE_BYTES + min(file_bytes, STORE_BYTES),
        "program": PROCESS_BYTES,
    }


def time_parts(
    facts: Facts,
    prompt_tokens: int,
    new_tokens: int,
    dtype_bytes: int,
    file_bytes: int,
    observed: Sequence[Observed] = (),
) -> dict[str, float]:
    """Seconds by phase; prompt and answer corrected by the median of earlier captures."""
    prefill, decode = _model_seconds(facts, prompt_tokens, new_tokens, dtype_bytes)
    prefill_ratios, decode_ratios = [], []
    for run in observed:
        expected = _model_seconds(facts, run.prompt_tokens, run.new_tokens, dtype_bytes)
        if run.prefill_s > 0:
            prefill_ratios.append(run.prefill_s / expected[0])
        if run.decode_s > 0 and run.new_tokens > 1:
            decode_ratios.append(run.decode_s / expected[1])
    prefill *= statistics.median(prefill_ratios) if prefill_ratios else contention()
    decode *= statistics.median(decode_ratios) if decode_ratios else contention()
    load = IMPORT_S + facts.parameters * dtype_bytes / LOAD_BYTES_PER_S
    return {
        "load the model": load,
        "read the prompt": prefill,
        "write the answer": decode,
        "write the file": file_bytes / WRITE_BYTES_PER_S * (1 - WRITE_OVERLAP),
    }


def _model_seconds(
    facts: Facts, prompt_tokens: int, new_tokens: int, dtype_bytes: int
) -> tuple[float, float]:
    """Prefill by arithmetic: 2 operations per weight and token, 2 x 2 per query, key and head
    entry, half of them masked. Decode by what every step must read: weights and cache."""
    speed = throughput()
    flops = 2.0 * facts.parameters * prompt_tokens
    flops += 2.0 * facts.layers * facts.query_heads * facts.head_dim * prompt_tokens**2
    overhead = facts.layers * LAYER_OVERHEAD_S
    prefill = flops / (speed.flops * MODEL_EFFICIENCY) + overhead + START_S
    length = prompt_tokens + new_tokens / 2
    read = float(facts.parameters * dtype_bytes)
    read += 2 * facts.layers * facts.kv_heads * facts.head_dim * length * dtype_bytes
    # The stored rows: logits and softmax of one query per head over all positions, float32.
    rows = facts.layers * facts.query_heads * length * 4 * ROW_COPIES
    decode = new_tokens * ((read + rows) / speed.bytes_per_s + overhead)
    return prefill, decode


def contention() -> float:
    """How many times slower a run is beside what else uses the cores, by the last minute's load."""
    return max(1.0, (os.getloadavg()[0] + 1) / (os.cpu_count() or 1))


@dataclass(frozen=True)
class Throughput:
    flops: float  # float32 operations per second of a large matrix product
    bytes_per_s: float  # read from memory


@functools.cache
def throughput() -> Throughput:
    """This machine's speed, measured once in about 50 ms; the best of several tries, because
    another program may be in the way of one."""
    size = 512
    left = np.full((size, size), 0.5, np.float32)
    block = np.ones(8_000_000, np.float32)
    product = min(_seconds(lambda: left @ left) for _ in range(4))
    reading = min(_seconds(block.sum) for _ in range(4))
    return Throughput(2 * size**3 / product, block.nbytes / reading)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return max(time.perf_counter() - began, 1e-6)


def _row_bytes(table: str) -> int:
    return _column_bytes(TABLES[table])


@functools.cache
def _column_bytes(table: Table) -> int:
    """Bytes of one row's plain columns; blobs and texts count their offset."""
    return sum(
        column.arrow.bit_width // 8 if column.type in ("INTEGER", "FLOAT") else 8
        for column in table.columns
    )
