"""Small captures with known contents, written through the public writer."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cache_store.files import new_run_id
from cache_store.writer import CaptureWriter


@dataclass
class Sample:
    """The numbers of a capture, kept in plain arrays to compare with what is read back."""

    layers: int = 2
    query_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 3
    prompt_length: int = 7
    response_length: int = 4
    window: int = 3
    texts: list[str] | None = None
    title: str | None = "A sample"
    seed: int = 0
    run_id: str = field(default_factory=new_run_id)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.length = self.prompt_length + self.response_length
        self.states: dict[tuple[int, str], np.ndarray] = {}
        self.rows: dict[tuple[int, int, int], np.ndarray] = {}  # (layer, head, step)
        for layer in range(self.layers):
            for kind in "qkv":
                heads = self.query_heads if kind == "q" else self.kv_heads
                shape = (heads, self.length, self.head_dim)
                self.states[layer, kind] = rng.standard_normal(shape).astype(np.float16)
            for head in range(self.query_heads):
                for step in self.steps():
                    row = rng.random(self.prompt_length + step)
                    self.rows[layer, head, step] = (row / row.sum()).astype(np.float16)
        if self.texts is None:
            self.texts = [f"t{position} " for position in range(self.length)]

    def steps(self) -> list[int]:
        first = 1 - min(self.window, self.prompt_length)
        return list(range(first, self.response_length + 1))

    def capture_row(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "model_id": "demo",
            "model_revision": "abc",
            "architecture": "LlamaForCausalLM",
            "layers": self.layers,
            "query_heads": self.query_heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "scaling": [self.head_dim**-0.5] * self.layers,
            "sliding_window": [None] * self.layers,
            "prompt_length": self.prompt_length,
            "context_length": self.prompt_length,
            "response_length": self.response_length,
            "stored_layers": list(range(self.layers)),
            "window": self.window,
            "top_k": 2,
            "sink": 1,
            "recent": 2,
            "settings": {"sample": False, "note": "ünï\u2028code"},
            "timings": {"prefill": 0.5},
            "finish_reason": "length",
        }

    def token_columns(self) -> dict[str, Any]:
        assert self.texts is not None
        ends = np.cumsum([len(text) for text in self.texts])
        prompt = ["context"] * self.prompt_length
        return {
            "position": np.arange(self.length),
            "token_id": np.arange(self.length) + 100,
            "text": self.texts,
            "segment": prompt + ["response"] * self.response_length,
            "char_start": ends - [len(text) for text in self.texts],
            "char_end": ends,
        }

    def write_states(self, writer: CaptureWriter) -> None:
        """The prompt at once, then token by token, as a run does."""
        prompt = self.prompt_length
        pieces = [(0, prompt), *((p, p + 1) for p in range(prompt, self.length))]
        for start, stop in pieces:
            for (layer, kind), states in self.states.items():
                writer.add_states(layer, kind, start, states[:, start:stop])

    def write_attention(self, writer: CaptureWriter) -> None:
        steps = self.steps()
        early = [step for step in steps if step <= 0]
        for layer in range(self.layers):
            rows = np.zeros((self.query_heads, len(early), self.prompt_length), np.float16)
            for head in range(self.query_heads):
                for index, step in enumerate(early):
                    row = self.rows[layer, head, step]
                    rows[head, index, : len(row)] = row
            writer.add_attention(layer, np.array(early), rows)
        for step in range(1, self.response_length + 1):
            for layer in range(self.layers):
                heads = [self.rows[layer, head, step] for head in range(self.query_heads)]
                writer.add_attention(layer, step, np.stack(heads))

    def write_statistics(self, writer: CaptureWriter) -> None:
        keys = sorted(self.rows)
        layer, head, step = (np.array(part, np.int32) for part in zip(*keys, strict=True))
        tops = np.array([self.rows[key].max() for key in keys], np.float32)
        writer.add(
            "step_stat",
            {
                "layer": layer,
                "head": head,
                "step": step,
                "entropy": self.entropies(keys),
                "effective_tokens": np.exp(self.entropies(keys)),
                "top1_mass": tops,
                "sink_mass": np.array([self.rows[key][0] for key in keys], np.float32),
                "recent_mass": np.array([self.rows[key][-2:].sum() for key in keys], np.float32),
                "far_top1_mass": np.array(
                    [self.rows[key][1:-2].max(initial=0) for key in keys], np.float32
                ),
            },
        )
        best = [int(self.rows[key].argmax()) for key in keys]
        writer.add(
            "attention_top",
            {
                "layer": layer,
                "head": head,
                "step": step,
                "rank": np.ones(len(keys), np.int32),
                "position": best,
                "weight": tops,
            },
        )
        entries = [
            (layer, head, position)
            for layer in range(self.layers)
            for head in range(self.kv_heads)
            for position in range(self.length)
        ]
        layers, heads, positions = (np.array(p, np.int32) for p in zip(*entries, strict=True))
        nothing = [None] * len(entries)
        norms = np.linspace(1, 2, len(entries), dtype=np.float32)
        writer.add(
            "kv_stat",
            {
                "layer": layers,
                "head": heads,
                "position": positions,
                "key_norm": norms,
                "value_norm": norms * 2,
                "attention_sum": norms * 3,
                "attention_max": norms * 4,
                "attention_last": nothing,
            },
        )

    def entropies(self, keys: list[tuple[int, int, int]]) -> np.ndarray:
        values = []
        for key in keys:
            row = self.rows[key].astype(np.float64)
            values.append(-sum(weight * np.log(weight) for weight in row if weight > 0))
        return np.array(values, np.float32)

    def write(self, home: Path) -> Path:
        """The whole capture under `home`; returns its path."""
        with CaptureWriter(home / self.run_id, self.run_id) as writer:
            self.write_states(writer)
            self.write_attention(writer)
            self.write_statistics(writer)
            writer.add("token", self.token_columns())
            return writer.finish(self.capture_row())
