"""Files from elsewhere: one sentence each, never a traceback, never somebody else's SQL."""

import io
import json
import os
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pytest

from cache_store import importing
from cache_store.errors import StoreError
from cache_store.library import Library
from cache_store.reader import Capture
from cache_store.writer import CaptureWriter, DerivedWriter
from tests.cache_store.sample import Sample


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Sample().write(tmp_path_factory.mktemp("home"))


def edit(path: Path, *statements: str) -> None:
    """Change a file behind the store's back, as somebody with DuckDB at hand could."""
    connection = duckdb.connect(str(path))
    for statement in statements:
        connection.execute(statement)
    connection.close()


def foreign(path: Path) -> None:
    path.unlink()
    edit(path, "CREATE TABLE sales (day DATE, amount DOUBLE)")


def as_view(path: Path) -> None:
    secret = path.with_name("secret.txt")
    secret.write_text("the secret")
    edit(
        path,
        "ALTER TABLE token RENAME TO hidden",
        "CREATE VIEW token AS SELECT hidden.* REPLACE (content AS text) "
        f"FROM hidden, read_text('{secret}')",
    )


def generated(path: Path) -> None:
    edit(
        path,
        "DROP TABLE token",
        "CREATE TABLE token (position INTEGER, token_id INTEGER, text VARCHAR "
        "GENERATED ALWAYS AS (concat(version())), segment VARCHAR, char_start INTEGER, "
        "char_end INTEGER)",
    )


def truncate(size: int | float) -> Callable[[Path], None]:
    def cut(path: Path) -> None:
        os.truncate(path, int(size if size > 1 else size * path.stat().st_size))

    return cut


def replace(data: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(data)

    return write


def sql(*statements: str) -> Callable[[Path], None]:
    return lambda path: edit(path, *statements)


REFUSED_WHEN_OPENED: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (Path.unlink, "No such file"),
    "empty": (truncate(0), "not a complete DuckDB file"),
    "a few bytes": (truncate(100), "not a complete DuckDB file"),
    "headers only": (truncate(12_288), "cut short|cannot be read"),
    "half": (truncate(0.5), "cut short|cannot be read"),
    "last block gone": (truncate(0.97), "cut short|cannot be read"),
    "text": (replace(b"What is attention? " * 2000), "not a complete DuckDB file"),
    "a header and noise": (replace(b"\1" * 8 + b"DUCK" + b"\7" * 90_000), "cannot be read"),
    "newer": (
        sql("UPDATE capture SET schema_version = 9", "CREATE TABLE more (x INTEGER)"),
        "newer KVScope.*schema 9",
    ),
    "newer with other columns": (
        sql("UPDATE capture SET schema_version = 2", "ALTER TABLE token DROP COLUMN segment"),
        "newer KVScope",
    ),
    "foreign": (foreign, "not a KVScope capture"),
    "a table missing": (sql("DROP TABLE kv_stat"), "not a KVScope capture"),
    "a column missing": (sql("ALTER TABLE token DROP COLUMN text"), "not a KVScope capture"),
    "a column of another type": (
        sql("ALTER TABLE token ALTER position TYPE VARCHAR"),
        "not a KVScope capture",
    ),
    "one more table": (sql("CREATE TABLE more (x INTEGER)"), "not a KVScope capture"),
    "another schema": (
        sql("CREATE SCHEMA more", "CREATE TABLE more.x (y INTEGER)"),
        "not a KVScope capture",
    ),
    "a view for a table": (as_view, "not a KVScope capture"),
    "one more view": (sql("CREATE VIEW more AS SELECT 1"), "not a KVScope capture"),
    "a generated column": (generated, "not a KVScope capture"),
    "incomplete": (sql("UPDATE capture SET complete = false"), "incomplete"),
    "no capture row": (sql("DELETE FROM capture"), "incomplete"),
    "two capture rows": (sql("INSERT INTO capture FROM capture"), "incomplete"),
    "no sizes": (sql("UPDATE capture SET layers = NULL"), "damaged"),
    "settings that are a list": (sql("UPDATE capture SET settings = '[1]'"), "damaged"),
}

