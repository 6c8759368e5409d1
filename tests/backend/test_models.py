"""Finding and loading models, and refusing what must not be loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from backend import models, sources
from backend.models import ModelError, available_models, load, load_tokenizer, model_facts
from tests.backend import tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(tiny.save(tiny.build("qwen3"), tmp_path / "qwen3"))


def test_facts_come_from_the_configuration(folder: Path) -> None:
    facts = model_facts(str(folder))
    assert (facts.layers, facts.query_heads, facts.kv_heads, facts.head_dim) == (3, 4, 2, 8)
    assert (facts.hidden_size, facts.intermediate_size, facts.vocabulary) == (32, 48, 262)
    assert (facts.max_positions, facts.group, facts.softcap) == (128, 2, None)
    assert facts.sliding_window == (None, None, None)
    assert facts.architecture == "Qwen3ForCausalLM"
    # Counted by hand: 2 embeddings, and per layer q, k, v, o, three of the MLP and four norms.
    layer = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48 + 2 * 32 + 2 * 8
    assert facts.parameters == 2 * 262 * 32 + 3 * layer + 32


def test_sliding_layers_and_soft_capping_are_stated(tmp_path: Path) -> None:
    facts = model_facts(tiny.save(tiny.build("gemma2"), tmp_path))
    assert facts.sliding_window == (10, None, 10)
    assert facts.softcap == 3.0


def test_a_model_is_loaded_once_per_process(folder: Path) -> None:
    first = load(str(folder))
    assert load(str(folder)) is first
    assert (first.dtype, first.device) == ("float32", "cpu")
    assert first.model.dtype == torch.float32 and not first.model.training
    half = load(str(folder), dtype="bfloat16")
    assert half.model.dtype == torch.bfloat16 and half.revision == first.revision


def test_the_revision_changes_with_the_weights(folder: Path, tmp_path: Path) -> None:
    before = sources.resolve(str(folder)).revision
    assert sources.resolve(str(folder)).revision == before
    model = tiny.build("qwen3")
    with torch.no_grad():
        model.lm_head.weight[5, 3] += 1
    after = sources.resolve(tiny.save(model, tmp_path / "trained")).revision
    assert before != after


def test_the_embedded_model_is_offered_and_loads() -> None:
    assert available_models()[0] == "demo"
    facts = model_facts("demo")
    assert facts.layers >= 6 and (facts.query_heads, facts.kv_heads) == (8, 4)
    assert load_tokenizer("demo")("7 42")["input_ids"]


def test_a_list_of_models_restricts_what_may_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSCOPE_MODELS", f"demo, {folder.parent}")
    assert available_models() == ["demo", str(folder)]  # a folder of models offers each
    assert model_facts(str(folder)).layers == 3
    with pytest.raises(ModelError, match="not offered here"):
        load("some/model")


def _remote_code(folder: Path) -> None:
    config = {"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "theirs.py").write_text("raise SystemExit('this must never run')")


def _edit(**changes: Any) -> Any:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


def _pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _lacking_a_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _lacking_tensors(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.self_attn.q_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda folder: (folder / "config.json").unlink(), "holds no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be read"),
        (_remote_code, "code from its own repository, which KVScope never runs"),
        (_edit(model_type="theirs"), "unknown to the installed transformers"),
        (_edit(model_type="t5", is_encoder_decoder=True), "encoder-decoder"),
        (_edit(model_type="vit"), "not a causal language model"),
        (_pickle_only, "no safetensors weights"),
        (_lacking_a_shard, "lacks model-00001-of-00002.safetensors"),
        (_lacking_tensors, "lack 1 tensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x"), "not a safetensors file"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer"),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence(break_it: Any, words: str, folder: Path) -> None:
    break_it(folder)
    with pytest.raises(ModelError) as refusal:
        load(str(folder))
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


DEEP = "[" * 200_000


def _write(name: str, text: str | bytes) -> Any:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)

    return write


def _header(text: str) -> Any:
    return _write("model.safetensors", len(text).to_bytes(8, "little") + text.encode())


def _index(text: str) -> Any:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(text)

    return write


def _as_folder(name: str) -> Any:
    def replace(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return replace


def _as_pipe(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


def _more_layers(count: int) -> Any:
    return _edit(num_hidden_layers=count, layer_types=None)


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (_more_layers(20_000_000), "states 20000000 layers, not 1 to 2,000"),
        (_more_layers(0), "states 0 layers"),
        (_more_layers(-1), "states -1 layers"),
        (_edit(num_hidden_layers=True), "states True layers"),
        (_edit(num_hidden_layers=[1]), "states [1] layers"),
        (_edit(text_config={"num_layers": 10**9}), "states 1000000000 layers"),
        (_edit(num_hidden_layers=2), "cannot be used"),
        (_edit(num_attention_heads=0), "states 0 attention heads"),
        (_edit(num_attention_heads=10**9, head_dim=1), "states 1000000000 attention heads"),
        (_edit(num_attention_heads=5), "5 attention heads on 2 KV heads"),
        (_edit(num_key_value_heads=8), "4 attention heads on 8 KV heads"),
        (_edit(num_key_value_heads=-2), "states -2 KV heads"),
        (_edit(head_dim=0), "states 0 entries per head"),
        (_edit(head_dim=10**6), "states 1000000 entries per head"),
        (_edit(hidden_size=-32), "states -32 hidden entries"),
        (_edit(vocab_size=10**12), "states 1000000000000 tokens in its vocabulary"),
        (_edit(max_position_embeddings=-1), "states -1 positions"),
        (_edit(max_position_embeddings="many"), "cannot be used"),
        (_edit(model_type=[1]), "names no model type"),
        (_edit(model_type="x" * 999), "unknown to the installed transformers"),
        (_write("config.json", DEEP), "config.json"),
        (_write("config.json", "[]"), "no JSON object"),
        (_write("config.json", b"\xff"), "cannot be read"),
        (_write("config.json", "9" * 9_999), "cannot be read"),
        (_as_folder("config.json"), "holds no config.json"),
        (_as_pipe, "holds no config.json"),
        (_header('{"a": {}}'), "its header states no shapes"),
        (_header('{"a": 3}'), "its header states no shapes"),
        (_header('{"a": {"shape": "3"}}'), "its header states no shapes"),
        (_header('{"a": {"shape": [1e9]}}'), "its header states no shapes"),
        (_header('{"a": {"shape": [-1]}}'), "its header states no shapes"),
        (_header('{"a": {"shape": [30, 30, 30]}}'), "shorter than its header says"),
        (_header("[]"), "no JSON object"),
        (_header(DEEP), "not a safetensors file"),
        (_write("model.safetensors", b"\xff" * 8), "header is longer than the file"),
        (_as_folder("model.safetensors"), "lacks model.safetensors"),
        (_index(DEEP), "model.safetensors.index.json"),
        (_index("{}"), "is not a weight index"),
        (_index('{"weight_map": {}}'), "is not a weight index"),
        (_index('{"weight_map": [1]}'), "is not a weight index"),
        (_index('{"weight_map": {"a": null}}'), "is not a weight index"),
        (_index('{"weight_map": {"a": ".."}}'), "lacks .."),
    ],
)
def test_what_others_wrote_is_refused_in_one_sentence(
    break_it: Any, words: str, folder: Path
) -> None:
    break_it(folder)
    with pytest.raises(ModelError) as refusal:
        sources.resolve(str(folder))
        model_facts(str(folder))
    message = str(refusal.value)
    assert words in message and "\n" not in message
    assert message.endswith(".") and len(message) < 700


def test_odd_names_of_an_architecture_are_shown_as_text(folder: Path) -> None:
    _edit(architectures=[5])(folder)
    assert model_facts(str(folder)).architecture == "5"


def test_a_named_folder_that_cannot_be_looked_at_is_offered_as_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVSCOPE_MODELS", f"~nosuchuser/models,{'x' * 300}")
    assert available_models() == ["~nosuchuser/models", "x" * 300]


@pytest.mark.parametrize(
    "name",
    ["../elsewhere", "a/b/c", "no such folder", "", "~nosuchuser", "x" * 300, "a\0b", "\ud800"],
)
def test_a_name_that_is_no_model(name: str) -> None:
    with pytest.raises(ModelError, match="neither a folder on this machine nor"):
        load(name)


def test_a_device_that_is_not_there(folder: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(ModelError, match="cannot run on 'cuda'"):
        load(str(folder), device="cuda")


def test_without_network_a_missing_model_is_said_in_one_sentence(tmp_path: Path) -> None:
    code = (
        "from backend.models import load, ModelError\n"
        "try: load('nobody/nothing')\n"
        "except ModelError as error: print(error)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "PYTHONPATH": "."},
        cwd=Path(models.__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert "'nobody/nothing' is not on this machine and Hugging Face cannot" in answer.stdout
    assert "HF_HOME" in answer.stdout


def test_a_model_in_the_cache_is_found_without_network(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "hub" / "models--nobody--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text(commit)
    (cached / "snapshots").mkdir()
    folder.rename(cached / "snapshots" / commit)
    for module in (
        "huggingface_hub.constants.HF_HUB_CACHE",
        "huggingface_hub._snapshot_download.HF_HUB_CACHE",
    ):
        monkeypatch.setattr(module, str(tmp_path / "hub"), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    loaded = load("nobody/tiny")
    assert (loaded.id, loaded.revision) == ("nobody/tiny", commit)
    assert "nobody/tiny" in available_models()
