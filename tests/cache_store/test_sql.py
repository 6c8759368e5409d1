"""The SQL box: reads the runs it was given, for a while, and nothing else."""

import io
import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest

from cache_store import sql as sql_module
from cache_store import sql_child, sql_process
from cache_store.errors import StoreError
from cache_store.sql import run_sql
from cache_store.writer import DerivedWriter
from pages.parts.sql_box import _showable
from tests.cache_store.sample import Sample


@pytest.fixture(scope="module")
def samples() -> tuple[Sample, Sample]:
    return Sample(), Sample(seed=1, prompt_length=9)


@pytest.fixture(scope="module")
def paths(
    samples: tuple[Sample, Sample], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("it's a home")
    return {alias: sample.write(home) for alias, sample in zip(("a", "b"), samples, strict=True)}


def test_queries(paths: dict[str, Path], samples: tuple[Sample, Sample]) -> None:
    result = run_sql(paths, "SELECT count(*) AS n, sum(position) AS total FROM token")
    assert result.frame.to_dict("list") == {"n": [11], "total": [sum(range(11))]}
    assert result.frame["total"].dtype == np.int64
    assert not result.truncated and 0 < result.seconds < 10
    both = run_sql(paths, "SELECT x.prompt_length, y.prompt_length FROM a.capture x, b.capture y")
    assert both.frame.columns.tolist() == ["prompt_length", "prompt_length_2"]
    assert both.frame.values.tolist() == [[7, 9]]
    blobs = run_sql(paths, "SELECT row FROM attention WHERE layer = 1 AND head = 2 AND step = 1;")
    row = np.frombuffer(blobs.frame["row"][0], np.float16)
    np.testing.assert_array_equal(row, samples[0].rows[1, 2, 1])
    assert run_sql(paths, "SELECT settings->>'note' FROM capture").frame.values == [
        ["ünï\u2028code"]
    ]
    assert "text" in run_sql(paths, "DESCRIBE token").frame["column_name"].tolist()
    assert len(run_sql(paths, "SHOW TABLES").frame) == 7
    assert len(run_sql(paths, "SUMMARIZE step_stat").frame) == 9
    assert run_sql({}, "SELECT 42 AS x").frame["x"].tolist() == [42]


def test_derived_files_are_attached(tmp_path: Path) -> None:
    path = Sample().write(tmp_path)
    for kind, spec in (("twice", {"a": 1}), ("twice", {"a": 2}), ("once", {}), ("od-d", {})):
        with DerivedWriter(path.parent, kind, spec) as writer:
            writer.add("result", {"x": [3]})
            writer.finish()
    (path.parent / "derived" / "broken.duckdb").write_text("broken")
    assert run_sql({"run": path}, "SELECT x FROM run_once.result").frame["x"].tolist() == [3]
    with pytest.raises(StoreError, match="does not exist"):
        run_sql({"run": path}, "FROM run_twice.result")


def test_rows_are_limited(paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_sql(paths, "FROM range(1_000_000_000_000)", row_limit=3000)
    assert result.truncated and result.frame["range"].tolist() == list(range(3000))
    exact = run_sql(paths, "FROM range(3000)", row_limit=3000)
    assert not exact.truncated and len(exact.frame) == 3000
    assert run_sql(paths, "FROM range(0)").frame.empty
    monkeypatch.setattr(sql_module, "_MAX_RESULT_BYTES", 100_000)
    cut = run_sql(paths, "SELECT repeat('x', 1000) AS x FROM range(9000)")
    assert cut.truncated and 50 < len(cut.frame) <= 100  # of 1,004 bytes each
    with pytest.raises(StoreError, match=r"One row of the result holds 200,\d+ bytes"):
        run_sql(paths, "SELECT repeat('x', 200000) AS x")


def test_time_is_limited(paths: dict[str, Path]) -> None:
    started = time.monotonic()
    with pytest.raises(StoreError, match=r"took longer than 0\.4 s"):
        run_sql(paths, "SELECT count(*) FROM range(100000000000) a, range(99999) b", timeout_s=0.4)
    assert time.monotonic() - started < 8


def test_a_query_has_a_length_and_parsing_counts_as_time(
    paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError, match=r"at most 20,000 characters, this one 20,001"):
        run_sql(paths, "SELECT 1".ljust(20_001))
    assert len(run_sql(paths, "SELECT 1".ljust(20_000)).frame) == 1
    parse = sql_child._parse

    def slow(*arguments: Any) -> Any:
        time.sleep(0.3)
        return parse(*arguments)

    monkeypatch.setattr(sql_child, "_parse", slow)
    query = {"sql": "SELECT 1", "timeout_s": 0.1, "row_limit": 10, "max_bytes": 1000}
    request = {"databases": [], "default": None, "memory_limit": "64MB", "query": query}
    with pytest.raises(StoreError, match=r"took longer than 0\.1 s"):
        sql_child.answer(request, lambda: None)


# One call of a function that asks nobody: DuckDB sees an interrupt between chunks only.
ENDLESS = "SELECT levenshtein(repeat('a', 900000), repeat('b', 900000))"


def test_a_query_that_never_yields_is_ended_and_leaves_the_app_its_memory(
    paths: dict[str, Path],
) -> None:
    run_sql(paths, "SELECT 1")
    process = psutil.Process()
    before, started = process.memory_info().rss, time.monotonic()
    with pytest.raises(StoreError, match=r"took longer than 0\.5 s; ask for less"):
        run_sql(paths, ENDLESS, timeout_s=0.5)
    assert time.monotonic() - started < 8
    assert process.memory_info().rss - before < 20_000_000
    assert not [child for child in process.children() if "cache_store.sql_child" in _line(child)]
    assert run_sql(paths, "SELECT 1 AS x").frame["x"].tolist() == [1]


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""  # it has ended


def test_a_query_ends_even_when_the_app_is_gone() -> None:
    """Nobody kills the process here: its own alarm does."""
    ours, theirs = Pipe()
    query = {"sql": ENDLESS, "timeout_s": 0.3, "row_limit": 10, "max_bytes": 1000}
    request = {"databases": [], "default": None, "memory_limit": "64MB", "query": query}
    child = subprocess.Popen(
        [sys.executable, "-m", "cache_store.sql_child", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
    )
    ours.send_bytes(json.dumps(request).encode())
    assert child.wait(60) == -signal.SIGALRM


def test_a_process_that_dies_is_one_sentence(
    paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_sql(paths, "SELECT 1")
    receive = sql_process._Child._receive

    def killed(self: Any, seconds: float, otherwise: str) -> bytes:
        self._process.kill()
        return receive(self, seconds, otherwise)

    monkeypatch.setattr(sql_process._Child, "_receive", killed)
    with pytest.raises(StoreError, match="ended before it was done"):
        run_sql(paths, ENDLESS)
    monkeypatch.undo()
    assert len(run_sql(paths, "SELECT 1").frame) == 1


def test_two_queries_at_once_and_one_process_kept(paths: dict[str, Path]) -> None:
    with ThreadPoolExecutor(2) as pool:
        sums = pool.map(lambda n: run_sql(paths, f"SELECT {n} + count(*) AS x FROM token"), (1, 2))
        assert sorted(result.frame["x"][0] for result in sums) == [12, 13]
    assert len(sql_process._idle) == 1


def test_the_process_starts_light() -> None:
    check = "import sys, cache_store.sql_child; print([m for m in "
    check += "('pandas', 'torch', 'transformers', 'kvpolicies', 'streamlit') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    "query",
    [
        "SELECT range(3000000)",
        "SELECT repeat('a', 23000000)",
        "SELECT repeat('a', 23000000) FROM range(10000)",
        "SELECT [repeat('a', 2300000)]",
        "SELECT repeat('a', 2300000)::BLOB",
    ],
)
def test_a_huge_value_is_one_sentence(paths: dict[str, Path], query: str) -> None:
    with pytest.raises(StoreError, match="A value in the result is larger than 2,000,000 bytes"):
        run_sql(paths, query)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("date 'infinity'", "infinity"),
        ("date '2020-01-31'", "2020-01-31"),
        ("timestamp '14645-06-30'", "14645-06-30 00:00:00"),
        ("timestamp_ns 'infinity'", "infinity"),
        ("timestamp_ms '0044-01-01 (BC)'", "0044-01-01 (BC) 00:00:00"),
        ("timestamptz '-infinity'", "-infinity"),
        ("timestamp_s '2020-01-31 01:02:03'", "2020-01-31 01:02:03"),
        ("time '24:00:00'", "24:00:00"),
        ("time_ns '01:02:03'", "01:02:03"),
        ("timetz '01:00:00+01'", "01:00:00+01"),
        ("union_value(k := 1)", "1"),
        ("INTERVAL 1 day", "1 day"),
        ("map {'a': 1}", "{a=1}"),
        ("{'a': [1]}", "{'a': [1]}"),
        ("[date 'infinity']", "[infinity]"),
        ("'a'::ENUM('a', 'b')", "a"),
        ("'101'::BIT", "101"),
        ("170141183460469231731687303715884105727::HUGEINT", str(2**127 - 1)),
        ("1.5::DECIMAL(4, 2)", "1.50"),
        ("true", "True"),
    ],
)
def test_every_type_reaches_page_csv_and_parquet(
    paths: dict[str, Path], expression: str, text: str
) -> None:
    for missing in ("", " UNION ALL SELECT NULL"):
        frame = run_sql(paths, f"SELECT {expression} AS x{missing}").frame
        assert str(frame["x"][0]).startswith(text) and len(frame) == (2 if missing else 1)
        assert text in frame.to_csv(index=False).replace('""', '"')
        stream = io.BytesIO()
        frame.to_parquet(stream, index=False)
        assert pd.read_parquet(stream)["x"].isna().tolist() == [False, True][: len(frame)]


def test_lists_of_numbers_stay_lists(paths: dict[str, Path]) -> None:
    frame = run_sql(paths, "SELECT [1, 2] AS x, created_at FROM capture").frame
    assert frame["x"][0].tolist() == [1, 2] and frame["created_at"].dtype.kind == "M"


def test_memory_is_limited(paths: dict[str, Path]) -> None:
    with pytest.raises(StoreError, match="more memory"):
        run_sql(paths, "SELECT list(i) FROM range(1000000000) t(i)", memory_limit="64MB")


ESCAPES = [
    "FROM read_text('{secret}')",
    "FROM read_csv('{secret}')",
    "FROM '{secret}'",
    "FROM glob('/*')",
    "FROM sniff_csv('{secret}')",
    "FROM query('FROM read_text(''{secret}'')')",
    "SELECT (SELECT content FROM read_text('{secret}'))",
    "FROM read_duckdb('{other}')",
    "FROM '{other}'",
    "COPY token TO '{out}'",
    "COPY (SELECT 1) TO '{capture}'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{capture}'",
    "EXPLAIN COPY (SELECT 1) TO '{out}'",
    "EXPORT DATABASE '{out}'",
    "ATTACH '{other}' AS other",
    "ATTACH '{out}'",
    "DETACH b",
    "SET memory_limit = '100GB'",
    "SET enable_external_access = true",
    "RESET enable_external_access",
    "SET lock_configuration = false",
    "PRAGMA enable_profiling",
    "PRAGMA memory_limit = '100GB'",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "INSTALL httpfs",
    "LOAD httpfs",
    "FROM read_csv('https://127.0.0.1:9/x.csv')",
    "FROM duckdb_secrets()",
    "CREATE SECRET (TYPE s3)",
    "SELECT getenv('HOME')",
    "FROM paths",  # a Python variable
    "FROM secret_frame",
    "DELETE FROM token",
    "UPDATE token SET text = 'x'",
    "INSERT INTO token VALUES (1, 1, 'x', 'x', 1, 1)",
    "DROP TABLE token",
    "CREATE TABLE x AS SELECT 1",
    "CREATE MACRO f() AS 1",
    "WITH gone AS (DELETE FROM token RETURNING *) FROM gone",
    "CHECKPOINT",
    "VACUUM",
    "BEGIN",
    "USE b",
    "PREPARE x AS SELECT 1",
    "SELECT 1; SELECT 2",
    "SELECT 1; COPY token TO '{out}'",
    "",
    "-- nothing",
    ";",
    "SELEC 1",
    "SELECT nothing FROM token",
    "SELECT 1/'a'",
    "SELECT '\ud800'",
]


@pytest.mark.parametrize("query", ESCAPES)
def test_what_is_refused_is_one_sentence(
    paths: dict[str, Path], tmp_path: Path, query: str
) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("the,secret\n1,2\n")
    out = tmp_path / "out"
    other = Sample(seed=3).write(tmp_path / "elsewhere")
    secret_frame = run_sql({}, "SELECT 1 AS hidden").frame
    before = paths["a"].read_bytes()
    filled = query
    for name, path in {"secret": secret, "out": out, "other": other, "capture": paths["a"]}.items():
        filled = filled.replace(f"{{{name}}}", str(path).replace("'", "''"))
    with pytest.raises(StoreError) as error:
        run_sql(paths, filled, timeout_s=5)
    text = str(error.value)
    assert "\n" not in text and "the,secret" not in text
    assert not out.exists() and paths["a"].read_bytes() == before
    assert secret_frame["hidden"].tolist() == [1]


@pytest.mark.parametrize("alias", ["", "a b", 'a"; DROP', "main", "Memory", "é", "1a"])
def test_an_alias_is_a_plain_name(paths: dict[str, Path], alias: str) -> None:
    with pytest.raises(StoreError, match="cannot name a run"):
        run_sql({alias: paths["a"]}, "SELECT 1")


def test_two_aliases_that_sql_cannot_tell_apart(paths: dict[str, Path]) -> None:
    with pytest.raises(StoreError, match="Two runs are called"):
        run_sql({"run": paths["a"], "RUN": paths["b"]}, "SELECT 1")


def test_one_run_under_two_names(paths: dict[str, Path]) -> None:
    twice = {"x": paths["a"], "y": paths["a"]}
    assert run_sql(twice, "SELECT count(*) AS n FROM x.token JOIN y.token USING (position)").frame[
        "n"
    ].tolist() == [11]


def test_what_the_page_shows_of_a_result(paths: dict[str, Path]) -> None:
    empty = run_sql(paths, "SELECT created_at, title FROM capture WHERE false").frame
    assert _showable(empty).empty
    query = "SELECT row, repeat('é', 2000) AS text, range(3000) AS list, 1 AS n FROM attention"
    shown = _showable(run_sql(paths, query + " LIMIT 1").frame).iloc[0]
    assert shown["row"].endswith(" bytes") and shown["n"] == 1
    assert shown["text"] == "é" * 1000 + "… (2,000 characters)"
    assert shown["list"].startswith("[0, 1, 2,") and shown["list"].endswith("(3,000 values)")
    mixed = _showable(pd.DataFrame({"x": ["short", None, "x" * 1001]}))["x"]
    assert mixed[0] == "short" and pd.isna(mixed[1]) and len(mixed[2]) < 1030


def test_a_bad_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "capture.duckdb"
    path.write_text("hello")
    with pytest.raises(StoreError, match="not a complete DuckDB file"):
        run_sql({"run": path}, "SELECT 1")
