"""One prompt read once: the held caches that all policies and sizes of a study are forked from.

What several policies or sizes need beside the prompt (a second reading, a lookahead, statistics of
the whole prompt's attention, a policy's scores, which its size does not change) is worked out when
the first one asks and shared by the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvpolicies.cache import EvictingCache
from kvpolicies.entries import Entries
from kvpolicies.errors import PolicyError
from kvpolicies.model_facts import output_norms
from kvpolicies.passes import feed, look_ahead, read_again
from kvpolicies.policy import Policy, build
from kvpolicies.view import Extras

Result = TypeVar("Result")


@dataclass
class Compressed:
    """A cache compressed by one policy, ready to answer. Times in milliseconds."""

    cache: EvictingCache
    logits: Tensor  # float32 (vocabulary,), of the first generated token
    prefill_ms: float
    lookahead_ms: float
    score_ms: float
    held_bytes: int  # right after compression


@dataclass
class _Base:
    """A prompt (or its context alone) held whole, and what was worked out of it."""

    cache: EvictingCache
    logits: Tensor
    milliseconds: float
    length: int
    statistics: list[dict[str, Tensor]] = field(default_factory=list)
    scores: dict[Any, list[dict[Any, Tensor]]] = field(default_factory=dict)  # by lookahead
    shared: dict[Any, tuple[Any, float]] = field(default_factory=dict)

    def once(self, name: Any, work: Callable[[], Result]) -> tuple[Result, float]:
        """A result and the milliseconds it took, whoever asked first."""
        if name not in self.shared:
            result, spent = timed(work)
            self.shared[name] = result, spent
        return self.shared[name]


class Bases:
    """The held caches of one prompt (1, P), whose first `context` tokens are its context.

    with torch.inference_mode():
        bases = Bases(model, ids, context, ends, chunk)
        compressed = bases.compress(policy, response_length)

    Where a policy compresses before the question is read, the context is read first and the
    question after it, once for both (`split`); otherwise the prompt goes through the model in
    `chunk`s. Without `share` every policy works its statistics out anew, so that its time is its
    own; the further passes are shared all the same and each is told the time they took.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        ids: Tensor,
        context: int,
        ends: set[int],
        *,
        split: bool,
        chunk: int,
        share: bool = True,
    ) -> None:
        self.model, self.ids, self.context, self.ends = model, ids, context, ends
        self.chunk, self.share = chunk, share
        length = ids.shape[1]
        cache = EvictingCache(build("full"), model, hold=True, context_length=context)
        first = context if split and 0 < context < length else length
        logits, spent = timed(lambda: self._feed(cache, ids[:, :first]))
        read = self._base(cache, logits, spent, first)
        self._bases = {("prompt", 1): read, ("context", 1): read}
        if first < length:
            whole = cache.fork()
            logits, more = timed(lambda: self._feed(whole, ids[:, first:]))
            self._bases["prompt", 1] = self._base(whole, logits, spent + more, length)

    def compress(self, policy: Policy, response_length: int) -> Compressed:
        """Fork, compress and read the question where that comes after. Raises `PolicyError`."""
        if "future" in policy.needs:
            raise PolicyError(f"{policy.title} knows the future: it exists in replay only")
        if policy.scope == "context" and self.context < 1:
            raise PolicyError("scope='context' needs a context, and this prompt has none")
        before = compresses_first(policy)
        base = self._of("context" if before else "prompt", policy)
        if "rotary" in policy.needs or policy.positions == "cache":
            ahead = int(policy.options["n_future"] or 0) if "rotary" in policy.needs else 0
            base.cache.rotary(self.ids.shape[1] + max(ahead, response_length))
        cache = base.cache.fork()
        cache.response_length = response_length
        cache.roomy = self.share
        cache.adopt(policy)
        extras, passes_ms = self._extras(base, policy)
        _, score_ms = timed(lambda: cache.compress(extras))
        held, logits, prefill_ms = cache.bytes, base.logits, base.milliseconds
        if base.length < self.ids.shape[1]:
            logits, spent = timed(lambda: self._feed(cache, self.ids[:, base.length :]))
            prefill_ms += spent
        return Compressed(cache, logits, prefill_ms, passes_ms, score_ms, held)

    def _feed(self, cache: EvictingCache, ids: Tensor) -> Tensor:
        for part in ids.split(self.chunk, dim=1):
            logits = feed(self.model, cache, part)
        return logits

    def _base(self, cache: EvictingCache, logits: Tensor, spent: float, length: int) -> _Base:
        return _Base(cache, logits, spent, length, [{} for _ in cache.own_layers])

    def _of(self, span: str, policy: Policy) -> _Base:
        """The base of a policy; one keep-set per query head repeats what a group shares."""
        repeat = 1
        if policy.granularity == "query_head":
            first = self._bases[span, 1].cache
            repeat = first.query_heads // first.kv_heads
        if (span, repeat) not in self._bases:
            base = self._bases[span, 1]
            cache = base.cache.fork()
            cache.repeat = repeat
            for layer in cache.own_layers:
                assert layer.entries is not None
                keys, values, positions = (
                    states.repeat_interleave(repeat, 0)
                    for states in (
                        layer.entries.keys,
                        layer.entries.values,
                        layer.entries.positions,
                    )
                )
                layer.entries = Entries(keys, values, positions)
            self._bases[span, repeat] = self._base(
                cache, base.logits, base.milliseconds, base.length
            )
        return self._bases[span, repeat]

    def _extras(self, base: _Base, policy: Policy) -> tuple[list[Extras], float]:
        """What the policy needs beside the prompt, per layer, and the time it took once."""
        layers = base.cache.own_layers
        extras = [Extras() for _ in layers]
        draft = _draft(policy) if "lookahead" in policy.needs else None
        if self.share:
            scores = base.scores.setdefault(draft, [{} for _ in layers])
            for extra, held, scored in zip(extras, base.statistics, scores, strict=True):
                extra.statistics, extra.scores = held, scored
        total = 0.0
        if draft is not None:
            queries, spent = self._lookahead(base, policy, draft)
            total += spent
            for layer, extra in zip(layers, extras, strict=True):
                extra.lookahead = queries[layer.index]
        if "second_reading" in policy.needs:
            context = self.ids[:, : self.context]
            (queries, keys), spent = base.once(
                "second reading",
                lambda: read_again(self.model, base.cache, context, chunk_length=self.chunk),
            )
            total += spent
            for layer, extra in zip(layers, extras, strict=True):
                extra.second_queries = queries[layer.index]
                extra.second_keys = keys[layer.index]
        if "output_norms" in policy.needs:
            norms, spent = base.once("output norms", lambda: self._norms(base.cache))
            total += spent
            for extra, one in zip(extras, norms, strict=True):
                extra.output_norms = one
        return extras, total

    def _lookahead(self, base: _Base, policy: Policy, draft: _Draft) -> tuple[list[Tensor], float]:
        small = build(draft.policy, granularity=policy.granularity, **dict([draft.size]))

        def drafted() -> list[Tensor]:
            cache = base.cache.fork()
            cache.response_length = draft.steps
            return look_ahead(self.model, cache, base.logits, small, draft.steps, self.ends)[1]

        return base.once(draft, drafted)

    def _norms(self, cache: EvictingCache) -> list[Tensor]:
        norms = []
        for layer in cache.own_layers:
            assert layer.entries is not None
            norms.append(output_norms(self.model, layer.index, layer.entries.values))
        return norms


class _Draft(NamedTuple):
    """Which lookahead a policy scores with: of another one its scores are others."""

    policy: str
    steps: int
    size: tuple[str, Any]


def _draft(policy: Policy) -> _Draft:
    options = policy.options
    budget = options["lookahead_budget"] or policy.budget
    size = ("budget", budget) if budget else ("compression_ratio", policy.compression_ratio)
    return _Draft(options["lookahead_policy"], options["lookahead_steps"], size)


def compresses_first(policy: Policy) -> bool:
    """Whether the context is compressed before the question is read: not where the score looks
    at the question."""
    looks_ahead = policy.score.sees_question and "second_reading" not in policy.needs
    return policy.scope == "context" and not looks_ahead


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """A result and the milliseconds it took."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    result = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result, 1000 * (time.perf_counter() - began)
