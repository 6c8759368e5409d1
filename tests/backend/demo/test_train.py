"""Training is resumable, its documents are well formed, and the shipped model works."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from backend.demo import documents, tasks, train
from backend.demo.evaluate import digits_right, greedy_answer, result_right

FOLDER = tasks.TOKENIZER_FILE.parent


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(tasks.TOKENIZER_FILE))


def tiny_training(tokenizer: Tokenizer) -> train.Training:
    model = train.new_model(tokenizer.get_vocab_size(), width=32, layers=2, heads=2)
    return train.Training(model, tokenizer, tokens=8 * 256, batch_tokens=256, bfloat16=False)


def test_resumed_training_gives_the_same_losses(tokenizer: Tokenizer, tmp_path: Path) -> None:
    whole = tiny_training(tokenizer)
    expected = [whole.advance() for _ in range(4)]

    first = tiny_training(tokenizer)
    losses = [first.advance() for _ in range(2)]
    first.save(tmp_path / "checkpoint.pt")
    second = tiny_training(tokenizer)
    second.load(tmp_path / "checkpoint.pt")
    losses += [second.advance() for _ in range(2)]

    assert losses == pytest.approx(expected, rel=1e-5, nan_ok=True)
    assert second.seen == whole.seen


@pytest.mark.parametrize("kind", ["repeat", "dense", "worked", "mixed"])
@pytest.mark.parametrize("length", [128, 512])
def test_documents_have_their_length(tokenizer: Tokenizer, kind: str, length: int) -> None:
    rng = random.Random(0)
    for _ in range(20):
        ids, weights = documents.document(length, kind, tokenizer, rng)
        assert len(ids) == len(weights) == length


def test_answers_are_what_is_learned(tokenizer: Tokenizer) -> None:
    ids, weights = documents.document(256, "dense", tokenizer, random.Random(1))
    text = tokenizer.decode(ids, skip_special_tokens=False)
    learned = tokenizer.decode(
        [i for i, w in zip(ids, weights, strict=True) if w == 1], skip_special_tokens=False
    )
    answers = [turn.split("<|endoftext|>")[0] for turn in text.split("Answer:")[1:]]
    assert learned == "".join(f"{answer}<|endoftext|>" for answer in answers)


def test_batches_follow_the_seed(tokenizer: Tokenizer) -> None:
    ids, weights = documents.batch(tokenizer, 1024, documents.stage(0.3, documents.STAGES), "7-1")
    again, _ = documents.batch(tokenizer, 1024, documents.stage(0.3, documents.STAGES), "7-1")
    other, _ = documents.batch(tokenizer, 1024, documents.stage(0.3, documents.STAGES), "7-2")
    assert ids.size == weights.size == 1024
    assert np.array_equal(ids, again) and not np.array_equal(ids, other)


def test_learning_rate_falls_to_three_percent() -> None:
    assert train.learning_rate(0.2, 1.0) == 1.0
    assert train.learning_rate(0.75, 1.0) == pytest.approx(0.515)
    assert train.learning_rate(1.0, 1.0) == pytest.approx(0.03)


def test_scores() -> None:
    assert digits_right(" The passkey is 1234.", " The passkey is 1294.") == 0.75
    assert digits_right(" The passkey is 12.", " The passkey is 1294.") == 0.5
    assert result_right(" Step 1: x. The result is 42.", " The result is 42.") == 1
    assert result_right(" The result is 4.", " The result is 42.") == 0


@pytest.fixture(scope="module")
def shipped() -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


def test_shipped_model_is_as_promised(shipped) -> None:  # type: ignore[no-untyped-def]
    config = shipped.config
    assert (FOLDER / "model.safetensors").stat().st_size <= 12e6
    assert config.num_hidden_layers >= 6
    assert (config.num_attention_heads, config.num_key_value_heads) == (8, 4)
    assert config.max_position_embeddings >= 4096
    assert config.eos_token_id == shipped.generation_config.eos_token_id == 0
    assert AutoTokenizer.from_pretrained(FOLDER).eos_token_id == 0


def test_shipped_model_answers_the_first_samples(  # type: ignore[no-untyped-def]
    shipped, tokenizer: Tokenizer
) -> None:
    samples = json.loads((FOLDER / "samples" / "samples.json").read_text())
    for s in samples:
        if s["first_start"]:
            sample = tasks.Sample(s["task"], s["context"] + s["question"], s["answer"])
            assert greedy_answer(shipped, tokenizer, sample) == s["answer"], s["id"]
