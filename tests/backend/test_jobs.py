"""Jobs in real worker processes, among them some that are killed in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from backend.jobs import JobError, Jobs, JobSpec, JobState, capture_job, derive_job, register
from backend.jobs.registry import KINDS, Reporter, execute
from backend.jobs.states import JobFiles, Record, lives, new_owner, now
from backend.progress import Progress
from backend.spec import CaptureSpec, PromptError
from tests.backend.waiting import ended, until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", autouse=True)
def kinds() -> Iterator[None]:
    before = dict(KINDS)
    register("count", "tests.backend.job_kinds:count")
    register("count short", "tests.backend.job_kinds:count", lane="short")
    register("fail", "tests.backend.job_kinds:fail")
    yield
    KINDS.clear()
    KINDS.update(before)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def jobs(home: Path) -> Iterator[Jobs]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVSCOPE_WORKER_MEMORY", "700MB")
        patch.delenv("KVSCOPE_SCHEDULER", raising=False)
        opened = Jobs(home)
        yield opened
        opened.close()


def waiting(jobs: Jobs, name: str, kind: str = "count") -> str:
    """A job that runs until it is let go, already on the worker."""
    job_id = jobs.submit(JobSpec(kind, {"name": name, "wait": True}, name))
    until(lambda: jobs.get(job_id).phase == "waiting", f"{name} at work")
    return job_id


def release(home: Path, name: str) -> None:
    (home / f"{name}.go").touch()


def test_the_app_process_stays_light(jobs: Jobs) -> None:
    # Processor time, not the clock: the machine may be busy with something else.
    code = (
        "import sys, tempfile, time; from time import process_time\n"
        "from backend.jobs import Jobs; jobs = Jobs(tempfile.mkdtemp()); took = process_time()\n"
        "deadline = time.monotonic() + 30\n"
        "while jobs._backend is None and time.monotonic() < deadline: time.sleep(0.01)\n"
        "assert jobs._backend is not None; ready = process_time(); jobs.close()\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
        "print(took, ready)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert out.returncode == 0, out.stderr
    took, ready = map(float, out.stdout.split())
    assert took < 2 and ready < 3, out.stdout


def test_a_job_runs_and_reports(jobs: Jobs) -> None:
    spec = JobSpec("count", {"name": "first", "steps": 5}, "Count to five")
    job_id = jobs.submit(spec)
    assert job_id == spec.id and len(job_id) == 16
    state = ended(jobs, job_id)
    assert (state.status, state.error, state.summary["steps"]) == ("done", None, 5)
    assert state.summary["pid"] != os.getpid()
    assert state.started_at and state.finished_at
    assert state.submitted_at <= state.started_at <= state.finished_at
    assert state.title == "Count to five"


def test_progress_is_seen_while_the_job_runs(jobs: Jobs, home: Path) -> None:
    job_id = waiting(jobs, "watched")
    state = jobs.get(job_id)
    assert (state.status, state.done, state.total, state.text) == ("running", 1, 10, "so far")
    release(home, "watched")
    assert ended(jobs, job_id).status == "done"


def test_several_are_queued_in_order_and_short_jobs_pass_by(jobs: Jobs, home: Path) -> None:
    (home / "order.txt").unlink(missing_ok=True)
    first = waiting(jobs, "a")
    others = [jobs.submit(JobSpec("count", {"name": name}, name)) for name in "bcd"]
    assert [jobs.get(job_id).queue_position for job_id in others] == [1, 2, 3]
    assert jobs.get(first).queue_position is None
    assert [state.title for state in jobs.jobs()][:4] == ["d", "c", "b", "a"]
    short = jobs.submit(JobSpec("count short", {"name": "short"}))
    assert ended(jobs, short).status == "done"
    assert jobs.get(others[0]).status == "queued"
    jobs.cancel(others[1])
    assert jobs.get(others[1]).status == "cancelled"
    assert [jobs.get(others[i]).queue_position for i in (0, 2)] == [1, 2]
    release(home, "a")
    assert [ended(jobs, job_id).status for job_id in others] == ["done", "cancelled", "done"]
    assert (home / "order.txt").read_text().split() == ["a", "short", "b", "d"]


def test_a_running_job_is_cancelled_between_two_steps(jobs: Jobs) -> None:
    job_id = waiting(jobs, "stop me")
    jobs.cancel(job_id)
    assert jobs.get(job_id).cancelling
    state = ended(jobs, job_id)
    assert (state.status, state.error) == ("cancelled", None)
    jobs.cancel(job_id)  # over: nothing happens
    assert jobs.get(job_id).status == "cancelled"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("ours", "The file is upside down: turn it."),
        ("other", "ValueError: first line second line"),
        ("disk", "is full"),
        ("disk below", "is full"),
        ("memory", "ran out of memory"),
        ("exit", "exit code 3"),
        ("kill", "killed (signal 9)"),
        ("segfault", "SIGSEGV"),
        ("eat", "KVSCOPE_WORKER_MEMORY"),
    ],
)
def test_a_failure_is_one_sentence_and_the_next_job_works(
    jobs: Jobs, home: Path, how: str, words: str
) -> None:
    job_id = jobs.submit(JobSpec("fail", {"how": how}))
    after = jobs.submit(JobSpec("count", {"name": f"after {how}"}))
    state = ended(jobs, job_id)
    assert state.status == "failed"
    assert state.error is not None and words in state.error and "\n" not in state.error
    assert ended(jobs, after).status == "done"
    log = home / ".jobs" / f"{job_id}.log"
    assert log.exists() == (how in ("other", "disk", "disk below", "memory"))
    if log.exists():
        assert "Traceback" in log.read_text()


def test_a_worker_killed_from_outside_takes_only_its_job(jobs: Jobs, home: Path) -> None:
    warm = ended(jobs, jobs.submit(JobSpec("count", {"name": "warm"})))
    running = waiting(jobs, "victim")
    queued = [jobs.submit(JobSpec("count", {"name": f"behind {i}"})) for i in range(2)]
    psutil.Process(warm.summary["pid"]).kill()
    state = ended(jobs, running)
    assert state.status == "failed"
    assert state.error is not None and "signal 9" in state.error
    results = [ended(jobs, job_id) for job_id in queued]
    assert [result.status for result in results] == ["done", "done"]
    assert results[0].summary["pid"] != warm.summary["pid"]
    release(home, "victim")
    assert jobs.retry(running) == running
    assert ended(jobs, running).status == "done"


def test_a_dead_worker_host_is_started_again(jobs: Jobs) -> None:
    worker = ended(jobs, jobs.submit(JobSpec("count", {"name": "find the host"}))).summary["pid"]
    host = psutil.Process(worker).parent()
    assert host is not None
    host.kill()
    until(lambda: not psutil.pid_exists(worker), "the old worker's end")
    after = JobSpec("count", {"name": "after the host"})
    # The scheduler may not have noticed yet: then the job says so and is run again.
    again = until(
        lambda: next((s for s in [ended(jobs, jobs.submit(after))] if s.status == "done"), None),
        "the host back at work",
    )
    assert again.summary["pid"] != worker


def test_many_threads_share_one_queue(jobs: Jobs) -> None:
    ids: list[str] = []

    def session(number: int) -> None:
        for item in range(4):
            ids.append(jobs.submit(JobSpec("count", {"name": f"same {item}"}, str(number))))
            jobs.jobs()

    threads = [threading.Thread(target=session, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 20 and len(set(ids)) == 4  # the same work is the same job
    assert {ended(jobs, job_id).status for job_id in ids} == {"done"}


def test_what_cannot_be_accepted_is_said_in_one_sentence(jobs: Jobs) -> None:
    with pytest.raises(JobError, match="kind 'dance'"):
        jobs.submit(JobSpec("dance", {}))
    with pytest.raises(JobError, match="JSON"):
        jobs.submit(JobSpec("count", {"name": object()}))
    with pytest.raises(JobError, match="not the id of a run"):
        jobs.submit(derive_job("../../etc", "prompt_attention", {}))
    with pytest.raises(PromptError, match="prompt is empty"):
        jobs.submit(JobSpec("capture", {"spec": {"context": " "}}))
    with pytest.raises(JobError, match="no job"):
        jobs.get("0" * 16)
    running = waiting(jobs, "busy")
    for refused in (jobs.dismiss, jobs.retry):
        with pytest.raises(JobError, match="running"):
            refused(running)
    jobs.cancel(running)
    ended(jobs, running)
    jobs.dismiss(running)
    assert running not in {state.id for state in jobs.jobs()}
    assert not list((jobs.home / ".jobs").glob(f"{running}*"))


def test_the_id_is_a_hash_of_what_is_computed() -> None:
    assert JobSpec("a", {"x": 1, "y": 2}).id == JobSpec("a", {"y": 2, "x": 1}, "title").id
    assert JobSpec("a", {"x": 1}).id != JobSpec("b", {"x": 1}).id
    spec = CaptureSpec(context="hello " * 30)
    one, two = capture_job(spec), capture_job(spec)
    assert one.id != two.id and one.run_id != two.run_id  # each run of a model is its own
    assert len(one.title) <= 60
    again = capture_job(spec, run_id=one.run_id)
    assert again.id == one.id


def unfinished(home: Path, job: JobSpec, status: str, owner: str) -> None:
    state = JobState(job.id, job.kind, job.title, job.run_id, status)
    JobFiles(home).save(Record(job, state, owner))


def dead_owner() -> str:
    node, pid, created, queue = new_owner().rsplit(":", 3)
    return f"{node}:{pid}:{float(created) - 1000:.2f}:{queue}"


def test_what_an_earlier_app_left_is_lost_and_can_be_run_again(tmp_path: Path) -> None:
    kept = JobSpec("count", {"name": "kept"}, "kept")
    done = capture_job(CaptureSpec(context="hello"))
    (tmp_path / str(done.run_id)).mkdir()
    (tmp_path / str(done.run_id) / "capture.duckdb").touch()
    assert lives(new_owner()) and not lives(dead_owner()) and not lives("")
    unfinished(tmp_path, kept, "running", dead_owner())
    unfinished(tmp_path, done, "running", dead_owner())
    (tmp_path / ".jobs" / "notes.json").write_text("{}")
    (tmp_path / ".jobs" / f"{'0' * 16}.json").write_text("{broken")
    jobs = Jobs(tmp_path, workers=False)
    try:
        state = jobs.get(kept.id)
        assert state.status == "lost" and state.error is not None
        assert "running" in state.error and "run it again" in state.error
        assert jobs.get(done.id).status == "done"  # its file was complete
        assert len(jobs.jobs()) == 2
        assert jobs.retry(kept.id) == kept.id
        assert jobs.get(kept.id).queue_position == 1
    finally:
        jobs.close()
    again = Jobs(tmp_path, workers=False)
    assert again.get(kept.id).status == "lost"
    again.close()


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("", {"owner": 5}),
        ("", {"owner": None}),
        ("", {"owner": "\ud800"}),
        ("", {"state": []}),
        ("", {"spec": None}),
        ("state", {"submitted_at": None}),
        ("state", {"submitted_at": "2026-01-01T00:00:00"}),
        ("state", {"submitted_at": 3}),
        ("state", {"started_at": "2026-01-01"}),
        ("state", {"finished_at": "yesterday"}),
        ("state", {"status": "odd"}),
        ("state", {"status": ["done"]}),
        ("state", {"id": "f" * 16}),
        ("state", {"title": 5}),
        ("state", {"title": "\ud800"}),
        ("state", {"done": True}),
        ("state", {"total": 10**400}),
        ("state", {"rate": float("nan")}),
        ("state", {"eta_s": "soon"}),
        ("state", {"error": ["x"]}),
        ("state", {"run_id": "../../etc"}),
        ("state", {"summary": []}),
        ("state", {"extra": 1}),
        ("spec", {"params": None}),
        ("spec", {"run_id": "a\0"}),
        ("spec", {"kind": {}}),
    ],
)
def test_a_job_file_that_others_wrote_is_left_alone(
    part: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    job = JobSpec("count", {"name": "bad"}, "bad")
    unfinished(tmp_path, job, "running", new_owner())
    path = tmp_path / ".jobs" / f"{job.id}.json"
    values = json.loads(path.read_text())
    (values[part] if part else values).update(changes)
    path.write_text(json.dumps(values))
    with_good_and_bad_files(tmp_path)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"state": ' * 50_000, "", "[]", "3", '"x"'])
def test_a_file_that_is_no_job_is_left_alone(text: str, tmp_path: Path) -> None:
    (tmp_path / ".jobs").mkdir()
    (tmp_path / ".jobs" / f"{'a' * 16}.json").write_text(text)
    with_good_and_bad_files(tmp_path)


def test_odd_things_in_the_folder_of_jobs_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".jobs" / f"{'a' * 16}.json").mkdir(parents=True)
    os.mkfifo(tmp_path / ".jobs" / f"{'b' * 16}.json")
    with_good_and_bad_files(tmp_path)


def with_good_and_bad_files(home: Path) -> None:
    """A queue lists the good job beside whatever else is there, and goes on."""
    good = JobSpec("count", {"name": "good"}, "good")
    unfinished(home, good, "running", dead_owner())
    jobs = Jobs(home, workers=False)
    try:
        assert [(state.title, state.status) for state in jobs.jobs()] == [("good", "lost")]
        jobs.cancel(jobs.submit(JobSpec("count", {"name": "next"}, "next")))
    finally:
        jobs.close()


@pytest.mark.parametrize("owner", ["x", "a:b:c:d", f"{os.uname().nodename}:{10**30}:1:a", ":::"])
def test_an_owner_that_is_no_process_does_not_raise(owner: str) -> None:
    assert lives(owner) in (False, True)


def test_two_apps_on_one_home_see_each_other(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        owner = (
            f"{os.uname().nodename}:{other.pid}:{psutil.Process(other.pid).create_time():.2f}:ab"
        )
        job = JobSpec("count", {"name": "theirs"}, "theirs")
        unfinished(tmp_path, job, "running", owner)
        jobs = Jobs(tmp_path, workers=False)
        assert jobs.get(job.id).status == "running"
        assert jobs.submit(job) == job.id and jobs.get(job.id).status == "running"
        jobs.cancel(job.id)
        assert JobFiles(tmp_path).cancel_flag(job.id).exists()
    finally:
        other.communicate(b"\n")
    assert jobs.get(job.id).status == "lost"
    jobs.close()


def test_a_second_queue_of_one_app_follows_the_first(tmp_path: Path) -> None:
    first, second = Jobs(tmp_path, workers=False), Jobs(tmp_path, workers=False)
    first.submit(JobSpec("count", {"name": "theirs"}, "theirs"))
    assert second.jobs() == []  # what it does not know it leaves alone
    third = Jobs(tmp_path, workers=False)
    assert [state.status for state in third.jobs()] == ["queued"]
    first.close()
    assert [state.status for state in third.jobs()] == ["lost"]
    second.close()
    third.close()


def test_only_the_last_two_hundred_are_kept(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    for number in range(205):
        job = JobSpec("count", {"number": number}, str(number))
        at = now() - timedelta(seconds=1000 - number)
        state = JobState(job.id, job.kind, job.title, None, "done", submitted_at=at)
        files.save(Record(job, replace(state, finished_at=at), dead_owner()))
    jobs = Jobs(tmp_path, workers=False)
    job_id = jobs.submit(JobSpec("count", {"name": "one more"}, "one more"))
    jobs.cancel(job_id)
    titles = [state.title for state in jobs.jobs()]
    assert len(titles) == 200 and titles[0] == "one more" and titles[-1] == "6"
    assert len(list((tmp_path / ".jobs").glob("*.json"))) == 200
    jobs.close()


def test_an_unreachable_scheduler_fails_the_job_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.jobs.cluster.CONNECT_S", 1)
    jobs = Jobs(tmp_path, scheduler="tcp://127.0.0.1:9")
    job_id = jobs.submit(JobSpec("count", {}))
    state = ended(jobs, job_id)
    assert state.status == "failed" and state.error is not None
    assert "tcp://127.0.0.1:9" in state.error and "KVSCOPE_SCHEDULER" in state.error
    jobs.close()


def test_a_shared_scheduler_keeps_the_job_across_a_restart_of_the_app(
    tmp_path: Path, jobs: Jobs
) -> None:
    ended(jobs, jobs.submit(JobSpec("count", {"name": "cluster is up"})))
    assert jobs._backend is not None and jobs._backend._cluster is not None
    address = jobs._backend._cluster.scheduler_address
    first = Jobs(tmp_path, scheduler=address)
    several = [first.submit(JobSpec("count", {"name": f"shared {i}"})) for i in range(6)]
    job_id = waiting(first, "long")  # reports come in while the next ones are submitted
    assert {ended(first, other).status for other in several} == {"done"}
    first.close()
    assert json.loads((tmp_path / ".jobs" / f"{job_id}.json").read_text())["owner"] == ""
    second = Jobs(tmp_path, scheduler=address)
    until(lambda: second.get(job_id).phase == "waiting", "attached again")
    release(tmp_path, "long")
    assert ended(second, job_id).status == "done"
    second.close()


def test_a_task_started_twice_does_not_run_twice(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    files.attempt_flag("a" * 16).touch()  # the first attempt's worker died
    twice = execute("a" * 16, "tests.backend.job_kinds:count", {}, tmp_path, lambda report: None)
    assert twice["status"] == "failed" and "died" in twice["error"]
    run_id = "20260101-000000-abcdef"
    (tmp_path / run_id).mkdir()
    (tmp_path / run_id / "capture.duckdb").touch()
    params = {"spec": {"context": "x"}, "run_id": run_id}
    kept = execute("b" * 16, KINDS["capture"].path, params, tmp_path, lambda report: None)
    assert (kept["status"], kept["summary"]) == ("done", {"run_id": run_id})


def test_progress_is_throttled_with_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("backend.jobs.registry.time.monotonic", lambda: clock[0])
    sent: list[dict[str, Any]] = []
    report = Reporter(sent.append)
    report(Progress("prompt", 0, 1))
    for token in range(101):  # 50 tokens a second for two seconds
        report(Progress("tokens", token, 200, "y" * 5000))
        clock[0] += 0.02
    assert 10 <= len(sent) <= 13
    assert sent[0]["phase"] == "prompt" and sent[1]["done"] == 0 and sent[1]["rate"] is None
    last = sent[-1]
    assert last["rate"] == pytest.approx(50, rel=1e-6)
    assert last["eta_s"] == pytest.approx((200 - last["done"]) / 50, rel=1e-6)
    assert len(last["text"]) == 2000
