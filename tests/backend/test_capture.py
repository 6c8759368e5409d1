"""A whole capture against the plain model, naive loops and hand-made cases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from backend.capture import Cancelled, Progress, capture
from backend.models import LoadedModel, ModelError, load
from backend.spec import CaptureSpec, PromptError
from backend.text import TextStream, encode_prompt
from cache_store.errors import StoreError
from cache_store.reader import Capture
from tests.backend import tiny

CONTEXT = "The quiet river 中文 runs on. "
QUESTION = "Where does it run?"
Open = Callable[..., Capture]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(tiny.save(tiny.build("llama"), tmp_path_factory.mktemp("models") / "llama"))


@pytest.fixture
def run(loaded: LoadedModel, tmp_path: Path) -> Iterator[Open]:
    """Captures with the tiny Llama and opens the result."""
    opened: list[Capture] = []

    def start(context: str = CONTEXT, question: str = QUESTION, **fields: object) -> Capture:
        settings = {"model_id": loaded.id, "max_new_tokens": 9, "stop_at_eos": False} | fields
        spec = CaptureSpec(context=context, question=question, **settings)
        run_id = capture(spec, tmp_path, loaded=loaded)
        opened.append(Capture.open(tmp_path / run_id / "capture.duckdb"))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


@pytest.mark.parametrize("held_bytes", [64_000_000, 90_000, 0])  # all rows, a few, none
def test_statistics_equal_naive_loops_over_the_stored_rows(
    run: Open, monkeypatch: pytest.MonkeyPatch, held_bytes: int
) -> None:
    monkeypatch.setattr("backend.recorder.HELD_BYTES", held_bytes)
    it = run(window=5, top_k=3, max_new_tokens=40)
    info = it.info
    assert (info.window, info.top_k, info.response_length) == (5, 3, 40)
    for layer in range(info.layers):
        received = np.zeros((3, info.kv_heads, info.length))
        statistics = it.step_stats(layer).set_index(["head", "step"])
        for head in range(info.query_heads):
            steps, rows = it.attention_rows(layer, head)
            assert steps.tolist() == list(range(-4, 41))
            top = it.attention_top(layer, head).set_index(["step", "rank"])
            for step, row in zip(steps, rows.astype(np.float64), strict=True):
                position = info.prompt_length - 1 + step
                seen = row[: position + 1]
                assert not row[position + 1 :].any()
                one = statistics.loc[(head, step)]
                entropy = -sum(weight * np.log(weight) for weight in seen if weight > 0)
                assert one.entropy == pytest.approx(entropy, abs=5e-3)
                assert one.effective_tokens == pytest.approx(np.exp(one.entropy), rel=1e-5)
                assert one.top1_mass == pytest.approx(max(seen), abs=1e-3)
                assert one.sink_mass == pytest.approx(sum(seen[:4]), abs=2e-3)
                assert one.recent_mass == pytest.approx(sum(seen[-32:]), abs=4e-3)
                assert one.far_top1_mass == pytest.approx(max([*seen[4:-32], 0]), abs=1e-3)
                weights = [top.loc[(step, rank)].weight for rank in (1, 2, 3)]
                np.testing.assert_allclose(weights, sorted(seen)[::-1][:3], atol=1e-3)
                places = [int(top.loc[(step, rank)].position) for rank in (1, 2, 3)]
                np.testing.assert_allclose(row[places], weights, atol=1e-3)
        for kv_head in range(info.kv_heads):
            group = range(kv_head * info.group, (kv_head + 1) * info.group)
            rows = np.mean([it.attention_rows(layer, head)[1] for head in group], axis=0)
            received[:, kv_head] = rows.sum(0), rows.max(0), rows[-1]
        cells = it.kv_stats(layer)
        for index, name in enumerate(("attention_sum", "attention_max", "attention_last")):
            found = cells[name].to_numpy().reshape(info.kv_heads, info.length)
            np.testing.assert_allclose(found, received[index], atol=1e-2)
        for name, kind in (("key_norm", "k"), ("value_norm", "v")):
            norms = np.linalg.norm(it.states(layer, kind).astype(np.float64), axis=-1)
            np.testing.assert_allclose(cells[name], norms.ravel(), rtol=2e-3)


def test_only_chosen_layers_keep_rows_but_all_keep_states(run: Open) -> None:
    it = run(stored_layers=[1])
    assert it.info.stored_layers == (1,)
    assert [len(it.attention_rows(layer, 0)[0]) for layer in range(3)] == [0, 32 + 9, 0]
    assert it.kv_stats(0).attention_sum.isna().all() and it.kv_stats(0).key_norm.gt(0).all()
    assert it.kv_stats(1).attention_sum.notna().all()
    assert it.states(2, "q").shape == (4, it.info.length, 8)


def test_the_last_generated_token_has_its_state_and_row(run: Open, loaded: LoadedModel) -> None:
    it = run()
    ids = torch.tensor([it.tokens().token_id.tolist()])
    assert ids.shape[1] == it.info.prompt_length + 9
    with torch.no_grad():
        cache = loaded.model(input_ids=ids, use_cache=True).past_key_values
    last = it.states(2, "k", it.info.length - 1)[:, 0]
    np.testing.assert_allclose(last, cache.layers[2].keys[0, :, -1], rtol=2e-3, atol=2e-3)


def test_a_seed_gives_the_tokens_of_transformers_own_sampling(
    run: Open, loaded: LoadedModel
) -> None:
    settings = {"temperature": 0.8, "top_p": 0.9, "top_k_sampling": 20}
    first = run(sample=True, seed=7, **settings).tokens().token_id.tolist()
    assert first == run(sample=True, seed=7, **settings).tokens().token_id.tolist()
    assert first != run(sample=True, seed=8, **settings).tokens().token_id.tolist()
    prompt = torch.tensor([first[:-9]])
    torch.manual_seed(7)
    expected = loaded.model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=True,
        temperature=0.8,
        top_p=0.9,
        top_k=20,
        max_new_tokens=9,
        eos_token_id=None,
    )
    assert first == expected[0].tolist()


def test_stops_at_a_stop_token_but_not_before_the_minimum(
    run: Open, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = run().tokens().token_id.tolist()[-9:]
    stop = greedy[2]
    count = 1 + greedy.index(stop)
    monkeypatch.setattr(loaded.model.generation_config, "eos_token_id", [261, stop])
    stopped = run(stop_at_eos=True)
    assert (stopped.info.finish_reason, stopped.info.response_length) == ("stop", count)
    assert stopped.tokens().token_id.tolist()[-count:] == greedy[:count]
    longer = run(stop_at_eos=True, min_new_tokens=6)
    assert longer.info.response_length >= 6
    assert stop not in longer.tokens().token_id.tolist()[-longer.info.response_length :][:5]
    assert run(stop_at_eos=False).info.finish_reason == "length"


def test_tokens_join_to_the_exact_text_with_characters_split_over_tokens(
    run: Open, loaded: LoadedModel
) -> None:
    it = run()
    tokens = it.tokens()
    assert it.prompt_text() == CONTEXT + QUESTION
    response = tokens.token_id.tolist()[it.info.prompt_length :]
    assert it.response_text() == loaded.tokenizer.decode(response)
    start = CONTEXT.index("中")
    parts = tokens[(tokens.char_end > start) & (tokens.char_start <= start)]
    assert parts.text[parts.text != ""].tolist() == ["中"]
    assert tokens.text[start : start + 3].tolist() == ["", "", "中"]
    whole = it.prompt_text() + it.response_text()
    for token in tokens.itertuples():
        assert whole[token.char_start : token.char_end] == token.text
    segments = tokens.groupby("segment", sort=False).text.sum()
    assert segments["context"] == CONTEXT and segments["question"] == QUESTION
    assert it.info.context_length == len(CONTEXT.encode())


def test_a_chat_template_keeps_the_boundary_of_the_question(run: Open) -> None:
    it = run(context="  " + CONTEXT, chat_template=True)
    tokens = it.tokens()
    rendered = f"<|user|>{CONTEXT}{QUESTION}<|end|><|assistant|>"  # it strips the message
    assert it.prompt_text() == rendered
    joined = tokens.groupby("segment", sort=False).text.sum()
    assert joined["context"] == f"<|user|>{CONTEXT}"
    assert joined["question"] == f"{QUESTION}<|end|><|assistant|>"


def test_a_response_of_broken_bytes_is_what_the_tokenizer_decodes() -> None:
    tokenizer = tiny.tokenizer()
    euro = tokenizer("€")["input_ids"]
    ids = [euro[0], euro[0], euro[1], euro[2], euro[1], *tokenizer("a")["input_ids"], euro[0]]
    stream = TextStream(tokenizer, tokenizer("so ")["input_ids"])
    pieces = [stream.push(token) for token in ids]
    assert "".join(pieces) + stream.rest() == tokenizer.decode(ids)
    assert stream.rest() == ""


class _Slow:
    """The tiny tokenizer without offsets, as tokenizers written in Python are."""

    is_fast = False

    def __init__(self, fast: PreTrainedTokenizerBase) -> None:
        self.decode = fast.decode
        self._fast = fast

    def __call__(self, text: str, **options: object) -> dict[str, list[int]]:
        return {"input_ids": self._fast(text)["input_ids"]}


def test_a_tokenizer_without_offsets_gives_the_same_pieces() -> None:
    fast = tiny.tokenizer()
    spec = CaptureSpec(context=CONTEXT, question=QUESTION)
    assert encode_prompt(_Slow(fast), spec) == encode_prompt(fast, spec)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"context": "x" * 128}, ["128 tokens", "shorten the prompt"]),
        ({"context": "x" * 100, "max_new_tokens": 40}, ["100", "40", "128", "at most 28"]),
        ({"context": "x", "stored_layers": [0, 3]}, ["layer 3", "0 to 2"]),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    fields: dict[str, object], words: list[str], run: Open, tmp_path: Path
) -> None:
    with pytest.raises(PromptError) as refusal:
        run(question="", **fields)
    for word in words:
        assert word in str(refusal.value)
    assert not list(tmp_path.iterdir())


def test_a_chat_template_that_is_not_there_is_said(
    run: Open, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded.tokenizer, "chat_template", None)
    with pytest.raises(PromptError, match="no chat template"):
        run(chat_template=True)


@pytest.mark.parametrize("phase", ["prefill", "decode", "write"])
def test_cancelling_leaves_nothing(phase: str, loaded: LoadedModel, tmp_path: Path) -> None:
    seen: list[str] = []
    spec = CaptureSpec(context=CONTEXT, max_new_tokens=20, stop_at_eos=False)
    with pytest.raises(Cancelled):
        capture(
            spec,
            tmp_path,
            loaded=loaded,
            progress=lambda progress: seen.append(progress.phase),
            cancelled=lambda: phase in seen,
        )
    assert seen[-1] == phase
    assert not list(tmp_path.iterdir())


def test_progress_counts_layers_and_tokens_and_carries_the_text(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    reports: list[Progress] = []
    spec = CaptureSpec(context=CONTEXT, max_new_tokens=5, stop_at_eos=False)
    run_id = capture(spec, tmp_path, loaded=loaded, progress=reports.append)
    phases = list(dict.fromkeys(report.phase for report in reports))
    assert phases == ["load", "prefill", "decode", "write"]
    decode = [report for report in reports if report.phase == "decode"]
    assert [(report.done, report.total) for report in decode] == [(n, 5) for n in range(1, 6)]
    prefill = [report for report in reports if report.phase == "prefill"]
    assert (prefill[-1].done, prefill[-1].total) == (3, 3)
    with Capture.open(tmp_path / run_id / "capture.duckdb") as it:
        assert it.response_text().startswith(decode[-1].text)


def test_an_error_of_the_store_ends_the_run(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreError("The disk is full: free some space.")

    monkeypatch.setattr("cache_store.writer.CaptureWriter.add_attention", full)
    with pytest.raises(StoreError, match="disk is full"):
        capture(CaptureSpec(context=CONTEXT, max_new_tokens=40), tmp_path, loaded=loaded)
    assert not list(tmp_path.iterdir())


def test_a_run_id_is_used_once(loaded: LoadedModel, tmp_path: Path) -> None:
    spec = CaptureSpec(context="abc", max_new_tokens=1)
    run_id = capture(spec, tmp_path, run_id="20260131-235959-0a1b2c", loaded=loaded)
    assert run_id == "20260131-235959-0a1b2c"
    with pytest.raises(StoreError, match="exists already"):
        capture(spec, tmp_path, run_id=run_id, loaded=loaded)
    with pytest.raises(StoreError, match="not a run id"):
        capture(spec, tmp_path, run_id="../other", loaded=loaded)


def test_the_capture_row_says_how_it_was_made(run: Open, loaded: LoadedModel) -> None:
    info = run(title="A river", seed=3).info
    assert (info.title, info.model_id, info.seed) == ("A river", loaded.id, 3)
    assert info.model_revision == loaded.revision and len(loaded.revision) == 40
    assert (info.architecture, info.layers, info.query_heads) == ("LlamaForCausalLM", 3, 4)
    assert (info.kv_heads, info.head_dim, info.softcap) == (2, 8, None)
    assert info.scaling == pytest.approx((8**-0.5,) * 3)
    assert info.sliding_window == (None, None, None)
    assert info.settings["max_new_tokens"] == 9 and info.settings["stop_at_eos"] is False
    assert "context" not in info.settings and json.dumps(info.settings)
    assert {"torch", "transformers", "python", "duckdb"} <= set(info.versions)
    assert {"load", "prefill", "decode", "write"} <= set(info.timings)
    assert info.peak_memory_bytes is not None and info.peak_memory_bytes > 50e6


def test_values_that_are_no_float16_are_clamped_and_counted_or_refused(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    weight = loaded.model.model.layers[1].self_attn.v_proj.weight
    kept = weight.clone()
    try:
        weight.mul_(1e6)
        run_id = capture(CaptureSpec(context="abc", max_new_tokens=1), tmp_path, loaded=loaded)
        with Capture.open(tmp_path / run_id / "capture.duckdb") as it:
            assert np.abs(it.states(1, "v").astype(np.float32)).max() == 65504
            assert it.info.settings["clamped_values"] > 0
        weight.fill_(float("nan"))
        with pytest.raises(ModelError, match="numbers"):
            capture(CaptureSpec(context="abc", max_new_tokens=1), tmp_path, loaded=loaded)
    finally:
        weight.copy_(kept)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_prefill_in_chunks_gives_the_same_capture(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(tiny.save(tiny.build(family), tmp_path / "model"))
    spec = CaptureSpec(context=CONTEXT * 3, max_new_tokens=4, stop_at_eos=False)
    whole = capture(spec, tmp_path / "runs", loaded=loaded)
    monkeypatch.setattr("backend.capture.prefill_chunk", lambda *_: 7)
    chunks = capture(spec, tmp_path / "runs", loaded=loaded)
    with (
        Capture.open(tmp_path / "runs" / whole / "capture.duckdb") as one,
        Capture.open(tmp_path / "runs" / chunks / "capture.duckdb") as other,
    ):
        assert other.info.settings["prefill_chunk"] == 7
        assert one.tokens().equals(other.tokens())
        for layer in range(one.info.layers):
            first, second = (it.attention_rows(layer, None) for it in (one, other))
            assert first[0].tolist() == second[0].tolist()
            np.testing.assert_allclose(first[1], second[1], atol=1e-3)
            np.testing.assert_allclose(
                one.states(layer, "k"), other.states(layer, "k"), rtol=5e-3, atol=2e-3
            )
