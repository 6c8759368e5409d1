"""Replays as derived files: what policies kept, in arrays, bytes and sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backend import replays
from backend.derive import derive
from backend.progress import Cancelled, Progress
from backend.replays import ReplayError
from cache_store.errors import StoreError
from cache_store.reader import Capture
from cache_store.writer import DerivedWriter, derived_path
from kvpolicies import Trace, build, replay
from kvpolicies.cost import costs
from kvpolicies.decisions import Reason
from kvpolicies.scores.attention import ContextAttention
from tests.synthetic import Synthetic

PLAIN = Synthetic()
SLIDING = Synthetic(
    layers=3, sliding_window=(None, 6, None), seed=4, run_id="20261120-101112-aaaaaa"
)
COSTS = (
    "mass_kept", "recall", "recall_response", "output_error",
    "regret_step", "regret_entry", "missed_step", "missed_entry",
)  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("runs")
    PLAIN.write(home)
    SLIDING.write(home)
    return home


def stored(home: Path, made: Synthetic, choice: dict[str, Any]) -> dict[str, Any]:
    """Arrays by name, and the facts."""
    derive(home, made.run_id, "replay", {"policy": choice})
    with Capture.open(home / made.run_id / "capture.duckdb") as capture:
        derived = capture.derived("replay", {"policy": choice})
        assert derived is not None
        with derived:
            arrays = {name: derived.array(name) for name in derived.array_names()}
            return arrays | {"facts": dict(derived.table("fact").itertuples(index=False))}


def trace_of(made: Synthetic) -> Trace:
    states = [[torch.from_numpy(layer).float() for layer in made.states[kind]] for kind in "qkv"]
    return Trace(
        *states,
        prompt_length=made.prompt_length,
        context_length=made.segments.count("context"),
        sliding_window=made.sliding_window,
    )


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("snapkv", {"budget": 10, "window": 4}),
        ("h2o", {"budget": 9}),
        ("ada_snapkv", {"budget": 10, "window": 4}),
        ("sage_kv", {"budget": 16}),
        ("snapkv", {"budget": 6, "granularity": "query_head", "window": 4}),
    ],
)
@pytest.mark.parametrize("made", [PLAIN, SLIDING], ids=["plain", "sliding"])
def test_a_replay_holds_masks_reasons_costs_and_bytes(
    key: str, options: dict[str, Any], made: Synthetic, home: Path
) -> None:
    found = stored(home, made, {"key": key, "options": options})
    trace = trace_of(made)
    result = replay(build(key, **options), trace)
    assert (found["evicted_at"] == result.evicted_at.numpy()).all()
    np.testing.assert_allclose(found["score"], result.scores, rtol=1e-4, equal_nan=True)
    assert (found["rank"] == result.ranks.numpy()).all()
    assert (found["reason"] == result.reasons.numpy()).all()
    assert found["exempt"].tolist() == result.exempt.int().tolist()
    for name in COSTS:
        expected = getattr(costs(trace, result), name)
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)
    if result.visible is None:
        assert "visible" not in found
    else:
        bits = np.unpackbits(found["visible"], axis=-1, count=made.length).astype(bool)
        assert (bits == result.visible.numpy()).all()
    check_bytes(found, made)


def check_bytes(found: dict[str, Any], made: Synthetic) -> None:
    """Entry by entry; a sliding window of 6 tokens caches 5."""
    windows = made.sliding_window or (None,) * made.layers
    entry_bytes = 2 * made.head_dim * 2  # float16 keys and values
    after, full = [], []
    for step in range(made.response_length + 1):
        length, kept, whole = made.prompt_length + step, 0, 0
        for layer, window in enumerate(windows):
            here = length if window is None else min(length, window - 1)
            whole += made.kv_heads * here
            if window is not None:
                kept += made.kv_heads * here
                continue
            for head in found["evicted_at"][layer]:
                kept += sum(head[position] > step for position in range(length))
        after.append(kept * entry_bytes)
        full.append(whole * entry_bytes)
    facts = found["facts"]
    assert facts["bytes_full"] == full[-1] and facts["bytes_prompt_full"] == full[0]
    assert facts["bytes_kept"] == after[-1] and facts["bytes_prompt"] == after[0]
    assert facts["bytes_peak"] == max(after)
    assert facts["seconds"] >= facts["replay_seconds"] > 0


def test_unequal_heads_are_simulated(home: Path) -> None:
    equal = stored(home, PLAIN, {"key": "h2o", "options": {"budget": 9}})
    unequal = stored(home, PLAIN, {"key": "ada_snapkv", "options": {"budget": 10, "window": 4}})
    assert equal["facts"]["simulated"] == 0 and unequal["facts"]["simulated"] == 1
    assert equal["facts"]["budget"] == 9 and equal["facts"]["realised_budget"] == 9


def test_every_way_to_write_a_choice_is_the_same_file(home: Path) -> None:
    bare = {"key": "snapkv", "options": {"budget": 7}}
    spelled = {"key": "snapkv", "preset": "paper", "options": {"budget": 7.0, "window": 32}}
    path = derive(home, PLAIN.run_id, "replay", {"policy": spelled})
    assert path == derived_path(home / PLAIN.run_id, "replay", {"policy": bare})
    written = path.stat().st_mtime_ns
    assert derive(home, PLAIN.run_id, "replay", {"policy": bare}) == path
    assert path.stat().st_mtime_ns == written


def test_whole_prompt_statistics_are_taken_from_where_they_were_derived(tmp_path: Path) -> None:
    """H2O with prompt sums that were tampered with follows them: they are not computed again."""
    PLAIN.write(tmp_path)
    sums = np.zeros((PLAIN.layers, PLAIN.query_heads, PLAIN.prompt_length), np.float32)
    sums[:, :, [3, 11]] = 1e6
    with DerivedWriter(tmp_path / PLAIN.run_id, "prompt_attention", {}) as writer:
        writer.add_array("prompt_sum_query", sums)
        writer.finish()
    found = stored(tmp_path, PLAIN, {"key": "h2o", "options": {"budget": 4}})
    kept = found["evicted_at"] > 0
    assert np.flatnonzero(kept[0, 0, : PLAIN.prompt_length]).tolist() == [3, 11, 38, 39]


def test_a_lookahead_beside_the_run_is_used(tmp_path: Path) -> None:
    PLAIN.write(tmp_path)
    choice = {"key": "laq", "options": {"budget": 6, "kernel": 1}}
    with pytest.raises(StoreError, match="no lookahead"):
        stored(tmp_path, PLAIN, choice)
    queries = np.random.default_rng(3).standard_normal((2, 4, 8, 8)).astype(np.float16)
    spec = {"policy": {"key": "snapkv", "options": {"budget": 6}}, "steps": 8}
    with DerivedWriter(tmp_path / PLAIN.run_id, "lookahead", spec) as writer:
        writer.add_array("queries", queries)
        writer.finish()
    found = stored(tmp_path, PLAIN, choice)
    trace = trace_of(PLAIN)
    trace.lookahead = [torch.from_numpy(layer).float() for layer in queries]
    result = replay(build("laq", budget=6, kernel=1), trace)
    assert (found["evicted_at"] == result.evicted_at.numpy()).all()


def test_imported_masks_have_costs_like_a_policy(tmp_path: Path) -> None:
    SLIDING.write(tmp_path)
    evicted_at = np.full((3, 2, SLIDING.length), SLIDING.response_length + 1, np.int32)
    evicted_at[0, :, 5:30] = 0
    with pytest.raises(ReplayError, match="no imported keep-masks"):
        stored(tmp_path, SLIDING, {"masks": "ab12"})
    with DerivedWriter(tmp_path / SLIDING.run_id, "keep_masks", {"source": "ab12"}) as writer:
        writer.add_array("evicted_at", evicted_at)
        writer.finish()
    found = stored(tmp_path, SLIDING, {"masks": "ab12"})
    assert (found["evicted_at"] == evicted_at).all()
    assert np.isnan(found["score"]).all() and (found["reason"] == Reason.NONE).all()
    assert (found["mass_kept"][0] < 1).all() and (found["mass_kept"][1:] == 1).all()
    assert np.isnan(found["facts"]["budget"])
    check_bytes(found, SLIDING)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "exactly a policy"),
        ({"policy": {"key": "nothing"}}, "There is no policy 'nothing'"),
        ({"policy": {"key": "snapkv", "options": {}}}, "budget"),
        ({"policy": {"key": "snapkv", "schedule": "select", "options": {"budget": 3}}}, "select"),
        ({"policy": {"key": "expected_attention", "options": {"budget": 9}}}, "rotary"),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_one_sentence(
    spec: dict[str, Any], words: str, home: Path
) -> None:
    with pytest.raises(ReplayError, match=words) as raised:
        derive(home, PLAIN.run_id, "replay", spec)
    assert str(raised.value).endswith(".")


def test_progress_counts_and_cancelling_leaves_nothing(home: Path) -> None:
    choice = {"key": "h2o", "options": {"budget": 5}}
    before = set((home / PLAIN.run_id).rglob("*.duckdb"))
    reports: list[Progress] = []
    for phase in ("replay", "costs"):
        with pytest.raises(Cancelled):
            derive(
                home,
                PLAIN.run_id,
                "replay",
                {"policy": choice},
                reports.append,
                lambda phase=phase: bool(reports) and reports[-1].phase == phase,
            )
    assert set((home / PLAIN.run_id).rglob("*.duckdb")) == before
    reports.clear()
    derive(home, PLAIN.run_id, "replay", {"policy": choice}, reports.append)
    assert list(dict.fromkeys(report.phase for report in reports)) == ["replay", "costs"]
    for phase in ("replay", "costs"):
        done = [report.done for report in reports if report.phase == phase]
        assert done == sorted(done) and done[-1] > done[0]
        assert all(report.done <= report.total for report in reports)


def test_statistics_of_the_prompt_are_worked_out_once_for_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PLAIN.write(tmp_path)
    options = {"source": "self", "budget": 9}
    stored(tmp_path, PLAIN, {"key": "kvcompose", "options": options})
    replays._statistics.cache_clear()  # as another process finds them

    def again(*_: object) -> None:
        raise AssertionError("worked out again")

    with monkeypatch.context() as patch:
        patch.setattr(ContextAttention, "task", again)
        found = stored(tmp_path, PLAIN, {"key": "kvcompose", "options": options | {"budget": 6}})
    expected = replay(build("kvcompose", source="self", budget=6), trace_of(PLAIN))
    assert (found["evicted_at"] == expected.evicted_at.numpy()).all()
