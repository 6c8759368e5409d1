"""The cache that evicts inside a model: transformers' own extension point, steered by a policy."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicSlidingWindowLayer

from kvpolicies.attention import ATTENTION, use_our_attention
from kvpolicies.cache_layer import EvictingLayer
from kvpolicies.decisions import Decision
from kvpolicies.entries import Entries
from kvpolicies.errors import PolicyError
from kvpolicies.model_facts import rotary_of, sliding_windows
from kvpolicies.plan import Plan, Shape
from kvpolicies.policy import Policy
from kvpolicies.prefill import finish_prefill
from kvpolicies.replayer import touched_layers
from kvpolicies.result import Result
from kvpolicies.rotary import interleaved
from kvpolicies.run import LayerRun
from kvpolicies.view import Extras


class EvictingCache(Cache):
    """A KV cache that evicts what its policy says, for `model.generate(past_key_values=…)`.

    The model is switched to KVScope's attention function and stays on it; without an evicting
    cache that is plain SDPA. Layers with sliding-window attention keep transformers' own layer.
    `context_length` marks the prompt's context where the policy ranks that only. With `hold` the
    prompt is kept whole until `compress` is called: policies that need more than the prompt
    (LAQ, KVzip, KVCompose) are run that way by `kvpolicies.generate`. With `detail` every decision
    is kept with all its scores, which takes memory on long runs.

        cache = EvictingCache(build("snapkv", budget=512), model)
        model.generate(input_ids, past_key_values=cache, max_new_tokens=100)
    """

    def __init__(
        self,
        policy: Policy,
        model: PreTrainedModel,
        *,
        context_length: int | None = None,
        response_length: int | None = None,
        hold: bool = False,
        detail: bool = False,
    ) -> None:
        use_our_attention(model)
        needs = {"lookahead", "second_reading", "future"} & set(policy.needs)
        if needs and not hold:
            hint = "it exists in replay only" if "future" in needs else "use kvpolicies.generate"
            raise PolicyError(
                f"{policy.title} needs {' and '.join(sorted(needs))}, which a cache alone does not "
                f"have; {hint}"
            )
        self.context_length = context_length
        self.response_length = response_length
        self.hold = self._holds = hold
        self.model = model
        config = model.config.get_text_config(decoder=True)
        self.query_heads = config.num_attention_heads
        self.kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self.repeat = self.query_heads // self.kv_heads if policy.granularity == "query_head" else 1
        windows = sliding_windows(config)
        full = [index for index, window in enumerate(windows) if window is None]
        self.longest = None if full else min(window for window in windows if window is not None)
        self.touched = full or list(range(len(windows)))
        self.plan: Plan | None = None
        self.detail = detail
        self.roomy = False  # append in place where nothing leaves: faster, but more than `bytes`
        self.decisions: list[Decision] = []
        self._gone: list[tuple[int, int, Tensor, Tensor]] = []  # layer, step, heads, positions
        self._uncounted: list[Decision] = []  # at the end of the prompt, when time is short
        self._rests: dict[int, tuple[Tensor, Tensor]] = {}  # questions that wait for compression
        self._rotary: tuple[Tensor, Tensor] | None = None
        self.turns_neighbours = False  # how the model's rotary embedding pairs channels
        layers: list[Any] = []
        for index, window in enumerate(windows):
            if index in self.touched:
                layers.append(EvictingLayer(self, index, self.touched.index(index)))
            else:
                assert window is not None
                layers.append(DynamicSlidingWindowLayer(window))
        super().__init__(layers=layers)
        self.adopt(policy)

    def adopt(self, policy: Policy) -> None:
        """Follow this policy from here on.

        What it must know of the rotary embedding is found out now, by running the model.
        """
        self.policy = policy
        if "rotary" in policy.needs or policy.positions == "cache":
            self.rotary(1)

    @property
    def own_layers(self) -> list[EvictingLayer]:
        """The layers that the policy may touch."""
        return [layer for layer in self.layers if isinstance(layer, EvictingLayer)]

    @property
    def is_croppable(self) -> bool:
        return False

    @property
    def seen(self) -> int:
        """Tokens the model has been fed."""
        return self.own_layers[0].seen

    def check_model(self) -> None:
        """Raise when the model left our attention, without which nothing would be masked."""
        config = self.model.config
        if config._attn_implementation != ATTENTION:
            raise PolicyError(
                f"the model's attention was switched to {config._attn_implementation!r} after this "
                "cache was made; make a new EvictingCache"
            )

    def check_length(self, length: int) -> None:
        """Raise when a model that has only sliding windows is run beyond them."""
        if self.longest is not None:
            touched_layers([self.longest], length)

    def rotary(self, length: int) -> tuple[Tensor, Tensor]:
        """The model's cos and sin of the first `length` positions; (length, d)."""
        held = self._rotary
        if held is None or held[0].shape[0] < length:
            held = rotary_of(self.model, 2 * length)
            if held is None:
                raise PolicyError(
                    f"{type(self.model).__name__} has no rotary embedding that KVScope can read, "
                    "the same in all layers with full attention, so positions inside the cache and "
                    "expected attention are not possible"
                )
            self._rotary, self.turns_neighbours = held, interleaved(held[0])
        return held

    # --- end of prefill -----------------------------------------------------------------------

    def prefilled(self, layer: EvictingLayer) -> None:
        """One layer has cached the prompt: compress it, unless everything waits."""
        if self.plan is None:
            self.plan = self._plan(layer.seen)
        if self.hold:
            return
        self._begin(layer, Extras())
        if not self.plan.together:
            self._finish(layer)
        elif layer.number == len(self.touched) - 1:
            self._finish_together()

    def compress(self, extras: list[Extras] | None = None) -> None:
        """End the prompt of a held cache; `extras` per layer that the policy may touch."""
        if not self.hold:
            return
        self.hold = False
        layers = self.own_layers
        self.plan = self._plan(layers[0].seen)
        for layer, extra in zip(layers, extras or [Extras() for _ in layers], strict=True):
            self._begin(layer, extra)
            if not self.plan.together:
                self._finish(layer)
        if self.plan.together:
            self._finish_together()

    def _plan(self, prompt_length: int) -> Plan:
        ranked = prompt_length
        if self.policy.scope == "context" and self.context_length is not None:
            ranked = min(ranked, self.context_length)
        shape = Shape(
            len(self.touched),
            self.kv_heads,
            self.query_heads,
            prompt_length,
            ranked,
            self.response_length,
        )
        return Plan(self.policy, shape)

    def _begin(self, layer: EvictingLayer, extras: Extras) -> None:
        """Show a layer's prompt to the policy; a score blind to the question sees the context."""
        assert self.plan is not None and layer.entries is not None and layer.queries is not None
        run = LayerRun(self.plan, layer.number, layer.index, layer.scaling, layer.softcap)
        if "rotary" in self.policy.needs:
            extras.rotary = self.rotary(layer.seen + int(self.policy.options["n_future"]))
        entries, queries = layer.entries, layer.queries
        ranked = self.plan.shape.ranked
        rest = None
        if ranked < layer.seen and not self.policy.score.sees_question:
            rest = entries.keys[:, ranked:], entries.values[:, ranked:]
            positions = entries.positions[:, :ranked]
            entries = Entries(entries.keys[:, :ranked], entries.values[:, :ranked], positions)
            queries = queries[:, :ranked]
        run.begin(entries, queries, extras)
        layer.run, layer.entries = run, entries
        layer.queries = layer.queries[:, -self.policy.score.history :].clone()
        if rest is not None:
            self._rests[layer.index] = rest

    def _finish(self, layer: EvictingLayer) -> None:
        assert layer.run is not None
        self.record(layer.run.finish_prefill())
        self._append_rest(layer)

    def _finish_together(self) -> None:
        runs = [layer.run for layer in self.own_layers if layer.run is not None]
        for decision in finish_prefill(runs):
            self.record(decision)
        for layer in self.own_layers:
            self._append_rest(layer)

    def _append_rest(self, layer: EvictingLayer) -> None:
        assert self.plan is not None and layer.entries is not None
        rest = self._rests.pop(layer.index, None)
        if rest is not None:
            layer.entries.append(*rest, self.plan.shape.ranked)

    def record(self, decision: Decision | None) -> None:
        """Write down what left; the whole decision only with `detail`."""
        if decision is not None:
            self._uncounted.append(decision)
            if decision.step > 0:
                self._count()
            if self.detail:
                self.decisions.append(decision)

    def _count(self) -> None:
        for decision in self._uncounted:
            self._gone.append((decision.layer, decision.step, *decision.gone()))
        self._uncounted = []

    # --- what came of it ----------------------------------------------------------------------

    @property
    def simulated(self) -> bool:
        """Whether heads hold unequal numbers: masked, with computed instead of measured bytes."""
        return any(
            layer.entries is not None and layer.entries.alive is not None
            for layer in self.own_layers
        )

    @property
    def bytes(self) -> int:
        """Bytes of the cached keys and values, all layers."""
        total = 0
        for layer in self.layers:
            if isinstance(layer, EvictingLayer):
                total += layer.bytes
            elif isinstance(layer, DynamicSlidingWindowLayer) and layer.keys is not None:
                assert layer.values is not None
                total += layer.keys.nbytes + layer.values.nbytes
        return total

    def kept(self, layer: int) -> list[list[int]]:
        """Positions cached in one of the model's layers, per head, in order."""
        own = self.layers[layer]
        entries = own.entries if isinstance(own, EvictingLayer) else None
        if entries is None:
            return []
        alive = entries.alive
        return [
            (positions if alive is None else positions[alive[head]]).tolist()
            for head, positions in enumerate(entries.positions)
        ]

    def result(self, prompt_length: int, length: int) -> Result:
        """The same account of keep-sets and decisions as replay gives, over `length` positions."""
        steps = length - prompt_length
        heads = self.kv_heads * self.repeat
        evicted_at = torch.full((len(self.layers), heads, length), steps + 1, dtype=torch.int32)
        exempt = torch.ones(len(self.layers), dtype=torch.bool)
        exempt[self.touched] = False
        budget = None if self.plan is None else self.plan.budget
        self._count()
        for layer, step, head, positions in self._gone:
            evicted_at[layer, head, positions] = step
        return Result(self.policy, evicted_at, exempt, self.decisions, budget, prompt_length)

    def fork(self) -> EvictingCache:
        """An independent copy to continue from here more than once; shares states, not the log."""
        other = copy.copy(self)
        other.decisions, other._gone, other._rests = [*self.decisions], [*self._gone], {}
        other._uncounted = [*self._uncounted]
        other.layers = [
            layer.fork(other) if isinstance(layer, EvictingLayer) else copy.deepcopy(layer)
            for layer in self.layers
        ]
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> EvictingCache:
        return self.fork()

    def reset(self) -> None:
        """Forget the sequence: the cache is as new."""
        super().reset()
        self.plan, self.hold = None, self._holds
        self.decisions, self._gone, self._uncounted = [], [], []
