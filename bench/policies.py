"""The claims about policies: replay against live, compression against kvpress, decoding."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from bench.measure import Result, probe
from bench.policy_probes import KVPRESS, READS_AGAIN, Pairs

MODULE = "bench.policy_probes"
BOTH_HAVE = (
    "streaming_llm",
    "tova",
    "snapkv",
    "pyramidkv",
    "ada_snapkv",
    "expected_attention",
    "ada_expected_attention",
    "knorm",
    "lagkv",
    "random",
    *READS_AGAIN,
)


def ratio(pairs: Sequence[Sequence[float]]) -> float:
    """The median over rounds of the first side's time in the second's."""
    return statistics.median(first / second for first, second in pairs)


def policy_replay(rounds: int) -> Iterator[Result]:
    from kvpolicies import catalogue
    from kvpolicies.scores import SCORES

    rows = {
        key: row
        for key, row in catalogue().items()
        if key != "full" and "future" not in SCORES[row.score].needs  # these have no live run
    }
    once = [key for key, row in rows.items() if row.schedule == "after_prefill"]
    measured = probe("replays", module=MODULE, keys=list(rows), rounds=rounds)
    for what, keys, most in (
        ("an after-prefill policy", once, 0.1),
        ("a policy that acts while decoding", [key for key in rows if key not in once], 1.0),
    ):
        yield _slowest(f"Replay of {what}, 4,096 + 128 tokens", measured["later"], keys, most)
    yield _slowest(
        "The first replay after a second reading, whose statistics later ones reuse",
        measured["first"],
        READS_AGAIN,
        1.0,
    )


def _slowest(claim: str, pairs: Pairs, keys: Sequence[str], most: float) -> Result:
    ratios = {key: ratio(pairs[key]) for key in keys}
    worst = max(ratios, key=lambda key: ratios[key])
    ours, live = (statistics.median(side) for side in zip(*pairs[worst], strict=True))
    return Result(
        f"{claim} (slowest of {len(ratios)}: `{worst}`)",
        f"{ratios[worst]:.3f} x ({1000 * ours:.0f} ms; "
        f"median of all {statistics.median(ratios.values()):.3f} x)",
        f"at most {most:g} x the live run it replaces ({live:.1f} s)",
        ratios[worst] <= most,
    )


def policy_compression(rounds: int) -> Iterator[Result]:
    if not KVPRESS.exists():
        missing = "not measured: install kvpress as bench/kvpress_side.py says"
        yield Result("Scoring and compressing 4,096 tokens", missing, "kvpress 0.5.5", False)
        return
    measured = probe("compressions", module=MODULE, keys=list(BOTH_HAVE), rounds=rounds)["pairs"]
    for key, pairs in measured.items():
        ours, theirs = (1000 * statistics.median(side) for side in zip(*pairs, strict=True))
        what = "Prefill, second reading and compression" if key in READS_AGAIN else "Compression"
        yield Result(
            f"{what} of 4,096 tokens, `{key}`",
            f"{ratio(pairs):.2f} x ({ours:,.1f} ms)",
            f"at most 1 x kvpress 0.5.5 ({theirs:,.1f} ms)",
            ratio(pairs) <= 1,
        )


def policy_decoding(rounds: int) -> Iterator[Result]:
    measured = probe("decoding", module=MODULE, rounds=rounds)
    pairs, (small, full) = measured["milliseconds"], measured["bytes"]
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    yield Result(
        "A decoded token under SnapKV at 1/8 of 8,192 tokens (6 layers x 512, random)",
        f"{ratio(pairs):.2f} x ({ours:.1f} ms)",
        f"below the full cache's ({theirs:.1f} ms)",
        ratio(pairs) < 1,
    )
    yield Result(
        "Measured cache of that run",
        f"{small / full:.2f} x ({small / 1e6:.0f} MB)",
        f"below the full cache's ({full / 1e6:.0f} MB)",
        small < full,
    )
