"""The runs under one home folder: list, open, title, tags, delete, export, import."""

import contextlib
import json
import os
import secrets
import stat
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO

import pandas as pd

from cache_store.errors import StoreError
from cache_store.files import (
    CAPTURE_FILE,
    DERIVED_FOLDER,
    TRASH,
    check_run_id,
    is_derived_file,
    remove_anything,
)
from cache_store.importing import ABOUT_FILE, import_run
from cache_store.index import MAX_TAG, MAX_TAGS, MAX_TITLE, Index, clean_tags, clean_title
from cache_store.listing import file_mark, folder_size, read_facts, run_marks
from cache_store.reader import Capture
from cache_store.schema import SCHEMA_VERSION

_OPEN_CAPTURES = 8

_COLUMNS = (
    *("id", "title", "tags", "model_id", "prompt_length", "response_length", "created_at"),
    *("file_bytes", "derived", "seconds", "error"),
    *("architecture", "layers", "query_heads", "kv_heads", "head_dim", "dtype", "device"),
    *("context_length", "finish_reason"),
)
_SORTS: dict[str, tuple[str, bool]] = {
    # name: (column, ascending)
    "created": ("created_at", False),
    "title": ("title", True),
    "model": ("model_id", True),
    "length": ("prompt_length", False),
    "size": ("file_bytes", False),
}
SORTS = tuple(_SORTS)


