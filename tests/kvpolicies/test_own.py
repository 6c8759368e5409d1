"""A reader's own method from a folder, and keep-masks from other tools."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvpolicies import PolicyError, build, catalogue, generate, parameters_of, replay
from kvpolicies.external import masks_as_result
from tests.kvpolicies import test_properties as properties
from tests.kvpolicies.cases import make_trace
from tests.kvpolicies.models import plain_tokens, prompt_ids, tiny

SOURCE = '''"""Keeps entries whose values are large."""

title = "Value norm"
meanings = {"power": "exponent of the norm"}
schedule = "every_step"


def score(view, power: float = 1.0):
    return view.entries.values.float().norm(dim=-1) ** power
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "value_norm.py").write_text(SOURCE)
    monkeypatch.setenv("KVSCOPE_POLICIES", str(tmp_path))
    monkeypatch.delenv("KVSCOPE_HOSTED", raising=False)
    return tmp_path


def test_it_is_a_row_like_any_other(folder):
    method = catalogue()["value_norm"]
    assert (method.title, method.idea) == ("Value norm", "Keeps entries whose values are large.")
    assert {p.parameter.name: p.default for p in parameters_of(method)}["power"] == 1.0
    trace = make_trace()
    result = replay(build("value_norm", budget=7, power=2.0), trace)
    for step in range(10):
        assert (result.counts(step) == 7).all()
    norms = trace.values[1][0, :24].norm(dim=-1)
    expected = norms.topk(7).indices.sort().values
    assert torch.equal(result.kept_after(0)[1, 0].nonzero()[:, 0], expected)
    model, ids = tiny("llama"), prompt_ids(20)
    whole = generate(model, ids, build("value_norm", budget=99), max_new_tokens=5)
    assert whole.tokens == plain_tokens(model, ids, 5)
    assert generate(model, ids, build("value_norm", budget=6), max_new_tokens=5).cache is not None


@pytest.mark.parametrize("schedule", ["after_prefill", "every_step"])
def test_the_properties_of_every_row_hold_for_it(folder, schedule, monkeypatch):
    (folder / "value_norm.py").write_text(SOURCE.replace("every_step", schedule))
    properties.test_masks_are_sound(key="value_norm")
    properties.test_a_budget_for_everything_keeps_everything("value_norm")
    properties.test_permuting_kv_heads_permutes_the_masks("value_norm")
    properties.test_a_shorter_response_decides_the_same_so_far("value_norm")
    properties.test_half_precision_recordings_are_replayed("value_norm")
    if schedule == "after_prefill":
        properties.test_larger_budgets_nest("value_norm")
    properties.test_evicted_states_are_never_looked_at_again("value_norm", monkeypatch)


def test_its_score_goes_with_other_choices(folder):
    result = replay(build(score="value_norm", allocate="global", budget=5), make_trace())
    assert int(result.counts(0).sum()) == 5 * 6


def test_it_is_off_when_hosted(folder, monkeypatch):
    monkeypatch.setenv("KVSCOPE_HOSTED", "1")
    assert "value_norm" not in catalogue()


@pytest.mark.parametrize(
    "name,source,sentence",
    [
        ("snapkv", SOURCE, "rename the file"),
        ("mine", "x = 1", r"no function score\(view"),
        ("mine", "import nowhere_to_be_found", "cannot be read as a method"),
        ("mine", "def score(view, power): return 1", "'power' of score needs a default"),
    ],
)
def test_unusable_files_are_named(folder, name, source, sentence):
    (folder / f"{name}.py").write_text(source)
    with pytest.raises(PolicyError, match=sentence):
        catalogue()


def test_a_wrong_shape_is_explained(folder):
    (folder / "flat.py").write_text("def score(view): return view.entries.values.norm()")
    with pytest.raises(PolicyError, match=r"shape \(KV heads, entries\), here \(2, 24\), not \(\)"):
        replay(build("flat", budget=4), make_trace())


def test_keep_masks_of_another_tool():
    rows = [(0, 0, 1), (0, 0, 3), (0, 1, 0)]
    columns = dict(zip(("layer", "head", "position"), np.array(rows).T, strict=True))
    shape = {"layers": 1, "heads": 2, "prompt_length": 4, "length": 6, "label": "theirs"}
    result = masks_as_result(columns, **shape)
    assert result.evicted_at[0].tolist() == [[0, 3, 0, 3, 3, 3], [3, 0, 0, 0, 3, 3]]
    assert result.title == "theirs" and result.counts(0).tolist() == [[2, 1]]
    columns["step"] = np.array([0, 0, 2])
    stepped = masks_as_result(columns, **shape)
    assert stepped.evicted_at[0].tolist() == [[0, 2, 0, 2, 2, 2], [0, 0, 0, 0, 2, 2]]
    columns["head"] = np.array([0, 0, 7])
    with pytest.raises(PolicyError, match="column head of the keep-masks holds 7, outside 0 to 1"):
        masks_as_result(columns, **shape)
