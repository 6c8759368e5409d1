"""The shipped samples, and the three runs a new reader finds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from backend import first_start as module
from backend.first_start import first_start, samples
from backend.jobs import Jobs
from cache_store.errors import KVScopeError


def test_the_samples_are_complete() -> None:
    shipped = samples()
    assert len({sample.id for sample in shipped}) == len(shipped)
    assert sum(sample.first_start for sample in shipped) == 3
    for sample in shipped:
        spec = sample.spec()
        assert (spec.model_id, spec.title) == ("demo", sample.title)
        assert spec.prompt == sample.context + sample.question
        assert sample.answer.strip() and sample.look_for
        for start, end in sample.evidence:
            assert 0 <= start < end <= len(spec.prompt)


def test_an_empty_home_gets_the_first_samples_once(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, workers=False)
    queued = first_start(jobs)
    wanted = [sample.title for sample in samples() if sample.first_start]
    assert [jobs.get(job_id).title for job_id in queued] == wanted
    assert [jobs.get(job_id).queue_position for job_id in queued] == [1, 2, 3]
    assert first_start(jobs) == []
    for job_id in queued:
        jobs.cancel(job_id)
        jobs.dismiss(job_id)
    jobs.close()
    again = Jobs(tmp_path, workers=False)
    assert first_start(again) == [] and again.jobs() == []
    again.close()


def test_a_home_with_runs_is_left_alone(tmp_path: Path) -> None:
    run = tmp_path / "20260101-000000-abcdef"
    run.mkdir()
    jobs = Jobs(tmp_path, workers=False)
    assert first_start(jobs) == []
    shutil.rmtree(run)
    assert len(first_start(jobs)) == 3  # nothing was ever offered here
    jobs.close()


def test_damaged_samples_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "samples.json"
    monkeypatch.setattr(module, "SAMPLES", broken)
    for text in ("{", '[{"id": "x"}]', "[3]"):
        broken.write_text(text)
        samples.cache_clear()
        with pytest.raises(KVScopeError, match="samples cannot be read"):
            samples()
    samples.cache_clear()
