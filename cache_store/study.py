"""Reading studies: their rows while they run and when they are complete, and the list of them."""

import json
import os
import secrets
import zipfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import pandas as pd
import pyarrow as pa

from cache_store.attached import AttachedFile
from cache_store.errors import StoreError
from cache_store.files import TRASH, remove_anything
from cache_store.storage import DATABASE
from cache_store.study_files import (
    EXAMPLE,
    EXAMPLES,
    MERGED,
    ROW,
    STUDIES,
    TIMINGS,
    check_study_id,
    example_count,
    finished_parts,
    merge,
    read_record,
    read_rows,
    read_table,
    study_folder,
)

__all__ = [
    "COLUMNS",
    "TIMINGS",
    "StudyProgress",
    "StudyReader",
    "delete_study",
    "export_study",
    "merge",
    "studies",
]

COLUMNS = tuple(ROW.names)


@dataclass(frozen=True)
class StudyProgress:
    """How far a study is. `examples` is what the specification asks for until they are made."""

    examples: int
    examples_done: int
    cells: int
    cells_done: int
    complete: bool


class StudyReader:
    """One study of a home: its specification, how far it is, and its rows.

    reader = StudyReader(home / "studies" / study_id)
    frame = reader.rows()   # one row per example, policy and ratio, `COLUMNS`

    Works while the study runs, when finished prompts are there and the others are not, and when it
    is complete. Raises StoreError where there is no study or a file is damaged.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        check_study_id(self.folder.name)
        self.record = read_record(self.folder)
        self._parts: dict[int, pa.Table] = {}  # what is finished never changes
        self._whole: dict[str, pa.Table] = {}

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def title(self) -> str:
        return str(self.record.get("title") or self.id)

    @property
    def spec(self) -> dict[str, Any]:
        """The specification as JSON values; `backend.study.spec.StudySpec.from_dict` reads it."""
        return dict(self.record["spec"])

    @property
    def created_at(self) -> datetime:
        """In UTC."""
        return datetime.fromisoformat(self.record["created_at"])

    @property
    def complete(self) -> bool:
        return (self.folder / MERGED).exists()

    def progress(self) -> StudyProgress:
        """Counted from the files, whoever runs the study."""
        per_example = int(self.record.get("cells_per_example") or 0)
        if self.complete:
            rows = self._merged("cell")
            examples = len(self._merged("example"))
            return StudyProgress(examples, examples, len(rows), len(rows), True)
        made = example_count(self.folder)
        examples = int(self.record.get("examples") or 0) if made is None else made
        done = len(finished_parts(self.folder))
        cells, finished = examples * per_example, done * per_example
        return StudyProgress(examples, done, cells, finished, False)

    def rows(self) -> pd.DataFrame:
        """One row per finished cell, in the order of examples, policies and ratios."""
        if self.complete:
            return self._merged("cell").to_pandas()
        try:
            new = [index for index in finished_parts(self.folder) if index not in self._parts]
            self._parts |= {index: read_rows(self.folder, [index]) for index in new}
        except StoreError:
            if not self.complete:
                raise
            return self.rows()  # merged between two looks
        tables = [self._parts[index] for index in sorted(self._parts)]
        table = pa.concat_tables(tables) if tables else ROW.empty_table()
        return table.to_pandas()

    def examples(self) -> pd.DataFrame:
        """The prompts: example_id, task, context, question, answers and facts (JSON), scoring,
        max_new_tokens; empty before they are made."""
        if self.complete:
            return self._merged("example").to_pandas()
        if not (self.folder / EXAMPLES).exists():
            return EXAMPLE.empty_table().to_pandas()
        return read_table(self.folder / EXAMPLES).to_pandas()

    def example(self, example_id: str) -> dict[str, Any]:
        """One prompt, its answers and facts read from their JSON. Raises StoreError."""
        frame = self.examples()
        found = frame[frame["example_id"] == example_id].to_dict("records")
        if not found:
            raise StoreError(f"Study {self.id} has no prompt '{example_id}'.")
        row = {str(name): value for name, value in found[0].items()}
        return row | {name: json.loads(row[name]) for name in ("answers", "facts")}

    def _merged(self, table: str) -> pa.Table:
        if table not in self._whole:
            path = self.folder / MERGED
            file = AttachedFile(path, memory_limit="512MB", threads=1)
            try:
                columns = {"cell": ROW, "example": EXAMPLE}[table]
                found = file.query(f"FROM {DATABASE}.{table}")
                self._whole[table] = found.select(columns.names).cast(columns)
            except (KeyError, pa.ArrowException) as error:
                raise StoreError(f"{path} is not the file of a study.") from error
            finally:
                file.close()
        return self._whole[table]


def studies(home: Path | str) -> list[StudyReader]:
    """The studies of a home, the newest first; folders that are none are left out."""
    found = []
    folder = Path(home) / STUDIES
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        try:
            found.append(StudyReader(path))
        except StoreError:
            continue
    return sorted(found, key=lambda reader: reader.created_at, reverse=True)


def delete_study(home: Path | str, study_id: str) -> None:
    """Remove a study with everything it holds."""
    folder = study_folder(home, study_id)
    trash = Path(home) / f"{TRASH}{study_id}-{secrets.token_hex(3)}"
    try:
        os.rename(folder, trash)  # gone for every reader at once
    except FileNotFoundError as error:
        raise StoreError(f"There is no study {study_id} in this library.") from error
    except OSError as error:
        raise StoreError(f"Study {study_id} cannot be deleted: {error.strerror}.") from error
    remove_anything(trash)


def export_study(folder: Path | str, out: Path | IO[bytes]) -> None:
    """Write a zip: study.json, rows.csv, examples.csv and, of a complete study, study.duckdb."""
    reader = StudyReader(folder)
    record = json.dumps(reader.record, ensure_ascii=False, indent=1)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("study.json", record)
        archive.writestr("rows.csv", reader.rows().to_csv(index=False))
        archive.writestr("examples.csv", reader.examples().to_csv(index=False))
        if reader.complete:
            archive.write(reader.folder / MERGED, MERGED)
