"""A study's folder: its record, its examples, one file per finished example, and the merged file.

    <home>/studies/<id>/study.json         what it computes: specification, model, when it was made
                        examples.parquet   its prompts, made once
                        parts/00007.parquet  the rows of one finished prompt, all policies and sizes
                        study.duckdb       everything in one file, once no part is missing

Every file is written under another name and renamed, so a kill at any point loses at most the
prompt in hand, and a prompt that is run twice is there once.
"""

import contextlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cache_store.errors import StoreError
from cache_store.file_writer import FileWriter, versions
from cache_store.files import (
    PARTIAL,
    STUDIES,
    publish_file,
    remove_anything,
    sync,
    write_atomically,
)

RECORD = "study.json"
EXAMPLES = "examples.parquet"
PARTS = "parts"
SETS = "sets"
MERGED = "study.duckdb"

_ID = re.compile(r"[0-9a-f]{16}")
_PART = re.compile(r"(\d{5,})\.parquet")

# One row per example, policy and size; docs/studies.md says what each column means.
ROW = pa.schema(
    [
        ("example_id", pa.string()),
        ("task", pa.string()),
        ("policy", pa.string()),
        ("policy_key", pa.string()),
        ("options", pa.string()),
        ("ratio", pa.float64()),
        ("budget", pa.float64()),
        ("repeat", pa.int32()),
        ("response", pa.string()),
        ("score", pa.float64()),
        ("agreement", pa.float64()),
        ("nll", pa.float64()),
        ("kl", pa.float64()),
        ("cache_bytes", pa.float64()),
        ("peak_bytes", pa.float64()),
        ("prompt_tokens", pa.int32()),
        ("response_tokens", pa.int32()),
        ("prefill_ms", pa.float64()),
        ("lookahead_ms", pa.float64()),
        ("score_ms", pa.float64()),
        ("decode_ms", pa.float64()),
        ("decode_ms_per_step", pa.float64()),
        ("simulated", pa.bool_()),
        ("error", pa.string()),
        ("depth", pa.float64()),
        ("length", pa.int32()),
        ("facts", pa.string()),
        ("seed", pa.int64()),
    ]
)
EXAMPLE = pa.schema(
    [
        ("example_id", pa.string()),
        ("task", pa.string()),
        ("context", pa.string()),
        ("question", pa.string()),
        ("answers", pa.string()),  # JSON
        ("scoring", pa.string()),
        ("max_new_tokens", pa.int32()),
        ("facts", pa.string()),  # JSON
    ]
)
TIMINGS = ("prefill_ms", "lookahead_ms", "score_ms", "decode_ms", "decode_ms_per_step")


def check_study_id(text: str) -> str:
    """`text` itself, when it is a study's id and therefore safe as a folder name."""
    if not isinstance(text, str) or not _ID.fullmatch(text):
        raise StoreError(f"{text!r} is not the id of a study: it has 16 digits of 0-9 and a-f.")
    return text


def study_folder(home: Path | str, study_id: str) -> Path:
    return Path(home) / STUDIES / check_study_id(study_id)


def create_study(
    home: Path | str,
    study_id: str,
    record: Mapping[str, Any],
    sets: Mapping[str, bytes] | None = None,
) -> Path:
    """Make a study's folder with its record and uploaded sets; one that is there is kept.

    record: JSON values; `id` and `created_at` are added. Returns the folder.
    """
    folder = study_folder(home, study_id)
    try:
        if (folder / RECORD).exists():
            return folder
        (folder / PARTS).mkdir(parents=True, exist_ok=True)
        if sets:
            (folder / SETS).mkdir(exist_ok=True)
        for name, data in (sets or {}).items():
            write_atomically(folder / SETS / _safe(name), data)
        made = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="seconds")
        whole = {**record, "id": study_id, "created_at": made}
        text = json.dumps(whole, ensure_ascii=False, indent=1, allow_nan=False)
        write_atomically(folder / RECORD, text.encode())
    except OSError as error:
        raise _cannot_write(folder, error) from error
    return folder


