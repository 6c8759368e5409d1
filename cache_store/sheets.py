"""Figure sheets: figures that readers collected, one folder per sheet beside the runs.

`sheets/<id>/sheet.json` is small and is changed under a lock, so that sessions and processes never
lose each other's figures. `figures/` holds what it names, by the hash of the bytes: never changed.
`exports/` holds files made from it, which can be made again.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cache_store.errors import StoreError
from cache_store.files import TRASH, FileLock, remove_anything, write_atomically

MAIN = "main"  # the sheet that is there before anybody makes one
SHEETS_FOLDER, FIGURES_FOLDER, EXPORTS_FOLDER = "sheets", "figures", "exports"
MAX_FIGURE_BYTES = 256 * 1024 * 1024
EXPORTS_KEPT = 12

_SHEET_ID = re.compile(rf"{MAIN}|[0-9a-f]{{8}}")
_FIGURE = re.compile(r"[0-9a-f]{24}")
_EXPORT = re.compile(r"[0-9a-f]{24}\.[a-z]{3}")

Told = dict[str, Any]


class Sheets:
    """The sheets of a home folder; may be used from several threads and processes at once.

    A sheet is plain JSON with "items" and "removed", lists of objects that name their figure file
    in "figure"; what else it says is `analysis.sheet`'s. Raises StoreError, one sentence.
    """

    def __init__(self, home: Path | str) -> None:
        self.home = Path(home)
        self.folder = self.home / SHEETS_FOLDER

    def titles(self) -> dict[str, str]:
        """Title of each sheet by id, the main one first, then by title."""
        found = {MAIN: ""}
        with contextlib.suppress(OSError):
            found |= {
                path.name: "" for path in self.folder.iterdir() if _SHEET_ID.fullmatch(path.name)
            }
        for sheet_id in list(found):
            try:
                found[sheet_id] = str(self.read(sheet_id).get("title") or "")
            except StoreError:
                found[sheet_id] = "" if sheet_id == MAIN else f"unreadable ({sheet_id})"
        rest = sorted((id_ for id_ in found if id_ != MAIN), key=lambda id_: (found[id_], id_))
        return {sheet_id: found[sheet_id] for sheet_id in (MAIN, *rest)}

    def read(self, sheet_id: str) -> Told:
        """What the sheet says; {} for a main sheet that nothing was added to yet."""
        path = self._folder(sheet_id) / "sheet.json"
        try:
            told = json.loads(path.read_bytes())
            if not isinstance(told, dict):
                raise ValueError("it holds no object")
        except FileNotFoundError:
            if sheet_id == MAIN:
                return {}
            raise StoreError(f"There is no figure sheet {sheet_id} any more.") from None
        except (OSError, ValueError, RecursionError) as error:
            raise StoreError(
                f"The figure sheet {sheet_id} cannot be read ({error}): repair its sheet.json, or "
                "delete the sheet."
            ) from error
        return told

    def create(self, told: Mapping[str, Any]) -> str:
        """A new sheet; returns its id."""
        sheet_id = secrets.token_hex(4)
        with self._changing(sheet_id):
            self._write(sheet_id, told)
        return sheet_id

    def change(self, sheet_id: str, edit: Callable[[Told], Told], figure: bytes = b"") -> Told:
        """Replace what a sheet says by `edit` of what it says at that moment; returns the new.

        figure: the file of a figure that `edit` adds, under the name `figure_name(figure)`. Files
        that the sheet no longer names are removed.
        """
        if len(figure) > MAX_FIGURE_BYTES:
            raise StoreError(
                f"The figure takes {len(figure) / 1e6:,.0f} MB and a sheet takes at most "
                f"{MAX_FIGURE_BYTES / 1e6:,.0f} MB of each: show fewer cells."
            )
        with self._changing(sheet_id):
            told = edit(self.read(sheet_id))
            figures = self._folder(sheet_id) / FIGURES_FOLDER
            if figure:
                figures.mkdir(parents=True, exist_ok=True)
                path = figures / figure_name(figure)
                if not path.exists():
                    write_atomically(path, figure)
            self._write(sheet_id, told)
            named = {entry["figure"] for part in ("items", "removed") for entry in told[part]}
            for path in figures.glob("*"):
                if path.name not in named and _FIGURE.fullmatch(path.name):
                    path.unlink(missing_ok=True)
        return told

    def figure(self, sheet_id: str, name: str) -> bytes:
        """The file of a figure that the sheet names."""
        if not _FIGURE.fullmatch(name):
            raise StoreError(f"{name!r} is not the name of a figure file.")
        try:
            content = (self._folder(sheet_id) / FIGURES_FOLDER / name).read_bytes()
        except OSError as error:
            raise StoreError(
                "A figure of this sheet was removed meanwhile, or its file cannot be read "
                f"({error.strerror}): look at the sheet again."
            ) from error
        if figure_name(content) != name:
            raise StoreError(f"The figure file {name} is damaged: add the figure again.")
        return content

    def delete(self, sheet_id: str) -> None:
        """Remove a sheet with its figures and exports; of the main one an empty sheet is left."""
        trash = self.home / f"{TRASH}{sheet_id}-{secrets.token_hex(3)}"
        with self._changing(sheet_id), contextlib.suppress(FileNotFoundError):
            os.rename(self._folder(sheet_id), trash)  # gone for every session at once
        remove_anything(trash)
        (self.folder / f".{sheet_id}.lock").unlink(missing_ok=True)

    def export_path(self, sheet_id: str, name: str) -> Path:
        """Where an export of this name is, or would be; named by the hash of what it is made of."""
        if not _EXPORT.fullmatch(name):
            raise StoreError(f"{name!r} is not the name of an export.")
        return self._folder(sheet_id) / EXPORTS_FOLDER / name

    def keep_export(self, sheet_id: str, name: str, content: bytes) -> Path:
        """Write an export; the oldest ones go."""
        path = self.export_path(sheet_id, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
        others = [file for file in path.parent.iterdir() if _EXPORT.fullmatch(file.name)]
        for old in sorted(others, key=_age)[:-EXPORTS_KEPT]:
            old.unlink(missing_ok=True)
        return path

    def _folder(self, sheet_id: str) -> Path:
        if not isinstance(sheet_id, str) or not _SHEET_ID.fullmatch(sheet_id):
            raise StoreError(f"{str(sheet_id)[:40]!r} is not the id of a figure sheet.")
        return self.folder / sheet_id

    @contextlib.contextmanager
    def _changing(self, sheet_id: str) -> Any:
        self._folder(sheet_id)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / f".{sheet_id}.lock"):
                yield
        except OSError as error:
            raise StoreError(f"The figure sheet cannot be saved: {error.strerror}.") from error

    def _write(self, sheet_id: str, told: Mapping[str, Any]) -> None:
        folder = self._folder(sheet_id)
        folder.mkdir(exist_ok=True)
        text = json.dumps({"version": 1} | dict(told), ensure_ascii=True, indent=1)
        write_atomically(folder / "sheet.json", text.encode())


def figure_name(content: bytes) -> str:
    """The name of a figure file: the hash of its bytes."""
    return hashlib.sha256(content).hexdigest()[:24]


def _age(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
