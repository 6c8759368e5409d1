"""Uploads and typed prompts: exact text for good ones, one clear sentence for each bad one."""

from __future__ import annotations

import csv
import io
import json
import time
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backend.prompts import (
    FieldMapping,
    PromptError,
    choose_rows,
    parse,
    propose_mapping,
    row_prompt,
    row_prompts,
    typed_prompt,
)

ODD = "  a\r\nb\tc\u2028d\u200b\x0c e\u0301 𝔘 <script>alert(1)</script> \x07\n\n "


def parquet(rows: list[dict[str, object]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


def table(**columns: Any) -> bytes:
    """A Parquet file of whole columns."""
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, compression="zstd")
    return out.getvalue()


REPEATED = pa.DictionaryArray.from_arrays(pa.array([0] * 3_000), ["x" * 1_000_000])
FAR_DATE = pa.array([10**12], pa.timestamp("s"))  # beyond Python's year 9999


def _wide(columns: int, rows: int) -> bytes:
    header = ",".join(f"c{n}" for n in range(columns))
    return f"{header}\n{(',' * (columns - 1) + chr(10)) * rows}".encode()


def quoted(rows: list[list[str]]) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out).writerows(rows)
    return out.getvalue().encode()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.txt", ODD.encode()),
        ("a.md", ODD.encode()),
        ("A.TXT", b"\xef\xbb\xbf" + ODD.encode()),
        ("a.txt", b"\xff\xfe" + ODD.encode("utf-16-le")),
        ("a.txt", b"\xfe\xff" + ODD.encode("utf-16-be")),
        ("a.txt", b"\xff\xfe\x00\x00" + ODD.encode("utf-32-le")),
        ("a.json", json.dumps([{"prompt": ODD}]).encode()),
        ("a.json", json.dumps({"prompt": ODD, "n": 1}).encode()),
        ("a.json", json.dumps({"data": [{"text": ODD}]}).encode()),
        ("a.json", json.dumps([ODD]).encode()),
        ("a.json", json.dumps(ODD).encode()),
        ("a.jsonl", b"\r\n" + json.dumps({"input": ODD}, ensure_ascii=False).encode() + b"\r\n"),
        ("a.csv", quoted([["id", "prompt"], ["1", ODD]])),
        ("a.csv", "id\tprompt\n1\t{}\n".format('"' + ODD + '"').encode()),
        ("a.parquet", parquet([{"id": 1, "prompt": ODD}])),
        ("a.parquet", table(prompt=[ODD], at=FAR_DATE, day=[date(2026, 1, 1)], n=[None])),
        ("a.parquet", table(prompt=pa.array([ODD], pa.large_string()), b=[b"\xff"], c=[["x"]])),
        ("a.parquet", table(prompt=pa.array([ODD]).dictionary_encode())),
    ],
)
def test_text_arrives_exactly_as_it_was(name: str, data: bytes) -> None:
    prompt = row_prompt(parse(name, data), 1)
    assert prompt.text == ODD
    assert (prompt.context, prompt.question, prompt.context_end) == (ODD, "", None)
    assert prompt.source == name


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.txt", b"", "a.txt is empty"),
        ("a.txt", b" \r\n\t ", "only white space"),
        ("a.txt", b"x" * 50_000_000, "50 MB, above the limit of 20 MB"),
        ("a.txt", bytes(range(256)), "byte 0x80 at 128"),
        ("a.txt", b"abc\0def", "NUL bytes (the first after 3 characters)"),
        ("a.png", b"\x89PNG", "ending 'png'"),
        ("README", b"text", "ending ''"),
        ("a.md", "é".encode("latin-1"), "not UTF-8 text (byte 0xE9 at 0)"),
        ("a.txt", b"\xff\xfea", "not UTF-16-LE text"),
        ("a.json", b'[{"prompt": "x"},\n {"prompt" 3}]', "line 2, column 12"),
        ("a.json", b"[" * 100_000, "too deeply nested"),
        ("a.json", b"42", "holds the number 42"),
        ("a.json", b"null", "holds empty (null)"),
        ("a.json", b'[["x"]]', "Entry 1 of a.json is a list"),
        ("a.json", b'[{"prompt": "x"}, 3]', "Entry 2 of a.json is the number 3"),
        ("a.json", b"[]", "no rows"),
        ("a.json", b"{}", "no fields"),
        ("a.jsonl", b'{"prompt": "x"}\n\n{"prompt": \n', "Line 3 of a.jsonl"),
        ("a.jsonl", b'{"prompt": "x"}\n[1]\n', "Line 2 of a.jsonl is a list"),
        ("a.csv", b"prompt,id\nx,1\ny\n", "line 3 of a.csv has 1 cells"),
        ("a.csv", b"1,2\n3,4\n", "first line of a.csv names no columns ('1'"),
        ("a.csv", b"prompt,prompt\nx,y\n", "names no columns ('prompt'"),
        ("a.csv", b"prompt\n", "no rows"),
        ("a.csv", b'prompt\n"x\n', "not valid CSV"),
        ("a.csv", ("long " * 100).encode() + b"\nx\n", "names no columns"),
        ("a.csv", ",".join(f"c{n}" for n in range(2001)).encode() + b"\n", "than 2,000 fields"),
        ("a.csv", b"prompt\n" + b"x\n" * 100_001, "more than 100,000 rows"),
        ("a.csv", _wide(1_900, 1_600), "more than 3,000,000 cells"),
        ("a.jsonl", b'{"a": "x"}\n' * 100_001, "more than 100,000 rows"),
        ("a.json", b"[" + b'{"a": 1},' * 100_000 + b'{"a": 1}]', "more than 100,000 rows"),
        ("a.json", json.dumps([{f"f{n}": 1} for n in range(2_001)]).encode(), "2,000 fields"),
        ("a.json", b'[{"a\\ud800": "x"}]', "field name 'a?' of a.json holds U+D800"),
        ("a.json", b'[{"a": "x"}, {"a": "b\\udfff"}]', "'a' in row 2 of a.json holds U+DFFF"),
        ("a.jsonl", b'"\\ud800"\n', "'text' in row 1 of a.jsonl holds U+D800"),
        ("a.parquet", table(prompt=REPEATED), "200 MB"),
        ("a.parquet", table(prompt=pa.nulls(5_000_000, pa.string())), "than 100,000 rows"),
        (
            "a.parquet",
            table(**{f"c{n}": pa.nulls(99_000, pa.string()) for n in range(31)}),
            "cells",
        ),
        ("a.parquet", table(prompt=[7], at=FAR_DATE), "has 'prompt' (int64), 'at' (timestamp["),
        ("a.parquet", table(prompt=[None]), "no column of text, it has 'prompt' (null)"),
        ("a.parquet", table(prompt=pa.array([], pa.string())), "no rows"),
        ("a.parquet", b"PAR1 but not really", "not a readable Parquet file"),
        ("a.parquet", parquet([{"prompt": "x"}])[:-9], "not a readable Parquet file"),
    ],
)
def test_a_bad_file_gives_one_sentence(name: str, data: bytes, words: str) -> None:
    with pytest.raises(PromptError) as caught:
        parse(name, data)
    one_sentence(str(caught.value), words)


