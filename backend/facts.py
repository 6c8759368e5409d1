"""A model's shape, from its configuration: a file that anyone may have written.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from backend.sources import ModelError, ModelSource, _first_line, _shown, count_parameters
from backend.spec import MAX_LAYERS

MOST = {  # far above any model there is; what is larger is an error or an attack
    "layers": MAX_LAYERS,
    "attention heads": 4096,
    "KV heads": 4096,
    "entries per head": 16_384,
    "hidden entries": 1_000_000,
    "MLP entries": 10_000_000,
    "tokens in its vocabulary": 100_000_000,
    "positions": 10**12,
}
LAYER_NAMES = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")


@dataclass(frozen=True)
class ModelFacts:
    """A causal language model's shape, read from its configuration.

    `sliding_window` and `scaling` have one entry per layer (window None: full attention);
    `max_positions` None means that the configuration states no limit; `parameters` is counted
    from the weight files when they are on this machine, otherwise estimated.
    """

    architecture: str
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocabulary: int
    max_positions: int | None
    sliding_window: tuple[int | None, ...]
    softcap: float | None
    scaling: tuple[float, ...]
    parameters: int
    checkpoint_dtype: str

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.query_heads // self.kv_heads

    @property
    def query_width(self) -> int:
        """Entries of all query heads together."""
        return self.query_heads * self.head_dim


def check_layers(raw: dict[str, Any], source: ModelSource) -> None:
    """Before transformers sees it: some configurations make a list with an entry per layer."""
    for part in (raw, *(value for value in raw.values() if isinstance(value, dict))):
        for name in LAYER_NAMES:
            layers = part.get(name)
            if layers is not None:
                _size(source, "layers", layers)


def facts_of(config: Any, source: ModelSource) -> ModelFacts:
    """The shape that a transformers configuration states. Raises ModelError."""
    try:
        return _checked_facts(config, source)
    except (AttributeError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise ModelError(
            f"The model '{source.id}' states no attention heads in its configuration "
            f"({_first_line(error)}): choose an attention-based language model."
        ) from error


def _checked_facts(config: Any, source: ModelSource) -> ModelFacts:
    text = config.get_text_config(decoder=True)
    layers = _size(source, "layers", text.num_hidden_layers)
    heads = _size(source, "attention heads", text.num_attention_heads)
    hidden = _size(source, "hidden entries", text.hidden_size)
    vocabulary = _size(source, "tokens in its vocabulary", text.vocab_size)
    kv_heads = _size(source, "KV heads", _stated(text, "num_key_value_heads", heads))
    if heads % kv_heads:
        raise ModelError(
            f"The configuration of '{source.id}' states {heads} attention heads on {kv_heads} KV "
            "heads, which do not divide them: correct its config.json."
        )
    head_dim = _size(source, "entries per head", _stated(text, "head_dim", hidden // heads))
    widths = getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None)
    widths = max(widths) if isinstance(widths, list) else widths or 4 * hidden
    intermediate = _size(source, "MLP entries", widths)
    positions = getattr(text, "max_position_embeddings", None)
    kinds = getattr(text, "layer_types", None) or [""] * layers
    if len(kinds) != layers:
        raise ModelError(
            f"The configuration of '{source.id}' states {layers} layers and the kinds of "
            f"{len(kinds)}: correct its config.json."
        )
    window = getattr(text, "sliding_window", None)
    softcap = getattr(text, "attn_logit_softcapping", None)
    estimate = layers * hidden * (2 * head_dim * (heads + kv_heads) + 3 * intermediate)
    tied = getattr(text, "tie_word_embeddings", True)
    estimate += vocabulary * hidden * (1 if tied else 2)
    names = getattr(config, "architectures", None)
    first = names[0] if isinstance(names, list) and names else config.model_type
    return ModelFacts(
        architecture=_shown(str(first)),
        layers=layers,
        query_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden_size=hidden,
        intermediate_size=intermediate,
        vocabulary=vocabulary,
        max_positions=None if positions is None else _size(source, "positions", positions),
        sliding_window=tuple(
            _size(source, "positions", window) if window and "full" not in kind else None
            for kind in kinds
        ),
        softcap=float(softcap) if softcap and math.isfinite(softcap) else None,
        scaling=(head_dim**-0.5,) * layers,
        parameters=count_parameters(source.folder) or estimate,
        checkpoint_dtype=str(getattr(config, "dtype", None) or "float32").removeprefix("torch."),
    )


def _stated(config: Any, name: str, otherwise: int) -> Any:
    value = getattr(config, name, None)
    return otherwise if value is None else value


def _size(source: ModelSource, what: str, value: Any) -> int:
    """A size from a configuration that anyone may have written."""
    if type(value) is not int or not 1 <= value <= MOST[what]:
        raise ModelError(
            f"The configuration of '{source.id}' states {_shown(repr(value), 30)} {what}, not 1 to "
            f"{MOST[what]:,}: correct its config.json or choose another model."
        )
    return value
