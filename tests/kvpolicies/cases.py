"""Small traces, and one table of options that drives the properties of every catalogue row."""

from __future__ import annotations

import torch

from kvpolicies import Trace

# Options that make a method act on a prompt of a few dozen tokens. A new row of the catalogue
# needs one line here, and every property below then holds it.
SMALL: dict[str, dict] = {
    "full": {},
    "streaming_llm": {"sink": 2},
    "h2o": {},
    "tova": {},
    "snapkv": {"window": 3, "kernel": 3},
    "pyramidkv": {"window": 2, "kernel": 3, "beta": 4},
    "ada_snapkv": {"window": 3, "kernel": 3},
    "expected_attention": {"n_future": 8, "sink": 2},
    "ada_expected_attention": {"n_future": 8, "sink": 2},
    "knorm": {"skip_layers": 1},
    "lagkv": {"sink": 2, "lag": 4, "keep_ratio": 0.5},
    "localkv": {"sink": 2, "lag": 4, "keep_ratio": 0.5},
    "l2_lag": {"sink": 2, "lag": 4, "keep_ratio": 0.5, "skip_layers": 1},
    "laq": {"kernel": 3},
    "laq_pp": {"window": 2, "kernel": 3},
    "sage_kv": {},
    "raas": {"alpha": 0.05},
    "r_kv": {"window": 2, "interval": 3},
    "lazyeviction": {"window": 3, "alpha": 0.05},
    "h2o_window": {"window": 3},
    "tova_window": {"window": 3},
    "raas_window": {"window": 3, "alpha": 0.05},
    "kvcompose": {"source": "self"},
    "kvcompose_unstructured": {},
    "duo_attention": {"sink": 1, "recent": 3},
    "kvzip": {"chunk": 7, "sink": 1},
    "quest": {"page": 4, "skip_layers": 1, "pages": 2},
    "infllm": {"sink": 2, "recent": 4, "page": 4, "representatives": 2},
    "random": {},
    "oracle": {},
    "belady": {"alpha": 0.05},
}
UNBUDGETED = ("full", "lagkv", "localkv", "l2_lag", "duo_attention")


def options_of(key: str, budget: int) -> dict:
    """The row's small options, with a budget where it takes one; a reader's own have no others."""
    small = SMALL.get(key, {})
    return small if key in UNBUDGETED else {**small, "budget": budget}


def rotary_table(length: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of plain rotary embedding, (length, dim)."""
    angles = torch.arange(length)[:, None] * 10000 ** (-torch.arange(0, dim, 2) / dim)
    return torch.cat([angles.cos()] * 2, 1), torch.cat([angles.sin()] * 2, 1)


def make_trace(
    *,
    layers: int = 3,
    kv_heads: int = 2,
    group: int = 2,
    prompt: int = 24,
    response: int = 9,
    dim: int = 4,
    context: int | None = None,
    seed: int = 0,
    equal_keys: bool = False,
    spread: float = 1.5,
) -> Trace:
    """A random run with everything that any policy needs."""
    generator = torch.Generator().manual_seed(seed)

    def states(heads: int, count: int, times: float = 1.0) -> list[torch.Tensor]:
        shape = (heads, count, dim)
        return [times * torch.randn(shape, generator=generator) for _ in range(layers)]

    length, heads = prompt + response, kv_heads * group
    context_length = prompt if context is None else context
    keys = states(kv_heads, length)
    if equal_keys:
        keys = [key[:, :1].expand(-1, length, -1).clone() for key in keys]
    return Trace(
        states(heads, length, spread),
        keys,
        states(kv_heads, length),
        prompt_length=prompt,
        context_length=context,
        rotary=rotary_table(length + 16, dim),
        lookahead=states(heads, 8, spread),
        second_reading=(states(heads, context_length, spread), states(kv_heads, context_length)),
        output_norms=[torch.rand(heads, length, generator=generator) for _ in range(layers)],
    )
