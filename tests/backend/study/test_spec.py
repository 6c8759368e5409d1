"""A study's specification: what it comes to, and what is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.study.spec import StudyError, StudySpec, load_spec

SMALL = """
title = "Small"
ratios = [0, 0.5, 0.75]

[[tasks]]
task = "passkey"
count = 2
options = { length = [200, 300], depth = [0.1, 0.5, 0.9] }

[[tasks]]
set = "qa.jsonl"

[[policies]]
policy = "snapkv"
options = { window = 16 }

[[policies]]
policy = "lagkv(keep_ratio=0.25)"

[[policies]]
policy = "full"

[[policies]]
policy = "cumulative_attention*uniform*every"
options = { interval = 16 }
name = "H2O, every 16"
"""


def test_cells_and_prompts_are_counted() -> None:
    spec = StudySpec.from_toml(SMALL)
    cells = spec.cells()
    # the full cache, two policies at two ratios, and LagKV, whose option says how much it keeps
    assert [cell.ratio for cell in cells] == [None, 0.5, 0.75, None, 0.5, 0.75]
    assert [cell.choice.get("key") for cell in cells[:4]] == ["full", "snapkv", "snapkv", "lagkv"]
    assert cells[1].choice["options"] == {"compression_ratio": 0.5, "window": 16}
    assert cells[3].choice["options"] == {"keep_ratio": 0.25}
    assert cells[4].policy is not None and cells[4].policy.name == "H2O, every 16"
    # 2 prompts at 2 lengths and 3 depths, and the rows of the set
    assert spec.examples({"qa.jsonl": 5}) == 12 + 5
    assert spec.sets == ["qa.jsonl"]


def test_toml_json_and_fields_come_to_the_same() -> None:
    spec = StudySpec.from_toml(SMALL)
    assert StudySpec.from_toml(spec.to_toml()) == spec
    assert StudySpec.from_json(spec.to_json()) == spec
    assert StudySpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_the_id_follows_what_is_computed() -> None:
    spec = StudySpec.from_toml(SMALL)
    renamed = StudySpec.from_toml(SMALL.replace("Small", "Other"))
    other = StudySpec.from_toml(SMALL.replace("0.75", "0.8"))
    sets = {"qa.jsonl": b"one"}
    assert spec.id("r1", sets) == renamed.id("r1", sets)
    ids = {spec.id("r1", sets), other.id("r1", sets), spec.id("r2", sets), spec.id("r1", {})}
    assert len(ids) == 4


def test_a_scope_for_all_reaches_the_policies_that_have_one() -> None:
    text = SMALL.replace("ratios", 'scope = "context"\nratios')
    policies = StudySpec.from_toml(text).policies
    scopes = [policy.choice["options"].get("scope") for policy in policies]
    assert scopes == ["context", None, None]


def test_budgets_instead_of_ratios() -> None:
    cells = StudySpec.from_toml(SMALL.replace("ratios = [0, 0.5, 0.75]", "budgets = [64]")).cells()
    assert [cell.budget for cell in cells] == [None, 64, None, 64]
    assert cells[1].choice["options"] == {"budget": 64, "window": 16}


def test_a_file_brings_its_sets(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(SMALL)
    with pytest.raises(StudyError, match=r"The set .*qa\.jsonl cannot be read: No such file"):
        load_spec(tmp_path / "study.toml")
    (tmp_path / "qa.jsonl").write_bytes(b'{"prompt": "Hi"}\n')
    spec, sets = load_spec(tmp_path / "study.toml")
    assert sets == {"qa.jsonl": b'{"prompt": "Hi"}\n'} and spec.title == "Small"
    (tmp_path / "study.json").write_text(spec.to_json())
    assert load_spec(tmp_path / "study.json")[0] == spec


TASKS = [{"task": "passkey", "count": 1}]
POLICIES = [{"policy": "snapkv"}]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tasks": None}, "A study needs tasks"),
        ({"tasks": []}, "A study needs tasks"),
        ({"tasks": ["passkey"]}, "tasks, entry 1 is passkey: give fields"),
        ({"tasks": [{"count": 1}]}, "tasks, entry 1 needs either a task or a set"),
        ({"tasks": [{"task": "passkey"}]}, "tasks, entry 1 needs a count"),
        ({"tasks": [{"task": "passkey", "count": 0}]}, "tasks, entry 1: count is 0"),
        ({"tasks": [{"task": "passkeys", "count": 1}]}, "no task 'passkeys'"),
        ({"tasks": [*TASKS, {**TASKS[0], "scoring": "bleu"}]}, "tasks, entry 2: scoring is bleu"),
        ({"tasks": [{**TASKS[0], "options": {"digit": 3}}]}, "passkey has no option 'digit'"),
        ({"tasks": [{**TASKS[0], "options": 3}]}, "tasks, entry 1: options is 3"),
        ({"tasks": [{**TASKS[0], "max_new_tokens": 0}]}, "max_new_tokens is 0"),
        ({"tasks": [{"set": "a.jsonl", "options": {"x": 1}}]}, "a set has no options"),
        ({"tasks": [{"task": "common_words", "count": 1}]}, "was not taught common_words"),
        ({"policies": [{"policy": "snapkvv"}]}, "policies, entry 1: There is no policy 'snapkvv'"),
        ({"policies": [{"policy": "snapkv(window=-1)"}]}, "entry 1: Window (w) must be a whole"),
        ({"policies": [{"policy": "snapkv", "option": {}}]}, "has no field 'option'"),
        ({"policies": [{"policy": "oracle"}]}, "knows the future"),
        ({"policies": [{"policy": "masks(0a)"}]}, "imported masks belong to one run"),
        ({"policies": POLICIES * 2}, "policies, entry 2: 'SnapKV' is there twice"),
        ({"ratios": [1.0]}, "ratios holds 1: give shares evicted"),
        ({"ratios": [0]}, "ratios holds 0 only"),
        ({"ratios": 0.5}, "ratios is 0.5: give a list"),
        ({"ratios": [0.5], "budgets": [64]}, "either ratios or budgets"),
        ({"budgets": [0]}, "budgets holds 0: give whole numbers from 1"),
        ({"measures": ["bleu"]}, "measures holds bleu: choose score"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": True}, "seed is true"),
        ({"dtype": "int4"}, "dtype is int4"),
        ({"device": "tpu"}, "device is tpu"),
        ({"model": ""}, "model is empty"),
        ({"scope": "all"}, "scope is all"),
        ({"chat_template": 1}, "chat_template is 1: give true or false"),
        ({"titel": "x"}, "no field 'titel'"),
    ],
)
def test_what_cannot_be_used_is_named(changed: dict[str, Any], words: str) -> None:
    values = {"tasks": TASKS, "policies": POLICIES} | changed
    with pytest.raises(StudyError) as refused:
        StudySpec.from_dict(values)
    message = str(refused.value)
    assert words in message and message.endswith(".") and "\n" not in message


def test_a_line_that_is_no_toml_or_json_is_named() -> None:
    with pytest.raises(StudyError, match=r"not TOML: .*line 4"):
        StudySpec.from_toml("seed = 0\n\nratios = [0.5\nx")
    with pytest.raises(StudyError, match=r"not JSON: .*line 2"):
        StudySpec.from_json('{"seed": 0,\n "ratios" [0.5]}')
    with pytest.raises(StudyError, match="is an object of fields"):
        StudySpec.from_json("[1]")
