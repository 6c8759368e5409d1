"""What a policy must know of a model: windows, rotary embedding, output projection."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvpolicies.errors import PolicyError


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


def rotary_of(model: PreTrainedModel, length: int) -> tuple[Tensor, Tensor] | None:
    """cos and sin of the model's rotary embedding over `length` positions; each (length, d).

    A model without rotary embedding gives the identity; None where ours cannot be read.
    """
    modules = [
        module for name, module in model.named_modules() if name.split(".")[-1] == "rotary_emb"
    ]
    config = model.config.get_text_config(decoder=True)
    if not modules:
        dim = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        return (
            torch.ones(length, dim, device=model.device),
            torch.zeros(length, dim, device=model.device),
        )
    positions = torch.arange(length, device=model.device)[None]
    try:
        cos, sin = modules[0](torch.zeros(1, device=model.device), positions)
    except (TypeError, ValueError, AttributeError):
        return None
    return cos[0].float(), sin[0].float()


def output_norms(model: PreTrainedModel, layer: int, values: Tensor) -> Tensor:
    """‖v W_O‖ of each entry as each query head would write it; float32 (query_heads, n)."""
    attention: Any = next(
        module
        for module in model.modules()
        if getattr(module, "layer_idx", None) == layer and hasattr(module, "o_proj")
    )
    weight = attention.o_proj.weight.float()  # (hidden, query_heads * d)
    dim = values.shape[-1]
    group = weight.shape[1] // dim // values.shape[0]
    per_head = weight.view(weight.shape[0], -1, dim).permute(1, 2, 0)  # (query_heads, d, hidden)
    return (values.float().repeat_interleave(group, 0) @ per_head).norm(dim=-1)
