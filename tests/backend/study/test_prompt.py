"""All cells of a prompt from one prefill, against a loop that runs each of them from scratch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from backend.models import LoadedModel, load
from backend.spec import CaptureSpec
from backend.study.prompt import run_example
from backend.study.spec import Cell, StudySpec
from backend.text import encode_prompt
from cache_store.study import COLUMNS, TIMINGS
from kvpolicies.choice import policy_of
from kvpolicies.generation import Generation, generate
from kvpolicies.methods import catalogue
from kvpolicies.schedules import AfterPrefill, Sliding
from kvpolicies.scores.attention import WindowAttention
from kvpolicies.view import View
from tests.backend import tiny

CONTEXT = "The harbor opens at noon and the tower has a red door. Nobody came."
QUESTION = " When does the harbor open?"
NEW = 9
RATIOS = [0.3, 0.7]
REPLAY_ONLY = ("oracle", "belady")
EXAMPLE = {
    "example_id": "own-0",
    "task": "own",
    "context": CONTEXT,
    "question": QUESTION,
    "answers": json.dumps(["noon"]),
    "scoring": "substring_share",
    "max_new_tokens": NEW,
    "facts": json.dumps({"depth": 0.25}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("models")
    yield {family: tiny.save(tiny.build(family), folder / family) for family in ("llama", "gemma2")}


def study(policies: list[str], **fields: Any) -> StudySpec:
    entries = [{"policy": policy} for policy in policies]
    values = {"tasks": [{"task": "passkey", "count": 1}], "policies": entries, "ratios": RATIOS}
    return StudySpec.from_dict(values | fields)


def from_scratch(loaded: LoadedModel, cell: Cell, full: list[int]) -> tuple[Generation, Generation]:
    """A cell run alone: its own response, and the full cache's forced on it."""
    asked = CaptureSpec(context=CONTEXT, question=QUESTION, max_new_tokens=NEW)
    prompt = encode_prompt(loaded.tokenizer, asked)
    policy = policy_of(cell.choice)
    if cell.ratio is not None and not isinstance(policy.schedule, AfterPrefill | Sliding):
        # a ratio of a policy that acts while decoding is one of prompt and response together
        budget = math.floor((1 - cell.ratio) * (len(prompt.ids) + len(full)) + 1e-9)
        options = {**cell.choice["options"], "budget": budget}
        del options["compression_ratio"]
        policy = policy_of({**cell.choice, "options": options})
    ids = torch.tensor(prompt.ids)
    ends = loaded.tokenizer.eos_token_id
    how = {"context_length": prompt.context_length, "eos_token_id": ends}
    own = generate(loaded.model, ids, policy, max_new_tokens=NEW, **how)
    return own, generate(loaded.model, ids, policy, forced=full, **how)


def check_rows(loaded: LoadedModel, spec: StudySpec) -> list[dict[str, Any]]:
    rows = run_example(loaded, spec, EXAMPLE)
    full, _ = from_scratch(loaded, Cell(), [])
    target = torch.tensor(full.tokens)
    sure = full.logits.double().log_softmax(-1)
    for cell, row in zip(spec.cells(), rows, strict=True):
        assert row["error"] is None, row["error"]
        own, forced = from_scratch(loaded, cell, full.tokens)
        unsure = forced.logits[: len(target)].double().log_softmax(-1)
        text = loaded.tokenizer.decode(own.tokens, skip_special_tokens=True)
        assert row["response"] == text, row["policy"]
        equal = sum(a == b for a, b in zip(own.tokens, full.tokens, strict=False))
        assert row["agreement"] == equal / max(len(own.tokens), len(full.tokens))
        nll = -unsure.gather(1, target[:, None]).mean().item()
        kl = (sure.exp() * (sure - unsure)).sum(-1).mean().item()
        assert row["nll"] == pytest.approx(nll, rel=1e-4, abs=1e-6), row["policy"]
        assert row["kl"] == pytest.approx(kl, rel=1e-3, abs=1e-6), row["policy"]
        assert row["score"] == float("noon" in text.lower())
        assert row["cache_bytes"] == own.compressed_bytes, row["policy"]
        assert row["peak_bytes"] == max([own.compressed_bytes, *own.cache_bytes]), row["policy"]
        assert row["simulated"] == own.simulated
    return rows


def test_every_policy_gives_the_rows_of_a_run_of_its_own(models: dict[str, str]) -> None:
    loaded = load(models["llama"])
    keys = [key for key in catalogue() if key not in ("full", *REPLAY_ONLY)]
    small = {"lagkv": "(lag=8,sink=2)", "localkv": "(lag=8,sink=2)", "l2_lag": "(lag=8,sink=2)"}
    policies = [key + small.get(key, "(window=4)" if "snapkv" in key else "") for key in keys]
    policies += ["snapkv(window=4,scope=context)", "snapkv(window=4,granularity=query_head)"]
    policies += [
        "lagkv(lag=8,sink=2,keep_ratio=0.5)",
        "lookahead_attention*composite*after_prefill",
    ]
    rows = check_rows(loaded, study(policies, ratios=[0.5]))
    assert [row["policy_key"] for row in rows[1 : len(keys) + 1]] == keys


def test_ratios_share_one_prompt_with_a_question_after_it(models: dict[str, str]) -> None:
    loaded = load(models["llama"])
    policies = ["snapkv(window=4)", "h2o", "kvcompose", "laq", "laq_pp", "lazyeviction(window=3)"]
    rows = check_rows(loaded, study(policies))
    assert [row["ratio"] for row in rows] == [0.0] + RATIOS * len(policies)