REFUSED_WHEN_IMPORTED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a macro": (sql("CREATE MACRO octet_length(x) AS 7"), "holds code"),
    "a table macro": (sql("CREATE MACRO peek() AS TABLE SELECT 1"), "holds code"),
    "a type": (sql("CREATE TYPE mood AS ENUM ('a')"), "holds code"),
    "a sequence": (sql("CREATE SEQUENCE s"), "holds code"),
    "an id that is a path": (sql("UPDATE capture SET id = '../../outside'"), "no run id"),
    "no id": (sql("UPDATE capture SET id = NULL"), "no run id"),
    "heads that do not divide": (sql("UPDATE capture SET kv_heads = 3"), "damaged"),
    "more layers than states": (
        sql("UPDATE capture SET layers = 3, scaling = [1, 1, 1], sliding_window = [1, 1, 1]"),
        "states are not complete",
    ),
    "a negative length": (sql("UPDATE capture SET prompt_length = -1"), "damaged"),
    "short states": (sql("UPDATE state SET data = data[1:10] WHERE layer = 1"), "states are not"),
    "no states": (sql("DELETE FROM state"), "states are not complete"),
    "a short row": (sql("UPDATE attention SET row = '\\x00'::BLOB"), "attention rows are not"),
    "a row of no head": (sql("UPDATE attention SET head = 99"), "attention rows are not"),
    "a row twice": (sql("UPDATE attention SET head = 1 WHERE head = 0"), "attention rows are not"),
    "a head without rows": (sql("DELETE FROM attention WHERE head = 1"), "attention rows are not"),
    "a token nowhere in the text": (sql("UPDATE token SET char_start = -1"), "tokens are not"),
    "a token twice": (sql("UPDATE token SET position = 0"), "tokens are not complete"),
    "a token without text": (sql("UPDATE token SET text = NULL"), "tokens are not complete"),
    "a segment of its own": (sql("UPDATE token SET segment = 'x'"), "tokens are not complete"),
    "a top entry nowhere": (sql("UPDATE attention_top SET position = 999"), "largest entries"),
    "a statistic of no layer": (sql("UPDATE step_stat SET layer = -1"), "step statistics"),
    "an entry of no head": (sql("UPDATE kv_stat SET head = 2"), "KV statistics"),
}


def assert_one_sentence(error: pytest.ExceptionInfo[StoreError]) -> None:
    text = str(error.value)
    assert "\n" not in text and text.endswith((".", ")")) and len(text) < 600, text


@pytest.mark.parametrize("case", REFUSED_WHEN_OPENED)
def test_a_bad_file_is_one_sentence(good: Path, tmp_path: Path, case: str) -> None:
    spoil, message = REFUSED_WHEN_OPENED[case]
    run_id = good.parent.name
    path = tmp_path / run_id / "capture.duckdb"
    path.parent.mkdir()
    shutil.copy(good, path)
    spoil(path)
    with pytest.raises(StoreError, match=message) as error:
        Capture.open(path)
    assert_one_sentence(error)
    library = Library(tmp_path)
    if case != "missing":
        # Listed with the same sentence, so that the reader can delete it.
        listed = library.runs()
        assert listed["id"].tolist() == [run_id]
        if case != "settings that are a list":  # the list does not show settings
            assert listed["error"][0].startswith(str(error.value)[:-30])
        with pytest.raises(StoreError):
            library.import_file(path)


@pytest.mark.parametrize("case", REFUSED_WHEN_IMPORTED)
def test_an_import_is_read_to_its_last_byte(good: Path, tmp_path: Path, case: str) -> None:
    spoil, message = REFUSED_WHEN_IMPORTED[case]
    path = tmp_path / "given.duckdb"
    shutil.copy(good, path)
    spoil(path)
    library = Library(tmp_path / "home")
    with pytest.raises(StoreError, match=message) as error:
        library.import_file(path)
    assert_one_sentence(error)
    assert "given.duckdb" in str(error.value) and ".import" not in str(error.value)
    assert os.listdir(library.home) == []


