"""LagKV's scores: how an entry's channels stand within the range of a later partition."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kvpolicies.scores.base import Score, score
from kvpolicies.view import View


@score
@dataclass(frozen=True)
class LagRelative(Score):
    """LagKV: spread over channels after min-max normalising by the next partition.

    Entries before `view.open_from` (sinks, and what was compressed before) are not ranked, nor
    are the last complete partition and the remainder.
    """

    name = "lag_relative"
    idea = "An entry that stands out against the tokens that follow it carries information."
    after_prompt = False  # `per_partition` alone keeps the partitions it needs whole

    lag: int = 128

    def score(self, view: View) -> Tensor:
        key_part, value_part = self.parts(view)
        return key_part + value_part

    def parts(self, view: View) -> tuple[Tensor, Tensor]:
        """What keys and values contribute to the score; each float32 (heads, n), NaN likewise."""
        first, length = view.open_from, len(view.entries)
        partitions = (length - first) // self.lag
        both = []
        for states in (view.entries.keys, view.entries.values):
            part = states.new_full((view.heads, length), float("nan"), dtype=torch.float32)
            if partitions >= 2:
                whole = states[:, first : first + partitions * self.lag].float()
                value = self._token_value(whole.reshape(view.heads, partitions, self.lag, -1))
                ranked = slice(first, first + (partitions - 1) * self.lag)
                part[:, ranked] = value.softmax(-1).reshape(view.heads, -1)
            both.append(part)
        return both[0], both[1]

    def _token_value(self, parts: Tensor) -> Tensor:
        """(heads, partitions, lag, d) -> (heads, partitions - 1, lag)."""
        return channel_spread(parts[:, :-1], reference=parts[:, 1:])


@score
@dataclass(frozen=True)
class LocalRelative(LagRelative):
    """LagKV's variant whose reference is the partition itself."""

    name = "local_relative"
    idea = "LagKV without the lag: the partition is its own reference."

    def _token_value(self, parts: Tensor) -> Tensor:
        return channel_spread(parts[:, :-1], reference=parts[:, :-1])


def channel_spread(tokens: Tensor, reference: Tensor) -> Tensor:
    """Unbiased standard deviation over channels of (x − min)/(max − min), Eqs. 2-7.

    Minimum and maximum are the reference's, per channel over its tokens; a channel without range
    contributes 0. (..., tokens, d) -> (..., tokens).
    """
    low, high = reference.amin(-2, keepdim=True), reference.amax(-2, keepdim=True)
    dim = tokens.shape[-1]
    if dim == 1:
        return torch.zeros_like(tokens[..., 0])
    width = high - low
    scaled = (tokens - low).div_(width.masked_fill_(width == 0, math.inf))
    centred = scaled.sub_(scaled.mean(-1, keepdim=True))  # several times faster than .std
    return torch.linalg.vector_norm(centred, dim=-1) / math.sqrt(dim - 1)
