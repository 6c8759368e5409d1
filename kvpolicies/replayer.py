"""Replay: a policy walked over a recorded run, without a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvpolicies.attention import BLOCK_CELLS, attention_rows, scaled_logits
from kvpolicies.entries import RecordedEntries
from kvpolicies.errors import PolicyError
from kvpolicies.plan import Plan, Shape, ranked_length
from kvpolicies.prefill import finish_prefill
from kvpolicies.result import Result
from kvpolicies.run import LayerRun
from kvpolicies.view import Extras

KEPT_CELLS = 1 << 24  # logits of a short trace that the next replay finds again: 64 MB

if TYPE_CHECKING:
    from kvpolicies.policy import Policy
    from kvpolicies.trace import Trace


def replay(
    policy: Policy,
    trace: Trace,
    *,
    detail: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Walk a policy over a trace as if its response were forced.

    Evictions change which entries later attention and scores see; the states themselves stay
    those of the full cache. Without `detail` no list of decisions is kept, whose size grows with
    layers x steps x budget; scores, ranks and reasons of each entry's last one are.
    `progress(done, total)` counts (layer, step) pairs, step 0 included, and may raise to stop.
    Raises `MissingInput` for what the policy needs and the trace lacks, and `PolicyError` for
    impossible parameters.
    """
    with torch.inference_mode():
        return _Replay(policy, trace, progress or (lambda done, total: None)).run(detail)


