"""Derived results against the eager model's whole attention matrix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from backend.capture import capture
from backend.derive import derive
from backend.progress import Cancelled, Progress
from backend.spec import CaptureSpec
from cache_store.errors import StoreError
from cache_store.reader import Capture
from tests.backend import tiny


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str, np.ndarray]:
    """Home, run id, and eager attention (layers, query_heads, n, n) of a run."""
    home = tmp_path_factory.mktemp("runs")
    folder = tiny.save(tiny.build(request.param), home / "model")
    spec = CaptureSpec(context="A river runs on and on.", model_id=folder, max_new_tokens=7)
    run_id = capture(spec, home)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with Capture.open(home / run_id / "capture.duckdb") as it, torch.no_grad():
        ids = torch.tensor([it.tokens().token_id.tolist()])
        attention = torch.cat(model(input_ids=ids, output_attentions=True).attentions)
    return home, run_id, attention.numpy()


def test_prompt_attention_is_what_each_position_receives_from_every_query(
    run: tuple[Path, str, np.ndarray],
) -> None:
    home, run_id, eager = run
    layers, heads, length, _ = eager.shape
    reports: list[Progress] = []
    derive(home, run_id, "prompt_attention", {}, reports.append)
    assert {report.phase for report in reports} == {"derive"}
    with Capture.open(home / run_id / "capture.duckdb") as it:
        derived = it.derived("prompt_attention", {})
        assert derived is not None
        with derived:
            found = {name: derived.array(name) for name in derived.array_names()}
        prompt = it.info.prompt_length
    groups = eager.reshape(layers, 2, heads // 2, length, length).mean(2)
    np.testing.assert_allclose(found["sum"], groups.sum(2), atol=2e-2)
    np.testing.assert_allclose(found["max"], groups.max(2), atol=2e-3)
    np.testing.assert_allclose(found["sum_query"], eager.sum(2), atol=2e-2)
    np.testing.assert_allclose(found["max_query"], eager.max(2), atol=2e-3)
    asked = eager[:, :, :prompt, :prompt]
    np.testing.assert_allclose(found["prompt_sum_query"], asked.sum(2), atol=2e-2)
    assert found["sum"].dtype == np.float32


def test_mean_matrix_averages_the_chosen_heads_before_pooling(
    run: tuple[Path, str, np.ndarray],
) -> None:
    home, run_id, eager = run
    spec = {
        "layers": [0, 2],
        "heads": [3, 0],
        "query_range": [4, 28],
        "key_range": [2, 28],
        "bins": 6,
        "pool": "max",
    }
    derive(home, run_id, "mean_matrix", spec)
    with Capture.open(home / run_id / "capture.duckdb") as it:
        derived = it.derived("mean_matrix", spec)
        assert derived is not None
        with derived:
            matrix = derived.array("matrix")
    mean = eager[[0, 2]][:, [3, 0]].mean((0, 1))
    for row in range(6):  # 24 queries in bins of 4, 26 keys in bins of 5
        for column in range(6):
            queries = range(4 + 4 * row, 8 + 4 * row)
            keys = range(2 + 5 * column, min(7 + 5 * column, 28))
            cells = [mean[query, key] for query in queries for key in keys if key <= query]
            if cells:
                assert matrix[row, column] == pytest.approx(max(cells), abs=2e-3)
            else:
                assert np.isnan(matrix[row, column])


def test_a_result_is_computed_once_and_cancelling_leaves_nothing(
    run: tuple[Path, str, np.ndarray],
) -> None:
    home, run_id, _ = run
    spec = {
        "layers": [1],
        "heads": [0],
        "query_range": [0, 20],
        "key_range": [0, 20],
        "bins": 20,
        "pool": "mean",
    }
    before = {path.name for path in (home / run_id).rglob("*")}
    with pytest.raises(Cancelled):
        derive(home, run_id, "mean_matrix", spec, cancelled=lambda: True)
    assert {path.name for path in (home / run_id).rglob("*")} - before <= {"derived"}
    path = derive(home, run_id, "mean_matrix", spec)
    written = path.stat().st_mtime_ns
    assert derive(home, run_id, "mean_matrix", spec, cancelled=lambda: True) == path
    assert path.stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("kind", "spec", "word"),
    [
        ("unknown", {}, "unknown"),
        ("prompt_attention", {"layer": 1}, "layer"),
        ("mean_matrix", {"layers": [0]}, "needs exactly"),
    ],
)
def test_a_wrong_request_is_one_sentence(
    kind: str, spec: dict[str, object], word: str, run: tuple[Path, str, np.ndarray]
) -> None:
    home, run_id, _ = run
    with pytest.raises(StoreError, match=word):
        derive(home, run_id, kind, spec)
