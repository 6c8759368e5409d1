"""Rotary embedding: which channels turn together, by how much, and whether a model does just that.

Half of the families turn channel i with channel i + w/2 ("half-split": Llama, Qwen, GPT-NeoX), the
others channel 2i with 2i + 1 ("interleaved": Cohere, GLM). Tables cos and sin, each (positions, w),
are given so that both channels of a pair hold the pair's own angle, which tells the two apart.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvpolicies.attention import observing

Tables = tuple[Tensor, Tensor]

PROBED = 8  # equal tokens fed to see what a model does to its keys
TOLERANCE, HALF_TOLERANCE = 1e-2, 1e-1  # relative; half precisions round each layer's states


def interleaved(cos: Tensor) -> bool:
    """Whether neighbouring channels share an angle; cos (positions, w)."""
    half = cos.shape[-1] // 2
    pairs = bool(torch.equal(cos[:, 0::2], cos[:, 1::2]))
    return pairs and not torch.equal(cos[:, :half], cos[:, half:])


def rotate(states: Tensor, cos: Tensor, sin: Tensor, neighbours: bool = False) -> Tensor:
    """Turn the first w channels of states (heads, n, d), pair by pair; `neighbours` says that
    pairs are 2i and 2i + 1 instead of i and i + w/2."""
    width = cos.shape[-1]
    first, second = slice(0, width // 2), slice(width // 2, width)
    if neighbours:
        first, second = slice(0, width, 2), slice(1, width, 2)
    turned = states[..., :width] * cos
    turned[..., first].addcmul_(states[..., second], sin[..., first], value=-1)
    turned[..., second].addcmul_(states[..., first], sin[..., second])
    rest = states[..., width:]
    return torch.cat([turned, rest], -1) if rest.shape[-1] else turned


def rotation(cos: Tensor, sin: Tensor, dim: int, neighbours: bool = False) -> Tensor:
    """The matrix (d, d) that `rotate` applies for one position, or for the mean of several."""
    return rotate(torch.eye(dim)[None].to(cos), cos, sin, neighbours)[0].T


def frequencies_of(tables: Tables) -> dict[str, Any] | None:
    """The few numbers that give these tables back: {"frequencies": radians per position and pair,
    "scaling": factor on cos and sin, "interleaved": bool}; None where they do not."""
    cos, sin = (table.double().cpu() for table in tables)
    neighbours = interleaved(tables[0])
    scaling = float((cos[0] ** 2 + sin[0] ** 2).mean().sqrt())
    turns = torch.atan2(sin[1], cos[1])
    turns = turns[0::2] if neighbours else turns[: cos.shape[1] // 2]
    angles = torch.arange(len(cos), dtype=torch.float64)[:, None] * turns
    both = angles.repeat_interleave(2, 1) if neighbours else torch.cat([angles, angles], 1)
    if not torch.allclose(torch.cos(both) * scaling, cos, atol=1e-2 * scaling):
        return None
    return {"frequencies": turns.tolist(), "scaling": scaling, "interleaved": neighbours}


def tables_of(model: PreTrainedModel, layers: Sequence[int], length: int) -> Tables | None:
    """cos and sin (length, w) with which the model turns queries and keys of `layers`.

    Checked on the model itself. The identity where these layers have no rotary embedding; None
    where the layers differ, or turn their states in a way that these tables cannot say.
    """
    keys = _probe(model)
    if keys is None:
        return None
    chosen = [keys[layer] for layer in layers]
    identity = _identity(model, chosen[0].shape[-1], max(length, PROBED))
    if rotary_module(model) is None and not all(_keeps_norms(key) for key in chosen):
        return identity[0][:length], identity[1][:length]  # learned positions change the keys
    limit = TOLERANCE if model.dtype in (torch.float32, torch.float64) else HALF_TOLERANCE
    candidates = [identity, *_candidates(model, max(length, PROBED))]
    errors = [max(_error(tables, key) for key in chosen) for tables in candidates]
    best = min(range(len(candidates)), key=errors.__getitem__)
    if not errors[best] <= limit:
        return None
    cos, sin = candidates[best]
    return cos[:length], sin[:length]


def rotary_module(model: PreTrainedModel) -> Any | None:
    """The module that makes cos and sin, None where the model has none under its usual name."""
    for name, module in model.named_modules():
        if name.split(".")[-1] == "rotary_emb":
            return module
    return None


def _identity(model: PreTrainedModel, dim: int, length: int) -> Tables:
    ones = torch.ones(length, dim, device=model.device)
    return ones, torch.zeros_like(ones)


def _candidates(model: PreTrainedModel, length: int) -> list[Tables]:
    """The model's own tables as they are, and with each angle on neighbouring channels."""
    module = copy.deepcopy(rotary_module(model))  # some adjust themselves to the length asked for
    if module is None:
        return []
    state = torch.zeros(1, device=model.device)
    positions = torch.arange(length, device=model.device)[None]
    for kind in ((), ("full_attention",)):
        try:
            cos, sin = (table[0].float() for table in module(state, positions, *kind))
            break
        except (TypeError, ValueError, AttributeError, KeyError, IndexError):
            continue
    else:
        return []
    if cos.ndim != 2 or cos.shape != sin.shape or cos.shape[1] % 2:
        return []
    if interleaved(cos):
        return [(cos, sin)]
    half = cos.shape[1] // 2
    regrouped = tuple(table[:, :half].repeat_interleave(2, 1) for table in (cos, sin))
    return [(cos, sin), (regrouped[0], regrouped[1])]


_probes: WeakKeyDictionary[PreTrainedModel, list[Tensor] | None] = WeakKeyDictionary()


@torch.no_grad()
def _probe(model: PreTrainedModel) -> list[Tensor] | None:
    """Keys (heads, PROBED, d) of each layer for one token repeated; None if it cannot be run.

    Equal tokens give equal values, so every layer sees the same state at all positions, and keys
    differ by what the position does to them alone.
    """
    if model not in _probes:
        seen: dict[int, Tensor] = {}

        def observer(layer: int, module: Any, query: Any, key: Tensor, *_: Any, **__: Any) -> None:
            seen[layer] = key[0].float()

        vocabulary = model.config.get_text_config(decoder=True).vocab_size
        ids = torch.full((1, PROBED), vocabulary // 2, device=model.device)
        try:
            with observing(model, observer):
                model(input_ids=ids, use_cache=False)
        except (ValueError, TypeError, RuntimeError, AttributeError):
            seen.clear()
        _probes[model] = [seen[layer] for layer in sorted(seen)] or None
    return _probes[model]


def _keeps_norms(keys: Tensor) -> bool:
    norms = keys.norm(dim=-1)
    return bool(((norms - norms[:, :1]).abs() <= 1e-2 * norms[:, :1]).all())


def _error(tables: Tables, keys: Tensor) -> float:
    """How far these tables are from turning the key of position 0 into the next ones; relative."""
    if len(tables[0]) < PROBED or tables[0].shape[1] > keys.shape[-1]:
        return float("inf")
    cos, sin = (table[:PROBED].to(keys) for table in tables)
    scale = (cos[0] ** 2 + sin[0] ** 2).sqrt()
    first = keys[:, :1].expand_as(keys)
    expected = rotate(first, cos / scale, sin / scale, interleaved(tables[0]))
    return float((expected - keys).norm() / keys.norm())
