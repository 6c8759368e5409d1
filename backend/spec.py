"""What one capture is asked to do: a small, checked, JSON-serialisable description."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, get_args, get_type_hints

from cache_store.errors import KVScopeError
from kvpolicies.choice import canonical, from_text, to_text
from kvpolicies.errors import PolicyError
from kvpolicies.methods import catalogue

DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda", "mps")
MAX_LAYERS = 2_000  # of any model
MAX_LOOKAHEAD = 1_024  # drafted tokens
NEED_A_PASS = ("lookahead_attention", "context_attention", "reconstruction")  # scores
TEMPERATURES = (0.01, 100.0)  # below, the division by it overflows


class PromptError(KVScopeError):
    """A prompt, an uploaded file or a setting cannot be used; the message says why."""


@dataclass(frozen=True)
class CaptureSpec:
    """One model run to capture: the prompt, the model and how to generate.

    The prompt is `context + question`, joined without anything in between: every character that
    is sent to the model is in one of the two. An empty `question` means the whole prompt is
    context. Token counts are tokens of the model's tokenizer; `window` is the number of last
    prompt tokens whose attention rows are stored, `top_k` the number of largest entries kept as
    plain columns. `stored_layers` None stores the attention rows of every layer.

    After the capture the model may pass over the prompt again for policies that need it:
    `lookaheads` are policies such as "snapkv(budget=256)" on whose small cache `lookahead_steps`
    tokens are drafted (LAQ), `second_reading` reads the context twice (KVzip, KVCompose).

    Raises PromptError, one sentence naming the value, when a value cannot be used.
    """

    context: str
    question: str = ""
    model_id: str = "demo"
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    chat_template: bool = False
    max_new_tokens: int = 128
    min_new_tokens: int = 0
    sample: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k_sampling: int = 0  # 0: no limit
    seed: int = 0
    stop_at_eos: bool = True
    window: int = 32
    top_k: int = 16
    stored_layers: list[int] | None = None
    lookaheads: list[str] = dataclasses.field(default_factory=list)
    lookahead_steps: int = 8
    second_reading: bool = False
    title: str = ""
    source: str = ""  # where the prompt came from: "typed", "sample …", "a.jsonl row 3"

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            object.__setattr__(self, name, _checked(name, hint, getattr(self, name)))
        for name, value in vars(self).items():
            if isinstance(value, str):
                require_text(name, value)
        if not self.prompt.strip():
            raise PromptError("The prompt is empty: type some text or choose another row.")
        if not self.model_id.strip():
            raise PromptError("No model is named: choose one, for example 'demo'.")
        self._one_of("dtype", DTYPES)
        if self.device.partition(":")[0] not in DEVICES:
            self._one_of("device", DEVICES)
        self._at_least("max_new_tokens", 1)
        self._at_least("min_new_tokens", 0)
        if self.min_new_tokens > self.max_new_tokens:
            raise PromptError(
                f"min_new_tokens is {self.min_new_tokens}, more than max_new_tokens "
                f"({self.max_new_tokens}): lower the first or raise the second."
            )
        coldest, hottest = TEMPERATURES
        if self.sample and not coldest <= self.temperature <= hottest:
            raise PromptError(
                f"temperature is {self.temperature:g}: use a value from {coldest:g} to "
                f"{hottest:g}, or turn sampling off."
            )
        if self.temperature < 0:
            raise PromptError(f"temperature is {self.temperature:g}: use a value of at least 0.")
        if not 0 < self.top_p <= 1:
            raise PromptError(f"top_p is {self.top_p:g}: use a value above 0 and at most 1.")
        self._at_least("top_k_sampling", 0)
        self._at_least("seed", 0)
        if self.seed >= 2**63:
            raise PromptError(f"seed is {self.seed}: use a value below 2^63.")
        self._at_least("window", 1)
        self._at_least("top_k", 1)
        if self.stored_layers is not None:
            if any(layer < 0 for layer in self.stored_layers):
                raise PromptError(
                    f"stored_layers names layer {min(self.stored_layers)}: layers are counted "
                    "from 0."
                )
            object.__setattr__(self, "stored_layers", sorted(set(self.stored_layers)))
        self._at_least("lookahead_steps", 1)
        if self.lookahead_steps > MAX_LOOKAHEAD:
            raise PromptError(
                f"lookahead_steps is {self.lookahead_steps}: use at most {MAX_LOOKAHEAD:,}."
            )
        lookaheads = [to_text(canonical_lookahead(text)) for text in self.lookaheads]
        object.__setattr__(self, "lookaheads", list(dict.fromkeys(lookaheads)))

    @property
    def passes(self) -> list[tuple[str, dict[str, Any]]]:
        """Kind and specification of each further pass, as `backend.passes` records them."""
        passes: list[tuple[str, dict[str, Any]]] = [
            ("lookahead", {"policy": canonical_lookahead(text), "steps": self.lookahead_steps})
            for text in self.lookaheads
        ]
        return passes + [("second_reading", {})] * self.second_reading

    @property
    def prompt(self) -> str:
        """The whole prompt text as typed, before any chat template."""
        return self.context + self.question

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values; `from_dict` gives the same specification back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CaptureSpec:
        """Raises PromptError for a field that does not exist or has the wrong type."""
        if not isinstance(values, Mapping):
            raise PromptError("The capture's settings are not a JSON object.")
        unknown = sorted(set(values) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise PromptError(f"A capture has no setting named '{unknown[0]}': remove it.")
        if "context" not in values:
            raise PromptError("The capture has no prompt: give it a 'context'.")
        return cls(**values)

    def _one_of(self, name: str, choices: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in choices:
            raise PromptError(f"{name} is '{value}': use one of {', '.join(choices)}.")

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value < least:
            raise PromptError(f"{name} is {value}: use a whole number of at least {least}.")


def canonical_lookahead(text: str) -> dict[str, Any]:
    """The policy of a lookahead from its text, in its one form. Raises PromptError."""
    try:
        form = canonical(from_text(text))
        score = catalogue()[form["key"]].score if "key" in form else form.get("score")
    except PolicyError as error:
        raise PromptError(f"A lookahead's policy cannot be used: {error}.") from error
    if "masks" in form or score in NEED_A_PASS:
        raise PromptError(
            f"A lookahead cannot be drafted with {text}: choose a policy that needs no further "
            "pass, such as snapkv(budget=256)."
        )
    return form


def _checked(name: str, hint: Any, value: Any) -> Any:
    """`value` as the field's declared type; JSON gives 1 for 1.0 and nothing else is bent."""
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    wanted = options[0]
    if wanted in (list[int], list[str]):
        kind = get_args(wanted)[0]
        if isinstance(value, list | tuple) and all(type(item) is kind for item in value):
            return list(value)
    elif wanted is float:
        if type(value) in (int, float) and math.isfinite(value):
            return float(value)
    elif type(value) is wanted:
        return value
    kinds = {
        str: "text",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        list[int]: "a list of whole numbers",
        list[str]: "a list of texts",
    }
    shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "…"
    raise PromptError(f"{name} is {shown}: give {kinds[wanted]}.")


def require_text(name: str, text: str) -> None:
    """Half of a surrogate pair is no text: tokenizers and files need UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(
            f"The {name} holds U+{ord(text[error.start]):04X} at character {error.start + 1}, "
            "half of a surrogate pair, which is no text: remove it."
        ) from error