def test_a_wide_header_is_read_at_once() -> None:
    began = time.process_time()
    with pytest.raises(PromptError, match="more than 2,000 fields"):
        parse("a.csv", ",".join(f"column{n}" for n in range(200_000)).encode() + b"\n")
    assert time.process_time() - began < 5


def test_a_name_that_is_no_text_is_shown_as_some() -> None:
    assert parse("a\udcff.txt", b"x").name == "a?.txt"


def one_sentence(message: str, words: str) -> None:
    assert words in message
    assert "\n" not in message and message.endswith(".") and len(message) < 300


@pytest.mark.parametrize(
    ("data", "row", "mapping", "words"),
    [
        ([{"prompt": "x"}], 2, None, "Row 2 is not there, a.json has 1 row"),
        ([{"prompt": "x"}], 0, None, "Row 0 is not there"),
        ([{"prompt": "x", "b": "y"}], 1, FieldMapping(prompt="c"), "no field 'c', it has 'prompt'"),
        ([{"prompt": "x"}, {"q": "y"}], 2, None, "Row 2 of a.json has no field 'prompt'"),
        ([{"prompt": 3.5}], 1, None, "'prompt' in row 1 of a.json is the number 3.5"),
        ([{"prompt": None}], 1, None, "is empty (null)"),
        ([{"prompt": ["x"]}], 1, None, "is a list"),
        ([{"prompt": {"x": 1}}], 1, None, "is an object"),
        ([{"prompt": True}], 1, None, "is the value true"),
        ([{"prompt": " \n"}], 1, None, "in row 1 of a.json is empty"),
        ([{"prompt": "a\0"}], 1, None, "holds a NUL"),
        ([{"context": "x"}], 1, FieldMapping(context="context"), "Only one of context and"),
        ([{"context": "x"}], 1, FieldMapping(), "No field of a.json"),
    ],
)
def test_a_bad_row_gives_one_sentence(
    data: list[dict[str, object]], row: int, mapping: FieldMapping | None, words: str
) -> None:
    upload = parse("a.json", json.dumps(data).encode())
    with pytest.raises(PromptError) as caught:
        row_prompt(upload, row, mapping)
    one_sentence(str(caught.value), words)


