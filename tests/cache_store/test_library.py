"""The runs of one home: listed, named, deleted, exported, imported."""

import errno
import io
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from cache_store import listing
from cache_store.errors import StoreError
from cache_store.files import FileLock, new_run_id, sweep_partials
from cache_store.library import SORTS, Library
from cache_store.reader import Capture
from cache_store.sql import run_sql
from cache_store.writer import DerivedWriter
from tests.cache_store.sample import Sample

OLDER, NEWER = "20260101-000000-00000a", "20260102-000000-00000b"


@pytest.fixture
def library(tmp_path: Path) -> Library:
    Sample(run_id=OLDER, title="zebra needle", prompt_length=9).write(tmp_path)
    Sample(run_id=NEWER, title="Ärger im Text", seed=1).write(tmp_path)
    return Library(tmp_path)


def test_an_empty_library(tmp_path: Path) -> None:
    runs = Library(tmp_path / "not yet there").runs()
    assert runs.empty and {"id", "title", "tags", "file_bytes", "error"} <= set(runs.columns)


def test_the_list(library: Library) -> None:
    runs = library.runs()
    assert runs["id"].tolist() == [NEWER, OLDER]
    assert runs["prompt_length"].tolist() == [7, 9] and runs["error"].isna().all()
    assert runs["file_bytes"].tolist() == [
        library.capture_path(run_id).stat().st_size for run_id in (NEWER, OLDER)
    ]
    assert library.runs(sort="title")["id"].tolist() == [OLDER, NEWER]  # z before Ä, as code points
    assert library.runs(sort="length")["id"].tolist() == [OLDER, NEWER]
    for sort in SORTS:
        assert len(library.runs(sort=sort)) == 2
    with pytest.raises(StoreError, match="cannot be sorted by 'x'"):
        library.runs(sort="x")


def test_search_finds_all_words_anywhere(library: Library) -> None:
    library.set_tags(NEWER, ["passkey", "Paper 3"])
    for words, found in {
        "NEEDLE": [OLDER],
        "ärger": [NEWER],
        "paper text": [NEWER],
        "demo": [NEWER, OLDER],
        "00000a": [OLDER],
        "needle paper": [],
        "  ": [NEWER, OLDER],
    }.items():
        assert library.runs(search=words)["id"].tolist() == found, words


