"""Jobs in parts, in real worker processes: what is finished is kept, whatever ends the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backend.jobs import JobError, Jobs, JobSpec, JobState, register
from backend.jobs.parts import HOPELESS, Fan, Work
from backend.jobs.registry import KINDS
from backend.jobs.worker import LANES
from tests.backend.test_jobs import ended, until


@pytest.fixture(scope="module", autouse=True)
def kinds() -> Iterator[None]:
    before = dict(KINDS)
    module = "tests.backend.job_kinds"
    register("parts", f"{module}:part", parts=f"{module}:parts_left")
    register("count", f"{module}:count")
    yield
    KINDS.clear()
    KINDS.update(before)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def jobs(home: Path) -> Iterator[Jobs]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("KVSCOPE_SCHEDULER", raising=False)
        opened = Jobs(home)
        yield opened
        opened.close()


def asked(name: str, parts: int, trouble: dict[str, str] | None = None) -> JobSpec:
    params: dict[str, Any] = {"name": name, "parts": parts, "trouble": trouble or {}}
    return JobSpec("parts", params, name)


def order(home: Path, name: str) -> list[int]:
    """The numbers that were begun, in order."""
    return [int(line.split()[0]) for line in (home / name / "order.txt").read_text().splitlines()]


def busy(jobs: Jobs, job_id: str, done: int) -> JobState:
    def there() -> JobState | None:
        state = jobs.get(job_id)
        return state if state.phase == "counting" and state.done >= done else None

    return until(there, f"{done} parts of {jobs.get(job_id)}")


def test_all_parts_run_once_and_in_stages(jobs: Jobs, home: Path) -> None:
    job_id = jobs.submit(asked("plain", 4))
    state = ended(jobs, job_id)
    assert state.status == "done" and (state.done, state.total) == (4, 4)
    assert sorted(order(home, "plain")) == [0, 1, 2, 3]
    assert (home / "plain" / "merged").exists()
    assert ended(jobs, jobs.submit(asked("plain", 4))).status == "done"
    assert len(order(home, "plain")) == 4  # nothing was left to do


def test_a_part_whose_worker_is_killed_is_reported_and_the_others_go_on(
    jobs: Jobs, home: Path
) -> None:
    job_id = jobs.submit(asked("killed", 4, {"1": "kill"}))
    state = ended(jobs, job_id)
    assert state.status == "failed" and "killed (signal 9)" in str(state.error)
    assert [number for number in range(4) if (home / "killed" / str(number)).exists()] == [0, 2, 3]
    (home / "killed" / "calm").write_text("")
    jobs.retry(job_id)
    assert ended(jobs, job_id).status == "done"
    assert sorted(order(home, "killed")) == [0, 1, 1, 2, 3]


def test_cancelling_keeps_what_is_finished(jobs: Jobs, home: Path) -> None:
    job_id = jobs.submit(asked("cancelled", 4, {"1": "wait"}))
    busy(jobs, job_id, 1)
    jobs.cancel(job_id)
    state = ended(jobs, job_id)
    assert state.status == "cancelled" and state.error is None
    assert (home / "cancelled" / "0").exists() and not (home / "cancelled" / "2").exists()
    (home / "cancelled" / "calm").write_text("")
    jobs.retry(job_id)
    assert ended(jobs, job_id).status == "done"
    assert order(home, "cancelled").count(0) == 1


def test_pausing_lets_the_part_in_hand_finish(jobs: Jobs, home: Path) -> None:
    job_id = jobs.submit(asked("paused", 4, {"1": "wait"}))
    busy(jobs, job_id, 1)
    jobs.pause(job_id)
    assert not jobs.get(job_id).finished
    (home / "paused" / "calm").write_text("")
    assert ended(jobs, job_id).status == "paused"
    assert order(home, "paused") == [0, 1] and (home / "paused" / "1").exists()
    jobs.retry(job_id)
    assert ended(jobs, job_id).status == "done"
    assert order(home, "paused") == [0, 1, 2, 3]


def test_another_job_goes_before_the_next_part(jobs: Jobs, home: Path) -> None:
    job_id = jobs.submit(asked("long", 3, {"0": "wait"}))
    until(lambda: (home / "long" / "order.txt").exists(), "the first part")
    between = jobs.submit(JobSpec("count", {"name": "between"}, "between"))
    (home / "long" / "calm").write_text("")
    assert ended(jobs, between).status == "done"
    assert ended(jobs, job_id).status == "done"
    finished = jobs.get(job_id).finished_at
    assert finished is not None and jobs.get(between).finished_at < finished  # type: ignore[operator]


def test_only_jobs_in_parts_can_be_paused(jobs: Jobs) -> None:
    job_id = jobs.submit(JobSpec("count", {"name": "whole"}, "whole"))
    with pytest.raises(JobError, match="'whole' cannot be paused"):
        jobs.pause(job_id)
    ended(jobs, job_id)


def test_a_restarted_app_goes_on_where_the_files_end(tmp_path: Path) -> None:
    first = Jobs(tmp_path)
    job_id = first.submit(asked("restart", 3, {"1": "wait"}))
    busy(first, job_id, 1)
    first.close()
    (tmp_path / "restart" / "calm").write_text("")
    second = Jobs(tmp_path)
    assert second.get(job_id).status == "lost"
    second.retry(job_id)
    assert ended(second, job_id).status == "done"
    second.close()
    assert order(tmp_path, "restart").count(0) == 1


def test_units_count_running_parts_and_never_more_than_there_are() -> None:
    fan = Fan(Work("running", [{"units": 10}, {"units": 10}], 5, 25))
    fan.out = {"a": fan.waiting.pop(0), "b": fan.waiting.pop(0)}
    fan.inner = {"a": 4}
    assert fan.units == 9
    fan.ended("a", {"status": "done", "error": None})
    assert fan.units == 15
    fan.ended("b", {"status": "failed", "error": "It broke."})
    assert (fan.units, fan.error, fan.stopped) == (15, "It broke.", "")


def test_parts_that_all_fail_end_the_job_early() -> None:
    parts = [{"units": 1}] * 9
    fan = Fan(Work("running", list(parts), 0, 9))
    for number in range(HOPELESS):
        fan.out[str(number)] = fan.waiting.pop(0)
        assert not fan.stopped
        fan.ended(str(number), {"status": "failed", "error": "No model."})
    assert fan.stopped == "failed" and fan.error == (
        f"{HOPELESS} parts failed, the first for this reason: No model."
    )


@pytest.mark.parametrize(("slots", "status"), [(1, "lost"), (0, "failed")])
def test_a_scheduler_that_is_gone_for_good_ends_the_job(
    slots: int, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone:
        """Reached once; then neither it nor its tasks are heard of again."""

        reached = 0

        def __init__(self, *_: object) -> None:
            if Gone.reached:
                raise JobError("The scheduler does not answer.")
            Gone.reached, self.connected = 1, True

        def slots(self) -> dict[str, int]:
            self.connected = False
            return dict.fromkeys(LANES, slots)

        def submit(self, *_: object) -> Any:
            return SimpleNamespace(add_done_callback=lambda _: None)

        def close(self) -> None: ...

    monkeypatch.setattr("backend.jobs.cluster.Backend", Gone)
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "prepared").touch()
    opened = Jobs(tmp_path)
    try:
        state = ended(opened, opened.submit(asked("gone", 3)))
        assert (state.status, state.done) == (status, 0)
        assert "cheduler" in str(state.error)
    finally:
        opened.close()
