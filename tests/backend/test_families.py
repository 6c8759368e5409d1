"""Each family either gives the attention that its eager implementation gives, or a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from backend.capture import capture
from backend.models import ModelError, load
from backend.spec import CaptureSpec
from cache_store.reader import Capture
from tests.backend import tiny

PROMPT = "The river is quiet. Naïve 中文 and 🙂 stay whole."
NEW = 37  # more than one batch of decode steps
WORDS = {key: value for key, value in tiny.WORDS.items() if key != "head_dim"}


@pytest.mark.parametrize("family", tiny.CAPTURED)
def test_stored_attention_and_states_equal_the_eager_model(family: str, tmp_path: Path) -> None:
    folder = tiny.save(tiny.build(family), tmp_path / "model")
    spec = CaptureSpec(context=PROMPT, model_id=folder, max_new_tokens=NEW, stop_at_eos=False)
    run_id = capture(spec, tmp_path / "runs")
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with Capture.open(tmp_path / "runs" / run_id / "capture.duckdb") as run, torch.no_grad():
        ids = torch.tensor([run.tokens().token_id.tolist()])
        prompt_length = run.info.prompt_length
        greedy = model.generate(
            ids[:, :prompt_length],
            attention_mask=torch.ones_like(ids[:, :prompt_length]),
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=None,
        )
        assert ids.tolist() == greedy.tolist()
        eager = model(input_ids=ids, output_attentions=True)
        first = prompt_length - 32
        for layer in range(run.info.layers):
            expected = eager.attentions[layer][0].numpy()
            steps, rows = run.attention_rows(layer, None)
            assert steps.tolist() == list(range(-31, NEW + 1))
            np.testing.assert_allclose(rows, expected[:, first:], atol=2e-3)
            np.testing.assert_allclose(rows.astype(np.float32).sum(-1), 1, atol=2e-3)
            cached = eager.past_key_values.layers[layer]
            for kind, states in (("k", cached.keys), ("v", cached.values)):
                kept = states.shape[2]  # a sliding layer keeps its window
                stored = run.states(layer, kind, run.info.length - kept)
                np.testing.assert_allclose(stored, states[0].numpy(), rtol=2e-3, atol=2e-3)


MLA = {
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
SHARED = {
    "num_hidden_layers": 5,
    "num_kv_shared_layers": 2,
    "layer_types": [*tiny.SLIDING, "sliding_attention", "full_attention"],
    "intermediate_size": [48] * 5,
    "vocab_size_per_layer_input": 262,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 4,
    "altup_num_inputs": 2,
    "activation_sparsity_pattern": [0.0] * 5,
    "sliding_window": 10,
}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("BloomConfig", {"vocab_size": 262, "hidden_size": 32, "n_head": 4}, "attention interface"),
    ("MambaConfig", {"vocab_size": 262, "hidden_size": 32}, "no attention heads"),
    ("DeepseekV3Config", WORDS | {"num_key_value_heads": 4} | MLA, "differ in size (12, 12, 8"),
    ("GptOssConfig", tiny.WORDS | {"num_local_experts": 2}, "learned attention sinks"),
    ("BertConfig", {"vocab_size": 262, "hidden_size": 32, "num_attention_heads": 4}, "later token"),
    (
        "Lfm2Config",
        tiny.WORDS | {"layer_types": ["conv", "full_attention", "conv"]},
        "only 1 of its 3 layers compute attention",
    ),
    (
        "Llama4TextConfig",
        tiny.WORDS | {"attention_chunk_size": 4, "intermediate_size_mlp": 48, "moe_layers": []},
        "chunked attention",
    ),
    ("Gemma3nTextConfig", tiny.WORDS | SHARED, "reuse another layer's keys and values"),
    ("Gemma3TextConfig", tiny.WORDS | {"use_bidirectional_attention": True}, "bidirectional"),
]


@pytest.mark.parametrize(("config", "fields", "reason"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_cannot_be_captured_says_why(
    config: str, fields: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    if "num_hidden_layers" not in fields:
        fields = fields | {"num_hidden_layers": 2}
    folder = tiny.save(tiny.from_config(config, **fields), tmp_path)
    with pytest.raises(ModelError) as refusal:
        load(folder)
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)
