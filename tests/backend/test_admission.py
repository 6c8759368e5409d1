"""The estimate before a run: sums by hand, real files, and the sentence for what does not fit."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from backend import admission, costs
from backend.admission import AdmissionError, Observed, earlier_captures, estimate
from backend.costs import file_parts, memory_parts, throughput, time_parts
from backend.spec import CaptureSpec
from cache_store.library import Library
from tests.synthetic import Synthetic

GB = 1_000_000_000


@dataclass(frozen=True)
class Shape:
    layers: int = 2
    query_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    hidden_size: int = 32
    intermediate_size: int = 64
    vocabulary: int = 100
    max_positions: int | None = 4096
    parameters: int = 50_000
    checkpoint_dtype: str = "float32"


LARGE = Shape(32, 32, 8, 128, 4096, 14336, 128_000, 131_072, 8_000_000_000, "bfloat16")


@pytest.fixture
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "available_memory", lambda: 64 * GB)
    monkeypatch.setattr(admission, "free_disk", lambda home: 500 * GB)
    monkeypatch.delenv("KVSCOPE_MAX_FILE_BYTES", raising=False)


def spec(**changes: object) -> CaptureSpec:
    return CaptureSpec.from_dict({"context": "x", "max_new_tokens": 3, "window": 2, **changes})


def test_the_file_holds_what_a_count_by_hand_gives() -> None:
    parts = file_parts(Shape(), 5, spec())
    # states: 2 layers x (4 + 2·2 heads) x 8 entries x (5 + 3 positions) x 2 bytes
    assert parts["states"] == round(2 * 8 * 8 * 8 * 2 * 1.02)
    # rows: 2 layers x 4 heads, queries at positions 3, 4 (window) and 5, 6, 7: 4 + 5 + … + 8
    assert parts["attention rows"] == round(2 * 4 * (4 + 5 + 6 + 7 + 8) * 2 * 1.02)
    one = file_parts(Shape(), 5, spec(stored_layers=[1]))
    assert one["states"] == parts["states"]
    assert one["attention rows"] == pytest.approx(parts["attention rows"] / 2, abs=1)
    assert file_parts(Shape(), 1, spec(window=32))["attention rows"] == round(
        2 * 4 * (1 + 2 + 3 + 4) * 2 * 1.02
    )


@pytest.mark.usefixtures("plenty")
def test_further_passes_are_counted(tmp_path: Path) -> None:
    asked = {"lookaheads": ["snapkv(budget=4)", "tova(budget=4)"], "lookahead_steps": 5}
    plain = estimate(Shape(), 100, spec(max_new_tokens=10), tmp_path)
    drafted = estimate(Shape(), 100, spec(max_new_tokens=10, **asked), tmp_path)
    both = estimate(Shape(), 100, spec(max_new_tokens=10, second_reading=True, **asked), tmp_path)
    # files: 2 lookaheads x 5 tokens x 4 heads, and 100 tokens x (4 + 2) heads; each in 2 layers
    # of 8 entries and 2 bytes
    assert drafted.file_parts["further passes"] == 2 * 5 * 4 * 2 * 8 * 2
    assert both.file_parts["further passes"] == (2 * 5 * 4 + 100 * 6) * 2 * 8 * 2
    # memory: the prompt's queries; with a second copy also twice 4 + 2 + 2 heads, in float32
    assert drafted.memory_parts["further passes"] == 4 * 100 * 2 * 8 * 4
    assert both.memory_parts["further passes"] == (4 + 2 * 8) * 100 * 2 * 8 * 4
    # time: a prefill and ten of the ten decoded tokens; the second copy as three prefills
    prefill, decode = (drafted.time_parts[name] for name in ("read the prompt", "write the answer"))
    assert drafted.time_parts["further passes"] == pytest.approx(prefill + decode)
    again = both.time_parts["read the prompt"], both.time_parts["write the answer"]
    assert both.time_parts["further passes"] == pytest.approx(4 * again[0] + again[1])
    assert "further passes" not in plain.file_parts
    assert drafted.file_bytes == plain.file_bytes + drafted.file_parts["further passes"]
    assert drafted.seconds == pytest.approx(sum(drafted.time_parts.values()))


@pytest.mark.usefixtures("plenty")
def test_a_second_reading_beyond_the_models_context_is_said(tmp_path: Path) -> None:
    far = estimate(Shape(), 3000, spec(second_reading=True), tmp_path)
    assert not far.refusals and "position 6,000 and the model's context is 4,096" in far.advice[0]
    assert estimate(Shape(), 2048, spec(second_reading=True), tmp_path).advice == ()


def test_memory_counts_weights_and_cache() -> None:
    parts = memory_parts(LARGE, 1000, 24, 2, 0)
    assert parts["weights"] == 16_000_000_000
    cache = 2 * 32 * 8 * 128 * 1024 * 2
    assert parts["KV cache"] == cache + cache // 32


def test_real_files_are_within_15_percent(tmp_path: Path) -> None:
    from backend.capture import capture
    from backend.first_start import samples
    from backend.models import model_facts
    from cache_store.reader import Capture

    text = next(sample for sample in samples() if sample.id == "passkey-7").context
    facts = model_facts("demo")
    for characters, new_tokens, layers in ((700, 8, [1]), (1500, 30, None), (2900, 20, [0, 5])):
        wanted = CaptureSpec(
            context=text[:characters],
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            stop_at_eos=False,
            stored_layers=layers,
        )
        run_id = capture(wanted, tmp_path)
        made = Capture.open(tmp_path / run_id / "capture.duckdb")
        expected = estimate(facts, made.info.prompt_length, wanted, tmp_path)
        assert expected.file_bytes == pytest.approx(made.file_bytes, rel=0.15)
        assert not expected.refusals and not expected.advice
        made.close()


def test_earlier_runs_correct_the_speed() -> None:
    expected = time_parts(Shape(), 1000, 100, 4, 10**6)
    assert all(seconds > 0 for seconds in expected.values())
    plain = costs._model_seconds(Shape(), 500, 50, 4)
    seen = [Observed(500, 50, plain[0] * factor, plain[1] * 3) for factor in (1, 2, 50)]
    corrected = time_parts(Shape(), 1000, 100, 4, 10**6, seen)
    prefill, decode = costs._model_seconds(Shape(), 1000, 100, 4)
    assert corrected["read the prompt"] == pytest.approx(2 * prefill)  # the median
    assert corrected["write the answer"] == pytest.approx(3 * decode)
    assert throughput() is throughput()  # measured once


@pytest.mark.usefixtures("plenty")
def test_a_run_that_fits_is_admitted(tmp_path: Path) -> None:
    result = estimate(LARGE, 2000, spec(max_new_tokens=100), tmp_path / "not" / "yet")
    assert (result.refusals, result.advice, result.suggested_layers) == ((), (), None)
    assert result.memory_bytes == sum(result.memory_parts.values())
    assert result.file_bytes == sum(result.file_parts.values())
    assert result.seconds == pytest.approx(sum(result.time_parts.values()))
    result.check()


@pytest.mark.usefixtures("plenty")
@pytest.mark.parametrize(
    ("tokens", "changes", "memory", "disk", "words"),
    [
        (200_000, {}, 640, 500, "more than the model's context of 131,072"),
        (1000, {"stored_layers": [1, 40]}, 64, 500, "Layer 40 is not there: the model has layers"),
        (1000, {}, 12, 500, "(weights 16 GB + KV cache"),
        (1000, {"dtype": "float32"}, 24, 500, "choose dtype bfloat16"),
        (8000, {"max_new_tokens": 2000}, 64, 1, "1 GB are free on the disk"),
    ],
)
def test_what_cannot_fit_is_refused_with_the_sum(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tokens: int,
    changes: dict[str, object],
    memory: float,
    disk: float,
    words: str,
) -> None:
    monkeypatch.setattr(admission, "available_memory", lambda: int(memory * GB))
    monkeypatch.setattr(admission, "free_disk", lambda home: int(disk * GB))
    result = estimate(LARGE, tokens, spec(**changes), tmp_path)
    assert len(result.refusals) == 1 and words in result.refusals[0]
    assert "\n" not in result.refusals[0] and result.refusals[0].endswith(".")
    with pytest.raises(AdmissionError) as caught:
        result.check()
    assert str(caught.value) == result.refusals[0]


@pytest.mark.usefixtures("plenty")
def test_a_large_file_gets_layers_that_keep_it_below_the_limit(tmp_path: Path) -> None:
    wanted = spec(max_new_tokens=500, window=32)
    whole = estimate(LARGE, 4000, wanted, tmp_path)
    assert whole.file_bytes > 4 * GB and not whole.refusals
    layers = whole.suggested_layers
    assert layers is not None and 1 < len(layers) < 32
    assert layers == sorted(set(layers)) and (layers[0], layers[-1]) == (0, 31)
    assert f"{len(layers)} layers" in whole.advice[0] and "limit of 4 GB" in whole.advice[0]
    fewer = estimate(LARGE, 4000, replace(wanted, stored_layers=layers), tmp_path)
    assert fewer.file_bytes <= 4 * GB and fewer.suggested_layers is None
    assert estimate(LARGE, 4000, wanted, tmp_path, max_file_bytes=10 * GB).advice == ()


@pytest.mark.usefixtures("plenty")
def test_limits_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVSCOPE_MAX_FILE_BYTES", "1000")
    assert estimate(Shape(), 100, spec(), tmp_path).suggested_layers == [1]
    monkeypatch.setenv("KVSCOPE_MAX_FILE_BYTES", "4 GB")
    with pytest.raises(AdmissionError, match="KVSCOPE_MAX_FILE_BYTES is '4 GB'"):
        estimate(Shape(), 100, spec(), tmp_path)


def test_memory_is_capped_by_the_workers_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSCOPE_WORKER_MEMORY", "1MB")
    assert admission.available_memory() == 1_000_000
    monkeypatch.setenv("KVSCOPE_WORKER_MEMORY", "0")
    assert admission.available_memory() > 1_000_000
    monkeypatch.setenv("KVSCOPE_WORKER_MEMORY", "much")
    with pytest.raises(AdmissionError, match="KVSCOPE_WORKER_MEMORY is 'much'"):
        admission.available_memory()


def test_importing_it_is_light() -> None:
    code = "import sys, backend.admission, backend.prompts; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_earlier_captures_of_the_model_tell_its_speed(tmp_path: Path) -> None:
    library = Library(tmp_path)
    assert earlier_captures(library, "synthetic") == []
    for number, decode in enumerate((2.0, 4.0)):
        Synthetic(
            run_id=f"20260101-00000{number}-abcdef", timings={"prefill": 0.5, "decode": decode}
        ).write(tmp_path)
    model = library.runs()["model_id"].iloc[0]
    found = sorted(earlier_captures(library, model), key=lambda run: run.decode_s)
    assert found == [Observed(40, 12, 0.5, 2.0), Observed(40, 12, 0.5, 4.0)]
    assert earlier_captures(library, "another") == []
    # A run of the same lengths is expected to take what the median of the earlier ones took.
    parts = time_parts(Shape(), 40, 12, 4, 0, found)
    assert parts["read the prompt"] == pytest.approx(0.5)
    assert parts["write the answer"] == pytest.approx(3.0)
