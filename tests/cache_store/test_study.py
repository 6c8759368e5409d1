"""A study's folder: parts appear whole, are counted once, and become one file."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cache_store.errors import StoreError
from cache_store.files import sweep_partials
from cache_store.study import (
    COLUMNS,
    StudyProgress,
    StudyReader,
    delete_study,
    export_study,
    merge,
    studies,
)
from cache_store.study_files import (
    create_study,
    missing_parts,
    read_example,
    read_set_file,
    write_examples,
    write_part,
)

ID = "0123456789abcdef"


def example(index: int) -> dict[str, Any]:
    return {
        "example_id": f"passkey-{index}",
        "task": "passkey",
        "context": "The passkey is 12345.",
        "question": " What is it?",
        "answers": json.dumps(["12345"]),
        "scoring": "exact",
        "max_new_tokens": 8,
        "facts": json.dumps({"depth": 0.5}),
    }


def row(index: int, policy: str, score: float) -> dict[str, Any]:
    known = {"example_id": f"passkey-{index}", "policy_key": policy, "score": score}
    return dict.fromkeys(COLUMNS) | known


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    record = {"spec": {"model": "demo"}, "title": "Two", "examples": 2, "cells_per_example": 2}
    return create_study(tmp_path, ID, record, {"my set.jsonl": b"{}"})


def finish(folder: Path) -> None:
    write_examples(folder, [example(0), example(1)])
    for index in (1, 0):
        write_part(folder, index, [row(index, "full", 1.0), row(index, "snapkv", index / 2)])


def test_a_running_study_shows_what_is_finished(folder: Path) -> None:
    reader = StudyReader(folder)
    assert reader.progress() == StudyProgress(2, 0, 4, 0, False)
    assert list(reader.rows().columns) == list(COLUMNS) and len(reader.rows()) == 0
    assert len(reader.examples()) == 0
    write_examples(folder, [example(0), example(1)])
    assert missing_parts(folder) == [0, 1]
    write_part(folder, 1, [row(1, "full", 1.0), row(1, "snapkv", 0.5)])
    assert missing_parts(folder) == [0]
    assert reader.progress() == StudyProgress(2, 1, 4, 2, False)
    assert reader.rows()["score"].tolist() == [1.0, 0.5]
    with pytest.raises(StoreError, match="not finished: 1 prompts are missing"):
        merge(folder)


def test_a_part_that_is_written_twice_is_there_once(folder: Path) -> None:
    finish(folder)
    write_part(folder, 0, [row(0, "full", 0.25)])
    rows = StudyReader(folder).rows()
    assert rows["score"].tolist() == [1.0, 0.0, 1.0, 0.5]


def test_a_complete_study_is_one_file_with_the_same_rows(folder: Path) -> None:
    finish(folder)
    before = StudyReader(folder).rows()
    assert merge(folder) == merge(folder) == folder / "study.duckdb"
    reader = StudyReader(folder)
    assert reader.progress() == StudyProgress(2, 2, 4, 4, True)
    assert reader.rows().equals(before)
    assert missing_parts(folder) == []
    assert reader.example("passkey-1")["answers"] == ["12345"]
    assert reader.example("passkey-1")["facts"] == {"depth": 0.5}
    with pytest.raises(StoreError, match="has no prompt 'passkey-9'"):
        reader.example("passkey-9")
    left = sorted(path.name for path in folder.iterdir())
    assert left == ["sets", "study.duckdb", "study.json"]


def test_a_reader_opened_before_the_merge_goes_on(folder: Path) -> None:
    reader = StudyReader(folder)
    finish(folder)
    assert len(reader.rows()) == 4
    merge(folder)
    assert len(reader.rows()) == 4 and reader.progress().complete


def test_what_a_kill_leaves_is_not_seen(folder: Path) -> None:
    write_examples(folder, [example(0), example(1)])
    (folder / "parts" / ".00000.parquet.1a2b3c4d").write_bytes(b"PAR1 half")
    half = folder / "study.duckdb.1a2b3c4d.partial"
    half.write_bytes(b"half")
    assert missing_parts(folder) == [0, 1]
    assert len(StudyReader(folder).rows()) == 0 and not StudyReader(folder).complete
    assert sweep_partials(folder.parents[1]) == [half] and not half.exists()
    assert (folder / "examples.parquet").exists()


def test_studies_are_listed_exported_and_deleted(folder: Path, tmp_path: Path) -> None:
    finish(folder)
    merge(folder)
    (tmp_path / "studies" / "notes").mkdir()
    assert [reader.title for reader in studies(tmp_path)] == ["Two"]
    export_study(folder, tmp_path / "out.zip")
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        names = ["study.json", "rows.csv", "examples.csv", "study.duckdb"]
        assert archive.namelist() == names
        assert len(archive.read("rows.csv").splitlines()) == 1 + 4
    delete_study(tmp_path, ID)
    assert studies(tmp_path) == [] and not folder.exists()
    with pytest.raises(StoreError, match="no study 0123456789abcdef"):
        delete_study(tmp_path, ID)


def test_a_study_is_made_once(folder: Path, tmp_path: Path) -> None:
    again = create_study(tmp_path, ID, {"spec": {}, "title": "Other"})
    assert again == folder and StudyReader(folder).title == "Two"
    assert read_set_file(folder, "my set.jsonl") == b"{}"
    with pytest.raises(StoreError, match="'gone' is gone"):
        read_set_file(folder, "gone")


@pytest.mark.parametrize("name", ["../../etc", "x", "0123456789ABCDEF", ""])
def test_only_an_id_names_a_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="not the id of a study"):
        create_study(tmp_path, name, {})


def test_damage_is_said_in_one_sentence(folder: Path) -> None:
    write_examples(folder, [example(0)])
    assert read_example(folder, 0)["example_id"] == "passkey-0"
    (folder / "parts" / "00000.parquet").write_bytes(b"no parquet")
    with pytest.raises(StoreError, match="is damaged: delete it and run the study again"):
        StudyReader(folder).rows()
