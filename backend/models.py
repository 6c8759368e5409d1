"""Models: what is known from their configuration, their tokenizer, and loading them.

Importing this module imports neither torch nor transformers; the functions do when called.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

from backend.facts import ModelFacts, check_layers, facts_of
from backend.sources import (
    DEMO,
    ModelError,
    ModelSource,
    _first_line,
    _shown,
    allowed_models,
    available_models,
    read_json,
    resolve,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "DEMO",
    "LoadedModel",
    "ModelError",
    "ModelFacts",
    "allowed_models",
    "available_models",
    "load",
    "load_tokenizer",
    "model_facts",
]

WORKING_SHARE = 0.6  # of the free memory that float32 weights may take on a CPU


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run: in evaluation mode, on its device, found to be capturable."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    facts: ModelFacts
    id: str
    revision: str
    dtype: str
    device: str


def model_facts(model_id: str, revision: str | None = None) -> ModelFacts:
    """The model's shape without loading weights. Raises ModelError, as `load` does."""
    source = resolve(model_id, revision, weights=False)
    return facts_of(_config(source), source)


def load_tokenizer(model_id: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Only the tokenizer. Raises ModelError when there is none."""
    return _tokenizer(resolve(model_id, revision, weights=False))


_loaded: tuple[tuple[str, ...], LoadedModel] | None = None
_lock = threading.Lock()


def load(
    model_id: str, *, revision: str | None = None, dtype: str = "auto", device: str = "auto"
) -> LoadedModel:
    """Load a model, or return the one this process already holds (it keeps one).

    dtype "auto" is float32 on a CPU (bfloat16 where a bfloat16 checkpoint would not fit) and
    bfloat16 or float16 on CUDA; device "auto" is the first of cuda, mps, cpu that exists.
    Raises ModelError, one sentence, when the model is missing, unreadable, needs code of its own,
    or has attention that cannot be captured.
    """
    from backend.trial import check_capturable

    global _loaded
    source = resolve(model_id, revision)
    config = _config(source)
    facts = facts_of(config, source)
    device = _device(device, model_id)
    dtype = _dtype(dtype, device, facts)
    key = (model_id, source.revision, dtype, device)
    with _lock:
        if _loaded is not None and _loaded[0] == key:
            return _loaded[1]
        _loaded = None  # the old model's memory goes before the new one comes
        tokenizer = _tokenizer(source)
        model = _weights(source, config, dtype, device)
        facts = check_capturable(model, facts, model_id)
        loaded = LoadedModel(model, tokenizer, facts, model_id, source.revision, dtype, device)
        _loaded = (key, loaded)
        return loaded


def _config(source: ModelSource) -> Any:
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    raw = read_json(source.folder / "config.json")
    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        raise ModelError(
            f"The config.json of '{source.id}' names no model type: choose a folder written by "
            "save_pretrained."
        )
    check_layers(raw, source)
    kind = _shown(model_type, 40)
    if model_type not in CONFIG_MAPPING_NAMES:
        reason = (
            "needs code from its own repository, which KVScope never runs"
            if raw.get("auto_map")
            else "is unknown to the installed transformers"
        )
        raise ModelError(
            f"The model '{source.id}' (type '{kind}') {reason}: choose a model that "
            "transformers itself implements."
        )
    if raw.get("is_encoder_decoder"):
        raise ModelError(
            f"The model '{source.id}' is an encoder-decoder: choose a decoder-only language model."
        )
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelError(
            f"The model '{source.id}' (type '{kind}') is not a causal language model: "
            "choose one that generates text."
        )
    try:
        return AutoConfig.from_pretrained(source.folder, trust_remote_code=False)
    except Exception as error:  # configurations fail in as many ways as there are families
        raise ModelError(
            f"The configuration of '{source.id}' cannot be used: {_first_line(error)}."
        ) from error


def _tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source.folder, trust_remote_code=False)
    except Exception as error:
        raise ModelError(
            f"The tokenizer of '{source.id}' cannot be loaded ({_first_line(error)}): the model "
            "needs its tokenizer files beside its weights."
        ) from error


def _weights(source: ModelSource, config: Any, dtype: str, device: str) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    try:
        with _no_progress_bars():
            model, report = loader.from_pretrained(
                source.folder,
                config=config,
                dtype=getattr(torch, dtype),
                use_safetensors=True,
                trust_remote_code=False,
                attn_implementation="eager",  # every family has it; capture switches to its own
                output_loading_info=True,
            )
        model = model.to(device).eval()
    except Exception as error:
        raise ModelError(
            f"The model '{source.id}' cannot be loaded: {_first_line(error)}."
        ) from error
    if report["missing_keys"]:
        raise ModelError(
            f"The weights of '{source.id}' lack {len(report['missing_keys'])} tensors (first "
            f"'{min(report['missing_keys'])}'), so it would answer at random: use a whole "
            "checkpoint."
        )
    return model.requires_grad_(False)


@contextlib.contextmanager
def _no_progress_bars() -> Iterator[None]:
    """transformers' own bars would mix with ours; failing tensors still raise."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _device(device: str, model_id: str) -> str:
    import torch

    found = ["cuda"] if torch.cuda.is_available() else []
    found += ["mps"] if torch.backends.mps.is_available() else []
    found += ["cpu"]
    if device == "auto":
        return found[0]
    if device.partition(":")[0] not in found:
        raise ModelError(
            f"The model '{model_id}' cannot run on '{device}': this machine has {', '.join(found)}."
        )
    return device


def _dtype(dtype: str, device: str, facts: ModelFacts) -> str:
    import torch

    if dtype != "auto":
        return dtype
    if device.startswith("cuda"):
        if facts.checkpoint_dtype in ("bfloat16", "float16"):
            return facts.checkpoint_dtype
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
    fits = 4 * facts.parameters <= WORKING_SHARE * psutil.virtual_memory().available
    return "float32" if fits or facts.checkpoint_dtype != "bfloat16" else "bfloat16"
