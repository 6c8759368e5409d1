"""What is measured of studies: `python -m bench.study_probes NAME '{"option": …}'`."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.policy_probes import KVPRESS

RATIOS = [0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
NEW_TOKENS = 16
QUESTION, PREFIX = "\nQuestion: What is the passkey?", "Answer:"  # the pipeline adds a line end
DEMO = Path(__file__).parents[1] / "models" / "demo"


def prompts(count: int, tokens: int) -> list[dict[str, Any]]:
    """Retrieval prompts of the embedded model's own kind, as rows of a study."""
    from backend.demo.tasks import sample

    rows = []
    for number in range(count):
        drawn = sample("passkey", rng=random.Random(f"bench {number}"), tokens=tokens, digits=7)
        assert drawn.question == f"{QUESTION}\n{PREFIX}"
        rows.append(
            {
                "example_id": f"passkey-{number}",
                "task": "passkey",
                "context": drawn.context,
                "question": drawn.question,
                "answers": json.dumps([drawn.answer.strip()]),
                "scoring": "digit_share",
                "max_new_tokens": NEW_TOKENS,
                "facts": "{}",
            }
        )
    return rows


def specification(policies: list[str]) -> Any:
    """The policies with kvpress's settings; like its pipeline they compress before the question."""
    from backend.study.spec import StudySpec
    from kvpolicies.methods import catalogue

    presets = {key: "(preset=kvpress)" for key, row in catalogue().items() if row.presets}
    presets = {key: text for key, text in presets.items() if "kvpress" in catalogue()[key].presets}
    return StudySpec.from_dict(
        {
            "tasks": [{"task": "passkey", "count": 1}],
            "policies": [{"policy": key + presets.get(key, ""), "name": key} for key in policies],
            "ratios": RATIOS,
            "scope": "context",
            "measures": ["score"],
        }
    )


def against_kvpress(policies: list[str], count: int, tokens: int) -> dict[str, Any]:
    """Seconds of each prompt's cells here and through kvpress's pipeline, taking turns, and how
    many cells have the same answer and the same score. Prompts are read once on our side."""
    from backend.models import load
    from backend.study.prompt import run_example
    from backend.study.scores import SCORES

    loaded, spec = load("demo"), specification(policies)
    rival = subprocess.Popen(
        [str(KVPRESS), str(Path(__file__).with_name("kvpress_side.py")), str(DEMO)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert rival.stdin is not None and rival.stdout is not None
    _line(rival, "ready")
    pairs: list[tuple[float, float]] = []
    cells = answers = scores = 0
    short = {"ratios": RATIOS[:1], "policies": policies, "max_new_tokens": 2}
    for number, row in enumerate(prompts(count + 1, tokens)):
        asked = {"context": row["context"], "question": QUESTION, "answer_prefix": PREFIX}
        whole = {"ratios": RATIOS, "policies": policies, "max_new_tokens": NEW_TOKENS}
        start = time.perf_counter()
        mine = run_example(loaded, spec, row)
        seconds = time.perf_counter() - start
        rival.stdin.write(json.dumps(asked | (whole if number else short)) + "\n")
        rival.stdin.flush()
        theirs = json.loads(_line(rival, "answers ").removeprefix("answers "))
        if number == 0:  # both sides are warm
            continue
        pairs.append((seconds, theirs["seconds"]))
        found = {(cell["policy"], cell["ratio"]): cell for cell in mine[1:]}
        references = json.loads(row["answers"])
        for policy, ratio, answer in theirs["answers"]:
            ours = found[policy, ratio]
            cells += 1
            answers += ours["response"] == answer
            scores += ours["score"] == SCORES[row["scoring"]](answer, references)
    rival.stdin.close()
    rival.wait()
    return {"pairs": pairs, "cells": cells, "answers": answers, "scores": scores}


def _line(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return line
    raise RuntimeError("kvpress ended before it answered")


def workers(policies: list[str], count: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Seconds of the same study on one and on two workers of one thread each."""
    pairs = []
    with (
        tempfile.TemporaryDirectory() as name,
        _cluster(Path(name), 1) as one,
        _cluster(Path(name), 2) as two,
    ):
        for turn in range(rounds + 1):
            asked = count if turn else 2  # so that the workers have loaded the model
            pair = [
                _study(Path(name) / f"{turn} {number}", address, policies, asked, tokens)
                for number, address in enumerate((one, two))
            ]
            if turn:
                pairs.append(pair)
    return {"pairs": pairs}


def _study(home: Path, address: str, policies: list[str], count: int, tokens: int) -> float:
    """Seconds from the first prompt's start to the last one's end."""
    from backend.jobs import Jobs
    from backend.study.work import make_study, study_folder, study_job, write_examples

    spec = specification(policies)
    study_id = make_study(home, spec)
    write_examples(study_folder(home, study_id), prompts(count, tokens))
    jobs = Jobs(home, scheduler=address)
    try:
        start = time.perf_counter()
        job_id = jobs.submit(study_job(home, study_id))
        while not (state := jobs.get(job_id)).finished:
            time.sleep(0.02)
        if state.status != "done":
            raise RuntimeError(str(state.error))
        return time.perf_counter() - start
    finally:
        jobs.close()


@contextmanager
def _cluster(folder: Path, count: int) -> Iterator[str]:
    """A scheduler on loopback with `count` workers of one thread; its address."""
    from distributed import Client

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    scheduler = ["distributed.cli.dask_scheduler", "--no-dashboard", "--host", "127.0.0.1"]
    worker = ["backend.jobs.worker", address, "--lanes", "run", "--scratch", str(folder)]
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
    paths = {"PYTHONPATH": str(Path(__file__).parents[1])}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", *command],
            env={**os.environ, **threads, **paths},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for command in [[*scheduler, "--port", str(port)], *[worker] * count]
    ]
    try:
        with Client(address, timeout=60, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=60)
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait()


PROBES: dict[str, Callable[..., dict[str, Any]]] = {
    probe.__name__: probe for probe in (against_kvpress, workers)
}

if __name__ == "__main__":
    print(json.dumps(PROBES[sys.argv[1]](**json.loads(sys.argv[2]))))
