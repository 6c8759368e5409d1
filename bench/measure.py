"""How the benchmarks measure: every probe in a process of its own, interleaved with its rival."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """One line of the table: what is claimed, what was measured, and whether it holds."""

    claim: str
    measured: str
    against: str
    holds: bool


def probe(name: str, *, module: str = "bench.probes", **options: Any) -> dict[str, Any]:
    """Run `<module>.<name>(**options)` in a fresh process; returns its numbers.

    A fresh process is what makes its peak memory its own. Raises RuntimeError with the end of the
    process's error output when it fails.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, name, json.dumps(options)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"probe {name} failed:\n{done.stderr[-2000:]}")
    numbers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return numbers


def paired(first: str, second: str, rounds: int, **options: Any) -> tuple[dict, dict, float]:
    """Run two probes in turn; returns the medians of each and the median ratio of their seconds.

    Ratios are taken within a round, so that a machine that is busy for a while disturbs both.
    """
    pairs = [(probe(first, **options), probe(second, **options)) for _ in range(rounds)]
    ratio = statistics.median(a["seconds"] / b["seconds"] for a, b in pairs)
    medians = [
        {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for runs in zip(*pairs, strict=True)
    ]
    return medians[0], medians[1], ratio
