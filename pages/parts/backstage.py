"""What all sessions share: the home folder, the library, open captures and the jobs."""

from __future__ import annotations

import gc
import importlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from backend.home import home_folder, usable_home
from backend.jobs import Jobs
from backend.jobs.states import JOBS_FOLDER
from cache_store.library import Library
from cache_store.reader import Capture
from cache_store.sheets import Sheets

IMPORT_AFTER_S = 4.0  # the first page comes first


def home() -> Path:
    """Where runs are kept: KVSCOPE_HOME, or ./runs. Raises HomeError."""
    return home_folder()


def ready() -> None:
    """Makes what every page needs. Raises KVScopeError, one sentence, where that cannot be."""
    library()
    jobs()


@st.cache_resource(max_entries=4)
def _library(folder: Path) -> Library:
    return Library(usable_home(folder))


def library() -> Library:
    return _library(home())


def runs(search: str = "", sort: str = "created") -> pd.DataFrame:
    """The runs of the library as one table; a run that cannot be read has its `error`."""
    return library().runs(search=search, sort=sort)


def capture(run_id: str) -> Capture:
    """The open capture of a run. Raises StoreError when it cannot be read."""
    return library().open(run_id)


def sheets() -> Sheets:
    """The figure sheets beside the runs."""
    return Sheets(home())


@st.cache_resource(max_entries=4, show_spinner=False, on_release=lambda jobs: jobs.close())
def _jobs(folder: Path) -> Jobs:
    from backend import first_start

    jobs = Jobs(usable_home(folder, JOBS_FOLDER))
    first_start.first_start(jobs)
    imports = threading.Timer(IMPORT_AFTER_S, heavy_imports)
    imports.daemon = True
    imports.start()
    return jobs


def captures(run_ids: Sequence[str]) -> list[Capture]:
    """The open captures of several runs, for figures that pool them."""
    return [capture(run_id) for run_id in run_ids]


_stand_in: list[Any] = []


def jobs() -> Jobs:
    """The queue of jobs. The first call starts the workers and, in an empty library, samples."""
    return _stand_in[-1] if _stand_in else _jobs(home())


@contextmanager
def without_jobs(queue: Any) -> Iterator[None]:
    """For a process that shows pages to nobody: `queue` answers, and no worker is started."""
    _stand_in.append(queue)
    try:
        yield
    finally:
        _stand_in.remove(queue)


_IMPORTING = threading.Lock()


def heavy_imports() -> None:
    """Import torch and transformers: seconds, behind the first page rather than before a figure.

    One thread does it and the others wait: transformers' lazy modules fail when two threads
    import from them at once. Figures are computed on one core: sessions and workers share the
    cores, and two torch threads that wait for each other are many times slower than one."""
    with _IMPORTING:
        importlib.import_module("kvpolicies.attention")
        transformers = importlib.import_module("transformers")
        importlib.import_module("torch").set_num_threads(1)
        _ = transformers.AutoConfig, transformers.AutoTokenizer
        gc.freeze()  # what was imported stays: no collection looks through it again
