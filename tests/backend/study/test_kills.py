"""Studies that are killed at any point, and shared among workers: the rows stay the same."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import psutil
import pytest

from backend.jobs import Jobs
from backend.study.spec import StudySpec, load_spec
from backend.study.work import make_study, run_study, study_job
from cache_store.study import TIMINGS, StudyReader
from cache_store.study_files import finished_parts, study_folder
from tests.backend import tiny
from tests.backend.waiting import ended, until

ROOT = Path(__file__).resolve().parents[3]
PROMPTS = 6
TEXT = "The boat of number {} came at {} past nine. The bridge was closed, so it waited outside."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A specification, its set and its model."""
    folder = tmp_path_factory.mktemp("study")
    model = tiny.save(tiny.build("llama"), folder / "llama")
    rows = [
        {"context": TEXT.format(n, 7 * n), "question": " When?", "answers": [str(7 * n)]}
        for n in range(PROMPTS)
    ]
    (folder / "boats.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    values = {
        "title": "Boats",
        "model": model,
        "ratios": [0.5, 0.8],
        "tasks": [{"set": "boats.jsonl", "max_new_tokens": 12}],
        "policies": [{"policy": name} for name in ("snapkv(window=4)", "h2o", "laq", "kvzip")],
    }
    (folder / "study.json").write_text(json.dumps(values))
    return folder


@pytest.fixture(scope="module")
def undisturbed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    home = tmp_path_factory.mktemp("undisturbed")
    run_study(home, made(folder, home))
    rows = rows_of(folder, home)
    assert len(rows) == PROMPTS * (1 + 4 * 2) and rows["error"].isna().all()
    return rows


def made(folder: Path, home: Path) -> str:
    return make_study(home, *load_spec(folder / "study.json"))


def rows_of(folder: Path, home: Path) -> pd.DataFrame:
    """What the study found, timings aside."""
    reader = StudyReader(study_folder(home, made(folder, home)))
    assert reader.complete
    return reader.rows().drop(columns=list(TIMINGS))


def environment(**more: str) -> dict[str, str]:
    known = {key: value for key, value in os.environ.items() if key != "KVSCOPE_SCHEDULER"}
    return known | {"OMP_NUM_THREADS": "1"} | more


def some_are_done(home: Path, study_id: str, least: int) -> Callable[[], bool]:
    return lambda: len(finished_parts(study_folder(home, study_id))) >= least


def test_the_command_killed_at_random_points_ends_with_the_same_rows(
    folder: Path, undisturbed: pd.DataFrame, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "backend", "study", str(folder / "study.json")]
    command += ["--out", str(tmp_path)]
    study_id = made(folder, tmp_path)
    chance = random.Random(time.time_ns())
    for least in (0, 2):
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        until(some_are_done(tmp_path, study_id, least), f"{least} prompts")
        time.sleep(chance.uniform(0, 0.3))
        process.kill()
        process.communicate()
    before = set(finished_parts(study_folder(tmp_path, study_id)))
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(study_folder(tmp_path, study_id) / "study.duckdb")
    assert len(before) >= 2 or "study.duckdb" in str(before)
    pd.testing.assert_frame_equal(rows_of(folder, tmp_path), undisturbed)


