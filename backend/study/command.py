"""`python -m backend study study.toml`: run a study, or go on with one."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from backend.home import DEFAULT, home_folder, usable_home
from backend.progress import Cancelled, Progress
from backend.terminal import Bar, interrupt_flag
from cache_store.errors import KVScopeError
from cache_store.study_files import MERGED, study_folder

DONE, FAILED, CANCELLED = 0, 1, 130
POLL_S = 0.2  # how often a scheduler's progress is looked at


def add_study(commands: Any, help_format: Any) -> None:
    """The command `study` with its options."""
    parser = commands.add_parser(
        "study",
        help="run policies at many sizes over many prompts",
        description="Run the study that a specification describes: every policy at every size on "
        "every prompt, each prompt read once. Prints the path of the study's DuckDB file. What is "
        "finished is kept whatever happens: running the same command again goes on from there. "
        "With KVSCOPE_SCHEDULER the prompts are shared among the workers of a Dask cluster.",
        epilog="Exit status: 0 done, 1 refused or failed, 2 wrong usage, 130 cancelled (Ctrl-C).",
        formatter_class=help_format,
    )
    parser.add_argument("specification", type=Path, help="TOML or JSON file, see docs/studies.md")
    home = os.environ.get("KVSCOPE_HOME") or DEFAULT
    parser.add_argument("--out", default=home, help="folder of the runs and studies")
    parser.add_argument(
        "--estimate", action="store_true", help="only say how many cells, how long and how large"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """The command; returns its exit status. Raises KVScopeError."""
    from transformers.utils import logging

    from backend.study.estimate import estimate
    from backend.study.spec import load_spec
    from backend.study.work import make_study

    logging.set_verbosity_error()
    spec, sets = load_spec(arguments.specification)
    expected = estimate(spec, sets)
    print(f"kvscope: {expected.words}", file=sys.stderr)
    expected.check()
    if arguments.estimate:
        return DONE
    home = usable_home(home_folder(arguments.out))
    study_id = make_study(home, spec, sets)
    bar = _CellBar({"running": "cells"}, unit="cell")
    try:
        with interrupt_flag() as interrupted:
            if os.environ.get("KVSCOPE_SCHEDULER"):
                _on_cluster(home, study_id, bar, interrupted.is_set)
            else:
                from backend.study.work import run_study

                run_study(home, study_id, bar, interrupted.is_set)
    except (Cancelled, KeyboardInterrupt):
        bar.close()
        print(
            "kvscope: cancelled; what is finished is kept, run the command again to go on",
            file=sys.stderr,
        )
        return CANCELLED
    finally:
        bar.close()
    print(study_folder(home, study_id) / MERGED)
    return DONE


class _CellBar(Bar):
    """Making prompts and putting rows together are over before a bar could tell."""

    def __call__(self, progress: Progress) -> None:
        if progress.phase == "running":
            super().__call__(progress)


class _ClusterError(KVScopeError):
    """The study ended on the cluster without being complete."""


def _on_cluster(home: Path, study_id: str, bar: Bar, interrupted: Any) -> None:
    """Hand the study to the workers of KVSCOPE_SCHEDULER and watch it."""
    from backend.jobs import Jobs
    from backend.study.work import study_job

    jobs = Jobs(home)
    try:
        job_id = jobs.submit(study_job(home, study_id))
        asked = False
        while not (state := jobs.get(job_id)).finished:
            if interrupted() and not asked:
                jobs.cancel(job_id)
                asked = True
            if state.total:
                bar(Progress(state.phase, state.done, state.total))
            time.sleep(POLL_S)
        if state.status == "done":
            bar(Progress("running", state.total, state.total))
        elif state.status == "cancelled":
            raise Cancelled
        else:
            raise _ClusterError(state.error or "The study ended before it was complete.")
    finally:
        jobs.close()
