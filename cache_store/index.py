"""Titles and tags, in the library's own small file: captures never change."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cache_store.errors import StoreError
from cache_store.files import FileLock, write_atomically

MAX_TITLE = 200
MAX_TAGS = 20
MAX_TAG = 50


class Index:
    """`library.json`: run id to {"title": …, "tags": […]}, changed under a file lock."""

    def __init__(self, home: Path) -> None:
        self.path = home / "library.json"
        self._lock_path = home / ".library.json.lock"

    def read(self) -> dict[str, dict[str, Any]]:
        """Titles and tags by run id; values of a wrong kind count as not given.

        Raises StoreError for a file that cannot be read at all.
        """
        try:
            runs = json.loads(self.path.read_bytes())["runs"].items()
        except FileNotFoundError:
            return {}
        except (
            *(OSError, ValueError, KeyError, TypeError, AttributeError),
            RecursionError,  # brackets within brackets, thousands deep
        ) as error:
            raise StoreError(
                f"{self.path} with the titles and tags cannot be read ({error}); "
                "repair it, or delete it to do without them."
            ) from error
        return {_whole(run_id): _entry(kept) for run_id, kept in runs if isinstance(kept, dict)}

    def change(self, run_id: str, **fields: Any) -> None:
        """Set fields of a run, other fields and other runs untouched."""
        self._write(run_id, fields)

    def forget(self, run_id: str) -> None:
        """Drop everything kept about a run."""
        self._write(run_id, None)

    def _write(self, run_id: str, fields: dict[str, Any] | None) -> None:
        try:
            with FileLock(self._lock_path):
                runs = self.read()
                if fields is None:
                    if runs.pop(run_id, None) is None:
                        return
                else:
                    runs[run_id] = runs.get(run_id, {}) | fields
                text = json.dumps({"version": 1, "runs": runs}, ensure_ascii=False, indent=1)
                write_atomically(self.path, text.encode("utf-8", "replace"))
        except OSError as error:
            raise StoreError(f"Titles and tags cannot be saved: {error.strerror}.") from error


def clean_title(title: str) -> str:
    """One line without surrounding space. Raises StoreError when it is too long."""
    title = " ".join(_whole(title).split())
    if len(title) > MAX_TITLE:
        raise StoreError(f"A title has at most {MAX_TITLE} characters, this one {len(title)}.")
    return title


def clean_tags(tags: Sequence[str]) -> list[str]:
    """Tags in order, without repeats and empty ones. Raises StoreError for too many or too long."""
    cleaned = list(
        dict.fromkeys(tag for tag in (" ".join(_whole(tag).split()) for tag in tags) if tag)
    )
    if len(cleaned) > MAX_TAGS:
        raise StoreError(f"A run has at most {MAX_TAGS} tags, not {len(cleaned)}.")
    for tag in cleaned:
        if len(tag) > MAX_TAG:
            raise StoreError(f"A tag has at most {MAX_TAG} characters; {tag[:20]!r}… is longer.")
    return cleaned


def _entry(kept: dict[str, Any]) -> dict[str, Any]:
    """What is of the right kind: a title that is text, those tags that are; other fields as is."""
    entry = {name: value for name, value in kept.items() if name not in ("title", "tags")}
    if isinstance(kept.get("title"), str):
        entry["title"] = _whole(kept["title"])
    if isinstance(kept.get("tags"), list):
        entry["tags"] = [_whole(tag) for tag in kept["tags"] if isinstance(tag, str)]
    return entry


def _whole(text: str) -> str:
    """Half characters (lone surrogates), which no page and no file can hold, as "?"."""
    return text.encode("utf-8", "replace").decode()