def test_a_worker_killed_in_the_middle_loses_one_prompt_at_most(
    folder: Path, undisturbed: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVSCOPE_SCHEDULER", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    study_id = made(folder, tmp_path)
    jobs = Jobs(tmp_path)
    try:
        job_id = jobs.submit(study_job(tmp_path, study_id))
        until(some_are_done(tmp_path, study_id, 1), "a prompt")
        for process in psutil.Process().children(recursive=True):
            if "spawn_main" in " ".join(process.cmdline()) and process.memory_info().rss > 2.5e8:
                process.send_signal(signal.SIGKILL)  # the one that holds torch
        state = ended(jobs, job_id)
        if state.status != "done":  # the kill may have come between two prompts
            assert state.status == "failed" and "killed (signal 9)" in str(state.error)
            assert len(finished_parts(study_folder(tmp_path, study_id))) == PROMPTS - 1
            jobs.retry(job_id)
            assert ended(jobs, job_id).status == "done"
    finally:
        jobs.close()
    pd.testing.assert_frame_equal(rows_of(folder, tmp_path), undisturbed)


def test_the_app_killed_in_the_middle_goes_on_when_it_is_back(
    folder: Path, undisturbed: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVSCOPE_SCHEDULER", raising=False)
    study_id = made(folder, tmp_path)
    code = (
        "import pathlib, signal\n"
        "from backend.jobs import Jobs; from backend.study.work import study_job\n"
        f"home = pathlib.Path({str(tmp_path)!r}); jobs = Jobs(home)\n"
        f"jobs.submit(study_job(home, {study_id!r})); signal.pause()\n"
    )
    app = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment())
    until(some_are_done(tmp_path, study_id, 1), "a prompt")
    workers = psutil.Process(app.pid).children(recursive=True)
    app.kill()
    app.wait()
    assert psutil.wait_procs(workers, timeout=20)[1] == []
    assert not StudyReader(study_folder(tmp_path, study_id)).complete
    jobs = Jobs(tmp_path)
    try:
        [state] = jobs.jobs()
        assert state.status == "lost"
        jobs.retry(state.id)
        assert ended(jobs, state.id).status == "done"
    finally:
        jobs.close()
    pd.testing.assert_frame_equal(rows_of(folder, tmp_path), undisturbed)


@contextmanager
def cluster(port: int, workers: int, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A Dask scheduler on loopback with workers of ours; the scheduler's process."""
    address = f"tcp://127.0.0.1:{port}"
    scheduler = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard"]
    scheduler += ["--host", "127.0.0.1", "--port", str(port), "--no-show"]
    worker = [sys.executable, "-m", "backend.jobs.worker", address, "--lanes", "run"]
    worker += ["--scratch", str(home / "scratch")]
    processes = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(PYTHONPATH=str(ROOT)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for command in [scheduler, *[worker] * workers]
    ]
    try:
        yield processes[0]
    finally:
        for process in reversed(processes):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def workers_of(address: str) -> int:
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        return len(client.scheduler_info()["workers"])


def test_two_workers_and_a_scheduler_that_dies_give_the_same_rows(
    folder: Path, undisturbed: pd.DataFrame, tmp_path: Path
) -> None:
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    study_id = made(folder, tmp_path)
    with cluster(port, 2, tmp_path) as scheduler:
        until(lambda: workers_of(address) == 2, "two workers")
        jobs = Jobs(tmp_path, scheduler=address)
        job_id = jobs.submit(study_job(tmp_path, study_id))
        until(some_are_done(tmp_path, study_id, 1), "a prompt")
        scheduler.kill()
        state = ended(jobs, job_id)
        jobs.close()
    assert state.status in ("lost", "done"), state
    port = free_port()
    with cluster(port, 2, tmp_path):
        until(lambda: workers_of(f"tcp://127.0.0.1:{port}") == 2, "two workers")
        jobs = Jobs(tmp_path, scheduler=f"tcp://127.0.0.1:{port}")
        jobs.retry(job_id)
        assert ended(jobs, job_id).status == "done"
        jobs.close()
    pd.testing.assert_frame_equal(rows_of(folder, tmp_path), undisturbed)


def test_a_changed_model_is_another_study(folder: Path, tmp_path: Path) -> None:
    spec, sets = load_spec(folder / "study.json")
    other = tiny.save(tiny.build("qwen3"), tmp_path / "qwen3")
    changed = StudySpec.from_dict({**spec.to_dict(), "model": other})
    assert make_study(tmp_path, spec, sets) == make_study(tmp_path, spec, sets)
    assert make_study(tmp_path, changed, sets) != make_study(tmp_path, spec, sets)
