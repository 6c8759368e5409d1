"""Every parameter of every policy, stated once: symbol, meaning, range and default."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from kvpolicies.errors import PolicyError


@dataclass(frozen=True)
class Parameter:
    """One option of `build`. `kind` is "int", "float", "choice", "bool", "text" or "alpha" (a
    number, or a multiple of uniform attention such as "3/n"). `default` is what a method has
    that does not name its own; None means that it must be given or follows from the others."""

    name: str
    symbol: str
    meaning: str
    kind: str
    default: Any = None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    def check(self, value: Any) -> Any:
        """`value` in the parameter's own type. Raises `PolicyError` naming value and range."""
        if value is None:
            return None
        if self.kind == "choice":
            if value not in self.choices:
                raise self._refuse(value, self.range)
            return value
        if self.kind == "bool":
            if not isinstance(value, bool):
                raise self._refuse(value, self.range)
            return value
        if self.kind == "text":
            return value
        if self.kind == "alpha" and isinstance(value, str):
            multiple_of_uniform(value)
            return value
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise self._refuse(value, self.range)
        if self.kind == "int" and value != int(value):
            raise self._refuse(value, "a whole number")
        number = int(value) if self.kind == "int" else float(value)
        if (self.low is not None and number < self.low) or (
            self.high is not None and number > self.high
        ):
            raise self._refuse(value, self.range)
        return number

    @property
    def range(self) -> str:
        """What it may be, in words."""
        if self.kind == "choice":
            return f"one of {', '.join(self.choices)}"
        if self.kind in ("bool", "text"):
            return {"bool": "true or false", "text": "a text"}[self.kind]
        kind = "a whole number" if self.kind == "int" else "a number"
        if self.low is not None and self.high is not None:
            return f"{kind} from {self.low:g} to {self.high:g}"
        return f"{kind} of at least {self.low:g}" if self.low is not None else kind

    def _refuse(self, value: Any, expected: str) -> PolicyError:
        return PolicyError(f"{self.name} ({self.symbol}) must be {expected}, not {value!r}")


