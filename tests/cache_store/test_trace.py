"""A capture as a trace: the states that were written, and the passes recorded beside them."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cache_store.errors import StoreError
from cache_store.reader import Capture
from cache_store.writer import DerivedWriter
from tests.cache_store.sample import Sample

LOOKAHEAD = {"policy": {"key": "snapkv", "options": {"budget": 4}}, "steps": 2}


class Noted(Sample):
    """A sample whose capture row can be changed."""

    changes: dict[str, Any]

    def capture_row(self) -> dict[str, Any]:
        return super().capture_row() | self.changes


def written(folder: Path, **changes: Any) -> tuple[Sample, Path]:
    sample = Noted(head_dim=4)
    sample.changes = changes
    return sample, sample.write(folder)


def derive(path: Path, kind: str, spec: dict[str, Any], **arrays: np.ndarray) -> None:
    with DerivedWriter(path.parent, kind, spec) as writer:
        for name, values in arrays.items():
            writer.add_array(name, values)
        writer.finish()


def test_a_trace_holds_the_states_and_the_run(tmp_path: Path) -> None:
    sample, path = written(tmp_path, softcap=30.0, sliding_window=[3, None], context_length=5)
    with Capture.open(path) as capture:
        trace = capture.trace()
    assert (trace.layers, trace.kv_heads, trace.query_heads) == (2, 2, 4)
    assert (trace.prompt_length, trace.context_length, trace.response_length) == (7, 5, 4)
    for layer in range(2):
        for kind, states in (("q", trace.queries), ("k", trace.keys), ("v", trace.values)):
            assert states[layer].dtype == torch.float32
            np.testing.assert_array_equal(states[layer].numpy(), sample.states[layer, kind])
        assert trace.scaling_of(layer) == 0.5
    assert trace.softcap == 30 and [trace.window_of(0), trace.window_of(1)] == [3, None]
    assert trace.rotary is None and trace.lookahead is None and trace.second_reading is None
    assert trace.output_norms is None and trace.prompt_attention is None


def test_some_layers_in_half_precision(tmp_path: Path) -> None:
    sample, path = written(tmp_path, sliding_window=[3, None])
    with Capture.open(path) as capture:
        trace = capture.trace(layers=[1], dtype=np.float16)
        assert trace.layers == 1 and trace.window_of(0) is None
        assert trace.keys[0].dtype == torch.float16
        np.testing.assert_array_equal(trace.keys[0].numpy(), sample.states[1, "k"])
        with pytest.raises(StoreError, match="layer 2"):
            capture.trace(layers=[2])
        with pytest.raises(StoreError, match="at least one layer"):
            capture.trace(layers=[])


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_from_the_noted_frequencies(tmp_path: Path, interleaved: bool) -> None:
    frequencies, scaling = [1.0, 0.01], 1.5
    rotary = {"frequencies": frequencies, "scaling": scaling, "interleaved": interleaved}
    _, path = written(tmp_path, settings={"rotary": rotary})
    with Capture.open(path) as capture:
        trace = capture.trace()
    assert trace.rotary is not None
    cos, sin = trace.rotary
    assert cos.shape == sin.shape and cos.shape[0] > trace.length + 2000 and cos.shape[1] == 4
    channels = [0, 0, 1, 1] if interleaved else [0, 1, 0, 1]
    for position in (0, 1, 700):
        for channel, pair in enumerate(channels):
            angle = position * frequencies[pair]
            assert float(cos[position, channel]) == pytest.approx(1.5 * math.cos(angle), abs=1e-6)
            assert float(sin[position, channel]) == pytest.approx(1.5 * math.sin(angle), abs=1e-6)


def test_a_damaged_rotary_is_one_sentence(tmp_path: Path) -> None:
    _, path = written(tmp_path, settings={"rotary": {"frequencies": "many"}})
    with Capture.open(path) as capture, pytest.raises(StoreError, match="rotary embedding"):
        capture.trace()


def test_what_was_derived_comes_along(tmp_path: Path) -> None:
    _, path = written(tmp_path)
    draw = np.random.default_rng(1)
    received = draw.random((2, 4, 7)).astype(np.float32)
    pseudo = draw.random((2, 4, 2, 4)).astype(np.float16)
    queries = draw.random((2, 4, 7, 4)).astype(np.float16)
    keys = draw.random((2, 2, 7, 4)).astype(np.float16)
    norms = draw.random((2, 4, 11)).astype(np.float32)
    cos, sin = draw.random((2, 20, 4)).astype(np.float32)
    derive(path, "prompt_attention", {}, prompt_sum_query=received)
    derive(path, "lookahead", LOOKAHEAD, queries=pseudo, tokens=np.array([5, 6]))
    derive(path, "second_reading", {}, queries=queries, keys=keys)
    derive(path, "model_facts", {}, output_norms=norms, rotary_cos=cos, rotary_sin=sin)
    with Capture.open(path) as capture:
        trace = capture.trace(lookahead=LOOKAHEAD, second_reading=True)
        assert trace.lookahead is not None and trace.second_reading is not None
        assert trace.prompt_attention is not None and trace.output_norms is not None
        assert trace.rotary is not None
        np.testing.assert_array_equal(torch.stack(list(trace.lookahead)).numpy(), pseudo)
        assert trace.lookahead[0].dtype == torch.float32
        np.testing.assert_array_equal(torch.stack(list(trace.second_reading[0])).numpy(), queries)
        np.testing.assert_array_equal(torch.stack(list(trace.second_reading[1])).numpy(), keys)
        np.testing.assert_array_equal(torch.stack(list(trace.prompt_attention)).numpy(), received)
        np.testing.assert_array_equal(torch.stack(list(trace.output_norms)).numpy(), norms)
        np.testing.assert_array_equal(trace.rotary[0].numpy(), cos)
        last = capture.trace(layers=[1], lookahead=LOOKAHEAD, second_reading=True)
        assert last.lookahead is not None and last.second_reading is not None
        np.testing.assert_array_equal(last.lookahead[0].numpy(), pseudo[1])
        np.testing.assert_array_equal(last.second_reading[1][0].numpy(), keys[1])


def test_a_pass_that_was_not_recorded_is_one_sentence(tmp_path: Path) -> None:
    _, path = written(tmp_path)
    with Capture.open(path) as capture:
        with pytest.raises(StoreError, match="no lookahead"):
            capture.trace(lookahead=LOOKAHEAD)
        with pytest.raises(StoreError, match="no second reading"):
            capture.trace(second_reading=True)


def test_the_store_imports_no_torch_before_a_trace_is_asked_for() -> None:
    check = "import sys, cache_store.reader; print([m for m in sys.modules if m in "
    check += "('torch', 'transformers', 'kvpolicies')])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
