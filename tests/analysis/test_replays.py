"""What replays and live runs left is read back as it was written; what is missing is asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.colours import CUSTOM, POLICIES, policy_colour
from analysis.errors import AnalysisError, NeedsJob
from analysis.replays import policy_run, replayed
from cache_store.reader import Capture
from cache_store.writer import DerivedWriter
from kvpolicies import catalogue
from tests.synthetic import Synthetic

LAYERS, HEADS, QUERIES, PROMPT, STEPS = 2, 2, 4, 40, 12
LENGTH = PROMPT + STEPS
SNAPKV = {"key": "snapkv", "options": {"budget": 8}}


@pytest.fixture
def capture(tmp_path: Path) -> Iterator[Capture]:
    with Capture.open(Synthetic().write(tmp_path)) as opened:
        yield opened


def write_replay(folder: Path, choice: dict[str, Any], **more: np.ndarray) -> dict[str, np.ndarray]:
    """A replay of random numbers; the second layer is exempt."""
    draw = np.random.default_rng(0)
    sets = (LAYERS, HEADS, LENGTH)
    born = np.maximum(0, np.arange(LENGTH) - PROMPT + 1)
    arrays: dict[str, np.ndarray] = {
        "evicted_at": draw.integers(born, STEPS + 2, sets).astype(np.int32),
        "score": draw.random(sets, np.float32),
        "rank": draw.integers(0, 9, sets).astype(np.int32),
        "reason": draw.integers(0, 6, sets).astype(np.uint8),
        "exempt": np.array([0, 1], np.uint8),
        "mass_kept": draw.random((LAYERS, QUERIES, STEPS), np.float32),
        "output_error": draw.random((LAYERS, QUERIES, STEPS), np.float32),
        "recall": draw.random((LAYERS, HEADS, STEPS), np.float32),
        "recall_response": draw.random((LAYERS, HEADS), np.float32),
        "regret_step": draw.random((LAYERS, HEADS, STEPS), np.float32),
        "regret_entry": draw.random(sets, np.float32),
        "missed_step": draw.integers(0, 9, (LAYERS, HEADS, STEPS)).astype(np.int32),
        "missed_entry": draw.integers(0, 9, sets).astype(np.int32),
    }
    arrays["evicted_at"][1] = STEPS + 1
    with DerivedWriter(folder, "replay", {"policy": choice}) as writer:
        for name, values in (arrays | more).items():
            writer.add_array(name, values)
        writer.add("fact", {"name": ["budget", "realised_budget"], "value": [8.0, np.nan]})
        writer.finish()
    return arrays


def test_a_replay_is_read_back(capture: Capture) -> None:
    written = write_replay(capture.path.parent, SNAPKV)
    spelled_out = {"key": "snapkv", "options": {"budget": 8.0, "window": 32}}
    found = replayed(capture, spelled_out)
    assert found.choice == SNAPKV and found.title == "SnapKV, budget 8"
    assert found.colour == POLICIES["snapkv"]
    assert (found.prompt_length, found.response_length, found.query_heads) == (40, 12, 4)
    for name, values in written.items():
        np.testing.assert_array_equal(getattr(found, name), values)
    assert found.exempt.tolist() == [False, True] and found.visible is None
    assert found.facts["budget"] == 8 and np.isnan(found.facts["realised_budget"])
    assert replayed(capture, SNAPKV) is found


def test_what_is_kept_counted_one_by_one(capture: Capture) -> None:
    evicted_at = write_replay(capture.path.parent, SNAPKV)["evicted_at"]
    found = replayed(capture, SNAPKV)
    for step in (0, 1, 7, STEPS):
        counts = np.zeros((LAYERS, HEADS), int)
        for layer in range(LAYERS):
            for head in range(HEADS):
                kept = found.kept(layer, head, step)
                for position in range(PROMPT + step):
                    here = evicted_at[layer, head, position] > step
                    assert kept[position] == here
                    counts[layer, head] += here
                assert not kept[PROMPT + step :].any()
        assert (found.counts(step) == counts).all()
    assert (found.counts() == found.counts(STEPS)).all()


def test_what_heads_see_is_unpacked_by_layer_and_head(capture: Capture) -> None:
    seen = np.random.default_rng(1).random((LAYERS, QUERIES, STEPS + 1, LENGTH)) < 0.5
    choice = {"key": "quest", "options": {"budget": 16}}
    write_replay(capture.path.parent, choice, visible=np.packbits(seen, axis=-1))
    found = replayed(capture, choice)
    assert found.visible is not None
    for place in ((0, 0), (1, 3)):
        assert found.visible[place].dtype == bool
        assert (found.visible[place] == seen[place]).all()


@pytest.mark.parametrize(
    ("choice", "kind", "spec", "words"),
    [
        (SNAPKV, "replay", {"policy": SNAPKV}, "This figure is computed once"),
        (
            {"key": "laq", "options": {"budget": 8, "lookahead_budget": 4}},
            "lookahead",
            {"policy": {"key": "snapkv", "options": {"budget": 4}}, "steps": 8},
            "needs a lookahead of 8 tokens on a cache of SnapKV, budget 4",
        ),
        ({"key": "kvzip", "options": {"budget": 8}}, "second_reading", {}, "a second reading"),
        ({"key": "expected_attention", "options": {"budget": 8}}, "model_facts", {}, "weights"),
    ],
)
def test_what_is_missing_is_a_job(
    choice: dict[str, Any], kind: str, spec: dict[str, Any], words: str, capture: Capture
) -> None:
    with pytest.raises(NeedsJob, match=words) as raised:
        replayed(capture, choice)
    assert raised.value.kind == kind and raised.value.spec == spec and raised.value.seconds > 0


def test_a_recording_that_is_there_leaves_the_replay_to_do(capture: Capture) -> None:
    with DerivedWriter(capture.path.parent, "second_reading", {}) as writer:
        writer.finish()
    with pytest.raises(NeedsJob) as raised:
        replayed(capture, {"key": "kvzip", "options": {"budget": 8}})
    assert raised.value.kind == "replay"


def test_estimates_grow_with_the_work(capture: Capture) -> None:
    def seconds(key: str) -> float:
        with pytest.raises(NeedsJob) as raised:
            replayed(capture, {"key": key, "options": {"budget": 8}})
        return raised.value.seconds

    assert seconds("snapkv") < seconds("streaming_llm") < seconds("h2o")


@pytest.mark.parametrize(
    "choice", [{"key": "nothing"}, {"key": "snapkv", "options": {"budget": 0}}, {"masks": "gone"}]
)
def test_what_is_no_policy_is_refused(choice: dict[str, Any], capture: Capture) -> None:
    with pytest.raises(AnalysisError, match=r"\.$"):
        replayed(capture, choice)


def test_what_no_job_could_do_is_refused_at_once(capture: Capture) -> None:
    lag = {"key": "lagkv", "options": {"budget": 20, "sink": 4, "lag": 8}}
    with pytest.raises(AnalysisError, match="the attainable range is 16 to 40"):  # S + L + 36 mod L
        replayed(capture, {**lag, "options": {**lag["options"], "budget": 15}})
    with pytest.raises(NeedsJob):
        replayed(capture, lag)
    with pytest.raises(AnalysisError, match="attainable range"):
        policy_run(capture, {**lag, "options": {**lag["options"], "budget": 15}})
    with pytest.raises(AnalysisError, match="knows the future"):
        policy_run(capture, {"key": "oracle", "options": {"budget": 8}})


def test_imported_masks_are_called_by_their_file(capture: Capture) -> None:
    folder = capture.path.parent
    with DerivedWriter(folder, "keep_masks", {"source": "ab12"}) as writer:
        writer.add("label", {"text": ["theirs.npz"]})
        writer.finish()
    write_replay(folder, {"masks": "ab12"})
    found = replayed(capture, {"masks": "ab12"})
    assert found.title == "theirs.npz" and found.colour in CUSTOM
    with pytest.raises(AnalysisError, match="no policy that could run"):
        policy_run(capture, {"masks": "ab12"})


def test_a_live_run_is_read_back(capture: Capture) -> None:
    with pytest.raises(NeedsJob) as raised:
        policy_run(capture, SNAPKV)
    assert raised.value.kind == "policy_run" and raised.value.spec == {"policy": SNAPKV}
    with DerivedWriter(capture.path.parent, "policy_run", {"policy": SNAPKV}) as writer:
        for name in ("token", "step"):
            writer.add(name, {"step": np.arange(1, 4)})
        writer.add("stage", {"stage": ["prefill"], "seconds": [1.5]})
        writer.add("fact", {"name": ["agreement", "first_difference"], "value": [1.0, np.nan]})
        writer.add_array("evicted_at", np.zeros((1, 1, 3), np.int32))
        writer.finish()
    found = policy_run(capture, SNAPKV)
    assert found.title == "SnapKV, budget 8" and found.colour == POLICIES["snapkv"]
    assert found.step.step.tolist() == [1, 2, 3] and found.stage.stage.tolist() == ["prefill"]
    assert found.facts["agreement"] == 1 and np.isnan(found.facts["first_difference"])
    assert found.evicted_at.shape == (1, 1, 3)


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2) of "#rrggbb"."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_each_policy_has_a_colour_of_its_own_on_light_and_dark() -> None:
    assert set(POLICIES) == set(catalogue())
    colours = [*POLICIES.values(), *CUSTOM]
    assert len(set(colours)) == len(colours)
    for colour in colours:
        assert 1.05 / (luminance(colour) + 0.05) >= 3, colour  # on white
        assert (luminance(colour) + 0.05) / (luminance("#0E1117") + 0.05) >= 3, colour


def test_a_colour_belongs_to_the_policy_whatever_its_options() -> None:
    assert policy_colour({"key": "h2o", "options": {"budget": 3}}) == POLICIES["h2o"]
    custom = {"score": "position", "allocate": "uniform", "schedule": "every_step"}
    assert policy_colour({**custom, "options": {"budget": 3}}) == policy_colour(custom)
    assert policy_colour(custom) in CUSTOM
    assert policy_colour({"key": "h2o", "schedule": "after_prefill"}) in CUSTOM
    assert policy_colour({"key": "oracle", "schedule": "every_step"}) == POLICIES["oracle"]


LOOK = """
import sys
from analysis.replays import replayed
from cache_store.reader import Capture

with Capture.open(sys.argv[1]) as capture:
    replayed(capture, {"key": "snapkv", "options": {"budget": 8}}).counts(3)
loaded = {"torch", "transformers", "streamlit"} & set(sys.modules)
assert not loaded, loaded
"""


def test_a_replay_that_is_there_is_read_without_torch(capture: Capture) -> None:
    write_replay(capture.path.parent, SNAPKV)
    subprocess.run([sys.executable, "-c", LOOK, str(capture.path)], check=True, timeout=120)