def test_titles_and_tags_survive_and_never_touch_the_capture(library: Library) -> None:
    before = library.capture_path(OLDER).read_bytes()
    library.set_title(OLDER, "  <script>alert(1)</script>\n 🦓 ")
    library.set_tags(OLDER, ["a", " b ", "a", ""])
    again = Library(library.home)
    row = again.runs().set_index("id").loc[OLDER]
    assert row["title"] == "<script>alert(1)</script> 🦓" and row["tags"] == ["a", "b"]
    assert again.title(OLDER) == row["title"] and again.title(NEWER) == "Ärger im Text"
    library.set_title(OLDER, "")
    assert again.title(OLDER) == "zebra needle"
    assert library.capture_path(OLDER).read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.set_title(OLDER, "x" * 201), "at most 200 characters"),
        (lambda x: x.set_tags(OLDER, [str(i) for i in range(21)]), "at most 20 tags"),
        (lambda x: x.set_tags(OLDER, ["x" * 51]), "at most 50 characters"),
        (lambda x: x.set_title(new_run_id(), "x"), "There is no run"),
        (lambda x: x.delete(new_run_id()), "There is no run"),
        (lambda x: x.open(new_run_id()), "There is no run"),
        (lambda x: x.open("../../etc"), "not a run id"),
        (lambda x: x.delete(".."), "not a run id"),
        (lambda x: x.set_title("", "x"), "not a run id"),
        (lambda x: x.export_zip("/etc/passwd", Path("x")), "not a run id"),
    ],
)
def test_what_cannot_be_done(library: Library, change, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(StoreError, match=message):
        change(library)


def test_two_writers_of_titles_lose_nothing(library: Library) -> None:
    code = f"""
        import sys
        from cache_store.library import Library
        library = Library(sys.argv[1])
        for number in range(20):
            library.set_tags("{OLDER}", [f"tag {{number}}"])
    """
    arguments = [sys.executable, "-c", textwrap.dedent(code), str(library.home)]
    with subprocess.Popen(arguments) as other:
        for number in range(20):
            library.set_title(NEWER, f"title {number}")
        assert other.wait(timeout=60) == 0
    runs = library.runs().set_index("id")
    assert runs.loc[NEWER, "title"] == "title 19" and runs.loc[OLDER, "tags"] == ["tag 19"]


def test_a_run_is_opened_once_and_the_last_few_stay_open(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cache_store.library._OPEN_CAPTURES", 1)
    older = library.open(OLDER)
    assert library.open(OLDER) is older
    library.open(NEWER)  # lets go of the older one, which somebody still reads
    assert older.tokens()["token_id"].tolist()[:2] == [100, 101]
    assert library.open(OLDER) is not older


def test_many_threads_open_runs(library: Library) -> None:
    failures: list[BaseException] = []

    def read() -> None:
        try:
            for run_id in (OLDER, NEWER, OLDER):
                assert library.open(run_id).id == run_id
                assert len(library.runs()) == 2
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_deleted_run_is_gone_but_its_readers_go_on(library: Library) -> None:
    library.set_tags(OLDER, ["x"])
    capture = library.open(OLDER)
    library.delete(OLDER)
    assert library.runs()["id"].tolist() == [NEWER]
    with pytest.raises(StoreError, match="There is no run"):
        library.open(OLDER)
    assert capture.states(0, "k").shape == (2, 13, 3)
    assert sorted(os.listdir(library.home)) == [".library.json.lock", NEWER, "library.json"]
    # A run that comes back with the same id is read anew, though the old file is still open.
    Sample(run_id=OLDER, seed=5, prompt_length=20).write(library.home)
    assert library.open(OLDER).info.prompt_length == 20
    assert library.runs().set_index("id").loc[OLDER, "prompt_length"] == 20
    assert library.runs().set_index("id").loc[OLDER, "tags"] == []
    assert capture.info.prompt_length == 9


def test_a_run_travels_as_a_zip(library: Library, tmp_path: Path) -> None:
    library.set_title(OLDER, "For a friend")
    library.set_tags(OLDER, ["a"])
    with DerivedWriter(library.home / OLDER, "x", {"b": 1}) as writer:
        writer.add_array("values", np.arange(3))
        derived = writer.finish()
    out = tmp_path / "run.zip"
    library.export_zip(OLDER, out)
    stream = io.BytesIO()
    library.export_zip(OLDER, stream)
    with zipfile.ZipFile(out) as archive:
        names = ["about.json", "capture.duckdb", f"derived/{derived.name}"]
        assert sorted(archive.namelist()) == names
    assert not list(tmp_path.glob(".run.zip*"))
    sources: list[Path | io.BytesIO] = [out, stream]
    for number, source in enumerate(sources):
        other = Library(tmp_path / f"other {number}' home")
        assert other.import_file(source, "run.zip") == OLDER
        row = other.runs().iloc[0]
        assert (row["title"], row["tags"], row["derived"]) == ("For a friend", ["a"], 1)
        capture = other.open(OLDER)
        np.testing.assert_array_equal(capture.states(1, "v"), library.open(OLDER).states(1, "v"))
        found = capture.derived("x", {"b": 1})
        assert found is not None and found.array("values").tolist() == [0, 1, 2]
        with pytest.raises(StoreError, match=r"20260101-000000-00000a in run.zip is already in"):
            other.import_file(source, "run.zip")
        assert len(other.runs()) == 1
        assert not [name for name in os.listdir(other.home) if name.startswith(".import")]


def test_a_bare_capture_is_imported(library: Library, tmp_path: Path) -> None:
    other = Library(tmp_path / "other")
    assert other.import_file(library.capture_path(OLDER)) == OLDER
    assert other.runs()["title"].tolist() == ["zebra needle"]


def test_exporting_over_what_cannot_be_written(library: Library, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="could not be exported"):
        library.export_zip(OLDER, tmp_path / "no such folder" / "x.zip")


def test_a_renamed_folder_says_so(library: Library) -> None:
    moved = "20260103-000000-00000c"
    os.rename(library.home / OLDER, library.home / moved)
    assert "holds the run" in str(library.runs().set_index("id").loc[moved, "error"])
    with pytest.raises(StoreError, match="rename it back"):
        library.open(moved)


def test_only_changed_files_are_read_again(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = listing._read_row

    def count(connection, path, run_id):  # type: ignore[no-untyped-def]
        read.append(run_id)
        return original(connection, path, run_id)

    monkeypatch.setattr(listing, "_read_row", count)
    library.runs()
    library.runs(search="zebra")
    assert sorted(read) == [OLDER, NEWER]
    third = Sample()
    third.write(library.home)
    assert len(library.runs()) == 3 and read[2:] == [third.run_id]


def test_other_things_in_the_home_are_left_alone(library: Library) -> None:
    (library.home / ".jobs").mkdir()
    (library.home / "notes").mkdir()
    (library.home / "notes" / "x.partial").write_text("mine")
    (library.home / new_run_id()).mkdir()
    assert sweep_partials(library.home) == []
    assert len(library.runs()) == 2 and (library.home / "notes" / "x.partial").exists()


def test_what_a_killed_process_left_is_swept(library: Library) -> None:
    home = library.home
    trash, half = home / f".trash-{OLDER}-abc", home / ".import-0123"
    for folder in (trash, half):
        shutil.copytree(home / OLDER, folder)
    lock = FileLock(home / ".import-0123.lock")
    assert lock.acquire(wait=False)
    assert sweep_partials(home) == [trash]  # somebody is importing
    lock.release()
    assert sweep_partials(home) == [half]
    assert not (home / ".import-0123.lock").exists()
    assert library.runs()["id"].tolist() == [NEWER, OLDER]


def test_an_older_path_is_read_by_its_new_file(tmp_path: Path) -> None:
    """DuckDB keeps one instance per path and process; ours must not."""
    first = Sample(run_id=OLDER)
    path = first.write(tmp_path)
    held = Capture.open(path)
    shutil.rmtree(path.parent)
    Sample(run_id=OLDER, seed=9).write(tmp_path)
    with Capture.open(path) as fresh:
        assert not np.array_equal(fresh.states(0, "k"), held.states(0, "k"))
    np.testing.assert_array_equal(held.states(0, "k"), first.states[0, "k"])


@pytest.mark.parametrize("content", ["{", None])
def test_a_run_is_deleted_though_its_title_cannot_be_forgotten(
    library: Library, content: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.set_title(OLDER, "kept")
    if content is None:

        def full(path: Path, data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("cache_store.index.write_atomically", full)
    else:
        (library.home / "library.json").write_text(content)
    library.delete(OLDER)
    left = os.listdir(library.home)
    assert OLDER not in left and not [name for name in left if name.startswith(".trash")]


def test_a_link_or_a_file_in_place_of_a_run_is_deleted(library: Library, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (library.home / OLDER).rename(elsewhere)
    (library.home / OLDER).symlink_to(elsewhere)
    library.delete(OLDER)
    (library.home / OLDER).write_text("a file")
    library.delete(OLDER)
    assert (elsewhere / "capture.duckdb").exists()
    assert not [name for name in os.listdir(library.home) if OLDER in name]
    (library.home / ".trash-link").symlink_to(elsewhere)
    (library.home / ".trash-file").write_text("x")
    assert len(sweep_partials(library.home)) == 2 and (elsewhere / "capture.duckdb").exists()
    assert not [name for name in os.listdir(library.home) if name.startswith(".trash")]


def test_wrong_values_in_the_index_are_ignored(library: Library) -> None:
    def write(text: str) -> None:
        (library.home / "library.json").write_text(text)

    for tags, kept in {"null": [], "5": [], '[1, "a", 2]': ["a"], '{"a": 1}': []}.items():
        write(f'{{"runs": {{"{OLDER}": {{"title": "mine", "tags": {tags}}}, "{NEWER}": 7}}}}')
        runs = library.runs().set_index("id")
        assert runs.loc[OLDER, "tags"] == kept and runs.loc[OLDER, "title"] == "mine"
        assert runs.loc[NEWER, "title"] == "Ärger im Text"
    write(f'{{"runs": {{"{OLDER}": {{"title": "a\\ud800b"}}, "{NEWER}": {{"title": [1]}}}}}}')
    runs = library.runs().set_index("id")
    assert runs.loc[OLDER, "title"] == "a?b" and runs.loc[NEWER, "title"] == "Ärger im Text"
    library.set_tags(NEWER, ["x\ud800"])
    assert library.runs().set_index("id").loc[NEWER, "tags"] == ["x?"]
    assert library.title(OLDER) == "a?b"


def test_what_is_not_ours_is_not_exported(library: Library, tmp_path: Path) -> None:
    derived = library.home / OLDER / "derived"
    derived.mkdir()
    (derived / "notes.duckdb").write_text("mine")
    os.mkfifo(derived / f"{'0' * 24}.duckdb")
    (derived / f"{'1' * 24}.duckdb").symlink_to("/etc/hostname")
    out = tmp_path / "run.zip"
    library.export_zip(OLDER, out)
    assert Library(tmp_path / "other").import_file(out) == OLDER


def test_a_named_pipe_is_refused_before_it_is_opened(library: Library) -> None:
    path = library.capture_path(OLDER)
    derived = path.parent / "derived" / f"{'0' * 24}.duckdb"
    derived.parent.mkdir()
    os.mkfifo(derived)
    assert library.open(OLDER).derived_list().empty
    assert run_sql({"run": path}, "SELECT 1 AS x").frame["x"].tolist() == [1]
    log = path.with_name("capture.duckdb.wal")
    os.mkfifo(log)
    with pytest.raises(StoreError, match=r"wal is no regular file"):
        Capture.open(path)
    log.unlink()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StoreError, match="is no regular file"):
        library.open(OLDER)
    assert "no regular file" in str(library.runs().set_index("id").loc[OLDER, "error"])
    with pytest.raises(StoreError, match="is no regular file"):
        library.import_file(path)


def test_deleting_a_run_ends_what_computes_from_it_in_one_sentence(library: Library) -> None:
    with (
        pytest.raises(StoreError, match=f"Run {OLDER} was deleted meanwhile"),
        DerivedWriter(library.home / OLDER, "x", {}) as writer,
    ):
        writer.add_array("values", np.arange(300_000))
        library.delete(OLDER)
        writer.finish()
    assert OLDER not in os.listdir(library.home)
