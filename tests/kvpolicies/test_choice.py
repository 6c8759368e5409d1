"""Chosen policies as JSON and as text: one form each, nothing lost, refusals in one sentence."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpolicies import PolicyError, build, catalogue
from kvpolicies.allocations import ALLOCATIONS
from kvpolicies.choice import (
    OWN_DEFAULTS,
    WINDOW_SCORES,
    canonical,
    from_text,
    passes_of,
    policy_of,
    title,
    to_text,
)
from kvpolicies.parameters import PARAMETERS
from kvpolicies.policy import parameters_of
from kvpolicies.schedules import SCHEDULES
from kvpolicies.scores import SCORES

BUDGET = {"budget": 64}


def sized(key: str) -> dict[str, object]:
    return {} if catalogue()[key].budget == "none" else dict(BUDGET)


@pytest.mark.parametrize("key", list(catalogue()))
def test_every_default_written_out_is_the_bare_choice(key: str) -> None:
    method = catalogue()[key]
    spelled = {
        row.parameter.name: row.default
        for row in parameters_of(method)
        if row.formula is None and row.default is not None
    }
    choice = {
        "key": key,
        "allocate": method.allocate,
        "schedule": method.schedule,
        "options": {**spelled, **sized(key)},
    }
    assert canonical(choice) == {"key": key, "options": sized(key)}


@pytest.mark.parametrize("key", list(catalogue()))
def test_a_canonical_choice_builds_the_same_policy(key: str) -> None:
    for preset in (None, *catalogue()[key].presets):
        direct = build(key, preset=preset, **sized(key))
        chosen = policy_of({"key": key, "preset": preset, "options": sized(key)})
        assert (chosen.score, chosen.allocation, chosen.schedule) == (
            direct.score,
            direct.allocation,
            direct.schedule,
        )
        assert dict(chosen.options) == dict(direct.options)


def test_own_defaults_are_those_of_the_scores_and_schedules() -> None:
    found = {
        (name, field.name): field.default
        for kinds in (SCORES, ALLOCATIONS, SCHEDULES)
        for name, kind in kinds.items()
        for field in fields(kind)
        if PARAMETERS[field.name].default != field.default
    }
    assert found == OWN_DEFAULTS
    with_window = {
        name for name, kind in SCORES.items() if "window" in {f.name for f in fields(kind)}
    }
    assert with_window == set(WINDOW_SCORES)


@pytest.mark.parametrize(
    ("choice", "form"),
    [
        (
            {"key": "snapkv", "preset": "kvpress", "options": {"budget": 256.0, "window": 32}},
            {"key": "snapkv", "options": {"budget": 256, "kernel": 5, "pool": "mean"}},
        ),
        (
            {"score": "recurrence", "schedule": "every(30)", "options": {"budget": 9}},
            {
                "allocate": "uniform",
                "options": {"budget": 9, "interval": 30},
                "schedule": "every",
                "score": "recurrence",
            },
        ),
        (
            {"score": "recurrence", "schedule": "every", "options": {"window": 32, "budget": 9}},
            {
                "allocate": "uniform",
                "options": {"budget": 9, "interval": 32},
                "schedule": "every",
                "score": "recurrence",
            },
        ),
        (
            {"key": "h2o", "schedule": "every(25)", "options": {"budget": 9, "seed": None}},
            {"key": "h2o", "options": {"budget": 9}, "schedule": "every"},
        ),
        (
            {"key": "snapkv", "allocate": "pyramid", "options": {"compression_ratio": 1}},
            {"key": "snapkv", "allocate": "pyramid", "options": {"compression_ratio": 1.0}},
        ),
        (
            {"key": "kvzip", "options": {"budget": 9, "scope": "prompt"}},
            {"key": "kvzip", "options": {"budget": 9, "scope": "prompt"}},
        ),
        ({"masks": "a1b2"}, {"masks": "a1b2"}),
    ],
)
def test_canonical_forms(choice: dict, form: dict) -> None:
    assert canonical(choice) == form
    assert canonical(form) == form
    assert list(canonical(choice)) == sorted(form)


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (
            {"key": "snapkv", "options": {"window": 32, "budget": 256}},
            "snapkv(budget=256,window=32)",
        ),
        ({"key": "full", "options": {}}, "full()"),
        (
            {"key": "snapkv", "preset": "kvpress", "options": {"compression_ratio": 0.75}},
            "snapkv(compression_ratio=0.75,preset=kvpress)",
        ),
        (
            {
                "score": "window_attention",
                "allocate": "pyramid",
                "schedule": "after_prefill",
                "options": {"budget": 256},
            },
            "window_attention*pyramid*after_prefill(budget=256)",
        ),
        (
            {"key": "raas", "options": {"alpha": "3/n", "budget": 8, "pin_prompt": False}},
            "raas(budget=8,alpha=3/n,pin_prompt=false)",
        ),
        (
            {"key": "duo_attention", "options": {"head_pattern": [[True, False]], "sink": 3}},
            "duo_attention(head_pattern=[[true,false]],sink=3)",
        ),
        (
            {"key": "duo_attention", "options": {"head_pattern": "heads (1), a=b.json"}},
            'duo_attention(head_pattern="heads (1), a=b.json")',
        ),
        ({"masks": "abc123"}, "masks(abc123)"),
    ],
)
def test_text_and_back(choice: dict, text: str) -> None:
    assert to_text(choice) == text
    assert from_text(text) == choice


words = st.text(st.sampled_from('ab3 .,()[]{}"=/*\\n\\é🙂'), max_size=12)
values = st.one_of(
    st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False), words
)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(sorted(PARAMETERS)), values, max_size=4))
def test_any_option_survives_the_text(options: dict) -> None:
    choice = {"key": "snapkv", "options": options}
    assert from_text(to_text(choice)) == choice


@settings(max_examples=60)
@given(words)
def test_any_text_is_a_choice_or_a_refusal(text: str) -> None:
    try:
        choice = from_text(text)
    except PolicyError:
        return
    assert set(choice) & {"key", "score", "masks"}


@pytest.mark.parametrize(
    ("choice", "word"),
    [
        ({"key": "snap"}, "'snap'"),
        ({"key": "snapkv", "score": "position"}, "key of the catalogue"),
        ({"options": {"budget": 3}}, "key of the catalogue"),
        ({"key": "snapkv", "budget": 3}, "'budget'"),
        ({"key": "snapkv", "options": {"bugdet": 3}}, "'bugdet'"),
        ({"key": "snapkv", "options": {"budget": 0}}, "0"),
        ({"key": "snapkv", "options": 3}, "JSON object"),
        ({"key": "snapkv", "preset": "mine"}, "'mine'"),
        ({"key": 3}, "must be a name"),
        ({"score": "position", "preset": "paper"}, "name its key"),
        ({"masks": "a", "options": {}}, "'options'"),
        (3, "JSON object"),
    ],
)
def test_what_is_no_choice_is_refused(choice: object, word: str) -> None:
    with pytest.raises(PolicyError, match=word):
        canonical(choice)


def test_masks_are_no_policy() -> None:
    with pytest.raises(PolicyError, match="compared, not run"):
        policy_of({"masks": "abc"})


def test_titles_name_the_budget_and_what_is_not_the_default() -> None:
    assert title({"key": "snapkv", "options": {"budget": 2048}}) == "SnapKV, budget 2,048"
    assert title({"key": "snapkv", "options": {"window": 8}}) == "SnapKV, window 8"
    ratio = {"key": "knorm", "options": {"compression_ratio": 0.75}}
    assert title(ratio) == "L2 norm, 75% evicted"
    custom = {"score": "position", "allocate": "uniform", "schedule": "every_step"}
    assert title(custom) == "position × uniform × every step"
    assert title({"key": "h2o", "schedule": "after_prefill"}) == "H2O (after prefill)"
    moved = {"key": "snapkv", "allocate": "pyramid", "options": {"budget": 64}}
    assert title(moved) == "SnapKV (pyramid), budget 64"
    assert str(policy_of(moved)) == title(moved)


def test_passes_are_those_that_a_live_run_makes() -> None:
    assert passes_of({"key": "snapkv", "options": BUDGET}) == []
    assert passes_of({"masks": "abc"}) == []
    laq = {"key": "laq", "options": {"budget": 64, "lookahead_steps": 3}}
    drafting = {"key": "snapkv", "options": {"budget": 64}}
    assert passes_of(laq) == [("lookahead", {"policy": drafting, "steps": 3})]
    laq["options"] |= {"lookahead_policy": "streaming_llm", "lookahead_budget": 16}
    drafting = {"key": "streaming_llm", "options": {"budget": 16}}
    assert passes_of(laq) == [("lookahead", {"policy": drafting, "steps": 3})]
    ratio = {"key": "laq_pp", "options": {"compression_ratio": 0.5}}
    drafting = {"key": "snapkv", "options": {"compression_ratio": 0.5}}
    assert passes_of(ratio) == [("lookahead", {"policy": drafting, "steps": 8})]
    assert passes_of({"key": "kvcompose", "options": BUDGET}) == [("second_reading", {})]
    own = {"key": "kvcompose", "options": {"budget": 64, "source": "self"}}
    assert passes_of(own) == []
    own["options"]["value_norm"] = "output"
    assert passes_of(own, has_rotary=True) == [("model_facts", {})]
    expected = {"key": "expected_attention", "options": BUDGET}
    assert passes_of(expected) == [("model_facts", {})]
    assert passes_of(expected, has_rotary=True) == []


def test_choices_are_written_and_read_without_torch() -> None:
    code = (
        "import sys; from kvpolicies import choice as c; "
        "t = c.to_text(c.canonical({'key': 'laq', 'options': {'budget': 3}})); "
        "c.title(c.from_text(t)); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_refusal_is_a_sentence_that_leaves_names_alone() -> None:
    assert PolicyError("the prompt is empty").sentence == "The prompt is empty."
    assert PolicyError("min_per_layer (m) is 3.").sentence == "min_per_layer (m) is 3."
