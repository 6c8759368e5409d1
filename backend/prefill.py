"""Feeding tokens to a model under observation, a long prompt in chunks where that is safe."""

from __future__ import annotations

import inspect
from typing import Any

import psutil
import torch
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from backend.models import ModelFacts
from backend.recorder import Recorder
from backend.sources import ModelError

CHUNK = 1024
# Rotary embeddings that do not depend on how many tokens one forward sees.
STEADY_ROPE = {"default", "linear", "llama3", "yarn"}
ACTIVATION_COPIES = 6  # hidden and intermediate states that live at once in one layer
ACTIVATION_SHARE = 0.25  # of the free memory that they may take


def prefill_chunk(model: PreTrainedModel, facts: ModelFacts, prompt_length: int) -> int:
    """Tokens per prefill forward: the whole prompt unless that costs too much memory.

    Sliding-window layers make transformers build a mask over all pairs of the tokens of one
    forward, and activations grow with them; chunks bound both. Models whose rotary embedding
    depends on the length of the forward are never cut.
    """
    if prompt_length <= CHUNK or not _steady(model):
        return prompt_length
    cell = next(model.parameters()).element_size()
    activations = prompt_length * cell * ACTIVATION_COPIES
    activations *= facts.hidden_size + facts.intermediate_size
    if model.device.type == "cuda":
        available = torch.cuda.mem_get_info(model.device)[0]
    else:
        available = psutil.virtual_memory().available
    masked = any(window is not None and window < prompt_length for window in facts.sliding_window)
    return CHUNK if masked or activations > ACTIVATION_SHARE * available else prompt_length


def _steady(model: PreTrainedModel) -> bool:
    rope = getattr(model.config.get_text_config(decoder=True), "rope_parameters", None) or {}
    kinds = [rope] if "rope_type" in rope else [part for part in rope.values() if part]
    return all(part.get("rope_type", "default") in STEADY_ROPE for part in kinds)


class _RoomyLayer(DynamicLayer):
    """transformers' own full-attention layer with room for the whole run, so that a step appends
    to its keys and values instead of copying them all. What was appended never changes."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        batch, heads, _, dim = key_states.shape
        self._key_room = key_states.new_empty((batch, heads, self._capacity, dim))
        self._value_room = value_states.new_empty((batch, heads, self._capacity, dim))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        first = self.get_seq_length()
        last = first + key_states.shape[-2]
        self._key_room[:, :, first:last] = key_states
        self._value_room[:, :, first:last] = value_states
        self.keys, self.values = self._key_room[:, :, :last], self._value_room[:, :, :last]
        return self.keys, self.values


def new_cache(model: PreTrainedModel, capacity: int) -> DynamicCache:
    """The model's own cache (full and sliding layers as its configuration says) for at most
    `capacity` tokens."""
    cache = DynamicCache(config=model.config)
    cache.layers = [
        _RoomyLayer(capacity) if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


class Forward:
    """Feeds tokens and returns the last position's logits; the cache grows with each call."""

    def __init__(
        self, model: PreTrainedModel, cache: Cache, recorder: Recorder, chunk: int
    ) -> None:
        self._model, self._cache, self._recorder, self._chunk = model, cache, recorder, chunk
        self._extra: dict[str, Any] = {}
        if "logits_to_keep" in inspect.signature(model.forward).parameters:
            self._extra["logits_to_keep"] = 1  # logits of all prompt tokens would not fit

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens (1, n) -> logits (1, vocabulary). Raises ModelError when they are not numbers."""
        for part in tokens.split(self._chunk, dim=1):
            self._recorder.begin(part.shape[1])
            output = self._model(
                input_ids=part, past_key_values=self._cache, use_cache=True, **self._extra
            )
        logits = output.logits[:, -1]
        if logits.isnan().any():
            raise ModelError(
                "The model produced logits that are not numbers: run it in another number format "
                "(dtype float32 or bfloat16)."
            )
        return logits
