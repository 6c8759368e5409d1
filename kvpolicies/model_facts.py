"""What a policy must know of a model: windows, rotary embedding, output projection."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from kvpolicies.errors import PolicyError
from kvpolicies.rotary import rotary_module, tables_of

OUTPUT_NAMES = ("o_proj", "out_proj", "dense", "c_proj")


def sliding_windows(config: Any) -> list[int | None]:
    """Each layer's sliding window, None for full attention.

    Raises `PolicyError` for layers that are neither.
    """
    types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    if types is None:
        return [window] * config.num_hidden_layers
    odd = set(types) - {"full_attention", "sliding_attention"}
    if odd:
        raise PolicyError(
            f"this model has layers of type {', '.join(sorted(odd))}, which hold no KV cache that "
            "a policy could evict from"
        )
    return [window if kind == "sliding_attention" else None for kind in types]


def evictable_layers(model: PreTrainedModel) -> list[int]:
    """The layers that a policy may touch: those with full attention, or all if none has it."""
    windows = sliding_windows(model.config.get_text_config(decoder=True))
    return [layer for layer, window in enumerate(windows) if window is None] or list(
        range(len(windows))
    )


def has_rotary(model: PreTrainedModel) -> bool:
    """Whether positions are angles, which go on beyond the length a model was trained with."""
    return rotary_module(model) is not None


def rotary_of(model: PreTrainedModel, length: int) -> tuple[Tensor, Tensor] | None:
    """cos and sin of the rotary embedding of the layers that a policy may touch; each (length, w).

    The identity where these layers have none; None where they differ among each other or turn
    their states in a way that tables cannot say (`kvpolicies.rotary` on how that is found out).
    """
    return tables_of(model, evictable_layers(model), length)


def output_norms(model: PreTrainedModel, layer: int, values: Tensor) -> Tensor:
    """‖v W_O‖ of each entry as each query head would write it; float32 (query_heads, n).

    Raises `PolicyError` where the layer's output projection is not found.
    """
    dim = values.shape[-1]
    weight = _output_weight(model, layer).to(values.device).float()  # (hidden, query_heads * d)
    group = weight.shape[1] // dim // values.shape[0]
    per_head = weight.view(weight.shape[0], -1, dim).permute(1, 2, 0)  # (query_heads, d, hidden)
    return (values.float().repeat_interleave(group, 0) @ per_head).norm(dim=-1)


def _output_weight(model: PreTrainedModel, layer: int) -> Tensor:
    """W_O as (hidden, query_heads * d), whatever the family calls it."""
    for module in model.modules():
        if getattr(module, "layer_idx", None) != layer:
            continue
        for name in OUTPUT_NAMES:
            projection = getattr(module, name, None)
            if projection is not None:
                weight: Tensor = projection.weight
                return weight.T if type(projection).__name__ == "Conv1D" else weight
    raise PolicyError(
        f"{type(model).__name__} has no output projection under a name that KVScope knows, so the "
        "norms of v W_O are not to be had; choose value_norm='value' or 'none'"
    )
