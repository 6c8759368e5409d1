"""`python -m backend capture`: exit status, what is printed where, and what is left behind."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backend.__main__ import main
from cache_store.reader import Capture
from tests.backend import tiny

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save(tiny.build("llama"), tmp_path_factory.mktemp("models") / "llama")


def test_captures_a_file_and_prints_the_path(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("A river.\n---question---\nWhere?\n")
    out = tmp_path / "runs"
    options = ["--max-new-tokens", "6", "--no-stop", "--window", "4", "--stored-layers", "0-1"]
    options += ["--sample", "--temperature", "0.7", "--top-p", "0.9", "--top-k-sampling", "9"]
    options += ["--seed", "5", "--title", "Rivers", "--top-k", "3", "--min-new-tokens", "2"]
    assert main(["capture", str(prompt), "--model", model, "--out", str(out), *options]) == 0
    printed = capsys.readouterr()
    with Capture.open(printed.out.strip()) as run:
        info = run.info
        assert run.prompt_text() == "A river.\nWhere?\n"
        assert info.context_length == len("A river.\n")
        assert (info.response_length, info.window, info.top_k, info.seed) == (6, 4, 3, 5)
        assert (info.stored_layers, info.title) == ((0, 1), "Rivers")
        settings = info.settings
        assert (settings["temperature"], settings["top_p"], settings["sample"]) == (0.7, 0.9, True)
        assert (settings["source"], settings["min_new_tokens"]) == ("prompt.txt", 2)
    assert "16 prompt tokens; about" in printed.err and "writing the answer" in printed.err


def test_reads_standard_input_and_takes_the_question_apart(
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO("Ein Fluß.".encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    options = ["--question", "Wo?", "--model", model, "--out", str(tmp_path)]
    assert main(["capture", "-", *options, "--max-new-tokens", "1"]) == 0
    with Capture.open(capsys.readouterr().out.strip()) as run:
        assert run.prompt_text() == "Ein Fluß.\n\nWo?"
        assert run.info.context_length == len("Ein Fluß.\n\n".encode())


def test_reads_a_row_of_a_table(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"a": "one", "b": "two"}\n{"a": "three", "b": "four"}\n')
    options = ["--row", "2", "--field", "b", "--model", model, "--max-new-tokens", "1"]
    assert main(["capture", str(rows), *options, "--out", str(tmp_path)]) == 0
    with Capture.open(capsys.readouterr().out.strip()) as run:
        assert run.prompt_text() == "four"


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("", [], "is empty"),
        ("x" * 200, [], "the model's context is 128"),
        ("x" * 100, ["--max-new-tokens", "90"], "at most 28 new tokens"),
        ("x", ["--model", "/no/such/folder"], "neither a folder"),
        ("x", ["--temperature", "0", "--sample"], "temperature is 0"),
        ("x", ["--temperature", "1e-300", "--sample"], "temperature is 1e-300"),
        ("x", ["--title", "bad\udcff"], "title holds U+DCFF"),
        ("x", ["--model", "~nosuchuser"], "neither a folder"),
        ("x", ["--out", "~nosuchuser/runs"], "~nosuchuser/runs cannot hold runs"),
        ("x", ["--out", "bad\udcff"], "cannot hold runs"),
        ("x", ["--out", "/dev/null"], "/dev/null cannot hold runs (a file has its name)"),
        ("x", ["--out", "/dev/null/runs"], "cannot hold runs (a file is where a folder"),
        ("x", ["--out", "/proc/nope"], "/proc/nope cannot hold runs"),
        ("x" * 20_000_001, [], "more than 20 MB"),
        ("x", ["--device", "toaster"], "toaster"),
        ("x", ["--stored-layers", "7"], "model has layers 0 to 2"),
        ("a\n---question---\nb", ["--question", "c"], "leave --question out"),
    ],
)
def test_a_refusal_is_one_sentence_and_status_1(
    text: str,
    options: list[str],
    words: str,
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(text)
    out = tmp_path / "runs"
    base = ["--max-new-tokens", "2", "--model", model, "--out", str(out)]
    assert main(["capture", str(prompt), *base, *options]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err and printed.err.startswith("kvscope: ")
    assert printed.err.count("\n") == 1
    assert not out.exists() or not list(out.iterdir())


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("/dev/zero", "/dev/zero is no regular file"),
        ("/", "is no regular file"),
        ("/no/such/prompt", "cannot be read: No such file"),
        ("x" * 300, "cannot be read: File name too long"),
        ("a\0b", "cannot be read"),
    ],
)
def test_a_prompt_that_is_no_file_is_one_sentence(
    prompt: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capture", prompt]) == 1
    printed = capsys.readouterr().err
    assert words in printed and printed.count("\n") == 1


def test_a_pipe_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "prompt.txt")
    assert main(["capture", str(tmp_path / "prompt.txt")]) == 1
    assert "is no regular file: name a file, or - for" in capsys.readouterr().err


def test_standard_input_is_read_no_further_than_the_limit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSCOPE_MAX_UPLOAD_BYTES", "1000")
    with open("/dev/zero") as endless:
        monkeypatch.setattr("sys.stdin", endless)
        assert main(["capture", "-"]) == 1
    assert "standard input.txt has more than 0.001 MB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ("0-9999999999", "is no layer"),
        ("0-999999999", "no model has a layer 999999999"),
        ("5-3", "runs backwards: write 3-5"),
        ("", "is no layer"),
        ("0,", "is no layer"),
        ("-1", "is no layer"),
    ],
)
def test_layers_that_cannot_be_are_wrong_usage(
    layers: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["capture", "x", "--stored-layers", layers])
    assert words in capsys.readouterr().err


def test_what_does_not_fit_is_refused_with_the_sum(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("A river.")
    monkeypatch.setattr("backend.admission.available_memory", lambda: 1_000_000)
    options = ["--model", model, "--out", str(tmp_path / "runs"), "--max-new-tokens", "2"]
    assert main(["capture", str(prompt), *options]) == 1
    assert "1 MB are there for it" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["capture"],
        ["capture", "x", "--dtype", "int3"],
        ["capture", "x", "--stored-layers", "a"],
    ],
)
def test_wrong_usage_is_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    import dataclasses

    from backend.spec import CaptureSpec

    with pytest.raises(SystemExit) as end:
        main(["capture", "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    elsewhere = {"context", "source", "model_id", "stop_at_eos"}
    for field in dataclasses.fields(CaptureSpec):
        if field.name not in elsewhere:
            assert "--" + field.name.replace("_", "-") in shown
    assert "--model" in shown and "--no-stop" in shown and "130 cancelled" in shown


def test_ctrl_c_ends_with_130_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tiny.save(tiny.build("llama", max_position_embeddings=40_000), tmp_path / "model")
    (tmp_path / "prompt.txt").write_text("A river.")
    out = tmp_path / "runs"
    options = ["--model", folder, "--max-new-tokens", "20000", "--no-stop", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "backend", "capture", str(tmp_path / "prompt.txt"), *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + 60
        while not list(out.glob("*/*.partial")) and time.monotonic() < end:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert printed == "" and "cancelled, nothing was kept" in errors
    assert not list(out.iterdir())
