"""A file is visible when it is complete, or not at all."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from cache_store.errors import StoreError
from cache_store.files import new_run_id, sweep_partials
from cache_store.reader import Capture
from cache_store.writer import CaptureWriter, DerivedWriter, derived_key
from tests.cache_store.sample import Sample

# Writes layers until it is stopped; says so once the first ones are on their way to disk.
ENDLESS = """
    import sys
    from pathlib import Path
    import numpy as np
    from cache_store import writer as writer_module
    from cache_store.errors import StoreError
    from cache_store.writer import CaptureWriter
    writer_module._BLOCK_BYTES = 1024  # full row groups, and so the disk, are reached soon
    folder, said = Path(sys.argv[1]), False
    partial = folder / "capture.duckdb.partial"
    states = np.random.default_rng(0).standard_normal((4, 1024, 64)).astype(np.float16)
    try:
        with CaptureWriter(folder, folder.name) as writer:
            for layer in range(int(sys.argv[2])):
                writer.add_states(layer, "k", 0, states)
                if not said and partial.exists() and partial.stat().st_size > 1_000_000:
                    said = True
                    print("writing", flush=True)
    except StoreError as error:
        print(error, flush=True)
        sys.exit(3)
"""


def start(code: str, *arguments: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_nothing_but_the_capture_is_left(tmp_path: Path) -> None:
    sample = Sample()
    sample.write(tmp_path)
    assert files(tmp_path / sample.run_id) == ["capture.duckdb"]


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    sample = Sample()
    folder = tmp_path / sample.run_id
    with (
        pytest.raises(RuntimeError, match="cancelled"),
        CaptureWriter(folder, sample.run_id) as writer,
    ):
        sample.write_states(writer)
        sample.write_statistics(writer)
        assert "capture.duckdb.partial" in files(folder)
        raise RuntimeError("cancelled")
    assert files(folder) == []


def test_a_killed_writer_leaves_a_partial_that_is_swept(tmp_path: Path) -> None:
    folder = tmp_path / new_run_id()
    with start(ENDLESS, str(folder), "1000000") as process:
        assert process.stdout is not None and process.stdout.readline() == "writing\n"
        assert sweep_partials(tmp_path) == []  # its writer is alive
        assert not (folder / "capture.duckdb").exists()
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    partial = folder / "capture.duckdb.partial"
    assert partial.stat().st_size > 1_000_000 and not (folder / "capture.duckdb").exists()
    assert sweep_partials(tmp_path) == [partial]
    assert not folder.exists()
    # The same id can be run again: it was never visible.
    sample = Sample(run_id=folder.name)
    with Capture.open(sample.write(tmp_path)) as capture:
        assert capture.id == folder.name


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / new_run_id()
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000,) * 2)\n"
    with start(limited + textwrap.dedent(ENDLESS), str(folder), "1000000") as process:
        output = process.communicate(timeout=60)[0]
        assert process.returncode == 3, output
    said = output.removeprefix("writing\n")
    assert said.startswith("The disk is full") and said.count("\n") == 1
    assert files(folder) == []


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    run_id = new_run_id()
    with pytest.raises(StoreError, match="could not be written"):
        CaptureWriter(blocked / run_id, run_id)


def test_a_file_that_cannot_be_opened_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("cache_store.file_writer.connect", full)
    run_id = new_run_id()
    with (
        pytest.raises(StoreError, match="The disk is full"),
        CaptureWriter(tmp_path / run_id, run_id) as writer,
    ):
        for opening in [thread for thread in threading.enumerate() if thread.name == "open"]:
            opening.join()
        writer.check()
    assert files(tmp_path / run_id) == []


def test_one_writer_per_run(tmp_path: Path) -> None:
    sample = Sample()
    folder = tmp_path / sample.run_id
    with CaptureWriter(folder, sample.run_id) as writer:
        sample.write_states(writer)
        with pytest.raises(StoreError, match="already writing"):
            CaptureWriter(folder, sample.run_id)
        path = writer.finish(sample.capture_row())
    before = path.read_bytes()
    with pytest.raises(StoreError, match="exists already"):
        CaptureWriter(folder, sample.run_id)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "run_id", ["", "..", "../../x", "20260131-235959-0a1b2c/..", "20260131-235959-0A1B2C"]
)
def test_a_run_id_is_never_a_path(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(StoreError, match="not a run id"):
        CaptureWriter(tmp_path / "x", run_id)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda w, s: w.add("tokens", {}), "There is no table 'tokens'"),
        (lambda w, s: w.add("capture", {}), "written by finish"),
        (lambda w, s: w.add("token", {"position": [1]}), "has the columns"),
        (
            lambda w, s: w.add("token", s.token_columns() | {"text": ["a"]}),
            "Table token cannot hold",
        ),
        (
            lambda w, s: w.add("token", s.token_columns() | {"text": ["\ud800"] * 11}),
            "Table token cannot hold",
        ),
        (lambda w, s: w.add_states(0, "k", 3, s.states[0, "k"]), "continue at position 0, not 3"),
        (lambda w, s: w.add_states(0, "z", 0, s.states[0, "k"]), "of kind q, k or v"),
        (lambda w, s: w.add_attention(0, [1, 2], np.zeros((4, 3, 9))), "do not fit"),
        (lambda w, s: w.add_attention(0, [1, 3], np.zeros((4, 2, 9))), "do not fit"),
        (lambda w, s: w.finish({"layers": 1}), "lacks query_heads"),
        (lambda w, s: w.finish(s.capture_row() | {"timings": {"a": float("nan")}}), "as JSON"),
        (lambda w, s: w.finish(s.capture_row() | {"extra": 1}), "has the columns"),
    ],
)
def test_wrong_values_are_refused(tmp_path: Path, act, message: str) -> None:  # type: ignore[no-untyped-def]
    sample = Sample()
    with (
        pytest.raises(StoreError, match=message),
        CaptureWriter(tmp_path / sample.run_id, sample.run_id) as writer,
    ):
        act(writer, sample)
    assert files(tmp_path / sample.run_id) == []


def test_a_buffer_may_be_reused_after_it_was_handed_over(tmp_path: Path) -> None:
    sample = Sample()
    states, row = np.empty((2, 1, 3), np.float16), np.empty((4, 11), np.float16)
    with CaptureWriter(tmp_path / sample.run_id, sample.run_id) as writer:
        for position in range(sample.length):
            states[:] = sample.states[0, "k"][:, position : position + 1]
            writer.add_states(0, "k", position, states)
        row[:] = 0.5
        writer.add_attention(0, 4, row)
        row[:] = 0
        path = writer.finish(sample.capture_row())
    with Capture.open(path) as capture:
        np.testing.assert_array_equal(capture.states(0, "k"), sample.states[0, "k"])
        assert (capture.attention_rows(0, 3)[1] == 0.5).all()
        with pytest.raises(StoreError, match="lacks states of layer 1"):
            capture.states(1, "k")


def test_a_file_is_hardly_larger_than_what_it_holds(tmp_path: Path) -> None:
    """At most 1.2 times the raw float16 bytes, also when it is written in many batches."""
    sample = Sample(
        layers=4,
        query_heads=8,
        kv_heads=4,
        head_dim=32,
        prompt_length=1500,
        response_length=40,
        window=32,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cache_store.writer._FLUSH_BYTES", 1_000_000)
        path = sample.write(tmp_path)
    raw = sum(a.nbytes for a in (*sample.states.values(), *sample.rows.values()))
    assert raw > 10_000_000
    assert path.stat().st_size <= 1.2 * raw


def test_a_small_capture_is_a_small_file(tmp_path: Path) -> None:
    assert Sample().write(tmp_path).stat().st_size < 400_000


def test_what_was_computed_is_named_by_its_parameters() -> None:
    key = derived_key("mean_matrix", {"layers": [0, 1], "pool": "max"})
    assert key == derived_key("mean_matrix", {"pool": "max", "layers": (0, 1)})
    assert key != derived_key("mean_matrix", {"layers": [1, 0], "pool": "max"})
    assert key != derived_key("prompt_attention", {"layers": [0, 1], "pool": "max"})
    with pytest.raises(StoreError, match="as JSON"):
        derived_key("x", {"a": float("inf")})


def test_derived_files(tmp_path: Path) -> None:
    sample = Sample()
    path = sample.write(tmp_path)
    spec = {"bins": 4}
    arrays: dict[str, np.ndarray] = {
        "sums": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
        "half": np.arange(5, dtype=np.float16),
        "flags": np.array([[True, False]]),
        "one": np.array(3.5),
        "none": np.empty((0, 3), np.int64),
    }
    with DerivedWriter(path.parent, "mean_matrix", spec) as writer:
        assert not writer.exists
        for name, values in arrays.items():
            writer.add_array(name, values)
        writer.add("step", {"step": [1, 2], "text": ["a", "b"]})
        writer.add("step", {"step": [3], "text": [None]})
        written = writer.finish()
    with Capture.open(path) as capture:
        derived = capture.derived("mean_matrix", spec)
        assert derived is not None and capture.derived("mean_matrix", {"bins": 5}) is None
        assert (derived.kind, derived.spec, derived.capture_id) == (
            "mean_matrix",
            spec,
            sample.run_id,
        )
        assert derived.array_names() == list(arrays)
        for name, values in arrays.items():
            found = derived.array(name)
            assert found.dtype == values.dtype
            np.testing.assert_array_equal(found, values)
        with pytest.raises(StoreError, match="no array 'x'"):
            derived.array("x")
        assert derived.table("step")["step"].tolist() == [1, 2, 3]
        listed = capture.derived_list()
        assert listed["kind"].tolist() == ["mean_matrix"] and listed["path"].tolist() == [written]
    assert files(path.parent) == sorted(["capture.duckdb", "derived", written.name])


def test_the_list_follows_what_lies_beside_the_capture(tmp_path: Path) -> None:
    path = Sample().write(tmp_path)
    written = {}
    for name in ("first", "second"):
        with DerivedWriter(path.parent, name, {"a": 1}) as writer:
            writer.add_array("value", np.zeros(3))
            written[name] = writer.finish()
    with Capture.open(path) as capture:
        assert capture.derived_list()["kind"].tolist() == ["first", "second"]
        assert capture.derived_list()["spec"].tolist() == [{"a": 1}, {"a": 1}]
        kept = written["first"].read_bytes()
        written["first"].write_bytes(kept[:5000])  # damaged after it was listed
        assert capture.derived_list()["kind"].tolist() == ["second"]
        written["first"].write_bytes(kept)
        assert capture.derived_list()["kind"].tolist() == ["first", "second"]
        assert capture.derived_list()["file_bytes"].tolist()[0] == len(kept)
        written["second"].unlink()
        assert capture.derived_list()["kind"].tolist() == ["first"]


def test_computing_twice_writes_once(tmp_path: Path) -> None:
    path = Sample().write(tmp_path)
    twins = [DerivedWriter(path.parent, "x", {"a": 1}) for _ in range(2)]
    assert sweep_partials(tmp_path) == []  # both are alive
    for value, writer in enumerate(twins):
        writer.add_array("value", np.array([value]))
    results = {writer.finish() for writer in reversed(twins)}
    assert len(results) == 1
    with Capture.open(path) as capture:
        derived = capture.derived("x", {"a": 1})
        assert derived is not None and derived.array("value").tolist() == [1]  # the first to finish
    with DerivedWriter(path.parent, "x", {"a": 1}) as late:
        assert late.exists
        late.add_array("value", np.array([2]))
        assert late.finish() in results
    assert len(files(path.parent / "derived")) == 1


def test_results_of_a_deleted_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is gone"):
        DerivedWriter(tmp_path / new_run_id(), "x", {})


def test_reading_while_another_run_is_written(tmp_path: Path) -> None:
    sample, other = Sample(), Sample(seed=1)
    path = sample.write(tmp_path)
    failures: list[BaseException] = []

    def read() -> None:
        try:
            for _ in range(20):
                with Capture.open(path) as capture:
                    np.testing.assert_array_equal(capture.states(1, "v"), sample.states[1, "v"])
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    with Capture.open(other.write(tmp_path)) as capture:
        np.testing.assert_array_equal(capture.states(1, "v"), other.states[1, "v"])
    for reader in readers:
        reader.join()
    assert failures == []


def test_threads_share_one_capture(tmp_path: Path) -> None:
    sample = Sample()
    with Capture.open(sample.write(tmp_path)) as capture:
        failures: list[BaseException] = []

        def read(layer: int, head: int) -> None:
            try:
                for _ in range(15):
                    _, rows = capture.attention_rows(layer, head, (4, 4))
                    np.testing.assert_array_equal(rows[0], sample.rows[layer, head, 4])
                    np.testing.assert_array_equal(
                        capture.states(layer, "q", head=head), sample.states[layer, "q"][head]
                    )
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=read, args=(i % 2, i % 4)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []


def test_two_processes_read_one_file(tmp_path: Path) -> None:
    sample = Sample()
    path = sample.write(tmp_path)
    code = """
        import sys
        from cache_store.reader import Capture
        with Capture.open(sys.argv[1]) as capture:
            print(float(capture.states(0, "k")[0, 0, 0]), flush=True)
            sys.stdin.readline()
            print(float(capture.states(1, "k")[0, 0, 0]), flush=True)
    """
    with start(code, str(path), stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert float(process.stdout.readline()) == float(sample.states[0, "k"][0, 0, 0])
        with Capture.open(path) as capture:  # while the other process holds it open
            np.testing.assert_array_equal(capture.states(0, "k"), sample.states[0, "k"])
        output = process.communicate("\n", timeout=60)[0]
        assert float(output) == float(sample.states[1, "k"][0, 0, 0])


def test_a_dropped_capture_leaves_no_descriptor(tmp_path: Path) -> None:
    path = Sample().write(tmp_path)

    def descriptors() -> int:
        targets = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sum(os.path.realpath(target) == str(path) for target in targets)

    for _ in range(5):
        Capture.open(path).tokens()
    assert descriptors() == 0
    capture = Capture.open(path)
    assert descriptors() == 1
    capture.close()
    assert descriptors() == 0
    with pytest.raises(StoreError, match="was closed; open it again"):
        capture.tokens()
