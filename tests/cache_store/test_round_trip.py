"""What goes in comes out: shapes, text, statistics, against plain loops."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache_store import writer as writer_module
from cache_store.errors import StoreError
from cache_store.reader import Capture
from cache_store.schema import TABLES, markdown
from tests.cache_store.sample import Sample


@pytest.fixture(scope="module")
def sample() -> Sample:
    return Sample()


@pytest.fixture(scope="module")
def capture(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return Capture.open(sample.write(tmp_path_factory.mktemp("home")))


def assert_same(capture: Capture, sample: Sample) -> None:
    for (layer, kind), states in sample.states.items():
        np.testing.assert_array_equal(capture.states(layer, kind), states)
    for layer in range(sample.layers):
        for head in range(sample.query_heads):
            steps, rows = capture.attention_rows(layer, head)
            assert steps.tolist() == sample.steps()
            assert rows.shape == (len(steps), sample.length) and rows.dtype == np.float16
            for step, row in zip(steps.tolist(), rows, strict=True):
                expected = sample.rows[layer, head, step]
                np.testing.assert_array_equal(row[: len(expected)], expected)
                assert not row[len(expected) :].any()


def test_a_capture_reads_back_bit_for_bit(capture: Capture, sample: Sample) -> None:
    assert_same(capture, sample)


def test_the_capture_row(capture: Capture, sample: Sample) -> None:
    info = capture.info
    assert capture.id == info.id == sample.run_id
    assert (info.layers, info.query_heads, info.kv_heads, info.head_dim) == (2, 4, 2, 3)
    assert (info.group, info.length, info.stored_layers) == (2, 11, (0, 1))
    assert info.sliding_window == (None, None) and info.softcap is None
    assert info.settings == {"sample": False, "note": "ünï\u2028code"}
    assert info.complete and info.schema_version == 1
    assert info.created_at is not None and info.finished_at is not None
    assert info.created_at <= info.finished_at
    assert set(info.versions) == {"duckdb", "numpy", "pyarrow"}
    assert capture.file_bytes == capture.path.stat().st_size


@pytest.mark.parametrize(("start", "stop"), [(0, 11), (3, 5), (6, 8), (10, 11), (4, 4), (9, 2)])
def test_a_range_of_states(capture: Capture, sample: Sample, start: int, stop: int) -> None:
    whole = sample.states[1, "k"]
    np.testing.assert_array_equal(capture.states(1, "k", start, stop), whole[:, start:stop])
    np.testing.assert_array_equal(capture.states(1, "k", start, stop, head=1), whole[1, start:stop])


def test_rows_of_some_steps_and_of_all_heads(capture: Capture, sample: Sample) -> None:
    steps, rows = capture.attention_rows(1, 2, (0, 2))
    assert steps.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(rows[2, :9], sample.rows[1, 2, 2])
    steps, every = capture.attention_rows(1, None, (0, 2))
    assert steps.tolist() == [0, 1, 2] and every.shape == (4, 3, 11)
    np.testing.assert_array_equal(every[2], rows)
    steps, none = capture.attention_rows(1, 2, (50, 60))
    assert len(steps) == 0 and none.shape == (0, 11)
    assert capture.attention_rows(0, 0)[0].tolist() == [-2, -1, 0, 1, 2, 3, 4]


def test_statistics(capture: Capture, sample: Sample) -> None:
    generated = [1, 2, 3, 4]
    grid = capture.step_stat_grid("top1_mass")
    for layer in range(2):
        for head in range(4):
            tops = [float(sample.rows[layer, head, step].max()) for step in generated]
            assert grid[layer, head] == pytest.approx(sum(tops) / 4, rel=1e-6)
    at_zero = capture.step_stat_grid("sink_mass", step=0)
    assert at_zero[1, 3] == np.float32(sample.rows[1, 3, 0][0])
    assert at_zero.dtype == np.float32 and at_zero.shape == (2, 4)
    assert np.isnan(capture.step_stat_grid("entropy", step=99)).all()
    stats = capture.step_stats(layer=0, head=2)
    assert stats["step"].tolist() == sample.steps() and set(stats["head"]) == {2}
    assert len(capture.step_stats()) == 2 * 4 * 7
    received = capture.kv_stats(1, head=0)
    assert received["position"].tolist() == list(range(11))
    assert received["attention_last"].isna().all()
    assert len(capture.kv_stats(1)) == 22
    top = capture.attention_top(1, 3, step=2)
    assert top["position"].tolist() == [int(sample.rows[1, 3, 2].argmax())]
    assert len(capture.attention_top(1, 3)) == 7


def test_layers_that_store_no_rows_read_as_empty(tmp_path: Path) -> None:
    sample = Sample()
    with writer_module.CaptureWriter(tmp_path / sample.run_id, sample.run_id) as writer:
        sample.write_states(writer)
        path = writer.finish(sample.capture_row() | {"stored_layers": []})
    with Capture.open(path) as capture:
        steps, rows = capture.attention_rows(0, 1)
        assert len(steps) == 0 and rows.shape == (0, 11)
        assert capture.attention_rows(0, None)[1].shape == (4, 0, 11)
        assert np.isnan(capture.step_stat_grid("entropy")).all()
        assert capture.tokens().empty and capture.prompt_text() == ""


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.states(2, "k"),
        lambda c: c.states(-1, "k"),
        lambda c: c.states(0, "x"),
        lambda c: c.states(0, "k", head=2),
        lambda c: c.attention_rows(0, 4),
        lambda c: c.attention_rows(7, 0),
        lambda c: c.attention_top(0, 9),
        lambda c: c.step_stat_grid("mass; DROP TABLE token"),
    ],
)
def test_what_is_not_there_is_named(capture: Capture, call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(StoreError, match=r"^There (is|are) "):
        call(capture)


ODD_TEXT = st.text(
    st.characters(exclude_categories=["Cs"])
    | st.sampled_from("\0\n\r\t\u2028\ufeff'\"\\;<>&é👩🏽"),
    max_size=8,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    texts=st.lists(ODD_TEXT, min_size=1, max_size=12),
    response=st.integers(0, 6),
    layers=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    head_dim=st.integers(1, 5),
    window=st.integers(1, 14),
    block_bytes=st.integers(1, 90),
)
def test_any_shape_and_text_round_trips(
    texts: list[str],
    response: int,
    layers: int,
    kv_heads: int,
    group: int,
    head_dim: int,
    window: int,
    block_bytes: int,
) -> None:
    answer = [f"<{i}>" for i in range(response)]
    sample = Sample(
        layers=layers,
        query_heads=kv_heads * group,
        kv_heads=kv_heads,
        head_dim=head_dim,
        prompt_length=len(texts),
        response_length=response,
        window=window,
        texts=texts + answer,
    )
    with tempfile.TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:
        # Blocks of one to a few positions, and attention written after every few rows.
        patch.setattr(writer_module, "_BLOCK_BYTES", block_bytes)
        patch.setattr(writer_module, "_FLUSH_BYTES", block_bytes)
        with Capture.open(sample.write(Path(home))) as capture:
            assert_same(capture, sample)
            assert capture.prompt_text() == "".join(texts)
            assert capture.response_text() == "".join(answer)
            tokens = capture.tokens()
            assert tokens["text"].tolist() == texts + answer
            whole = "".join(texts + answer)
            for start, end, text in zip(
                tokens["char_start"].tolist(),
                tokens["char_end"].tolist(),
                texts + answer,
                strict=True,
            ):
                assert whole[start:end] == text


def test_every_column_is_described() -> None:
    text = markdown()
    for table in TABLES.values():
        assert f"**`{table.name}`**" in text
        for column in table.columns:
            assert len(column.meaning) > 3
            assert f"| `{column.name}` | {column.type} |" in text
