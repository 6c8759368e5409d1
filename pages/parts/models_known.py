"""What the New run page asks about models again and again; every answer is kept for a while."""

from __future__ import annotations

from typing import Any

import streamlit as st

from backend.models import ModelFacts, load_tokenizer, model_facts
from backend.sources import ModelError, read_json, resolve
from backend.spec import CaptureSpec, PromptError
from backend.text import encode_prompt
from pages.parts import backstage

LONG_TEXT = 40  # characters per token above which a text cannot fit and is not tokenized


@st.cache_data(max_entries=16, ttl=600, show_spinner=False)
def facts(model_id: str) -> ModelFacts:
    """The model's shape. Raises ModelError."""
    backstage.heavy_imports()
    return model_facts(model_id)


@st.cache_resource(max_entries=3, show_spinner=False)
def _tokenizer(model_id: str) -> Any:
    backstage.heavy_imports()
    return load_tokenizer(model_id)


@st.cache_data(max_entries=64, show_spinner=False)
def prompt_tokens(spec: CaptureSpec, limit: int | None) -> int:
    """How many tokens the prompt has. Raises PromptError for a text far beyond the model."""
    if limit is not None and len(spec.prompt) > LONG_TEXT * limit:
        raise PromptError(
            f"The prompt has {len(spec.prompt):,} characters and the model's context is {limit:,} "
            "tokens: shorten the prompt or choose a model with a longer context."
        )
    return len(encode_prompt(_tokenizer(spec.model_id), spec).ids)


@st.cache_data(max_entries=16, ttl=600, show_spinner=False)
def has_chat_template(model_id: str) -> bool:
    """Whether the tokenizer's files hold one; the tokenizer itself is not loaded for this."""
    folder = resolve(model_id, weights=False).folder
    if (folder / "chat_template.jinja").exists():
        return True
    try:
        return bool(read_json(folder / "tokenizer_config.json").get("chat_template"))
    except ModelError:
        return False
