"""The folder that holds all runs: made when it is not there, or one sentence says why not."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from cache_store.errors import KVScopeError

DEFAULT = "runs"
REASONS = {
    errno.EEXIST: "a file has its name",
    errno.ENOTDIR: "a file is where a folder should be",
    errno.EROFS: "it is read-only",
    errno.EACCES: "writing there is not permitted",
    errno.EPERM: "writing there is not permitted",
    errno.ENAMETOOLONG: "its name is too long",
}


class HomeError(KVScopeError):
    """The folder for the runs cannot be used."""


def home_folder(name: str | Path | None = None) -> Path:
    """The folder of the runs: `name`, by default KVSCOPE_HOME or ./runs. Raises HomeError for
    what can be no folder's name; nothing is made yet."""
    given = str(name or os.environ.get("KVSCOPE_HOME") or DEFAULT)
    try:
        given.encode()
        return Path(given).expanduser().resolve()
    except (RuntimeError, ValueError, OSError) as error:  # no such user, no text, a loop of links
        raise _refusal(given, str(error)) from error


def usable_home(folder: Path, *parts: str) -> Path:
    """`folder`, made and found to be writable, and so its `parts`. Raises HomeError."""
    try:
        for needed in (folder, *(folder / part for part in parts)):
            tried = needed
            needed.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=needed):
                pass
    except OSError as error:
        if error.errno != errno.ENOSPC:  # on a full disk runs can still be read
            reason = REASONS.get(error.errno or 0, (error.strerror or "unknown").lower())
            raise _refusal(str(tried), reason) from error
    return folder


def _refusal(folder: str, reason: str) -> HomeError:
    line = " ".join(folder.encode("utf-8", "replace").decode().split())
    shown = line if len(line) <= 120 else line[:119] + "…"
    return HomeError(
        f"The folder {shown} cannot hold runs ({reason.rstrip('.')}): name a folder that can be "
        "written, with KVSCOPE_HOME or, on the command line, --out."
    )
