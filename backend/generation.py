"""Choosing tokens: transformers' own logits processors around a loop that can stop anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from backend.spec import CaptureSpec


def stop_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that end a response: the checkpoint's, otherwise the tokenizer's end of text."""
    stated = getattr(model.generation_config, "eos_token_id", None)
    if stated is None:
        stated = tokenizer.eos_token_id
    if stated is None:
        return []
    return [int(token) for token in (stated if isinstance(stated, list) else [stated])]


def repetition_penalty(model: PreTrainedModel) -> float:
    """The checkpoint's own default, which `model.generate` applies too; 1 changes nothing."""
    return float(getattr(model.generation_config, "repetition_penalty", None) or 1.0)


class TokenChooser:
    """Chooses each next token: greedy, or sampled from its own seeded generator.

    Processors are transformers' own, in the order in which `model.generate` applies them.
    """

    def __init__(
        self, model: PreTrainedModel, spec: CaptureSpec, prompt: torch.Tensor, stop: list[int]
    ) -> None:
        device = prompt.device
        self._ids: Any = prompt  # (1, tokens so far)
        self._sample = spec.sample
        self._generator = torch.Generator(device=device).manual_seed(spec.seed)
        self._processors = LogitsProcessorList()
        if repetition_penalty(model) != 1.0:
            self._processors.append(RepetitionPenaltyLogitsProcessor(repetition_penalty(model)))
        if spec.min_new_tokens and stop:
            self._processors.append(
                MinNewTokensLengthLogitsProcessor(
                    prompt.shape[1], spec.min_new_tokens, stop, device=str(device)
                )
            )
        if spec.sample:
            if spec.temperature != 1.0:
                self._processors.append(TemperatureLogitsWarper(spec.temperature))
            if spec.top_k_sampling:
                self._processors.append(TopKLogitsWarper(spec.top_k_sampling))
            if spec.top_p < 1.0:
                self._processors.append(TopPLogitsWarper(spec.top_p))

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """The next token (1, 1) from the last position's logits (1, vocabulary)."""
        scores = self._processors(self._ids, logits.float())
        if self._sample:
            token = torch.multinomial(scores.softmax(-1), 1, generator=self._generator)
        else:
            token = scores.argmax(-1, keepdim=True)
        self._ids = torch.cat([self._ids, token], dim=1)
        return token


def generate(
    forward: Callable[[torch.Tensor], torch.Tensor],
    prompt: torch.Tensor,
    choose: TokenChooser,
    *,
    max_new_tokens: int,
    stop: list[int],
    on_token: Callable[[int], None],
) -> str:
    """Feed the prompt, then each chosen token, the last one included.

    `forward` takes tokens (1, n) and returns the last position's logits (1, vocabulary);
    `on_token` hears each token before it is fed and may raise to stop. Returns the finish reason:
    `stop` (a token of `stop` was chosen) or `length`.
    """
    logits = forward(prompt)
    for _ in range(max_new_tokens):
        chosen = choose(logits)
        token = int(chosen)
        on_token(token)
        logits = forward(chosen)
        if token in stop:
            return "stop"
    return "length"
