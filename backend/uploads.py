"""Uploaded files as rows: .txt, .md, .json, .jsonl, .csv and .parquet, or one clear sentence.

Text is kept exactly as it came, line ends included; only a byte order mark is taken off.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from backend.parquet import text_rows
from backend.spec import PromptError, require_text

MAX_UPLOAD_BYTES = 20_000_000  # KVSCOPE_MAX_UPLOAD_BYTES
PARQUET_EXPANSION = 10  # unpacked bytes per byte of the limit
MAX_ROWS = 100_000
MAX_FIELDS = 2_000
MAX_CELLS = 3_000_000  # a cell costs about 100 bytes however short its text
EXTENSIONS = ("txt", "md", "json", "jsonl", "csv", "parquet")
BYTE_ORDER_MARKS = (  # the longer ones first: the UTF-16 mark begins the UTF-32 one
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)


@dataclass(frozen=True)
class Upload:
    """An uploaded file as rows; `fields` in the order they first appear. A text file is one row
    with the field `text`."""

    name: str
    fields: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]


def parse(name: str, data: bytes, *, max_bytes: int | None = None) -> Upload:
    """The rows of an uploaded file. Raises PromptError, one sentence, for what cannot be read.

    `max_bytes` is by default KVSCOPE_MAX_UPLOAD_BYTES, or 20 MB.
    """
    name = PurePath(name.replace("\\", "/")).name or "upload"
    name = name.encode("utf-8", "replace").decode()
    extension = name.rpartition(".")[2].lower() if "." in name else ""
    if extension not in EXTENSIONS:
        raise PromptError(
            f"{name} has the ending '{extension}': upload one of "
            f"{', '.join('.' + known for known in EXTENSIONS)}."
        )
    limit = upload_limit() if max_bytes is None else max_bytes
    if len(data) > limit:
        raise PromptError(
            f"{name} has {len(data) / 1e6:.3g} MB, above the limit of {limit / 1e6:.3g} MB: "
            "upload a shorter text, or raise KVSCOPE_MAX_UPLOAD_BYTES."
        )
    if not data:
        raise PromptError(f"{name} is empty: upload a file with text in it.")
    if extension == "parquet":
        most = PARQUET_EXPANSION * limit
        rows = text_rows(name, data, max_bytes=most, max_rows=MAX_ROWS, max_cells=MAX_CELLS)
        return _upload(name, rows)
    text = _decoded(name, data)
    if not text.strip():
        raise PromptError(f"{name} holds only white space: upload a file with text in it.")
    readers: dict[str, Callable[[str, str], list[dict[str, Any]]]] = {
        "json": _json,
        "jsonl": _jsonl,
        "csv": _csv,
    }
    reader = readers.get(extension)
    return _upload(name, reader(name, text) if reader else [{"text": text}])


def upload_limit() -> int:
    """The most bytes that are read of a file or of standard input."""
    text = os.environ.get("KVSCOPE_MAX_UPLOAD_BYTES", "")
    if not text:
        return MAX_UPLOAD_BYTES
    if not text.isdecimal():
        raise PromptError(f"KVSCOPE_MAX_UPLOAD_BYTES is '{text}': give a number of bytes.")
    return int(text)


def _upload(name: str, rows: list[dict[str, Any]]) -> Upload:
    if not rows:
        raise PromptError(f"{name} has no rows: upload a file with at least one.")
    _check_table(name, rows=len(rows))
    fields = tuple(dict.fromkeys(field for row in rows for field in row))
    if not fields:
        raise PromptError(f"{name} has no fields: each row needs one that holds the prompt.")
    _check_table(name, fields=len(fields))
    for field in fields:
        require_text(f"field name '{_shown(field)}' of {name}", field)
    for number, row in enumerate(rows, start=1):
        for field, value in row.items():
            if isinstance(value, str) and not value.isascii():
                require_text(f"field '{_shown(field)}' in row {number} of {name}", value)
    return Upload(name, fields, tuple(rows))


def _check_table(name: str, *, rows: int = 0, fields: int = 0) -> None:
    """Raises PromptError for a table that no page could show and no run would use."""
    for count, most, what in (
        (rows, MAX_ROWS, "rows"),
        (fields, MAX_FIELDS, "fields"),
        (rows * fields, MAX_CELLS, "cells"),
    ):
        if count > most:
            raise PromptError(f"{name} has more than {most:,} {what}: upload a part of it.")


def _shown(text: str) -> str:
    """A name inside a message: one short line, nothing that is no text."""
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    return line if len(line) <= 40 else line[:39] + "…"


def _decoded(name: str, data: bytes) -> str:
    encoding, start = "utf-8", 0
    for mark, marked in BYTE_ORDER_MARKS:
        if data.startswith(mark):
            encoding, start = marked, len(mark)
            break
    try:
        text = data[start:].decode(encoding)
    except UnicodeDecodeError as error:
        at = start + error.start
        raise PromptError(
            f"{name} is not {encoding.upper()} text (byte 0x{data[at]:02X} at {at:,}): save it as "
            "UTF-8 and upload it again."
        ) from error
    if "\0" in text:
        raise PromptError(
            f"{name} is not text, it holds NUL bytes (the first after {text.index(chr(0)):,} "
            "characters): save it as UTF-8 text and upload it again."
        )
    return text


def _json(name: str, text: str) -> list[dict[str, Any]]:
    value = _json_value(text, f"{name} is not valid JSON")
    if isinstance(value, dict):
        lists = [item for item in value.values() if _is_table(item)]
        if len(lists) == 1 and not any(isinstance(item, str) for item in value.values()):
            return list(lists[0])  # {"data": [{…}, {…}]}
        return [value]
    if isinstance(value, str):
        return [{"text": value}]
    if isinstance(value, list):
        if value and all(isinstance(item, str) for item in value):
            return [{"text": item} for item in value]
        for number, item in enumerate(value, start=1):
            if not isinstance(item, dict):
                raise PromptError(
                    f"Entry {number} of {name} is {kind_of(item)}: each entry of the list should "
                    'be an object such as {"prompt": "…"}.'
                )
        return value
    raise PromptError(
        f'{name} holds {kind_of(value)}: give a list of objects such as {{"prompt": "…"}}.'
    )


def _jsonl(name: str, text: str) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        value = _json_value(line, f"Line {number} of {name} is not valid JSON", line=number)
        if isinstance(value, str):
            value = {"text": value}
        if not isinstance(value, dict):
            raise PromptError(
                f'Line {number} of {name} is {kind_of(value)}: give an object such as {{"prompt": '
                '"…"} on each line.'
            )
        rows.append(value)
        _check_table(name, rows=len(rows))
    return rows


def _json_value(text: str, what: str, line: int | None = None) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = error.msg[:1].lower() + error.msg[1:]
        raise PromptError(
            f"{what} ({reason} at line {line or error.lineno}, column {error.colno}): correct it "
            "and upload it again."
        ) from error
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{what} (a number too long, or too deeply nested).") from error


def _csv(name: str, text: str) -> list[dict[str, Any]]:
    header_line = text.lstrip("\r\n").splitlines()[0]
    delimiter = max(",;\t", key=header_line.count)
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[dict[str, Any]] = []
    header: list[str] | None = None
    try:
        for cells in reader:
            if not cells or (len(cells) == 1 and not cells[0].strip()):
                continue
            if header is None:
                header = _csv_header(name, cells)
            elif len(cells) != len(header):
                raise PromptError(
                    f"The row that ends on line {reader.line_num} of {name} has {len(cells)} "
                    f"cells, the first line names {len(header)}: quote cells that hold a "
                    f"'{delimiter}' or a line end."
                )
            else:
                rows.append(dict(zip(header, cells, strict=True)))
                _check_table(name, rows=len(rows), fields=len(header))
    except csv.Error as error:
        raise PromptError(
            f"{name} is not valid CSV ({error} on line {reader.line_num}): correct it and upload "
            "it again."
        ) from error
    return rows


def _csv_header(name: str, cells: list[str]) -> list[str]:
    """Column names are short, distinct and not numbers; anything else is a row of values."""
    _check_table(name, fields=len(cells))
    times = Counter(cells)
    for cell in cells:
        number = re.fullmatch(r"\s*[-+]?[\d.,]+\s*", cell)
        if not cell.strip() or len(cell) > 100 or "\n" in cell or number or times[cell] > 1:
            raise PromptError(
                f"The first line of {name} names no columns ('{_shown(cell)}' is no "
                "name of its own): begin the file with a line such as prompt or context,question."
            )
    return cells


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def kind_of(value: Any) -> str:
    if value is None:
        return "empty (null)"
    if isinstance(value, bool):
        return f"the value {str(value).lower()}"
    if isinstance(value, int | float):
        return f"the number {value:g}" if abs(value) < 1e15 else "a number"
    names: dict[type, str] = {list: "a list", dict: "an object", str: "a text", bytes: "bytes"}
    return names.get(type(value), f"a {type(value).__name__}")
