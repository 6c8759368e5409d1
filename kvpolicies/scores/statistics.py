"""Scores that fit or compare states: expected attention and R-KV's redundancy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvpolicies.rotary import interleaved, rotate, rotation
from kvpolicies.scores.base import Score, pooled, score, unranked_after
from kvpolicies.view import View

ROW_BLOCK = 256  # keys compared with all others at once


@score
@dataclass(frozen=True)
class ExpectedAttention(Score):
    """Expected exp-logit under a Gaussian fit of future queries, times the value's norm.

    Queries are fitted before rotary embedding, without the sinks; the rotary is averaged over
    the next `n_future` positions.
    """

    name = "expected_attention"
    idea = "Queries are nearly Gaussian, so the attention of future ones has a closed form."
    needs = ("queries", "rotary")
    after_prompt = False

    n_future: int = 512
    sink: int = 4
    normalise: str = "all"

    def score(self, view: View) -> Tensor:
        mean, covariance = self._future_queries(view)
        keys = view.entries.keys.float()
        group = view.queries.shape[0] // view.heads
        mean = mean.view(view.heads, group, -1)
        covariance = covariance.view(view.heads, group, *covariance.shape[1:])
        logits = (mean @ keys.transpose(1, 2)) * view.scaling  # (kv_heads, group, n)
        spread = (keys[:, None] @ covariance).mul_(keys[:, None]).sum(-1)
        logits = logits + spread * (view.scaling**2 / 2)
        if self.normalise == "ranked":
            logits[:, :, : self.sink] = float("-inf")
        expected = logits.softmax(-1).mean(1)
        return expected * view.entries.values.float().norm(dim=-1)

    def _future_queries(self, view: View) -> tuple[Tensor, Tensor]:
        """Mean (query_heads, d) and covariance (query_heads, d, d) of the queries to come."""
        rotary = view.extras.rotary
        seen = view.seen
        if rotary is None or rotary[0].shape[0] < seen + self.n_future:
            view.extras.rotary = None
            view.need(
                "rotary",
                f"expected attention needs the rotary embedding of {seen + self.n_future} "
                "positions (cos and sin)",
            )
        assert rotary is not None
        cos, sin = rotary[0].float(), rotary[1].float()
        sink = min(self.sink, view.queries.shape[1] - 1)
        pairs = interleaved(cos)
        plain = rotate(view.queries[:, sink:].float(), cos[sink:seen], -sin[sink:seen], pairs)
        plain /= (cos[sink:seen] ** 2 + sin[sink:seen] ** 2).mean(-1, keepdim=True)
        mean = plain.mean(1)
        centred = plain.sub_(mean[:, None])
        covariance = centred.transpose(1, 2) @ centred / plain.shape[1]
        ahead = slice(seen, seen + self.n_future)
        turn = rotation(cos[ahead].mean(0), sin[ahead].mean(0), plain.shape[-1], pairs)
        return mean @ turn.T, turn @ covariance @ turn.T


@score
@dataclass(frozen=True)
class RedundancyAttention(Score):
    """R-KV: λ·A − (1 − λ)·R, attention of the last queries against similarity between keys."""

    name = "redundancy_attention"
    idea = "Reasoning repeats itself: keep what is attended to and not said again later."
    needs = ("queries",)
    keeps_window = True

    window: int = 8
    kernel: int = 7
    mix: float = 0.1
    similarity: float = 0.5

    @property
    def history(self) -> int:  # type: ignore[override]
        return self.window

    def score(self, view: View) -> Tensor:
        length = len(view.entries)
        outside = max(0, length - self.window)
        if outside == 0:
            return unranked_after(view.entries.keys[:, :0, 0].float(), length)
        dead = None if view.entries.alive is None else ~view.entries.alive
        logits = view.logits(view.queries[:, -self.window :])[:, :, :outside]
        logits = view.reduce(logits, "max")
        if dead is not None:
            logits = logits.masked_fill(dead[:, None, :outside], float("-inf"))
        attention = pooled(logits.softmax(-1).mean(1), self.kernel, "max")
        redundancy = torch.stack(
            [
                self._redundancy(keys, None if dead is None else dead[head])
                for head, keys in enumerate(view.entries.keys.float())
            ]
        )[:, :outside]
        return unranked_after(self.mix * attention - (1 - self.mix) * redundancy, length)

    def _redundancy(self, keys: Tensor, dead: Tensor | None) -> Tensor:
        """How much each key repeats the others, its newest copy excepted; (n, d) -> (n,)."""
        unit = torch.nn.functional.normalize(keys, dim=-1)
        if dead is not None:
            unit = unit.masked_fill(dead[:, None], 0.0)
        count = len(keys)
        places = torch.arange(1, count + 1, dtype=torch.float32, device=keys.device)
        total = torch.zeros(count, device=keys.device)
        for first in range(0, count, ROW_BLOCK):
            cosine = unit[first : first + ROW_BLOCK] @ unit.T
            rows = torch.arange(len(cosine), device=keys.device)
            cosine[rows, rows + first] = 0.0
            latest = ((cosine > self.similarity) * places).amax(1).long() - 1
            copied = latest >= 0
            cosine[rows[copied], latest[copied]] = 0.0
            total += cosine.sum(0)
        if dead is None:
            return (total / count).softmax(0)
        return (total / (~dead).sum()).masked_fill(dead, float("-inf")).softmax(0)
