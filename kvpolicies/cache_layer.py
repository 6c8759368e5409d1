"""One layer of the evicting cache: its entries, and the attention call it takes over."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from kvpolicies.attention import steer
from kvpolicies.entries import Entries
from kvpolicies.errors import PolicyError
from kvpolicies.rotary import rotate
from kvpolicies.run import LayerRun
from kvpolicies.scores.selection import Selection

if TYPE_CHECKING:
    from kvpolicies.cache import EvictingCache

QUERY_BLOCK = 512  # queries of one forward whose mask over the cache is held at once


class EvictingLayer(DynamicLayer):
    """One layer's entries under a policy. Before the prompt is compressed it holds all of them.

    `get_seq_length` is the number of tokens seen, so positions stay right while fewer are stored.
    """

    is_croppable = False

    def __init__(self, cache: EvictingCache, index: int, number: int) -> None:
        super().__init__()
        self.cache, self.index, self.number = cache, index, number
        self.seen = 0
        self.entries: Entries | None = None
        self.run: LayerRun | None = None  # None until the prompt is compressed
        self.queries: Tensor | None = None  # the prompt's, until then; a short history afterwards
        self.log: list[Tensor] | None = None  # queries of generated tokens, where asked for
        self.scaling = 1.0
        self.softcap: float | None = None

    # --- what transformers asks ---------------------------------------------------------------

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if key_states.shape[0] != 1:
            raise PolicyError(
                f"an EvictingCache holds one sequence: batch size 1 and no beams, not "
                f"{key_states.shape[0]} sequences"
            )
        self.cache.check_model()
        if self.entries is None:
            _refuse_chunked_prefill()
        self.is_initialized, self.dtype, self.device = True, key_states.dtype, key_states.device
        steer(self.index, self.attend)
        return key_states, value_states

    def get_seq_length(self) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        stored = 0 if self.entries is None else len(self.entries)
        return stored + query_length, self.seen - stored

    def reset(self) -> None:
        self.seen, self.is_initialized = 0, False
        self.entries = self.run = self.queries = self.log = None

    def crop(self, tokens_to_remove: int) -> None:
        raise PolicyError(
            "an EvictingCache cannot be cropped, because what it evicted is gone; assisted "
            "decoding and prompt lookup need a croppable cache"
        )

    def reorder_cache(self, beam_idx: Tensor) -> None:
        raise PolicyError("an EvictingCache holds one sequence and cannot follow beams")

    def batch_repeat_interleave(self, repeats: int) -> None:
        raise PolicyError("an EvictingCache holds one sequence; fork() it to continue it twice")

    def batch_select_indices(self, indices: Tensor) -> None:
        raise PolicyError("an EvictingCache holds one sequence and cannot select among several")

    # --- the attention call -------------------------------------------------------------------

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        scaling: float,
        softcap: float | None,
        compute: Callable[..., Tensor],
    ) -> Tensor:
        """The layer's output (1, tokens, heads, d) over what is cached and the new tokens."""
        self.cache.check_length(self.seen + query.shape[2])
        with torch.no_grad():
            if self.entries is None:
                return self._prefill(query, key, value, mask, scaling, softcap, compute)
            return self._continue(query, key, value, compute)

    def _prefill(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scaling: float,
        softcap: float | None,
        compute: Callable[..., Tensor],
    ) -> Tensor:
        if mask is not None and mask.dtype == torch.bool and not bool(mask[..., -1, :].all()):
            raise PolicyError("an EvictingCache takes no padding; pass one unpadded sequence")
        output = compute(query, key, value, mask)
        length = query.shape[2]
        positions = torch.arange(length, device=key.device)
        keys, values = self._own(key), self._own(value)
        self.entries = Entries(keys, values, positions.expand(keys.shape[0], length))
        self.seen, self.queries = length, query[0]
        self.scaling, self.softcap = scaling, softcap
        self.cache.prefilled(self)
        return output

    def _own(self, states: Tensor) -> Tensor:
        """One per keep-set: repeated where each query head has its own; (heads, n, d)."""
        group = self.cache.repeat
        return states[0] if group == 1 else states[0].repeat_interleave(group, 0)

    def _continue(
        self, query: Tensor, key: Tensor, value: Tensor, compute: Callable[..., Tensor]
    ) -> Tensor:
        assert self.entries is not None
        count, run = query.shape[2], self.run
        keys, values = self._own(key), self._own(value)
        if self.log is not None:
            self.log.append(query[0])
        chosen: list[Tensor | None] = [None] * count
        attention = None
        first = self.seen
        if run is None or not (run.watches or isinstance(run.plan.score, Selection)):
            if self.cache.roomy and run is not None and run.still:
                self.entries.append_in_place(keys, values, first)
            else:
                self.entries.append(keys, values, first)
            self._remember(query[0])
            if run is not None and not run.still:
                run.observe(*self._history(), None)
                chosen = [run.visible(*self._history())] * count
        else:
            for token in range(count):
                one = slice(token, token + 1)
                self.entries.append(keys[:, one], values[:, one], first + token)
                self._remember(query[0, :, one])
                if run.watches:
                    attention = run.attention(*self._history())
                run.observe(*self._history(), attention)
                chosen[token] = run.visible(*self._history())
        output = self._output(query, first, chosen, compute)
        if run is not None:
            self.cache.record(run.finish_step(*self._history(), attention, count))
        return output

    def _remember(self, queries: Tensor) -> None:
        assert self.queries is not None
        self.seen += queries.shape[1]
        if self.run is None:
            self.queries = torch.cat([self.queries, queries], 1)
        else:
            keep = self.run.plan.score.history
            self.queries = torch.cat([self.queries, queries], 1)[:, -keep:]

    def _history(self) -> tuple[Tensor, int]:
        """The newest queries and the position of the first of them."""
        assert self.queries is not None
        return self.queries, self.seen - self.queries.shape[1]

    def _output(
        self,
        query: Tensor,
        first: int,
        chosen: list[Tensor | None],
        compute: Callable[..., Tensor],
    ) -> Tensor:
        entries = self.entries
        assert entries is not None
        count = query.shape[2]
        keys, values = entries.keys[None], entries.values[None]
        if self.cache.policy.positions == "cache":
            query, keys = self._renumber(query, keys, first)
        free = all(one is None for one in chosen)
        if count == 1 and entries.alive is None and free:
            return compute(query, keys, values, None)
        blocks = []
        for start in range(0, count, QUERY_BLOCK):
            rows = slice(start, min(count, start + QUERY_BLOCK))
            mask = self._mask(first, rows, None if free else chosen[rows], query.shape[1])
            seen = first + rows.stop if entries.aligned else len(entries)
            mask = mask[..., :seen]
            part = compute(query[:, :, rows], keys[:, :, :seen], values[:, :, :seen], mask)
            blocks.append(part)
        return torch.cat(blocks, 1)

    def _mask(
        self, first: int, rows: slice, chosen: list[Tensor | None] | None, heads: int
    ) -> Tensor:
        """What each of some queries attends to; bool (1, heads or 1, rows, n)."""
        entries = self.entries
        assert entries is not None
        asked = torch.arange(first + rows.start, first + rows.stop, device=entries.positions.device)
        if entries.aligned and chosen is None:
            return (entries.positions[0] <= asked[:, None])[None, None]
        visible = entries.positions[:, None] <= asked[:, None]
        if entries.alive is not None:
            visible = visible & entries.alive[:, None]
        visible = visible.repeat_interleave(heads // entries.heads, 0)
        for row, one in enumerate(chosen or ()):
            if one is not None:
                visible[:, row, : one.shape[1]] &= one
        return visible[None]

    def _renumber(self, query: Tensor, keys: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Turn queries and keys from their absolute positions to those inside the cache."""
        entries = self.entries
        assert entries is not None
        cos, sin = self.cache.rotary(self.seen)
        pairs = self.cache.turns_neighbours
        inside = torch.arange(len(entries), device=keys.device)
        back = entries.positions - inside  # (heads, n), never negative
        scale = (cos[0] ** 2 + sin[0] ** 2).sqrt()
        cos, sin = cos / scale, sin / scale
        turned = rotate(keys[0].float(), cos[back], -sin[back], pairs).to(keys.dtype)
        shift = self.seen - len(entries)
        asked = rotate(query[0].float(), cos[shift], -sin[shift], pairs).to(query.dtype)
        return asked[None], turned[None]

    @property
    def bytes(self) -> int:
        """Bytes of keys and values that count; computed where heads hold unequal numbers."""
        if self.entries is None:
            return 0
        per_entry = sum(
            states.shape[-1] * states.element_size()
            for states in (self.entries.keys, self.entries.values)
        )
        return int(self.entries.counts().sum()) * per_entry

    def fork(self, cache: EvictingCache) -> EvictingLayer:
        other = copy.copy(self)
        other.cache = cache
        other.log = None
        if self.run is not None:
            other.run = self.run.fork()
            other.entries = other.run.entries
        elif self.entries is not None:
            other.entries = self.entries.fork()
        return other


def _refuse_chunked_prefill() -> None:
    """`generate` does not tell a cache that it will feed the prompt in chunks: ask its frames."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        settings = frame.f_locals.get("generation_config")
        if getattr(settings, "prefill_chunk_size", None) is not None:
            raise PolicyError(
                "an EvictingCache needs the whole prompt in one forward; leave prefill_chunk_size "
                "unset"
            )
        frame = frame.f_back