def multiple_of_uniform(text: str) -> float:
    """The c of an alpha written "c/n", c times uniform attention over n entries."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e-?[0-9]+)?)\s*/\s*n\s*", text)
    if not match:
        raise PolicyError(
            f"alpha (α) must be a number or a multiple of uniform attention such as '3/n', "
            f"not {text!r}"
        )
    return float(match[1])


REDUCTIONS = ("mean", "max", "sum")
CURVES = ("sigmoid", "exp", "tanh", "log", "inverse", "off")

PARAMETERS: dict[str, Parameter] = {
    parameter.name: parameter
    for parameter in (
        Parameter("budget", "B", "entries kept per KV head and layer", "int", low=1),
        Parameter(
            "compression_ratio",
            "r",
            "share of entries evicted, instead of a budget: of the compressed span for policies "
            "that evict once after prefill, of the full cache for the others",
            "float",
            low=0,
            high=1,
        ),
        Parameter(
            "scope",
            "",
            "what is compressed: the whole prompt, or its context only, so that the question is "
            "never ranked or evicted",
            "choice",
            "prompt",
            choices=("prompt", "context"),
        ),
        Parameter(
            "granularity",
            "",
            "one keep-set per KV head, or one per query head at group-times the slots",
            "choice",
            "kv_head",
            choices=("kv_head", "query_head"),
        ),
        Parameter(
            "group_reduce",
            "",
            "how the attention of the query heads that share a KV head becomes one number",
            "choice",
            "mean",
            choices=REDUCTIONS,
        ),
        Parameter("sink", "S", "first entries that are always kept", "int", 0, low=0),
        Parameter("recent", "R", "newest entries that are always kept", "int", 0, low=0),
        Parameter(
            "window",
            "w",
            "newest queries a score looks through, or the steps between two evictions, whose "
            "entries are kept",
            "int",
            32,
            low=0,
        ),
        Parameter(
            "interval", "W", "steps between two evictions where `window` is taken", "int", low=1
        ),
        Parameter("kernel", "", "width of the pooling along positions", "int", 7, low=1),
        Parameter(
            "average",
            "",
            "divide the attention received by the number of queries that could see the entry",
            "bool",
            False,
        ),
        Parameter(
            "once", "", "compress the prompt's partitions only, not the response's", "bool", False
        ),
        Parameter("pool", "", "pooling along positions", "choice", "max", choices=("max", "mean")),
        Parameter(
            "alpha",
            "α",
            "attention from which an entry counts as active; a number, or '3/n' for three times "
            "uniform attention",
            "alpha",
            5e-4,
            low=0,
        ),
        Parameter("lag", "L", "entries of one partition", "int", 128, low=1),
        Parameter(
            "keep_ratio",
            "r",
            "share of a compressed partition that is kept",
            "float",
            low=0,
            high=1,
        ),
        Parameter("lookahead_steps", "n", "pseudo tokens generated first", "int", 8, low=1),
        Parameter(
            "lookahead_policy", "", "policy of the cache they are generated on", "text", "snapkv"
        ),
        Parameter("lookahead_budget", "B′", "budget of that cache (default: B)", "int", low=1),
        Parameter(
            "mask",
            "",
            "what the observation rows may see: the whole prompt, or as in the authors' code, "
            "which places them inside it",
            "choice",
            "correct",
            choices=("correct", "released"),
        ),
        Parameter(
            "form",
            "",
            "LazyEviction's score as in its released code or as printed",
            "choice",
            "released",
            choices=("released", "printed"),
        ),
        Parameter("h1", "H1", "curve of the first term", "choice", "sigmoid", choices=CURVES),
        Parameter("h2", "H2", "curve of the second term", "choice", "sigmoid", choices=CURVES),
        Parameter(
            "source",
            "",
            "whose attention to the context counts: a second reading of it, the question, or the "
            "prefill's own rows (an approximation that favours early tokens)",
            "choice",
            "context",
            choices=("context", "question", "self"),
        ),
        Parameter("agg_task", "", "over task tokens", "choice", "max", choices=("max", "mean")),
        Parameter("agg_group", "", "over a group", "choice", "mean", choices=("max", "mean")),
        Parameter("agg_head", "", "over KV heads", "choice", "mean", choices=("max", "mean")),
        Parameter("head_mean", "", "add the mean over KV heads (Eq. 16)", "bool", True),
        Parameter(
            "value_norm",
            "",
            "weight the attention by the norm of the value or of its output",
            "choice",
            "none",
            choices=("none", "value", "output"),
        ),
        Parameter(
            "match",
            "",
            "'kvpress' raises layer 0's slot scores to the maximum over layers",
            "choice",
            "paper",
            choices=("paper", "kvpress"),
        ),
        Parameter(
            "min_per_layer", "", "slots every layer keeps whatever their score", "int", 1, low=0
        ),
        Parameter(
            "view",
            "",
            "whether a query head sees only its own picks or the union of its group's",
            "choice",
            "query_head",
            choices=("query_head", "union"),
        ),
        Parameter(
            "alpha_floor",
            "α",
            "share of the uniform budget that every head keeps",
            "float",
            0.2,
            low=0,
            high=1,
        ),
        Parameter(
            "floor",
            "",
            "how the share is guaranteed: as a part of each head's count, or by pinning its top",
            "choice",
            "count",
            choices=("count", "pin"),
        ),
        Parameter("beta", "β", "steepness of the pyramid", "int", 20, low=1),
        Parameter("skip_layers", "", "first layers that are kept whole", "int", 0, low=0),
        Parameter(
            "n_future", "n", "future positions the rotary is averaged over", "int", 512, low=1
        ),
        Parameter(
            "normalise",
            "",
            "softmax over all keys, or over those that are ranked (without the sinks)",
            "choice",
            "all",
            choices=("all", "ranked"),
        ),
        Parameter(
            "mix", "λ", "weight of attention against redundancy", "float", 0.1, low=0, high=1
        ),
        Parameter(
            "similarity",
            "",
            "cosine above which a later key is a copy",
            "float",
            0.5,
            low=-1,
            high=1,
        ),
        Parameter("page", "", "entries of one page or block", "int", 16, low=1),
        Parameter("pages", "", "pages attended to (default: max(3, B // page))", "int", low=1),
        Parameter("representatives", "", "keys that stand for a block", "int", 4, low=1),
        Parameter("chunk", "", "context tokens repeated at once", "int", 2000, low=1),
        Parameter("streaming", "", "share of streaming heads", "float", 0.5, low=0, high=1),
        Parameter(
            "head_pattern",
            "",
            "which heads stream: true and false by layer and KV head, or a file of retrieval "
            "weights whose least heads stream; otherwise measured on the prompt",
            "text",
        ),
        Parameter("pin_prompt", "", "never evict prompt entries", "bool", False),
        Parameter(
            "positions",
            "",
            "whether kept entries keep their absolute positions or take those inside the cache",
            "choice",
            "absolute",
            choices=("absolute", "cache"),
        ),
        Parameter("seed", "", "seed of the random scores", "int", 0, low=0),
    )
}