def test_a_flipped_bit_is_found(good: Path, tmp_path: Path) -> None:
    """Anywhere in the blocks: DuckDB keeps a checksum for each."""
    data = bytearray(good.read_bytes())
    library = Library(tmp_path / "home")
    for place in np.linspace(12_288 + 64, len(data) - 64, 6).astype(int):
        data[place] ^= 1
        path = tmp_path / "flipped.duckdb"
        path.write_bytes(data)
        data[place] ^= 1
        try:
            run_id = library.import_file(path)
        except StoreError as error:
            assert "damaged" in str(error) or "not a KVScope" in str(error), error
        else:
            # A bit in a block that nothing uses: what is read must then be right.
            with Capture.open(good) as whole:
                np.testing.assert_array_equal(
                    library.open(run_id).states(0, "k"), whole.states(0, "k")
                )
            library.delete(run_id)


def test_an_imported_view_never_reads_a_file(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "view.duckdb"
    shutil.copy(good, path)
    as_view(path)
    with duckdb.connect(str(path), read_only=True) as connection:
        assert connection.sql("SELECT text FROM token LIMIT 1").fetchall() == [("the secret",)]
    with pytest.raises(StoreError, match="not a KVScope capture"):
        Capture.open(path)


# Zips ----------------------------------------------------------------------------------------


def pack(entries: list[tuple[str | zipfile.ZipInfo, bytes]], compression: int = 0) -> io.BytesIO:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    out.seek(0)
    return out


def symlink(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.create_system = 3
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


@pytest.mark.parametrize(
    "name",
    [
        "/etc/cron.d/x",
        "../capture.duckdb",
        "derived/../../x.duckdb",
        "derived\\0123456789abcdef01234567.duckdb",
        "..\\capture.duckdb",
        "C:\\capture.duckdb",
        "run/capture.duckdb",
        "derived/x.duckdb",
        "derived/0123456789abcdef01234567.duckdb\n",
        "derived/sub/0123456789abcdef01234567.duckdb",
        "CAPTURE.DUCKDB",
        "capture.duckdb.wal",
        "notes.txt",
    ],
)
def test_a_zip_with_an_odd_path(good: Path, tmp_path: Path, name: str) -> None:
    library = Library(tmp_path / "home")
    archive = pack([("capture.duckdb", good.read_bytes()), (name, b"x")])
    with pytest.raises(StoreError, match="no part of an exported run") as error:
        library.import_file(archive, "odd.zip")
    assert_one_sentence(error)
    assert os.listdir(library.home) == [] and os.listdir(tmp_path) == ["home"]


def bad_zip(case: str, good: Path) -> io.BytesIO:
    capture = ("capture.duckdb", good.read_bytes())
    if case == "symlink":
        return pack([(symlink("capture.duckdb"), b"/etc/passwd")])
    if case == "symlinked derived":
        return pack([capture, (symlink(f"derived/{'0' * 24}.duckdb"), b"/etc/passwd")])
    if case == "duplicate":
        with pytest.warns(UserWarning, match="Duplicate"):
            return pack([capture, capture])
    if case == "bomb":
        return pack([("capture.duckdb", bytes(60_000_000))], zipfile.ZIP_DEFLATED)
    if case == "no capture":
        return pack([("about.json", b"{}")])
    if case == "empty zip":
        return pack([])
    if case == "many":
        return pack([(f"derived/{i:024x}.duckdb", b"") for i in range(2_001)])
    if case == "bad capture":
        return pack([("capture.duckdb", good.read_bytes()[:20_000])])
    if case == "text for a capture":
        return pack([("capture.duckdb", b"hello")])
    if case == "bad derived":
        return pack([capture, (f"derived/{'0' * 24}.duckdb", b"hello")])
    if case == "capture for a derived file":
        return pack([capture, (f"derived/{'0' * 24}.duckdb", capture[1])])
    if case == "about is no JSON":
        return pack([capture, ("about.json", b"{title")])
    if case == "about is deep":
        return pack([capture, ("about.json", b"[" * 200_000)])
    if case == "about is large":
        return pack([capture, ("about.json", b" " * 1_100_000)])
    if case == "cut":
        return io.BytesIO(pack([capture]).getvalue()[:-300])
    if case == "flipped":
        data = bytearray(pack([capture]).getvalue())
        data[50_000] ^= 1
        return io.BytesIO(bytes(data))
    if case == "encrypted":
        data = bytearray(pack([capture]).getvalue())
        data[6] |= 1
        data[data.rindex(b"PK\1\2") + 8] |= 1
        return io.BytesIO(bytes(data))
    if case == "empty file":
        return io.BytesIO()
    if case == "text file":
        return io.BytesIO(b"What is attention?")
    raise AssertionError(case)


@pytest.mark.parametrize(
    ("case", "message"),
    {
        "symlink": "no part of an exported run",
        "symlinked derived": "no part of an exported run",
        "duplicate": "no part of an exported run",
        "bomb": "would unpack from",
        "no capture": "holds no capture.duckdb",
        "empty zip": "holds no capture.duckdb",
        "many": "holds 2001 files",
        "bad capture": "given.zip (is cut short|cannot be read)",
        "text for a capture": "given.zip is not a complete DuckDB file",
        "bad derived": "given.zip .0{24}.duckdb. is not a complete",
        "capture for a derived file": "not a KVScope derived",
        "about is no JSON": "about.json that is no JSON",
        "about is deep": "about.json that is no JSON",
        "about is large": "more than 1 MB",
        "cut": "damaged zip",
        "flipped": "damaged zip",
        "encrypted": "is encrypted",
        "empty file": "is empty",
        "text file": "is neither a zip",
    }.items(),
)
def test_a_bad_zip_is_one_sentence(good: Path, tmp_path: Path, case: str, message: str) -> None:
    library = Library(tmp_path / "home")
    with pytest.raises(StoreError, match=message) as error:
        library.import_file(bad_zip(case, good), "given.zip")
    assert_one_sentence(error)
    assert os.listdir(library.home) == []


def test_a_run_of_another_capture_is_refused(good: Path, tmp_path: Path) -> None:
    other = Sample().write(tmp_path)
    with DerivedWriter(other.parent, "x", {}) as writer:
        writer.add_array("a", np.zeros(2))
        derived = writer.finish()
    archive = pack(
        [
            ("capture.duckdb", good.read_bytes()),
            (f"derived/{derived.name}", derived.read_bytes()),
        ]
    )
    with pytest.raises(StoreError, match="belongs to run"):
        Library(tmp_path / "home").import_file(archive, "mixed.zip")


def test_no_space_is_one_sentence(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "_KEEP_FREE_BYTES", 1 << 62)
    library = Library(tmp_path / "home")
    with pytest.raises(StoreError, match="the disk has 0 MB to spare"):
        library.import_file(good)
    assert os.listdir(library.home) == []


def test_the_running_file_is_not_listed(tmp_path: Path) -> None:
    sample = Sample()
    library = Library(tmp_path)
    with CaptureWriter(tmp_path / sample.run_id, sample.run_id) as writer:
        sample.write_states(writer)
        assert library.runs().empty
        with pytest.raises(StoreError, match="There is no run"):
            library.open(sample.run_id)
        writer.finish(sample.capture_row())
    assert library.runs()["id"].tolist() == [sample.run_id]


def test_a_damaged_index_is_one_sentence(good: Path) -> None:
    index = good.parent.parent / "library.json"
    for text in ("{", "[]", '{"runs": [1]}', "[" * 100_000, json.dumps({"x": 1})):
        index.write_text(text)
        with pytest.raises(StoreError, match="titles and tags cannot be read") as error:
            Library(good.parent.parent).runs()
        assert_one_sentence(error)
    index.unlink()