def test_an_upload_may_be_limited() -> None:
    with pytest.raises(PromptError, match=r"above the limit of 1e-05 MB"):
        parse("a.txt", b"x" * 11, max_bytes=10)
    assert parse("a.txt", b"x" * 10, max_bytes=10).rows == ({"text": "x" * 10},)


def test_a_path_in_the_name_is_dropped() -> None:
    assert parse("../../etc/a.txt", b"x").name == "a.txt"
    assert parse("C:\\files\\a.txt", b"x").name == "a.txt"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (["id", "prompt"], FieldMapping(prompt="prompt")),
        (["Text", "label"], FieldMapping(prompt="Text")),
        (["context", "question", "answer"], FieldMapping(context="context", question="question")),
        (["question", "passage"], FieldMapping(context="passage", question="question")),
        (["instruction", "input"], FieldMapping(context="input", question="instruction")),
        (["prompt", "context", "question"], FieldMapping(prompt="prompt")),
        (["question"], FieldMapping(prompt="question")),
        (["a", "b"], FieldMapping(prompt="a")),
        ([], FieldMapping()),
    ],
)
def test_the_usual_names_are_proposed(fields: list[str], expected: FieldMapping) -> None:
    assert propose_mapping(fields) == expected


def test_context_and_question_of_two_fields_join_with_an_empty_line() -> None:
    rows = [
        {"context": "A fact.", "question": "Which?"},
        {"context": "A fact.\n", "question": "Which?"},
        {"context": "A fact.", "question": "\nWhich?"},
    ]
    upload = parse("a.jsonl", "\n".join(map(json.dumps, rows)).encode())
    prompts = row_prompts(upload, [1, 2, 3])
    assert [prompt.text for prompt in prompts] == [
        "A fact.\n\nWhich?",
        "A fact.\nWhich?",
        "A fact.\nWhich?",
    ]
    assert [prompt.question for prompt in prompts] == ["Which?", "Which?", "\nWhich?"]
    assert prompts[1].source == "a.jsonl row 2"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_marked_line_splits_the_prompt_and_is_not_part_of_it(end: str) -> None:
    prompt = typed_prompt(f"A fact.{end}  ---question---  {end}Which?{end}")
    assert prompt.text == f"A fact.{end}Which?{end}"
    assert (prompt.context, prompt.question) == (f"A fact.{end}", f"Which?{end}")


def test_the_mark_inside_a_line_is_text() -> None:
    text = "say ---question--- now\u2028---question---\u2028x"
    assert typed_prompt(text).text == text
    assert typed_prompt(text).context_end is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "prompt is empty"),
        (" \n ", "prompt is empty"),
        ("a\0b", "NUL at character 2"),
        ("a\ud800", "U+D800"),
        ("x\n---question---\ny\n---question---\nz", "lines 2 and 4"),
        ("---question---\ny", "no text before"),
        ("x\n---question---\n \n", "no text after"),
    ],
)
def test_a_typed_prompt_that_cannot_be_used(text: str, words: str) -> None:
    with pytest.raises(PromptError) as caught:
        typed_prompt(text)
    one_sentence(str(caught.value), words)


def test_rows_are_chosen_by_number() -> None:
    assert choose_rows("all", 3) == [1, 2, 3]
    assert choose_rows(" 3, 1-2 ,2", 3) == [3, 1, 2]
    for text, words in (("4", "Row 4"), ("0", "Row 0"), ("x", "'x' is no row"), ("1-9", "Row 9")):
        with pytest.raises(PromptError, match=words):
            choose_rows(text, 3)
