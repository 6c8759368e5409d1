"""`python -m backend study`: exit status, what is printed where, and what is left behind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from backend.__main__ import main
from backend.progress import Cancelled, Progress
from backend.study.estimate import StudyEstimate, duration, estimate
from backend.study.spec import StudySpec, load_spec
from backend.study.work import make_study, run_study
from cache_store.study import StudyReader
from cache_store.study_files import finished_parts, study_folder
from tests.backend import tiny

ROWS = [{"context": "The lake is cold.", "question": " How is it?", "answers": ["cold"]}] * 3


@pytest.fixture(scope="module")
def specification(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    model = tiny.save(tiny.build("llama"), folder / "llama")
    (folder / "lake.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    values = {
        "model": model,
        "ratios": [0.5],
        "tasks": [{"set": "lake.jsonl", "max_new_tokens": 4}],
        "policies": [{"policy": "knorm"}],
    }
    (folder / "study.json").write_text(json.dumps(values))
    return folder / "study.json"


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVSCOPE_SCHEDULER", raising=False)


def test_runs_a_study_and_prints_its_file(
    specification: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", str(specification), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    path = Path(printed.out.strip())
    assert path.name == "study.duckdb" and "3 prompts of at most" in printed.err
    reader = StudyReader(path.parent)
    rows = reader.rows()
    assert rows["example_id"].tolist() == [f"lake-{n}" for n in (0, 0, 1, 1, 2, 2)]
    assert rows["policy_key"].tolist() == ["full", "knorm"] * 3
    changed = path.stat().st_mtime_ns
    assert main(["study", str(specification), "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(path)
    assert path.stat().st_mtime_ns == changed  # nothing was left to do


def test_only_estimates(
    specification: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", str(specification), "--out", str(tmp_path / "a"), "--estimate"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "" and "6 cells; about" in printed.err
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ratios = [0.5", "The specification is not TOML: Unclosed array (at end of document)."),
        ("ratios = [0.5]", "A study needs policies"),
        ('[[policies]]\npolicy = "knorm"', "A study needs tasks"),
    ],
)
def test_a_malformed_specification_is_one_sentence(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study.toml").write_text(text)
    assert main(["study", str(tmp_path / "study.toml"), "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"kvscope: {words}")


def test_a_malformed_set_is_one_sentence_with_its_line(
    specification: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = json.loads(specification.read_text())
    (tmp_path / "study.json").write_text(json.dumps(values))
    (tmp_path / "lake.jsonl").write_text(json.dumps(ROWS[0]) + '\n{"context": 3}\n')
    assert main(["study", str(tmp_path / "study.json"), "--out", str(tmp_path)]) == 1
    assert "Line 2 of lake.jsonl" in capsys.readouterr().err


def test_help_and_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, status in ((["study", "--help"], 0), (["study"], 2)):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == status
    assert "specification" in capsys.readouterr().out


def test_cancelling_keeps_what_is_finished_and_running_again_goes_on(
    specification: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study_id = make_study(tmp_path, *load_spec(specification))
    folder = study_folder(tmp_path, study_id)
    with pytest.raises(Cancelled):
        run_study(tmp_path, study_id, cancelled=lambda: len(finished_parts(folder)) == 2)
    assert sorted(finished_parts(folder)) == [0, 1]
    seen: list[Progress] = []
    run_study(tmp_path, study_id, seen.append)
    running = [item.done for item in seen if item.phase == "running"]
    assert running[0] == 4 and running[-1] == 6 and running == sorted(running)
    assert StudyReader(folder).complete
    assert main(["study", str(specification), "--out", str(tmp_path)]) == 0
    capsys.readouterr()


@dataclass(frozen=True)
class _Facts:
    layers: int = 2
    query_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    hidden_size: int = 32
    intermediate_size: int = 64
    vocabulary: int = 300
    max_positions: int | None = None
    parameters: int = 10**6
    checkpoint_dtype: str = "float32"


def expected(changes: Mapping[str, object], facts: _Facts | None = None) -> StudyEstimate:
    values = {
        "tasks": [{"task": "passkey", "count": 2, "options": {"length": [100, 400]}}],
        "policies": [{"policy": "snapkv"}],
        "ratios": [0.5],
    }
    return estimate(StudySpec.from_dict(values | dict(changes)), facts=facts or _Facts())


def test_an_estimate_counts_cells_and_grows_with_them() -> None:
    one = expected({})
    assert (one.examples, one.cells, one.prompt_tokens) == (4, 8, 400)
    more = expected({"ratios": [0.3, 0.5, 0.7]})
    assert more.cells == 16 and more.seconds > one.seconds
    assert more.memory_bytes > one.memory_bytes and not one.refusals


def test_what_does_not_fit_is_refused_in_a_sentence() -> None:
    huge = expected({}, _Facts(parameters=10**13))
    assert len(huge.refusals) == 1 and huge.refusals[0].startswith("The study needs about 4e+04 GB")


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 s"), (119, "119 s"), (150, "2 min"), (9000, "2 h")]
)
def test_durations_are_readable(seconds: float, words: str) -> None:
    assert duration(seconds) == words