def read_record(folder: Path) -> dict[str, Any]:
    """The study's record. Raises StoreError where there is none or it is damaged."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
    except FileNotFoundError as error:
        raise StoreError(f"There is no study {folder.name} in this library.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{folder / RECORD} cannot be read: delete the study.") from error
    if not isinstance(record, dict) or record.get("id") != folder.name:
        raise StoreError(f"{folder / RECORD} is not the record of study {folder.name}.")
    return record


def read_set_file(folder: Path, name: str) -> bytes:
    """An uploaded set that the study keeps. Raises StoreError when it is gone."""
    try:
        return (folder / SETS / _safe(name)).read_bytes()
    except OSError as error:
        raise StoreError(f"The study's set '{name}' is gone: make the study again.") from error


def write_examples(folder: Path, examples: Sequence[Mapping[str, Any]]) -> None:
    """Keep the study's prompts, in order; a list that is there is kept."""
    _publish(folder / EXAMPLES, _table(examples, EXAMPLE))


def read_example(folder: Path, index: int) -> dict[str, Any]:
    """One prompt of the study by its place in the list."""
    return dict(read_table(folder / EXAMPLES).slice(index, 1).to_pylist()[0])


def example_count(folder: Path) -> int | None:
    """How many prompts the study has, None before they are made."""
    try:
        return int(pq.read_metadata(folder / EXAMPLES).num_rows)
    except FileNotFoundError:
        return None
    except (OSError, pa.ArrowException) as error:
        raise _damaged(folder / EXAMPLES) from error


def write_part(folder: Path, index: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Keep the rows of one finished prompt; those of a twin that came first stay."""
    _publish(folder / PARTS / f"{index:05d}.parquet", _table(rows, ROW))


def finished_parts(folder: Path) -> dict[int, Path]:
    """Files of the finished prompts by their place in the list."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for path in (folder / PARTS).iterdir():
            if match := _PART.fullmatch(path.name):
                found[int(match[1])] = path
    return dict(sorted(found.items()))


def missing_parts(folder: Path) -> list[int]:
    """Places of the prompts that are not finished; empty once the study is merged."""
    if (folder / MERGED).exists():
        return []
    done = finished_parts(folder)
    return [index for index in range(example_count(folder) or 0) if index not in done]


def read_rows(folder: Path, indices: Sequence[int] | None = None) -> pa.Table:
    """The rows of finished prompts, in the order of the list."""
    parts = finished_parts(folder)
    chosen = [parts[index] for index in (parts if indices is None else indices) if index in parts]
    tables = [read_table(path).cast(ROW) for path in chosen]
    return pa.concat_tables(tables) if tables else ROW.empty_table()


def merge(folder: Path) -> Path:
    """Put everything into `study.duckdb` and drop the parts. Raises StoreError while one is
    missing; a merged study is kept as it is."""
    path = folder / MERGED
    if not path.exists():
        missing = missing_parts(folder)
        if missing or example_count(folder) is None:
            raise StoreError(
                f"Study {folder.name} is not finished: {len(missing) or 'all'} prompts are missing."
            )
        record = read_record(folder)
        about = {
            "id": [folder.name],
            "record": [json.dumps(record, ensure_ascii=False)],
            "versions": [json.dumps(versions())],
        }
        partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")
        writer = FileWriter(path, partial, {}, memory_limit="512MB", threads=1)
        try:
            writer.create("study", pa.table(about))
            writer.create("example", read_table(folder / EXAMPLES))
            writer.create("cell", read_rows(folder))
            with contextlib.suppress(FileExistsError):  # a twin was faster
                writer.publish()
        finally:
            writer.discard()
    remove_anything(folder / PARTS)
    remove_anything(folder / EXAMPLES)
    return path


def _publish(path: Path, table: pa.Table) -> None:
    if path.exists():
        return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        pq.write_table(table, draft, compression="zstd")
        sync(draft)
        with contextlib.suppress(FileExistsError):
            publish_file(draft, path)
    except OSError as error:
        raise _cannot_write(path.parent, error) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def _table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    try:
        return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise StoreError(f"These rows are none of a study: {error}") from error


def read_table(path: Path) -> pa.Table:
    """A Parquet file of a study, whole."""
    try:
        return pq.ParquetFile(path).read()
    except FileNotFoundError as error:
        raise StoreError(f"{path} is gone: run the study again.") from error
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path) from error


def _safe(name: str) -> str:
    """A set's own name may be any text; its file's name is that of no other folder."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "set"


def _damaged(path: Path) -> StoreError:
    return StoreError(f"{path} is damaged: delete it and run the study again.")


def _cannot_write(folder: Path, error: OSError) -> StoreError:
    return StoreError(
        f"The study cannot be kept in {folder} ({error.strerror or error}): free some space or "
        "choose another KVSCOPE_HOME."
    )
