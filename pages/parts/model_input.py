"""The model and how it generates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import streamlit as st

from backend.models import DEMO, ModelFacts, allowed_models, available_models
from backend.spec import DEVICES, DTYPES, MAX_LOOKAHEAD
from pages.parts import models_known
from pages.parts.text import number, plain, shorten

DEMO_WORDS = (
    "The embedded model was trained for the samples' tasks only: passkeys, one code among many, "
    "tracing variables, worked arithmetic. It answers those. Other English it can read, and its "
    "attention is worth looking at, but its answers mean nothing."
)
LOOKAHEADS = [f"snapkv(budget={budget})" for budget in (64, 128, 256, 512, 1024)]


@dataclass(frozen=True)
class Model:
    """The chosen model and its shape."""

    id: str
    facts: ModelFacts
    chat_template: bool


def model() -> Model:
    """Ask which model. Raises ModelError, one sentence, when it cannot be used."""
    free = allowed_models() is None
    options = available_models()
    kept = st.session_state.get("model")
    if kept and kept not in options and free:
        options = [*options, kept]
    elif kept and kept not in options:
        st.session_state["model"] = options[0]
    chosen = st.selectbox(
        "Model",
        options,
        key="model",
        bind="query-params",
        format_func=str,
        accept_new_options=free,
        help="The embedded model, a folder on this machine, or a Hugging Face id "
        "(owner/name, safetensors)."
        if free
        else "The models that are offered here.",
    )
    model_id = str(chosen or DEMO).strip()
    with st.spinner("Reading the model's configuration", show_time=False):
        facts = models_known.facts(model_id)
        template = models_known.has_chat_template(model_id)
    limit = f"context {facts.max_positions:,}" if facts.max_positions else "no stated context limit"
    st.caption(
        plain(
            f"{shorten(model_id, 60)}: {facts.layers} layers × {facts.query_heads} heads "
            f"({facts.kv_heads} KV heads of {facts.head_dim}), {limit} tokens, "
            f"{_count(facts.parameters)} parameters."
        )
    )
    if model_id == DEMO:
        st.caption(plain(DEMO_WORDS))
    return Model(model_id, facts, template)


def settings(chosen: Model) -> dict[str, Any]:
    """The generation settings as fields of CaptureSpec; the rare ones behind "More"."""
    st.session_state.setdefault("max_new_tokens", 64)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        new_tokens = st.number_input(
            "New tokens, at most",
            min_value=1,
            max_value=100_000,
            key="max_new_tokens",
            persist_state="session",
            width=150,
        )
        way = st.segmented_control(
            "Choice of tokens",
            ["greedy", "sampled"],
            default="greedy",
            required=True,
            key="choice",
            persist_state="session",
        )
        with st.popover("More", icon=":material/tune:"):
            more = _rare_settings(chosen)
    sample = way == "sampled"
    values = {"max_new_tokens": int(new_tokens or 1), "sample": sample, **more}
    if sample:
        with st.container(horizontal=True):
            values["temperature"] = float(
                st.number_input(
                    "Temperature", 0.05, 5.0, 1.0, 0.05, key="temperature", persist_state="session"
                )
            )
            values["top_p"] = float(
                st.number_input("Top-p", 0.05, 1.0, 1.0, 0.05, key="top_p", persist_state="session")
            )
            values["seed"] = int(
                st.number_input("Seed", 0, 2**31 - 1, 0, key="seed", persist_state="session")
            )
    return values


def _rare_settings(chosen: Model) -> dict[str, Any]:
    least = st.number_input(
        "New tokens, at least", 0, 100_000, 0, key="min_new_tokens", persist_state="session"
    )
    stop = st.toggle(
        "Stop when the model ends its answer", value=True, key="stop", persist_state="session"
    )
    template = False
    if chosen.chat_template:
        template = st.toggle("Use the model's chat template", key="chat", persist_state="session")
    else:
        st.caption("This model's tokenizer has no chat template.")
    dtype = st.selectbox("Number format", DTYPES, key="dtype", persist_state="session")
    device = st.selectbox("Device", DEVICES, key="device", persist_state="session")
    stored = st.multiselect(
        "Layers whose attention rows are stored",
        list(range(chosen.facts.layers)),
        key=_stored_key(chosen),
        placeholder="all layers",
        help="Rows of the other layers are recomputed when they are looked at.",
        persist_state="session",
    )
    return _passes() | {
        "min_new_tokens": int(least),
        "stop_at_eos": bool(stop),
        "chat_template": bool(template),
        "dtype": str(dtype),
        "device": str(device),
        "stored_layers": sorted(stored) or None,
    }


def _passes() -> dict[str, Any]:
    """What is recorded besides, for policies that need more than the prompt in replay."""
    lookaheads = st.multiselect(
        "Lookaheads",
        LOOKAHEADS,
        key="lookaheads",
        accept_new_options=True,
        placeholder="none",
        help="For LAQ and LAQ++: tokens drafted on the small cache of this policy. Any policy that "
        "needs no further pass can be typed.",
        persist_state="session",
    )
    steps = 8
    if lookaheads:
        steps = st.number_input(
            "Drafted tokens", 1, MAX_LOOKAHEAD, 8, key="lookahead_steps", persist_state="session"
        )
    second = st.toggle(
        "Read the context twice",
        key="second_reading",
        help="For KVzip and KVCompose: attention of the context's second copy to its first.",
        persist_state="session",
    )
    return {
        "lookaheads": [str(text) for text in lookaheads],
        "lookahead_steps": int(steps),
        "second_reading": bool(second),
    }


def store_layers(chosen: Model, layers: list[int]) -> None:
    """From a callback: keep only these layers' attention rows."""
    st.session_state[_stored_key(chosen)] = layers


def _stored_key(chosen: Model) -> str:
    return f"stored-{chosen.facts.layers}"


def _count(value: int) -> str:
    if value >= 1e9:
        return f"{value / 1e9:.3g} B"
    return f"{value / 1e6:.3g} M" if value >= 1e6 else number(value)
