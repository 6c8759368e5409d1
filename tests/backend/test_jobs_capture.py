"""Captures as jobs: real runs of the embedded model, one of them killed in the middle."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from backend.first_start import samples
from backend.jobs import Jobs, JobState, capture_job
from backend.spec import CaptureSpec
from cache_store.reader import Capture
from tests.backend.waiting import ended, until

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = samples()[0].context


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("KVSCOPE_SCHEDULER", raising=False)
        opened = Jobs(tmp_path_factory.mktemp("home"))
        yield opened
        opened.close()


def long_run(title: str) -> CaptureSpec:
    return CaptureSpec(context=CONTEXT[:300], max_new_tokens=3000, stop_at_eos=False, title=title)


def decoding(jobs: Jobs, job_id: str) -> JobState:
    def seen() -> JobState | None:
        state = jobs.get(job_id)
        assert not state.finished, state
        return state if state.phase == "decode" and state.done > 5 else None

    return until(seen, "generated tokens")


def workers() -> list[psutil.Process]:
    """Processes below this one that have loaded a model, the largest first."""
    found = psutil.Process().children(recursive=True)
    return sorted(found, key=lambda process: -process.memory_info().rss)


def test_a_capture_shows_tokens_rate_and_text_and_is_opened_when_done(jobs: Jobs) -> None:
    spec = CaptureSpec(context=CONTEXT[:300], max_new_tokens=400, stop_at_eos=False, title="short")
    job = capture_job(spec)
    job_id = jobs.submit(job)
    texts = set()

    def over() -> bool:
        state = jobs.get(job_id)
        if state.phase == "decode":
            texts.add(state.text)
            assert state.total == 400 and 1 <= state.done <= 400
        return state.finished

    until(over, "the capture")
    state = jobs.get(job_id)
    assert (state.status, state.run_id) == ("done", job.run_id), state.error
    assert len(texts) > 1
    made = Capture.open(jobs.home / str(state.run_id) / "capture.duckdb")
    assert made.info.response_length == 400
    assert made.response_text().startswith(min(texts, key=len))
    made.close()
    written = (jobs.home / str(state.run_id) / "capture.duckdb").stat().st_mtime_ns
    assert jobs.submit(job) == job_id  # asked for again: the file is there and stays
    assert ended(jobs, job_id).status == "done"
    assert (jobs.home / str(state.run_id) / "capture.duckdb").stat().st_mtime_ns == written


def test_a_killed_capture_leaves_nothing_and_the_next_one_works(jobs: Jobs) -> None:
    job = capture_job(long_run("killed"))
    job_id = jobs.submit(job)
    state = decoding(jobs, job_id)
    assert state.rate and state.eta_s and state.text
    folder = jobs.home / str(job.run_id)
    assert list(folder.glob("*.partial"))
    workers()[0].kill()
    state = ended(jobs, job_id)
    assert state.status == "failed" and state.error is not None and "signal 9" in state.error
    assert not folder.exists() or not list(folder.iterdir())
    after = jobs.submit(capture_job(CaptureSpec(context=CONTEXT[:300], max_new_tokens=2)))
    assert ended(jobs, after).status == "done", jobs.get(after).error


def test_a_cancelled_capture_leaves_nothing(jobs: Jobs) -> None:
    job = capture_job(long_run("cancelled"))
    job_id = jobs.submit(job)
    decoding(jobs, job_id)
    jobs.cancel(job_id)
    assert ended(jobs, job_id).status == "cancelled"
    folder = jobs.home / str(job.run_id)
    assert not folder.exists() or not list(folder.iterdir())


def test_a_prompt_that_cannot_run_fails_with_its_sentence(jobs: Jobs) -> None:
    job_id = jobs.submit(capture_job(CaptureSpec(context="word " * 6000, max_new_tokens=5)))
    state = ended(jobs, job_id)
    assert state.status == "failed" and state.error is not None
    assert "context is 4,096" in state.error and state.error.endswith(".")
    assert not (jobs.home / ".jobs" / f"{job_id}.log").exists()


def test_killing_the_app_ends_its_workers(tmp_path: Path) -> None:
    code = (
        "import sys, time; from backend.jobs import Jobs, JobSpec, register\n"
        "register('count', 'tests.backend.job_kinds:count')\n"
        f"jobs = Jobs({str(tmp_path)!r}); i = jobs.submit(JobSpec('count', {{'wait': True}}))\n"
        "while jobs.get(i).phase != 'waiting': time.sleep(0.02)\n"
        "print('ready', flush=True); time.sleep(60)\n"
    )
    app = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
    assert app.stdout is not None and app.stdout.readline() == b"ready\n"
    below = psutil.Process(app.pid).children(recursive=True)
    assert len(below) >= 3  # the host and a worker per lane
    app.kill()
    app.wait()
    _, alive = psutil.wait_procs(below, timeout=20)
    assert alive == []
    jobs = Jobs(tmp_path, workers=False)
    assert [state.status for state in jobs.jobs()] == ["lost"]
    jobs.close()


def test_streamlit_can_keep_it(tmp_path: Path) -> None:
    from streamlit.testing.v1 import AppTest

    def page(home: str) -> None:
        import streamlit as st

        from backend.jobs import Jobs

        @st.cache_resource(max_entries=1)
        def shared(folder: str) -> Jobs:
            return Jobs(folder, workers=False)

        st.write(str(id(shared(home))), len(shared(home).jobs()))

    app = AppTest.from_function(page, args=(str(tmp_path),)).run()
    assert not app.exception
    first = app.markdown[0].value
    assert app.run().markdown[0].value == first
