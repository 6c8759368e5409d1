"""What a job is, and what is known about it: in memory, and on disk for the next start."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import psutil

from cache_store.errors import KVScopeError
from cache_store.files import is_run_id

UNFINISHED = ("queued", "running")
GONE = "The Dask scheduler went away while this job was waiting or running: run it again."
FINISHED = ("done", "failed", "cancelled", "lost", "paused")
JOBS_FOLDER = ".jobs"
SUFFIXES = (".json", ".cancel", ".pause", ".log", ".attempt")
LARGEST = 1e15  # of any number in a job file
ID_PATTERN = re.compile(r"^[0-9a-f]{16}$")


class JobError(KVScopeError):
    """A job cannot be accepted, or a worker process did not survive it."""


def now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class JobSpec:
    """What to compute. `params` is JSON and says everything that decides the result; the id is
    its hash, so that the same computation is the same job however often it is asked for."""

    kind: str
    params: dict[str, Any]
    title: str = ""
    run_id: str | None = None

    @property
    def id(self) -> str:
        canonical = json.dumps([self.kind, self.params], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class JobState:
    """One job as the pages show it.

    `done` and `total` count the phase's units (tokens, layers), `rate` is units per second,
    `eta_s` seconds to the end of the phase. `text` is the tail of what was generated so far.
    `queue_position` is 1 for the next of its lane, None when not queued. Times are UTC.
    """

    id: str
    kind: str
    title: str
    run_id: str | None
    status: str  # queued | running | done | failed | cancelled | lost | paused
    phase: str = ""
    done: int = 0
    total: int = 0
    rate: float | None = None
    eta_s: float | None = None
    text: str = ""
    error: str | None = None
    submitted_at: datetime = field(default_factory=now)
    started_at: datetime | None = None
    finished_at: datetime | None = None
    queue_position: int | None = None
    cancelling: bool = False
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        return self.status in FINISHED


@dataclass(frozen=True)
class Record:
    """A job and its specification, as kept in one file. `owner` is the process that runs it."""

    spec: JobSpec
    state: JobState
    owner: str


class JobFiles:
    """`<home>/.jobs`: one JSON file per job, a flag file per cancellation, a log per failure.

    A write that fails (a full disk) is reported to the caller as False, never raised: jobs go on
    in memory and only the memory of them across a restart is lost.
    """

    def __init__(self, home: Path) -> None:
        self.folder = home / JOBS_FOLDER
        self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, record: Record) -> bool:
        path = self.folder / f"{record.state.id}.json"
        partial = path.with_suffix(f".{os.getpid()}-{secrets.token_hex(3)}.tmp")
        try:
            partial.write_text(json.dumps(dataclasses.asdict(record), default=_iso), "utf-8")
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)
            return False
        return True

    def load(self) -> dict[str, Record]:
        """All readable job files by id; a file that cannot be understood is left alone."""
        records = {}
        for path in self.folder.glob("*.json"):
            if ID_PATTERN.match(path.stem):
                with contextlib.suppress(OSError, ValueError):
                    records[path.stem] = self.read(path.stem)
        return records

    def read(self, job_id: str) -> Record:
        """Raises OSError, or ValueError for a file that does not hold exactly a job."""
        path = self.folder / f"{job_id}.json"
        if not path.is_file():
            raise OSError(f"{path} is no regular file")
        try:
            return _record(job_id, json.loads(path.read_bytes()))
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} does not hold a job") from error

    def remove(self, job_id: str) -> None:
        paths = [self.folder / f"{job_id}{suffix}" for suffix in SUFFIXES]
        with contextlib.suppress(OSError):
            paths += self.folder.glob(f"{job_id}-*.attempt")  # of its parts
        for path in paths:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def cancel_flag(self, job_id: str) -> Path:
        return self.folder / f"{job_id}.cancel"

    def pause_flag(self, job_id: str) -> Path:
        return self.folder / f"{job_id}.pause"

    def attempt_flag(self, job_id: str) -> Path:
        """Exists while a worker is on the job: a second start means that the first one died."""
        return self.folder / f"{job_id}.attempt"

    def log(self, job_id: str) -> Path:
        """The traceback of a failed job."""
        return self.folder / f"{job_id}.log"


def new_owner() -> str:
    """Names this process, so that a later one can tell whether it still lives, and one queue in
    it."""
    created = psutil.Process().create_time()
    return f"{os.uname().nodename}:{os.getpid()}:{created:.2f}:{secrets.token_hex(4)}"


def lives(owner: str) -> bool:
    """Whether the named process may still be running; one on another machine may."""
    if not owner:  # given up, as close() does
        return False
    try:
        node, pid, created, _ = owner.rsplit(":", 3)
        if node != os.uname().nodename:
            return True
        return abs(psutil.Process(int(pid)).create_time() - float(created)) < 1
    except (psutil.Error, ValueError, OverflowError):
        return False


def one_line(text: str, limit: int = 500) -> str:
    """Whitespace collapsed and the end cut: what fits in a sentence."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _record(job_id: str, values: dict[str, Any]) -> Record:
    """A job from the JSON of its file, which anyone may have written."""
    state = values["state"]
    for name in ("submitted_at", "started_at", "finished_at"):
        if state[name] is not None:
            state[name] = datetime.fromisoformat(state[name])
    record = Record(JobSpec(**values["spec"]), JobState(**state), values["owner"])
    for part in (record.spec, record.state):
        for name, hint in get_type_hints(type(part)).items():
            _check(name, hint, getattr(part, name))
    _check("owner", str, record.owner)
    if record.state.id != job_id or record.state.status not in (*UNFINISHED, *FINISHED):
        raise ValueError(f"{job_id} is not a job that the queue wrote")
    for run_id in (record.spec.run_id, record.state.run_id):
        if run_id is not None and not is_run_id(run_id):
            raise ValueError("run_id is not the id of a run")
    return record


def _check(name: str, hint: Any, value: Any) -> None:
    """Raises ValueError where a field has another type, or a value that no page could show."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (get_origin(hint) or hint,)
    good = type(value) in kinds or (float in kinds and type(value) is int)
    if isinstance(value, str):
        value.encode()  # half of a surrogate pair is no text
    elif isinstance(value, datetime):
        good = good and value.tzinfo is not None
    elif isinstance(value, int | float):
        good = good and abs(value) < LARGEST  # not for NaN either
    if not good:
        raise ValueError(f"{name} is not what a job file holds")


def _iso(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} cannot be kept in a job file")
