"""A figure by the link of its view, without a browser or a server: `python -m analysis export`.

The page that the link names is run with the link's values, as Streamlit would, and its cards tell
what they draw. Jobs that a figure waits for run in this process, one after the other.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import streamlit as st
from streamlit.logger import set_log_level

from analysis.errors import AnalysisError, NeedsJob
from analysis.figure import Figure
from analysis.sources import with_sources
from backend.jobs import JobSpec
from backend.jobs.registry import KINDS
from pages.parts import backstage, drawn, selection
from pages.parts.drawn import Seen

ROOT = Path(__file__).parents[2]
FIRST = "attention"
ROUNDS = 8  # a job may show that another one is needed
SECONDS = 600.0  # for one run of a page
_MARKS = re.compile(r"\\(?=[^\w\s])|\u200b")  # what `plain` puts between signs


class Noted:
    """In the place of the queue: it runs nothing, for the cards tell which jobs they wait for."""

    def submit(self, spec: JobSpec) -> str:
        return spec.id

    def jobs(self) -> list[object]:
        return []


def figure_at(link: str, wanted: str = "", *, home: str = "") -> Figure:
    """The figure that a link shows; `wanted` is its title or key where there are several.

    home: the folder of the runs, by default KVSCOPE_HOME. A figure that is named waits for all jobs
    that it may need, one that is not for the short ones only. Raises KVScopeError, one sentence,
    where the link, its run or the figure does not exist.
    """
    page, query = _parts(link)
    tried: set[str] = set()
    with _runs_of(home):
        for _ in range(ROUNDS):
            seen = _shown(page, query, link)
            missing = [
                job
                for key, job in seen.jobs.items()
                if key not in tried and (wanted or KINDS[job[0].kind].lane == "short")
            ]
            if not missing or (wanted and _found(seen, wanted)):
                break
            for job, need in missing:
                tried.add(job.id)
                _run(job, need)
        return with_sources(_chosen(seen, wanted), backstage.capture)


def figures_at(link: str, *, home: str = "") -> list[str]:
    """A line for every figure that a link shows, its key and title, and for every job that one
    which is not there yet waits for."""
    with _runs_of(home):
        seen = _shown(*_parts(link), link)
    return [
        *(f"{key}: {figure.title}" for key, (figure, _) in seen.figures.items()),
        *(
            f"not there yet: {job.title} (about {max(1, round(need.seconds))} s)"
            for job, need in seen.jobs.values()
        ),
    ]


@contextmanager
def _runs_of(home: str) -> Iterator[None]:
    """The runs that pages see; afterwards none of their files is held open."""
    if home:
        os.environ["KVSCOPE_HOME"] = home
    folder = backstage.home()
    if not folder.is_dir():
        raise AnalysisError(
            f"There is no folder {folder} with runs: name it with --home or KVSCOPE_HOME."
        )
    try:
        yield
    finally:
        st.cache_resource.clear()
        gc.collect()


def _parts(link: str) -> tuple[str, dict[str, list[str]]]:
    """The page's name and the values of a link."""
    address = urlsplit(link if "://" in link else f"//host/{link.lstrip('/')}")
    page = address.path.rstrip("/").rpartition("/")[2] or FIRST
    known = sorted(path.stem for path in (ROOT / "pages").glob("[a-z]*.py"))
    if page not in known:
        raise AnalysisError(f"The link names no page: {page!r} is none of {', '.join(known)}.")
    return page, parse_qs(address.query, keep_blank_values=True)


def _shown(page: str, query: dict[str, list[str]], link: str) -> Seen:
    """One run of the page."""
    from streamlit.testing.v1 import AppTest

    set_log_level("ERROR")  # it warns that no browser is there
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=SECONDS)
    for key, values in query.items():
        app.query_params[key] = values if len(values) > 1 else values[0]
    if "://" in link:
        app.context["url"] = link
    with drawn.listening() as seen, backstage.without_jobs(Noted()):
        app.switch_page(f"pages/{page}.py").run()
    if app.exception:
        raise AnalysisError(f"The page {page} failed: {app.exception[0].message}")
    told = app.session_state.get(selection.NOTICES, {})
    sentences = [*told.values(), *(_plain(error.value) for error in app.error)]
    if sentences and (told or not seen.figures):
        raise AnalysisError(" ".join(sentences))
    return seen


def _plain(text: str) -> str:
    return _MARKS.sub("", text)


def _run(job: JobSpec, need: NeedsJob) -> None:
    """Do a job here and now, and say so on standard error."""
    print(f"{job.title} (about {max(1, round(need.seconds))} s)", file=sys.stderr)
    module, _, name = KINDS[job.kind].path.partition(":")
    work = getattr(importlib.import_module(module), name)
    work(job.params, backstage.home(), lambda _: None, lambda: False)


def _found(seen: Seen, wanted: str) -> list[str]:
    """Keys of the figures that `wanted` names: by key, by title, or by a part of the title."""
    word = wanted.casefold()
    titles = {key: figure.title.casefold() for key, (figure, _) in seen.figures.items()}
    for fits in (
        [key for key in titles if key == wanted],
        [key for key, title in titles.items() if title == word],
        [key for key, title in titles.items() if word in title],
    ):
        if fits:
            return fits
    return []


def _chosen(seen: Seen, wanted: str) -> Figure:
    keys = _found(seen, wanted) if wanted else list(seen.figures)
    if len(keys) == 1:
        return seen.figures[keys[0]][0]
    listed = ", ".join(f"{key} (“{figure.title}”)" for key, (figure, _) in seen.figures.items())
    if not seen.figures:
        raise AnalysisError("This link shows no figure.")
    if not keys:
        raise AnalysisError(f"This link shows no figure {wanted!r}, but {listed}.")
    several = ", ".join(keys) if wanted else listed
    raise AnalysisError(f"This link shows {len(keys)} figures, choose with --figure: {several}.")