class _Replay:
    def __init__(self, policy: Policy, trace: Trace, progress: Callable[[int, int], None]) -> None:
        self.policy, self.trace = policy, trace
        self.progress, self.done = progress, 0
        self.by_query = policy.granularity == "query_head"
        self.touched = touched_layers(
            [trace.window_of(layer) for layer in range(trace.layers)], trace.length
        )
        assert trace.context_length is not None
        ranked = ranked_length(policy, trace.prompt_length, trace.context_length)
        self.plan = Plan(
            policy,
            Shape(
                max(1, len(self.touched)),
                trace.kv_heads,
                trace.query_heads,
                trace.prompt_length,
                ranked,
                trace.response_length,
            ),
        )
        # a score that has not seen the question compresses the context alone
        self.prefilled = trace.prompt_length if policy.score.sees_question else ranked

    def run(self, detail: bool) -> Result:
        trace, heads, steps = self.trace, self.plan.heads, self.trace.response_length
        evicted_at = torch.full((trace.layers, heads, trace.length), steps + 1, dtype=torch.int32)
        exempt = torch.ones(trace.layers, dtype=torch.bool)
        exempt[self.touched] = False
        budget, prompt = self.plan.budget, trace.prompt_length
        result = Result(self.policy, evicted_at, exempt, [], budget, prompt, detail=detail)
        runs = []
        for number, layer in enumerate(self.touched):
            run = self._begin(number, layer)
            runs.append(run)
            if not self.plan.together:
                result.record(run.finish_prefill())
                self._decode(result, run)
        if self.plan.together:
            for decision in finish_prefill(runs):
                result.record(decision)
            for run in runs:
                self._decode(result, run)
        return result

    def _begin(self, number: int, layer: int) -> LayerRun:
        trace = self.trace
        self._advance(1)
        run = LayerRun(self.plan, number, layer, trace.scaling_of(layer), trace.softcap)
        entries = RecordedEntries(*self._states(layer), self.prefilled)
        queries = trace.queries[layer][:, : self.prefilled]
        run.begin(entries, queries, self._extras(layer))
        return run

    def _states(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values, one per keep-set: (heads, P + T, d)."""
        keys, values = self.trace.keys[layer], self.trace.values[layer]
        if self.by_query:
            group = self.trace.group
            return keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
        return keys, values

    def _extras(self, layer: int) -> Extras:
        trace = self.trace
        second = trace.second_reading
        extras = Extras(
            lookahead=None if trace.lookahead is None else trace.lookahead[layer],
            output_norms=None if trace.output_norms is None else trace.output_norms[layer],
            rotary=trace.rotary,
            prompt_attention=(
                None if trace.prompt_attention is None else trace.prompt_attention[layer]
            ),
            statistics=trace.statistics.setdefault(layer, {}),
        )
        if second is not None:
            extras.second_queries, extras.second_keys = second[0][layer], second[1][layer]
            if self.by_query:
                extras.second_keys = extras.second_keys.repeat_interleave(trace.group, 0)
        if "future" in self.policy.score.needs:
            extras.future = self._future(layer)
        return extras

    def _future(self, layer: int) -> Tensor:
        """The full cache's attention of all steps; float32 (heads, T, P + T)."""
        trace = self.trace
        blocks = []
        size = max(1, BLOCK_CELLS // (trace.query_heads * trace.length))
        for start in range(trace.prompt_length, trace.length, size):
            stop = min(trace.length, start + size)
            rows = attention_rows(
                trace.queries[layer][:, start:stop],
                trace.keys[layer],
                torch.arange(start, stop),
                scaling=trace.scaling_of(layer),
                softcap=trace.softcap,
            )
            grouped = rows.view(self.plan.heads, -1, *rows.shape[1:])
            how = self.policy.group_reduce
            blocks.append(
                grouped.amax(1)
                if how == "max"
                else grouped.sum(1)
                if how == "sum"
                else grouped.mean(1)
            )
        if not blocks:
            return trace.keys[layer].new_zeros((self.plan.heads, 0, trace.length)).float()
        return torch.cat(blocks, 1)

    def _decode(self, result: Result, run: LayerRun) -> None:
        trace, layer = self.trace, run.model_layer
        if run.still:
            self._advance(trace.response_length)
            return
        if self._selects:
            if result.visible is None:
                result.visible = visible_by_default(trace)
            self._see(result, run, None if self._chooses else run.visible(trace.queries[layer], 0))
        history = self.policy.score.history
        for position, logits in self._steps(run):
            self._advance(1)
            stop = position + 1
            start = max(0, stop - history)
            queries = trace.queries[layer][:, start:stop]
            run.entries.append(
                trace.keys[layer][:, position:stop], trace.values[layer][:, position:stop], position
            )
            attention = None if logits is None else self._attend(run, logits)
            run.observe(queries, start, attention)
            if result.visible is not None:
                self._see(result, run, run.visible(queries, start))
            result.record(run.finish_step(queries, start, attention))

    def _advance(self, steps: int) -> None:
        self.progress(self.done, len(self.touched) * (1 + self.trace.response_length))
        self.done += steps

    @property
    def _chooses(self) -> bool:
        return self.plan.schedule.name == "select"

    @property
    def _selects(self) -> bool:
        return self._chooses or (
            self.plan.schedule.name == "after_prefill_sliding"
            and self.policy.options["view"] == "query_head"
        )

    def _see(self, result: Result, run: LayerRun, chosen: Tensor | None) -> None:
        """Write down what each query head attends to of the entries there are."""
        assert result.visible is not None
        positions = run.entries.positions.repeat_interleave(
            self.trace.query_heads // run.entries.heads, 0
        )
        alive = run.entries.alive
        if chosen is None:
            chosen = torch.ones_like(positions, dtype=torch.bool)
            if alive is not None:
                chosen = chosen & alive.repeat_interleave(self.plan.group, 0)
        row = result.visible[run.model_layer, :, run.step]
        row.zero_()
        chosen, positions = chosen.cpu(), positions.cpu()
        heads = torch.arange(len(positions))[:, None].expand_as(chosen)[chosen]
        row[heads, positions[chosen]] = True

    def _steps(self, run: LayerRun) -> Iterator[tuple[int, Tensor | None]]:
        """Positions of the response, with logits (query_heads, P + T) where they are needed."""
        trace, layer = self.trace, run.model_layer
        if not run.watches:
            for position in range(trace.prompt_length, trace.length):
                yield position, None
            return
        width = trace.query_heads * trace.length
        keeps = trace.layers * trace.response_length * width <= KEPT_CELLS
        size = max(1, trace.response_length if keeps else BLOCK_CELLS // width)
        for start in range(trace.prompt_length, trace.length, size):
            stop = min(trace.length, start + size)
            by_step = trace.logits.get(layer)
            if by_step is None:
                logits = scaled_logits(
                    trace.queries[layer][:, start:stop],
                    trace.keys[layer][:, :stop],
                    run.scaling,
                    run.softcap,
                )
                by_step = logits.transpose(0, 1).contiguous()  # (steps, query_heads, positions)
            if keeps:
                trace.logits[layer] = by_step
            for number in range(stop - start):
                yield start + number, by_step[number]

    def _attend(self, run: LayerRun, logits: Tensor) -> Tensor:
        """Softmax of one query's logits over the retained entries; (query_heads, n)."""
        entries = run.entries
        grouped = logits.view(entries.heads, -1, logits.shape[-1])
        index = entries.positions[:, None].expand(-1, grouped.shape[1], -1)
        kept = grouped.gather(2, index)
        if entries.alive is not None:
            kept = kept.masked_fill(~entries.alive[:, None], -math.inf)
        return kept.view(logits.shape[0], -1).softmax(-1)


def visible_by_default(trace: Trace) -> Tensor:
    """Everything causal; bool (layers, query_heads, T + 1, P + T)."""
    steps = torch.arange(trace.response_length + 1)
    causal = torch.arange(trace.length) < trace.prompt_length + steps[:, None]
    return causal.expand(trace.layers, trace.query_heads, -1, -1).clone()


def touched_layers(windows: Sequence[int | None], length: int) -> list[int]:
    """The layers a policy may touch: those with full attention.

    A model that has sliding windows only counts as full within them. Raises `PolicyError` where
    it is run beyond its window.
    """
    full = [layer for layer, window in enumerate(windows) if window is None]
    if full:
        return full
    shortest = min(window for window in windows if window is not None)
    if length > shortest:
        raise PolicyError(
            f"every layer of this model attends within a sliding window of {shortest} tokens, so "
            f"there is nothing to evict over {length} positions; keep prompt and response "
            "within the window"
        )
    return list(range(len(windows)))
