"""Further passes over a capture, against the plain model fed with the same tokens."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from backend.capture import capture
from backend.jobs import derive_job
from backend.jobs.registry import KINDS, run_capture, run_model_pass
from backend.models import LoadedModel, ModelError, load
from backend.passes import PassError, captured_model, lookahead_spec, record_pass
from backend.progress import Cancelled, Progress
from backend.spec import CaptureSpec, PromptError
from cache_store.errors import KVScopeError
from cache_store.reader import Capture
from kvpolicies import build, generate, replay
from kvpolicies.attention import observing
from tests.backend import tiny

CONTEXT, QUESTION = "The quiet river runs on and on. ", "Where does it run?"
FULL = {"key": "full", "options": {}}
SMALL = {"key": "snapkv", "options": {"budget": 12, "window": 4}}
HALF = {"rtol": 0, "atol": 4e-3}  # states are stored as float16


@pytest.fixture(scope="module", params=["llama", "gemma2", "gpt2"])
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str, LoadedModel]:
    home = tmp_path_factory.mktemp("runs")
    sliding = {"sliding_window": 512} if request.param == "gemma2" else {}
    folder = tiny.save(tiny.build(request.param, **sliding), home / "model")
    loaded = load(folder)
    spec = CaptureSpec(
        context=CONTEXT, question=QUESTION, model_id=folder, max_new_tokens=5, stop_at_eos=False
    )
    return home, capture(spec, home, loaded=loaded), loaded


def opened(home: Path, run_id: str) -> Capture:
    return Capture.open(home / run_id / "capture.duckdb")


def states_of(
    model: PreTrainedModel, parts: list[torch.Tensor]
) -> tuple[np.ndarray, np.ndarray, torch.Tensor]:
    """Queries and keys (layers, heads, n, d) of the last part, and the last logits."""
    seen: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def observer(layer, module, query, key, value, **terms):
        count = query.shape[2]
        seen[layer] = query[0].numpy(), key[0, :, -count:].numpy()

    past = DynamicCache(config=model.config)
    with torch.no_grad(), observing(model, observer):
        for part in parts:
            logits = model(input_ids=part, past_key_values=past, use_cache=True).logits[0, -1]
    queries, keys = zip(*(seen[layer] for layer in sorted(seen)), strict=True)
    return np.stack(queries), np.stack(keys), logits


def touched(loaded: LoadedModel) -> list[int]:
    windows = loaded.facts.sliding_window
    return [layer for layer, window in enumerate(windows) if window is None]


def test_a_lookahead_on_the_full_cache_is_the_models_own_continuation(
    run: tuple[Path, str, LoadedModel],
) -> None:
    home, run_id, loaded = run
    spec = lookahead_spec(FULL, 3)
    record_pass(home, run_id, "lookahead", spec, loaded=loaded)
    with opened(home, run_id) as it, it.derived("lookahead", spec) as found:  # type: ignore[union-attr]
        queries, tokens = found.array("queries"), found.array("tokens")
        words = found.table("token")
        ids = torch.tensor(it.tokens().token_id[: it.info.prompt_length].tolist())[None]
    parts = [ids]
    for step in range(3):
        _, _, logits = states_of(loaded.model, parts)
        assert tokens[step] == int(logits.argmax())
        parts.append(torch.tensor([[int(tokens[step])]]))
        expected, _, _ = states_of(loaded.model, parts)
        for layer in touched(loaded):
            np.testing.assert_allclose(queries[layer, :, step], expected[layer][:, 0], **HALF)
    assert queries.dtype == np.float16 and tokens.dtype == np.int64
    assert words["token_id"].tolist() == tokens.tolist() and words["step"].tolist() == [1, 2, 3]
    assert "".join(words["text"]) == loaded.tokenizer.decode(tokens.tolist())


def test_a_lookahead_is_the_one_that_live_laq_drafts(run: tuple[Path, str, LoadedModel]) -> None:
    home, run_id, loaded = run
    small = {"key": "snapkv", "options": {"budget": 12}}
    spec = lookahead_spec(small, 4)
    record_pass(home, run_id, "lookahead", spec, loaded=loaded)
    laq = build("laq", budget=12, lookahead_steps=4)
    with opened(home, run_id) as it:
        ids = torch.tensor(it.tokens().token_id[: it.info.prompt_length].tolist())[None]
        live = generate(loaded.model, ids, laq, max_new_tokens=1, eos_token_id=[])
        with it.derived("lookahead", spec) as found:  # type: ignore[union-attr]
            assert found.array("tokens").tolist() == live.lookahead_tokens
        replayed = replay(laq, it.trace(lookahead=spec))
    prompt = ids.shape[1]
    for layer in touched(loaded):
        ours, theirs = (
            result.kept_after(0)[layer, :, :prompt] for result in (replayed, live.result)
        )
        assert ours.sum(1).tolist() == theirs.sum(1).tolist() == [12] * len(ours)
        assert int((ours != theirs).sum()) <= 2 * len(ours)  # float16 may swap near ties


def test_the_second_reading_is_the_context_fed_twice(run: tuple[Path, str, LoadedModel]) -> None:
    home, run_id, loaded = run
    record_pass(home, run_id, "second_reading", {}, loaded=loaded)
    with opened(home, run_id) as it, it.derived("second_reading", {}) as found:  # type: ignore[union-attr]
        queries, keys = found.array("queries"), found.array("keys")
        context = it.info.context_length
        assert context < it.info.prompt_length
        ids = torch.tensor(it.tokens().token_id[:context].tolist())[None]
    expected_queries, expected_keys, _ = states_of(loaded.model, [ids, ids])
    assert queries.shape == expected_queries.shape and keys.shape == expected_keys.shape
    for layer in touched(loaded):
        np.testing.assert_allclose(queries[layer], expected_queries[layer], rtol=0, atol=2e-2)
        np.testing.assert_allclose(keys[layer], expected_keys[layer], rtol=0, atol=2e-2)


def test_model_facts_are_what_each_head_would_write(run: tuple[Path, str, LoadedModel]) -> None:
    home, run_id, loaded = run
    record_pass(home, run_id, "model_facts", {}, loaded=loaded)
    model = loaded.model
    if hasattr(model, "transformer"):
        weight = model.transformer.h[1].attn.c_proj.weight.T.numpy()
    else:
        weight = model.model.layers[1].self_attn.o_proj.weight.numpy()
    with opened(home, run_id) as it:
        trace = it.trace()
        assert trace.output_norms is not None
        dim, group = it.info.head_dim, it.info.group
        for head in range(it.info.query_heads):
            own = weight[:, head * dim : (head + 1) * dim]
            for position in (0, it.info.length - 1):
                value = it.states(1, "v")[head // group, position].astype(np.float32)
                expected = np.linalg.norm(own @ value)
                assert float(trace.output_norms[1][head, position]) == pytest.approx(
                    expected, rel=1e-3
                )


def test_asked_for_with_the_capture_they_lie_beside_it(tmp_path: Path) -> None:
    folder = tiny.save(tiny.build("llama"), tmp_path / "model")
    spec = CaptureSpec(
        context=CONTEXT,
        model_id=folder,
        max_new_tokens=3,
        lookaheads=["snapkv(budget=12,window=4)", "streaming_llm(budget=9)"],
        lookahead_steps=2,
        second_reading=True,
    )
    phases: list[str] = []

    def hear(progress: Progress) -> None:
        if not phases or phases[-1] != progress.phase:
            phases.append(progress.phase)

    run_id = capture(spec, tmp_path, progress=hear)
    order = ["load", "prefill", "decode", "write", "prefill", "lookahead", "second reading"]
    assert [phase for phase in dict.fromkeys(phases)] == list(dict.fromkeys(order))
    assert phases.count("prefill") == 2  # the second one serves all three passes
    with opened(tmp_path, run_id) as it:
        assert sorted(it.derived_list()["kind"]) == ["lookahead", "lookahead", "second_reading"]
        trace = it.trace(lookahead=lookahead_spec(SMALL, 2), second_reading=True)
        assert trace.lookahead is not None and trace.rotary is not None
        replay(build("kvzip", budget=10), trace)
        replay(build("expected_attention", budget=10, n_future=8), trace)
    # a task that runs twice records only what is missing
    shutil.rmtree(tmp_path / run_id / "derived")
    params = {"run_id": run_id, "spec": spec.to_dict()}
    run_capture(params, tmp_path, lambda _: None, lambda: False)
    with opened(tmp_path, run_id) as it:
        assert len(it.derived_list()) == 3


def test_cancelling_a_pass_keeps_the_run_and_cancelling_the_run_keeps_nothing(
    tmp_path: Path,
) -> None:
    folder = tiny.save(tiny.build("llama"), tmp_path / "model")
    spec = CaptureSpec(CONTEXT, model_id=folder, max_new_tokens=2, second_reading=True)
    for phase, kept in (("second reading", True), ("decode", False)):
        seen: list[str] = []
        params = {"run_id": f"20260101-000000-00000{int(kept)}", "spec": spec.to_dict()}
        arguments = (params, tmp_path, lambda it: seen.append(it.phase), lambda: phase in seen)  # noqa: B023
        if kept:
            assert run_capture(*arguments)["run_id"] == params["run_id"]
            with opened(tmp_path, params["run_id"]) as it:
                assert it.derived_list().empty
        else:
            with pytest.raises(Cancelled):
                run_capture(*arguments)
            assert not (tmp_path / params["run_id"]).exists()


def test_a_cancelled_pass_leaves_the_capture_and_the_model_as_they_were(
    run: tuple[Path, str, LoadedModel],
) -> None:
    home, run_id, loaded = run
    spec = lookahead_spec({"key": "streaming_llm", "options": {"budget": 7}}, 6)
    for stop_after in (2, 4, 6):
        asked = iter(range(100))
        with pytest.raises(Cancelled):
            record_pass(
                home, run_id, "lookahead", spec, None,
                lambda: next(asked) >= stop_after, loaded=loaded,  # noqa: B023
            )  # fmt: skip
        with opened(home, run_id) as it:
            assert it.derived("lookahead", spec) is None
        assert not list((home / run_id).rglob("*.partial"))
        ids = torch.arange(1, 9)[None]
        with torch.no_grad():
            first = loaded.model(input_ids=ids).logits
            again = states_of(loaded.model, [ids])[2]
        torch.testing.assert_close(first[0, -1], again, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("kind", "spec", "word"),
    [
        ("lookahead", {}, "exactly a policy and steps"),
        ("lookahead", {"policy": SMALL, "steps": 0}, "0 steps"),
        ("lookahead", {"policy": {"key": "snapkv", "options": {}}, "steps": 2}, "needs a budget"),
        ("lookahead", {"policy": {"key": "nothing", "options": {}}, "steps": 2}, "no policy"),
        ("lookahead", {"policy": {"key": "kvzip", "options": {"budget": 5}}, "steps": 2}, "kvzip"),
        ("second_reading", {"steps": 2}, "takes no parameters"),
        ("third_reading", {}, "no pass named"),
    ],
)
def test_an_impossible_pass_is_one_sentence(
    run: tuple[Path, str, LoadedModel], kind: str, spec: dict, word: str
) -> None:
    home, run_id, loaded = run
    with pytest.raises(PassError) as refusal:
        record_pass(home, run_id, kind, spec, loaded=loaded)
    assert word.lower() in str(refusal.value).lower() and "\n" not in str(refusal.value)


def test_learned_positions_end(tmp_path: Path) -> None:
    folder = tiny.save(tiny.build("gpt2"), tmp_path / "model")  # 128 positions
    run_id = capture(CaptureSpec("word " * 16, model_id=folder, max_new_tokens=1), tmp_path)
    with pytest.raises(PassError, match="position 160 and the model has 128"):
        record_pass(tmp_path, run_id, "second_reading", {})


def test_a_model_that_is_gone_or_changed_is_one_sentence(tmp_path: Path) -> None:
    folder = tiny.save(tiny.build("llama").bfloat16(), tmp_path / "model")
    spec = CaptureSpec(CONTEXT, model_id=folder, max_new_tokens=1, dtype="bfloat16")
    run_id = capture(spec, tmp_path)
    with opened(tmp_path, run_id) as it:
        assert captured_model(it.info).dtype == "bfloat16"  # as it was, not as it would be now
    tiny.save(tiny.build("llama", num_hidden_layers=2), tmp_path / "model")
    with pytest.raises(ModelError, match="changed since run"):
        record_pass(tmp_path, run_id, "second_reading", {})
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(ModelError, match="cannot be loaded again") as gone:
        record_pass(tmp_path, run_id, "second_reading", {})
    assert "\n" not in str(gone.value)


def test_passes_wait_for_the_worker_that_holds_the_model(
    run: tuple[Path, str, LoadedModel],
) -> None:
    home, run_id, _ = run
    for kind in ("lookahead", "second_reading", "model_facts"):
        assert KINDS[derive_job(run_id, kind, {}).kind].lane == "run"
    assert KINDS[derive_job(run_id, "prompt_attention", {}).kind].lane == "short"
    params = {"run_id": run_id, "kind": "second_reading", "spec": {}}
    assert run_model_pass(params, home, lambda _: None, lambda: False)["kind"] == "second_reading"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"lookaheads": ["snapkv"]}, "needs a budget"),
        ({"lookaheads": ["snapkv(budget"]}, "is no policy"),
        ({"lookaheads": ["laq(budget=8)"]}, "no further pass"),
        ({"lookaheads": ["masks(abc)"]}, "no further pass"),
        ({"lookaheads": [3]}, "a list of texts"),
        ({"lookahead_steps": 0}, "at least 1"),
        ({"lookahead_steps": 10**9}, "at most"),
        ({"second_reading": 1}, "true or false"),
    ],
)
def test_what_cannot_be_recorded_is_said_before_anything_runs(
    run: tuple[Path, str, LoadedModel], fields: dict, word: str, tmp_path: Path
) -> None:
    _, _, loaded = run
    with pytest.raises((PromptError, KVScopeError), match=word):
        capture(CaptureSpec("text", model_id=loaded.id, **fields), tmp_path, loaded=loaded)
    assert not list(tmp_path.iterdir())
