"""Generate under any policy, those included that must run the model more than once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from kvpolicies.cache import EvictingCache
from kvpolicies.errors import PolicyError
from kvpolicies.model_facts import output_norms
from kvpolicies.passes import feed, look_ahead, read_again
from kvpolicies.plan import ranked_length
from kvpolicies.policy import Policy, build
from kvpolicies.result import Result
from kvpolicies.view import Extras


@dataclass
class Generation:
    """A response under a policy.

    tokens: generated ids; logits: float32 (T, vocabulary), row t − 1 predicts token t (of forced
    text, row T predicts what would follow it). `seconds` by stage (prefill, lookahead,
    second_reading, compress, decode), `step_ms` and `cache_bytes` per decoded token, the latter
    after it; `prefill_bytes` before and `compressed_bytes` after compression. `simulated` says
    that the bytes are computed because heads hold unequal numbers.
    """

    policy: Policy
    prompt_length: int
    tokens: list[int] = field(default_factory=list)
    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    seconds: dict[str, float] = field(default_factory=dict)
    step_ms: list[float] = field(default_factory=list)
    cache_bytes: list[int] = field(default_factory=list)
    prefill_bytes: int = 0
    compressed_bytes: int = 0
    simulated: bool = False
    finish_reason: str = "length"
    lookahead_tokens: list[int] = field(default_factory=list)
    cache: EvictingCache | None = None

    @property
    def result(self) -> Result:
        """What was kept, as replay accounts for it."""
        assert self.cache is not None
        return self.cache.result(self.prompt_length, self.prompt_length + len(self.tokens))

    @property
    def peak_bytes(self) -> int:
        return max([self.prefill_bytes, *self.cache_bytes])


def generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    policy: Policy,
    context_length: int | None = None,
    max_new_tokens: int = 100,
    *,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    eos_token_id: int | Sequence[int] | None = None,
    forced: Sequence[int] | None = None,
    choose: Callable[[Tensor], int] | None = None,
    on_token: Callable[[int, int], None] | None = None,
) -> Generation:
    """Prefill, prepare, evict, and decode from the prefill's own logits.

    input_ids: (1, P) or (P,). `context_length` splits the prompt into context and question; with
    `scope="context"` the context is compressed before the question is read, unless the policy's
    score looks at what comes after it. `forced` feeds given tokens instead of generating;
    `choose` picks each token from its logits (vocabulary,) instead of the sampling options. Tokens
    stop at `eos_token_id` (default: the model's own; the end token is part of the response).
    `on_token(step, token)` is called for each token and may raise to stop.
    """
    prompt = torch.as_tensor(input_ids, device=model.device).reshape(1, -1)
    if prompt.shape[1] == 0:
        raise PolicyError("the prompt is empty; give at least one token")
    wanted = max_new_tokens if forced is None else len(forced)
    runner = _Runner(model, prompt, policy, context_length, wanted, _ends(model, eos_token_id))
    with torch.inference_mode():
        logits = runner.prefill()
        if choose is None:
            choose = _sampler(do_sample, temperature, top_p, top_k, seed, model.device)
        return runner.decode(logits, choose, forced, on_token)


def fork_and_ask(
    model: PreTrainedModel, cache: EvictingCache, question: Tensor, max_new_tokens: int = 100
) -> list[int]:
    """Greedy answer to one more question on a copy of a compressed cache; `cache` is unchanged."""
    own = cache.fork()
    ids = torch.as_tensor(question, device=model.device).reshape(1, -1)
    ends = _ends(model, None)
    answer: list[int] = []
    with torch.inference_mode():
        logits = feed(model, own, ids)
        while len(answer) < max_new_tokens:
            answer.append(int(logits.argmax()))
            if answer[-1] in ends:
                break
            logits = feed(model, own, ids.new_tensor([[answer[-1]]]))
    return answer


class _Runner:
    def __init__(
        self,
        model: PreTrainedModel,
        prompt: Tensor,
        policy: Policy,
        context_length: int | None,
        response_length: int,
        ends: set[int],
    ) -> None:
        length = prompt.shape[1]
        context = length if context_length is None else context_length
        if not 0 <= context <= length:
            raise PolicyError(
                f"context_length is {context}, outside 0 to the prompt's {length} tokens"
            )
        ranked_length(policy, length, context)
        policy.check_live()
        self.model, self.prompt, self.policy, self.context = model, prompt, policy, context
        self.ends = ends
        self.extra = {"lookahead", "second_reading"} & set(policy.needs)
        self.cache = EvictingCache(
            policy,
            model,
            context_length=context,
            response_length=response_length,
            hold=bool(self.extra) or "output_norms" in policy.needs,
        )
        self.out = Generation(policy, length, cache=self.cache)

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        start = self._now()
        try:
            yield
        finally:
            spent = self._now() - start
            self.out.seconds[name] = self.out.seconds.get(name, 0.0) + spent

    def _now(self) -> float:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def prefill(self) -> Tensor:
        """Read the prompt and compress it; the newest logits."""
        before_question = self.policy.scope == "context" and not self._sees_question
        first = self.context if before_question else self.prompt.shape[1]
        with self._stage("prefill"):
            logits = feed(self.model, self.cache, self.prompt[:, :first])
        self.out.prefill_bytes = self._full_bytes(first)
        if self.cache.hold:
            extras = self._extras(logits)
            with self._stage("compress"):
                self.cache.compress(extras)
        self.out.compressed_bytes = self.cache.bytes
        if first < self.prompt.shape[1]:
            with self._stage("question"):
                logits = feed(self.model, self.cache, self.prompt[:, first:])
        self.out.simulated = self.cache.simulated
        return logits

    @property
    def _sees_question(self) -> bool:
        """Whether compressing needs more of the prompt than its context."""
        return self.policy.score.sees_question and "second_reading" not in self.policy.needs

    def _full_bytes(self, length: int) -> int:
        cache = self.cache
        size = torch.finfo(self.model.dtype).bits // 8
        config = self.model.config.get_text_config(decoder=True)
        dim = getattr(config, "head_dim", None) or config.hidden_size // cache.query_heads
        return 2 * len(cache.layers) * cache.kv_heads * length * dim * size

    def _extras(self, logits: Tensor) -> list[Extras]:
        cache = self.cache
        extras = [Extras() for _ in cache.own_layers]
        if "lookahead" in self.extra:
            options = self.policy.options
            budget = options["lookahead_budget"] or self.policy.budget
            ratio = self.policy.compression_ratio
            size = {"budget": budget} if budget else {"compression_ratio": ratio}
            small = build(options["lookahead_policy"], granularity=self.policy.granularity, **size)
            with self._stage("lookahead"):
                self.out.lookahead_tokens, queries = look_ahead(
                    self.model, cache, logits, small, options["lookahead_steps"], self.ends
                )
            for layer, extra in zip(cache.own_layers, extras, strict=True):
                extra.lookahead = queries[layer.index]
        if "second_reading" in self.extra:
            with self._stage("second_reading"):
                queries, keys = read_again(self.model, cache, self.prompt[:, : self.context])
            for layer, extra in zip(cache.own_layers, extras, strict=True):
                extra.second_queries = queries[layer.index]
                extra.second_keys = keys[layer.index]
        if "output_norms" in self.policy.needs:
            for layer, extra in zip(cache.own_layers, extras, strict=True):
                assert layer.entries is not None
                extra.output_norms = output_norms(self.model, layer.index, layer.entries.values)
        return extras

    def decode(
        self,
        logits: Tensor,
        choose: Callable[[Tensor], int],
        forced: Sequence[int] | None,
        on_token: Callable[[int, int], None] | None,
    ) -> Generation:
        out, rows = self.out, [logits.cpu()]
        count = self.cache.response_length or 0
        for step in range(1, count + 1):
            token = choose(logits) if forced is None else int(forced[step - 1])
            out.tokens.append(token)
            if on_token is not None:
                on_token(step, token)
            if token in self.ends and forced is None:
                out.finish_reason = "stop"
                break
            if step == count and forced is None:
                break
            start = self._now()
            logits = feed(self.model, self.cache, self.prompt.new_tensor([[token]]))
            spent = self._now() - start
            rows.append(logits.cpu())
            out.step_ms.append(1000 * spent)
            out.cache_bytes.append(self.cache.bytes)
        out.seconds["decode"] = sum(out.step_ms) / 1000
        out.logits = torch.stack(rows[: len(out.tokens) + (forced is not None)])
        out.simulated = out.simulated or self.cache.simulated
        return out


def _ends(model: PreTrainedModel, given: int | Sequence[int] | None) -> set[int]:
    ends = model.generation_config.eos_token_id if given is None else given
    if ends is None:
        return set()
    return {ends} if isinstance(ends, int) else set(ends)


def _sampler(
    do_sample: bool,
    temperature: float,
    top_p: float,
    top_k: int,
    seed: int,
    device: torch.device,
) -> Callable[[Tensor], int]:
    """Greedy, or transformers' own warpers and a seeded draw."""
    if not do_sample:
        return lambda logits: int(logits.argmax())
    warpers = LogitsProcessorList()
    if temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(temperature))
    if top_k > 0:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p))
    generator = torch.Generator(device).manual_seed(seed)
    nothing = torch.empty((1, 0), dtype=torch.long, device=device)

    def draw(logits: Tensor) -> int:
        weights = warpers(nothing, logits[None]).softmax(-1)  # type: ignore[arg-type]
        return int(torch.multinomial(weights, 1, generator=generator))

    return draw