SHARING = (
    *("snapkv(window=4)", "snapkv(window=4,group_reduce=max)", "ada_snapkv(window=4)"),
    *("pyramidkv(window=4)", "expected_attention(n_future=8)", "knorm", "random", "random(seed=1)"),
    *("lagkv(lag=8,sink=2)", "kvzip", "kvcompose(value_norm=output)", "streaming_llm", "raas"),
    *("laq", "laq(lookahead_budget=20)", "laq_pp(lookahead_steps=2)"),
)


def test_sizes_share_their_scores_and_give_the_same_rows(models: dict[str, str]) -> None:
    check_rows(load(models["llama"]), study(list(SHARING)))


def test_a_policy_scores_the_prompt_once_for_all_sizes(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, scored = load(models["llama"]), []
    score = WindowAttention.score

    def counted(self: WindowAttention, view: View) -> torch.Tensor:
        scored.append(self.window)
        return score(self, view)

    monkeypatch.setattr(WindowAttention, "score", counted)
    policies = ["snapkv(window=4)", "ada_snapkv(window=4)", "snapkv(window=8)"]
    run_example(loaded, study(policies, ratios=[0.3, 0.5, 0.7]), EXAMPLE)
    layers = loaded.facts.layers
    assert scored == [4] * layers + [8] * layers  # two policies look through the same window
    scored.clear()
    run_example(loaded, study(policies, measures=["score", "latency"]), EXAMPLE)
    assert len(scored) == layers * len(policies) * len(RATIOS)  # timed ones work theirs out anew


def test_layers_with_sliding_windows_are_decoded_one_by_one(models: dict[str, str]) -> None:
    check_rows(load(models["gemma2"]), study(["snapkv(window=4)", "tova"]))


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in COLUMNS if name not in TIMINGS} for row in rows]


def test_decoding_together_and_alone_gives_the_same_rows(models: dict[str, str]) -> None:
    loaded = load(models["llama"])
    policies = ["snapkv(window=4)", "h2o", "ada_snapkv(window=4)", "quest"]
    spec = study(policies)
    rows = run_example(loaded, spec, EXAMPLE)
    timed = study(policies, measures=["score", "agreement", "nll", "kl", "latency"])
    for other in (run_example(loaded, spec, EXAMPLE, most=1), run_example(loaded, timed, EXAMPLE)):
        for row, same in zip(without_times(rows), without_times(other), strict=True):
            assert row == {**same, **{k: pytest.approx(same[k], abs=1e-6) for k in ("nll", "kl")}}
    alone = run_example(loaded, timed, EXAMPLE)
    assert all(row["decode_ms"] > 0 and row["decode_ms_per_step"] > 0 for row in alone)
    assert all(row["decode_ms"] is None and row["prefill_ms"] > 0 for row in rows)


def test_a_budget_is_told_as_the_share_it_evicts(models: dict[str, str]) -> None:
    loaded = load(models["llama"])
    values = {"tasks": [{"task": "passkey", "count": 1}], "policies": [{"policy": "snapkv"}]}
    spec = StudySpec.from_dict(values | {"budgets": [47, 500]})
    rows = run_example(loaded, spec, EXAMPLE)
    prompt = len(CONTEXT) + len(QUESTION)  # a token per byte
    assert [row["prompt_tokens"] for row in rows] == [prompt] * 3 == [94] * 3
    assert [row["ratio"] for row in rows] == [0.0, 0.5, 0.0]
    assert [row["budget"] for row in rows] == [None, 47, 500]


def test_what_a_policy_refuses_is_a_row_with_its_reason(models: dict[str, str]) -> None:
    rows = run_example(load(models["llama"]), study(["lagkv(lag=20)", "snapkv"]), EXAMPLE)
    assert [row["error"] is None for row in rows] == [True, True, False, True, True]
    # 94 tokens, 16 sinks, partitions of 20: at least 16 + 20 and the 18 left over (Eq. 10)
    assert rows[2]["error"].endswith("the attainable range is 54 to 94.")
    assert rows[2]["score"] is None and rows[2]["ratio"] == 0.7


def test_a_prompt_that_does_not_fit_is_refused_in_every_cell(models: dict[str, str]) -> None:
    long = EXAMPLE | {"context": CONTEXT * 2}
    rows = run_example(load(models["llama"]), study(["snapkv"]), long)
    assert len(rows) == 3
    assert all("the model's context is 128" in row["error"] for row in rows)


def test_a_prompt_without_references_is_scored_by_agreement(models: dict[str, str]) -> None:
    plain = EXAMPLE | {"answers": "[]", "scoring": "", "question": ""}
    for row in run_example(load(models["llama"]), study(["knorm"]), plain):
        assert row["score"] == row["agreement"]


def test_only_what_is_asked_is_measured(models: dict[str, str]) -> None:
    spec = study(["knorm"], measures=["score"])
    for row in run_example(load(models["llama"]), spec, EXAMPLE):
        assert row["score"] is not None
        assert [row[name] for name in ("agreement", "nll", "kl", "decode_ms")] == [None] * 4


def test_cells_are_counted_and_a_check_stops_the_run(models: dict[str, str]) -> None:
    loaded, seen = load(models["llama"]), []
    run_example(loaded, study(["knorm", "snapkv"]), EXAMPLE, on_cell=seen.append)
    assert seen == sorted(seen) and seen[-1] == 5

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        run_example(loaded, study(["knorm"]), EXAMPLE, check=stop)
