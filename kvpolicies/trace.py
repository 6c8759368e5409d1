"""What a replay walks over: the states of one run of a model, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from kvpolicies.attention import LayerStates


@dataclass
class Trace:
    """The states of a run over all its P + T positions, after rotary embedding.

    queries: per layer (query_heads, P + T, d); keys, values: per layer (kv_heads, P + T, d).
    Optional, where a policy or a model needs them: `context_length` (default: the whole prompt),
    `scaling` (one number or one per layer, default d ** -0.5), `softcap`, `sliding_window` per
    layer (None: full attention), `rotary` (cos and sin, each (positions, d)), `lookahead` (pseudo
    queries per layer, (query_heads, n, d)), `second_reading` (queries and keys per layer of the
    context's second copy), `output_norms` (per layer (query_heads, P + T), the norm of v W_O) and
    `prompt_attention` (per layer (query_heads, P), attention each prompt entry received from all
    prompt queries, when it was already derived). `statistics` fills up, per layer and name, with
    what replays work out of the whole prompt or its second reading, so that it is done once;
    `logits`, of a short trace only, with those of each layer's response (T, query_heads, P + T).

    Raises ValueError when shapes do not belong together.
    """

    queries: Sequence[torch.Tensor]
    keys: Sequence[torch.Tensor]
    values: Sequence[torch.Tensor]
    prompt_length: int
    context_length: int | None = None
    scaling: float | Sequence[float] | None = None
    softcap: float | None = None
    sliding_window: Sequence[int | None] | None = None
    rotary: tuple[torch.Tensor, torch.Tensor] | None = None
    lookahead: Sequence[torch.Tensor] | None = None
    second_reading: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]] | None = None
    output_norms: Sequence[torch.Tensor] | None = None
    prompt_attention: Sequence[torch.Tensor] | None = None
    statistics: dict[int, dict[str, torch.Tensor]] = field(init=False, default_factory=dict)
    logits: dict[int, torch.Tensor] = field(init=False, default_factory=dict)
    length: int = field(init=False)

    def __post_init__(self) -> None:
        if not len(self.queries) == len(self.keys) == len(self.values) > 0:
            raise ValueError(
                f"queries, keys and values must have the same number of layers, at least one, not "
                f"{len(self.queries)}, {len(self.keys)} and {len(self.values)}"
            )
        self.length = self.keys[0].shape[1]
        for layer, (query, key, value) in enumerate(
            zip(self.queries, self.keys, self.values, strict=True)
        ):
            if not query.shape[1] == key.shape[1] == value.shape[1] == self.length:
                raise ValueError(f"layer {layer}: queries, keys and values differ in length")
            if query.shape[0] % key.shape[0] or key.shape[0] != value.shape[0]:
                raise ValueError(
                    f"layer {layer}: {query.shape[0]} query heads cannot share "
                    f"{key.shape[0]} key and {value.shape[0]} value heads"
                )
        if not 1 <= self.prompt_length <= self.length:
            raise ValueError(
                f"prompt_length is {self.prompt_length}, outside 1 to {self.length} positions"
            )
        if self.context_length is None:
            self.context_length = self.prompt_length
        if not 0 <= self.context_length <= self.prompt_length:
            raise ValueError(
                f"context_length is {self.context_length}, outside 0 to the prompt's "
                f"{self.prompt_length} positions"
            )

    @classmethod
    def from_numpy(
        cls,
        queries: Sequence[np.ndarray],
        keys: Sequence[np.ndarray],
        values: Sequence[np.ndarray],
        prompt_length: int,
        *,
        dtype: Any = np.float32,
        rotary: tuple[np.ndarray, np.ndarray] | None = None,
        lookahead: Sequence[np.ndarray] | None = None,
        second_reading: tuple[Sequence[np.ndarray], Sequence[np.ndarray]] | None = None,
        output_norms: Sequence[np.ndarray] | None = None,
        prompt_attention: Sequence[np.ndarray] | None = None,
        **numbers: Any,
    ) -> Trace:
        """A trace of arrays in the same shapes; states become tensors of `dtype`, the rest keeps
        its own. `numbers` are the remaining fields. Nothing is copied that need not be.
        """
        wanted = torch.from_numpy(np.empty(0, dtype)).dtype

        def states(arrays: Sequence[np.ndarray]) -> list[torch.Tensor]:
            return [_tensor(array).to(wanted) for array in arrays]

        def plain(arrays: Sequence[np.ndarray] | None) -> list[torch.Tensor] | None:
            return None if arrays is None else [_tensor(array) for array in arrays]

        return cls(
            states(queries),
            states(keys),
            states(values),
            prompt_length,
            rotary=None if rotary is None else (_tensor(rotary[0]), _tensor(rotary[1])),
            lookahead=None if lookahead is None else states(lookahead),
            second_reading=(
                None
                if second_reading is None
                else (states(second_reading[0]), states(second_reading[1]))
            ),
            output_norms=plain(output_norms),
            prompt_attention=plain(prompt_attention),
            **numbers,
        )

    @property
    def layers(self) -> int:
        return len(self.keys)

    @property
    def kv_heads(self) -> int:
        return self.keys[0].shape[0]

    @property
    def query_heads(self) -> int:
        return self.queries[0].shape[0]

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.query_heads // self.kv_heads

    @property
    def response_length(self) -> int:
        """T: how many generated tokens follow the prompt."""
        return self.length - self.prompt_length

    def scaling_of(self, layer: int) -> float:
        if self.scaling is None:
            return float(self.keys[layer].shape[-1] ** -0.5)
        return self.scaling if isinstance(self.scaling, float | int) else self.scaling[layer]

    def window_of(self, layer: int) -> int | None:
        """The layer's sliding window in tokens; None for full attention."""
        return None if self.sliding_window is None else self.sliding_window[layer]

    def states(self, layer: int, start: int = 0, stop: int | None = None) -> LayerStates:
        """Queries of positions `start` to `stop` and the keys they can see."""
        stop = self.length if stop is None else stop
        return LayerStates(
            self.queries[layer][:, start:stop],
            self.keys[layer][:, :stop],
            self.scaling_of(layer),
            self.softcap,
            self.window_of(layer),
        )


def _tensor(array: np.ndarray) -> torch.Tensor:
    """Without a copy where the array may be written to, which torch insists on."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
