"""Tiny randomly initialised models of many families, and a tokenizer of single bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

END = "<|end|>"
TEMPLATE = (
    "{% for message in messages %}<|user|>{{ message.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WORDS = {  # what most families call their sizes
    "vocab_size": 262,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # far from uniform attention
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]

# family -> configuration class and what it needs besides WORDS
CAPTURED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "mistral_sliding": ("MistralConfig", {"sliding_window": 10}),
    "phi3": ("Phi3Config", {}),
    "gemma2": (
        "Gemma2Config",
        {
            "attn_logit_softcapping": 3.0,
            "query_pre_attn_scalar": 5,
            "sliding_window": 10,
            "layer_types": SLIDING,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {"query_pre_attn_scalar": 5, "sliding_window": 10, "layer_types": SLIDING},
    ),
    "olmo2": ("Olmo2Config", {}),
    "gpt2": (
        "GPT2Config",
        {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128, "scale_attn_weights": True},
    ),
    "gpt_neox": ("GPTNeoXConfig", {"rotary_pct": 0.5}),
}
WITHOUT = {  # sizes that a family has under other names or derives
    "gpt2": {"num_key_value_heads", "head_dim", "hidden_size", "num_hidden_layers"}
    | {"num_attention_heads", "max_position_embeddings", "intermediate_size"},
    "gpt_neox": {"num_key_value_heads", "head_dim"},
    "phi3": {"head_dim"},
    "olmo2": {"head_dim"},
    "qwen2": {"head_dim"},
}


def build(family: str, **changes: Any) -> PreTrainedModel:
    """A model of the family, the same at every call."""
    name, extra = CAPTURED[family]
    sizes = {key: value for key, value in WORDS.items() if key not in WITHOUT.get(family, set())}
    return from_config(name, **(sizes | extra | changes))


def from_config(config_class: str, **fields: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**fields)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return model.eval()


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per UTF-8 byte, with a chat template that strips the message."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([END, "<|user|>", "<|assistant|>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=END, clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
    )  # fmt: skip


def save(model: PreTrainedModel, folder: Path) -> str:
    """Write model and tokenizer; returns the folder as a model id."""
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)
