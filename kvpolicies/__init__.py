"""KV-cache eviction policies: one implementation, over a recording or inside `generate`.

from transformers import AutoModelForCausalLM, AutoTokenizer
from kvpolicies import EvictingCache, build, generate

tokenizer = AutoTokenizer.from_pretrained("models/demo")
model = AutoModelForCausalLM.from_pretrained("models/demo")
ids = tokenizer("A long prompt ...", return_tensors="pt").input_ids
cache = EvictingCache(build("snapkv", budget=64), model)
text = model.generate(ids, past_key_values=cache, max_new_tokens=50)
out = generate(model, ids, build("laq", budget=64), max_new_tokens=50)  # further passes too
out.tokens, out.cache_bytes, out.result.evicted_at  # text, cost, and what was kept when
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvpolicies.cache import EvictingCache
    from kvpolicies.errors import MissingInput, PolicyError
    from kvpolicies.generation import generate
    from kvpolicies.methods import catalogue
    from kvpolicies.policy import Policy, build, parameters_of
    from kvpolicies.replayer import replay
    from kvpolicies.result import Result
    from kvpolicies.trace import Trace

_HOMES = {
    "EvictingCache": "cache",
    "MissingInput": "errors",
    "Policy": "policy",
    "PolicyError": "errors",
    "Result": "result",
    "Trace": "trace",
    "build": "policy",
    "parameters_of": "policy",
    "catalogue": "methods",
    "generate": "generation",
    "replay": "replayer",
}

__all__ = [
    "EvictingCache",
    "MissingInput",
    "Policy",
    "PolicyError",
    "Result",
    "Trace",
    "build",
    "catalogue",
    "generate",
    "parameters_of",
    "replay",
]


def __getattr__(name: str) -> Any:
    """Import on first use: the catalogue needs no torch, replay no model."""
    if name not in _HOMES:
        raise AttributeError(f"kvpolicies has no {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"kvpolicies.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
