"""The claims about studies: against kvpress's own pipeline, and on two workers."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from bench.measure import Result, probe
from bench.policies import ratio
from bench.policy_probes import KVPRESS

MODULE = "bench.study_probes"
BOTH_HAVE = ["streaming_llm", "tova", "snapkv", "ada_snapkv", "expected_attention", "knorm"]
PROMPTS, TOKENS = 8, 2048
GRID = f"Study of {len(BOTH_HAVE)} policies x 8 ratios x {PROMPTS} prompts of 2,048 tokens"


def studies(rounds: int) -> Iterator[Result]:
    grid = {"policies": BOTH_HAVE, "tokens": TOKENS, "count": PROMPTS}
    if KVPRESS.exists():
        measured = probe("against_kvpress", module=MODULE, **grid)
        theirs = ratio([(second, first) for first, second in measured["pairs"]])
        ours, other = (sum(side) for side in zip(*measured["pairs"], strict=True))
        yield Result(
            GRID,
            f"{theirs:.1f} x faster ({ours:.0f} s)",
            f"at least 5 x against kvpress 0.5.5's pipeline ({other:.0f} s)",
            theirs >= 5,
        )
        yield Result(
            "Cells of it with the same score as kvpress's",
            f"{measured['scores']} of {measured['cells']} ({measured['answers']} same answers)",
            "at least 95 %",
            measured["scores"] >= 0.95 * measured["cells"],
        )
    else:
        missing = "not measured: install kvpress as bench/kvpress_side.py says"
        yield Result(GRID, missing, "kvpress 0.5.5", False)
    measured = probe("workers", module=MODULE, rounds=rounds, **grid)
    faster = ratio(measured["pairs"])
    one, two = (statistics.median(side) for side in zip(*measured["pairs"], strict=True))
    yield Result(
        "That study on two workers of one thread",
        f"{faster:.2f} x faster ({two:.1f} s)",
        f"at least 1.6 x against one ({one:.1f} s)",
        faster >= 1.6,
    )
