"""The home folder: made where it can be, otherwise one sentence that names it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from backend.home import HomeError, home_folder, usable_home

APP = Path(__file__).resolve().parents[2] / "app.py"


def _file(home: Path) -> Path:
    home.write_text("x")
    return home


def _below_a_file(home: Path) -> Path:
    return _file(home) / "runs"


def _jobs_is_a_file(home: Path) -> Path:
    home.mkdir()
    (home / ".jobs").write_text("x")
    return home


def _link_to_nowhere(home: Path) -> Path:
    home.symlink_to(home.with_name("gone"))
    home.with_name("gone").write_text("x")
    return home


BAD = [
    (_file, "cannot hold runs (a file has its name)"),
    (_below_a_file, "cannot hold runs (a file is where a folder should be)"),
    (_jobs_is_a_file, ".jobs cannot hold runs (a file has its name)"),
    (_link_to_nowhere, "cannot hold runs (a file has its name)"),
    (lambda home: "~nosuch/x", "The folder ~nosuch/x cannot hold runs"),
    (lambda home: home / ("x" * 300), "cannot hold runs (its name is too long)"),
    (lambda home: "a\0b", "cannot hold runs"),
    (lambda home: "/proc/self", "The folder /proc/"),
]


@pytest.mark.parametrize(("make", "words"), BAD)
def test_a_folder_that_cannot_be_used_is_named(make: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(HomeError) as refusal:
        usable_home(home_folder(make(tmp_path / "home")), ".jobs")
    message = str(refusal.value)
    assert words in message and message.endswith("--out.") and "\n" not in message


def test_a_read_only_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(HomeError, match=r"cannot hold runs \(it is read-only\)"):
        usable_home(tmp_path)


def test_a_home_is_made_with_its_folder_of_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSCOPE_HOME", str(tmp_path / "a" / "b"))
    assert usable_home(home_folder(), ".jobs") == tmp_path / "a" / "b"
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == [".jobs"]


@pytest.mark.parametrize(("make", "words"), [BAD[0], BAD[1], BAD[2], BAD[4]])
def test_the_page_says_it_in_one_sentence(
    make: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSCOPE_HOME", str(make(tmp_path / "home")))
    app = AppTest.from_file(str(APP), default_timeout=60).run()
    assert not app.exception
    (shown,) = app.error
    assert words in shown.value.replace("\\", "")
