"""Live runs of a policy, held against the eager model, a plain loop and replay."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from backend.capture import capture
from backend.derive import derive
from backend.jobs import derive_job
from backend.jobs.registry import KINDS
from backend.models import load
from backend.policy_run import PolicyRunError, compare, run_policy
from backend.progress import Cancelled, Progress
from backend.replays import ReplayError
from backend.spec import CaptureSpec
from cache_store.reader import Capture
from kvpolicies import build, generate
from tests.backend import tiny

CONTEXT = "The quiet river runs past the old mill, and the key is 4071 under the stone. "
NEW = 9
SNAPKV = {"key": "snapkv", "options": {"budget": 12, "window": 4}}


class Run:
    """A captured run of a tiny model, and what was run on it."""

    def __init__(self, home: Path, **settings: Any) -> None:
        self.home = home
        self.folder = tiny.save(tiny.build("llama"), home / "model")
        spec = CaptureSpec(
            context=CONTEXT, question="Which?", model_id=self.folder, max_new_tokens=NEW, **settings
        )
        self.id = capture(spec, home)
        with Capture.open(self.path) as it:
            self.info = it.info
            self.ids = it.tokens().token_id.tolist()

    @property
    def path(self) -> Path:
        return self.home / self.id / "capture.duckdb"

    def live(self, choice: dict[str, Any]) -> dict[str, Any]:
        run_policy(self.home, self.id, {"policy": choice})
        with Capture.open(self.path) as it:
            derived = it.derived("policy_run", {"policy": choice})
            assert derived is not None
            with derived:
                tables = {name: derived.table(name) for name in ("token", "step", "stage", "fact")}
                return tables | {"evicted_at": derived.array("evicted_at")}

    def facts(self, choice: dict[str, Any]) -> dict[str, float]:
        return dict(self.live(choice)["fact"].itertuples(index=False))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("runs"), stop_at_eos=False)


def test_the_full_cache_against_itself_differs_in_nothing(run: Run) -> None:
    full = {"key": "full", "options": {}}
    out, facts = run.live(full), run.facts(full)
    assert out["step"].kl.max() == pytest.approx(0, abs=1e-9)
    assert (out["step"].cache_bytes == out["step"].full_cache_bytes).all()
    assert out["token"].agrees.all() and len(out["token"]) == NEW
    assert facts["agreement"] == 1 and math.isnan(facts["first_difference"])
    assert facts["forced_nll"] == facts["full_nll"]
    assert (out["evicted_at"] == NEW + 1).all()


def test_sampled_tokens_are_drawn_as_the_capture_drew_them(tmp_path: Path) -> None:
    sampled = Run(tmp_path, sample=True, temperature=1.7, top_k_sampling=40, seed=5)
    facts = sampled.facts({"key": "full", "options": {}})
    assert facts["agreement"] == 1 and math.isnan(facts["first_difference"])


def test_likelihood_and_divergence_of_the_forced_response(run: Run) -> None:
    """The full cache's against the eager model, the policy's against a second forced pass."""
    prompt = run.info.prompt_length
    eager = AutoModelForCausalLM.from_pretrained(run.folder, attn_implementation="eager")
    with torch.no_grad():
        logits = eager(torch.tensor([run.ids])).logits[0].double()
    full = torch.log_softmax(logits[prompt - 1 : -1], -1).numpy()
    again = generate(
        load(run.folder).model,
        torch.tensor(run.ids[:prompt]),
        build("snapkv", budget=12, window=4),
        forced=run.ids[prompt:],
    )
    other = torch.log_softmax(again.logits[:-1].double(), -1).numpy()
    table = run.live(SNAPKV)["step"]
    assert table.step.tolist() == list(range(1, NEW + 1))
    for index, token in enumerate(run.ids[prompt:]):
        row = table.iloc[index]
        assert row.nll_full == pytest.approx(-full[index, token], abs=1e-4)
        assert row.nll_policy == pytest.approx(-other[index, token], abs=1e-4)
        divergence = sum(
            math.exp(p) * (p - q) for p, q in zip(full[index], other[index], strict=True)
        )
        assert row.kl == pytest.approx(divergence, abs=1e-4)
    assert table.kl[0] == pytest.approx(0, abs=1e-6)  # step 1 is predicted by the prefill itself
    assert table.kl.max() > 1e-3


def test_bytes_are_those_of_the_entries_that_are_cached(run: Run) -> None:
    out, facts = run.live(SNAPKV), run.facts(SNAPKV)
    info = run.info
    entry = info.layers * info.kv_heads * 2 * info.head_dim * 4  # float32 keys and values
    steps = np.arange(1, NEW + 1)
    assert out["step"].cache_bytes.tolist() == ((12 + steps) * entry).tolist()
    assert out["step"].full_cache_bytes.tolist() == ((info.prompt_length + steps) * entry).tolist()
    assert facts["prefill_bytes"] == info.prompt_length * entry
    assert facts["compressed_bytes"] == 12 * entry
    assert facts["decode_peak_bytes"] == (12 + NEW) * entry
    assert facts["full_peak_bytes"] == (info.prompt_length + NEW) * entry
    assert facts["simulated"] == 0
    assert (
        run.facts({"key": "ada_snapkv", "options": {"budget": 12, "window": 4}})["simulated"] == 1
    )


def test_the_own_response_is_what_generation_under_the_policy_gives(run: Run) -> None:
    prompt = run.info.prompt_length
    choice = {"key": "streaming_llm", "options": {"budget": 6}}
    own = generate(
        load(run.folder).model,
        torch.tensor(run.ids[:prompt]),
        build("streaming_llm", budget=6),
        max_new_tokens=NEW,
        eos_token_id=[],
    ).tokens
    out, facts = run.live(choice), run.facts(choice)
    table = out["token"]
    assert table.token_id.tolist() == own and own != run.ids[prompt:]
    assert table.full_token_id.tolist() == run.ids[prompt:]
    equal = [one == other for one, other in zip(own, run.ids[prompt:], strict=True)]
    assert table.agrees.tolist() == equal
    assert facts["first_difference"] == equal.index(False) + 1
    assert facts["agreement"] == pytest.approx(sum(equal) / NEW)
    tokenizer = tiny.tokenizer()
    assert "".join(table.text) == tokenizer.decode(own, clean_up_tokenization_spaces=False)
    assert set(out["stage"].stage) == {"prefill", "decode"}
    assert (out["stage"].seconds > 0).all() and (out["stage"].full_seconds > 0).all()


def test_live_and_replay_lose_the_same_positions(run: Run) -> None:
    choice = {"key": "streaming_llm", "options": {"budget": 10, "sink": 2}}
    derive(run.home, run.id, "replay", {"policy": choice})
    with Capture.open(run.path) as it:
        derived = it.derived("replay", {"policy": choice})
        assert derived is not None
        with derived:
            replayed = derived.array("evicted_at")
    assert (run.live(choice)["evicted_at"] == replayed).all()


@pytest.mark.parametrize(
    ("choice", "error", "words"),
    [
        (
            {"key": "oracle", "options": {"budget": 4}},
            PolicyRunError,
            "Oracle knows the future: it exists in replay only.",
        ),
        ({"masks": "abc"}, PolicyRunError, "Imported keep-masks are no policy"),
        ({"key": "snapkv", "options": {}}, PolicyRunError, "budget"),
        ({"key": "nothing"}, ReplayError, "'nothing'"),
    ],
)
def test_what_cannot_run_is_refused_in_one_sentence(
    choice: dict[str, Any], error: type[Exception], words: str, run: Run
) -> None:
    with pytest.raises(error, match=words) as raised:
        run_policy(run.home, run.id, {"policy": choice})
    assert str(raised.value).endswith(".")


def test_progress_covers_every_pass_and_cancelling_leaves_nothing(run: Run) -> None:
    choice = {"key": "snapkv", "options": {"budget": 7, "window": 3}}
    before = set((run.home / run.id).rglob("*.duckdb"))
    reports: list[Progress] = []

    def stop_in(phase: str) -> Any:
        return lambda: bool(reports) and reports[-1].phase == phase and reports[-1].done > 1

    for phase in ("policy, prompt", "full cache, response"):
        reports.clear()
        with pytest.raises(Cancelled):
            run_policy(run.home, run.id, {"policy": choice}, reports.append, stop_in(phase))
    assert set((run.home / run.id).rglob("*.duckdb")) == before
    reports.clear()
    path = run_policy(run.home, run.id, {"policy": choice}, reports.append)
    phases = list(dict.fromkeys(report.phase for report in reports))
    assert phases[:5] == ["load", *[f"{who}, {what}" for who in ("policy", "full cache")
                                    for what in ("prompt", "response")]]  # fmt: skip
    last = {report.phase: report for report in reports}
    assert all(last[phase].done == last[phase].total for phase in phases[1:5])
    written = path.stat().st_mtime_ns
    assert run_policy(run.home, run.id, {"policy": choice}, cancelled=lambda: True) == path
    assert path.stat().st_mtime_ns == written


def test_it_is_queued_behind_the_worker_that_holds_the_model() -> None:
    assert KINDS[derive_job("x", "policy_run", {"policy": SNAPKV}).kind].lane == "run"
    assert KINDS[derive_job("x", "replay", {"policy": SNAPKV}).kind].lane == "short"


def test_divergence_by_hand() -> None:
    """(1/2, 1/2) against (1/4, 3/4): KL = ½ ln 2 + ½ ln ⅔; a masked token counts nothing."""
    masked = -math.inf
    full = torch.tensor([[0.0, 0.0, masked]])
    policy = torch.tensor([[0.0, math.log(3), masked]])
    divergence, nll_full, nll_policy = compare(full, policy, [1])
    assert divergence.tolist() == pytest.approx([0.5 * math.log(2) + 0.5 * math.log(2 / 3)])
    assert nll_full.tolist() == pytest.approx([math.log(2)])
    assert nll_policy.tolist() == pytest.approx([math.log(4 / 3)])