class Library:
    """The runs in `home`; may be used from several threads and processes at once.

    library = Library("runs")
    library.runs(search="passkey")
    capture = library.open("20260131-235959-0a1b2c")
    """

    def __init__(self, home: Path | str) -> None:
        self.home = Path(home)
        self._index = Index(self.home)
        self._guard = threading.Lock()
        self._open: OrderedDict[str, tuple[tuple[int, ...], Capture]] = OrderedDict()
        self._facts: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {}

    def runs(self, search: str = "", sort: str = "created") -> pd.DataFrame:
        """One row per run: id, title, tags, model_id, lengths, created_at, file_bytes, …

        file_bytes includes the derived files, `derived` counts them, seconds is the time the run
        took, `error` says in one sentence why a run cannot be read and is None otherwise.
        search: words that must all occur in title, tags, model or id. sort: one of `SORTS`.
        """
        if sort not in _SORTS:
            raise StoreError(f"Runs cannot be sorted by {sort!r}; choose {', '.join(_SORTS)}.")
        entries = self._index.read()
        rows = []
        for run_id, facts in self._all_facts().items():
            entry = entries.get(run_id, {})
            title = entry.get("title") or facts.get("title") or run_id
            row = facts | {"id": run_id, "title": title, "tags": entry.get("tags", [])}
            row["file_bytes"], row["derived"] = folder_size(self.home / run_id)
            words = f"{title} {' '.join(row['tags'])} {row.get('model_id')} {run_id}".casefold()
            if all(word in words for word in search.casefold().split()):
                rows.append(row)
        frame = pd.DataFrame(rows, columns=list(_COLUMNS))
        column, ascending = _SORTS[sort]
        newest = frame.sort_values("id", ascending=False)  # ids begin with the time
        return newest.sort_values(
            column,
            ascending=ascending,
            key=lambda values: values.str.casefold() if column in ("title", "model_id") else values,
            kind="stable",
            ignore_index=True,
        )

    def open(self, run_id: str) -> Capture:
        """The capture of a run; the last few stay open and are shared.

        An older one is let go, not closed: whoever still holds it goes on reading.
        """
        path = self.capture_path(run_id)
        try:
            mark = file_mark(path)
        except OSError as error:
            raise StoreError(f"There is no run {run_id} in this library.") from error
        with self._guard:
            known = self._open.get(run_id)
            if known is not None and known[0] == mark:
                self._open.move_to_end(run_id)
                return known[1]
        capture = Capture.open(path)
        if capture.id != run_id:
            raise StoreError(f"The folder {run_id} holds the run {capture.id}; rename it back.")
        with self._guard:
            self._open[run_id] = (mark, capture)
            self._open.move_to_end(run_id)
            while len(self._open) > _OPEN_CAPTURES:
                self._open.popitem(last=False)
        return capture

    def capture_path(self, run_id: str) -> Path:
        """Where the capture of a run is (or would be)."""
        return self.home / check_run_id(run_id) / CAPTURE_FILE

    def title(self, run_id: str) -> str:
        """The title given in this library, else the one in the capture, else the id."""
        given = self._index.read().get(check_run_id(run_id), {}).get("title")
        return given or self.open(run_id).info.title or run_id

    def set_title(self, run_id: str, title: str) -> None:
        """Rename a run; an empty title restores the capture's own."""
        self._check_exists(run_id)
        self._index.change(run_id, title=clean_title(title))

    def set_tags(self, run_id: str, tags: Sequence[str]) -> None:
        """Replace a run's tags: repeats and empty ones are dropped, order is kept."""
        self._check_exists(run_id)
        self._index.change(run_id, tags=clean_tags(tags))

    def delete(self, run_id: str) -> None:
        """Remove a run and everything derived from it; of a link, the link only.

        Its title may stay behind where `library.json` cannot be written: ids are never reused.
        """
        folder = self.capture_path(run_id).parent
        trash = self.home / f"{TRASH}{run_id}-{secrets.token_hex(3)}"
        try:
            os.rename(folder, trash)  # gone for every reader at once, whatever happens next
        except FileNotFoundError as error:
            raise StoreError(f"There is no run {run_id} in this library.") from error
        except OSError as error:
            raise StoreError(f"Run {run_id} cannot be deleted: {error.strerror}.") from error
        with self._guard:
            self._open.pop(run_id, None)
            self._facts.pop(run_id, None)
        remove_anything(trash)  # first: on a full disk this makes room for the next line
        with contextlib.suppress(StoreError):
            self._index.forget(run_id)

    def export_zip(self, run_id: str, out: Path | IO[bytes]) -> None:
        """Write a run as a zip: capture.duckdb, derived/*.duckdb and about.json."""
        capture = self.open(run_id)
        about = {
            "format": "kvscope-run",
            "schema_version": SCHEMA_VERSION,
            "id": run_id,
            "title": self.title(run_id),
            "tags": self._index.read().get(run_id, {}).get("tags", []),
        }
        folder = capture.path.parent
        if not isinstance(out, Path):
            self._write_zip(out, folder, about)
            return
        draft = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
        try:
            with open(draft, "xb") as file:
                self._write_zip(file, folder, about)
            os.replace(draft, out)
        except OSError as error:
            raise StoreError(f"Run {run_id} could not be exported: {error.strerror}.") from error
        finally:
            draft.unlink(missing_ok=True)

    def import_file(self, source: Path | BinaryIO, name: str | None = None) -> str:
        """Take in a zip made by `export_zip` or a bare capture file; returns the run id.

        name: what to call the file in messages. Every byte is checked before the run is visible.
        Raises StoreError, and then nothing was imported.
        """
        shown = name or (source.name if isinstance(source, Path) else "the file")
        run_id, about = import_run(self.home, source, shown)
        title, tags = about.get("title"), about.get("tags")
        if isinstance(title, str) and title.strip():
            self.set_title(run_id, title[:MAX_TITLE])
        if isinstance(tags, list):
            kept = [tag[:MAX_TAG] for tag in tags if isinstance(tag, str)]
            self.set_tags(run_id, kept[:MAX_TAGS])
        return run_id

    def _write_zip(self, out: IO[bytes], folder: Path, about: dict[str, Any]) -> None:
        # Stored, not deflated: float16 states are noise, compressing them costs minutes per GB.
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(ABOUT_FILE, json.dumps(about, ensure_ascii=False, indent=1))
            archive.write(folder / CAPTURE_FILE, CAPTURE_FILE)
            for path in sorted((folder / DERIVED_FOLDER).glob("*.duckdb")):
                # What else lies there is not ours, and no import would take it.
                if is_derived_file(path.name) and stat.S_ISREG(path.lstat().st_mode):
                    archive.write(path, f"{DERIVED_FOLDER}/{path.name}")

    def _all_facts(self) -> dict[str, dict[str, Any]]:
        """The capture rows of every run by id, read again only where the file changed."""
        marks = run_marks(self.home)
        with self._guard:
            known = {
                run_id: kept for run_id, kept in self._facts.items() if marks.get(run_id) == kept[0]
            }
        new = read_facts(self.home, [run_id for run_id in marks if run_id not in known])
        known |= {run_id: (marks[run_id], row) for run_id, row in new.items()}
        with self._guard:
            self._facts = known
        return {run_id: row for run_id, (_, row) in known.items()}

    def _check_exists(self, run_id: str) -> None:
        if not self.capture_path(run_id).exists():
            raise StoreError(f"There is no run {run_id} in this library.")
