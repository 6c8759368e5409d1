"""Up to four policies side by side, kept in the URL as p1 ... p4, and the budget they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

from cache_store.reader import CaptureInfo
from kvpolicies import PolicyError, catalogue
from kvpolicies.choice import canonical, from_text, to_text
from kvpolicies.methods import Method
from pages.parts import selection

KEYS = ("p1", "p2", "p3", "p4")
DEFAULT = ("streaming_llm", "h2o", "snapkv", "lazyeviction")
UNITS = ("entries", "ratio", "kB")
KILO = 1000
_BYTES = {"float32": 4, "float64": 8}
_FAILED = "policy_failed"

Choice = dict[str, Any]


@dataclass(frozen=True)
class Budget:
    """The budget all policies share: entries per KV head and layer, the share evicted, or kB."""

    unit: str
    value: float

    def options(self, info: CaptureInfo) -> dict[str, Any]:
        """The budget as a parameter of `kvpolicies.build`."""
        if self.unit == "ratio":
            return {"compression_ratio": self.value}
        return {"budget": self.entries(info)}

    def entries(self, info: CaptureInfo) -> int:
        """Entries per KV head and layer; a ratio is taken of the prompt."""
        if self.unit == "entries":
            return int(self.value)
        if self.unit == "ratio":
            return max(1, int((1 - self.value) * info.prompt_length + 1e-9))
        return max(1, int(self.value * KILO / entry_bytes(info)))

    def as_unit(self, unit: str, info: CaptureInfo) -> Budget:
        """The same budget, as near as it can be said, in another unit."""
        entries = self.entries(info)
        if unit == "ratio":
            return Budget(unit, round(max(0.0, 1 - entries / info.prompt_length), 3))
        if unit == "kB":
            return Budget(unit, round(entries * entry_bytes(info) / KILO, 3))
        return Budget(unit, entries)


def entry_bytes(info: CaptureInfo) -> int:
    """Bytes of one key and one value in every layer and KV head, as the model stores them."""
    size = _BYTES.get(str(info.dtype).removeprefix("torch."), 2)
    return 2 * info.layers * info.kv_heads * info.head_dim * size


def choices() -> list[Choice]:
    """The chosen policies without the common budget; the default four where the URL has none."""
    asked = [(key, st.query_params[key]) for key in KEYS if key in st.query_params]
    found: list[Choice] = []
    for key, text in asked:
        try:
            choice = from_text(text)
            canonical(choice)
            found.append(choice)
            selection.forget_notice(key)
        except PolicyError as error:
            selection.notice(key, f"The address names no usable policy as {key}: {error}.")
    return found or [{"key": key} for key in DEFAULT]


def write(chosen: list[Choice]) -> None:
    """From a callback: these are the policies now."""
    for index, key in enumerate(KEYS):
        selection.forget_notice(key)
        if index < len(chosen):
            st.query_params[key] = to_text(chosen[index])
        else:
            st.query_params.pop(key, None)
    forget_failures()


def replace(index: int, choice: Choice) -> None:
    """From a callback: another policy, or other options, in one place."""
    now = choices()
    write([*now[:index], choice, *now[index + 1 :]])


def remove(index: int) -> None:
    """From a callback: one policy less."""
    now = choices()
    write([*now[:index], *now[index + 1 :]])


def add() -> None:
    """From a callback: the first of the catalogue's policies that is not shown yet."""
    now = choices()
    shown = {choice.get("key") for choice in now}
    fresh = next((key for key in (*DEFAULT, *catalogue()) if key not in shown), DEFAULT[0])
    write([*now, {"key": fresh}])


def with_budget(choice: Choice, budget: Budget, info: CaptureInfo) -> Choice:
    """The choice as it is run: with the common budget, unless it has its own or takes none."""
    options = dict(choice.get("options") or {})
    if takes_budget(choice) and not own_budget(choice):
        options |= budget.options(info)
    return {**choice, "options": options} if "masks" not in choice else choice


def own_budget(choice: Choice) -> bool:
    """Whether the choice itself says how much it keeps."""
    options: Mapping[str, Any] = choice.get("options") or {}
    named = ("budget", "compression_ratio", "keep_ratio")
    return any(options.get(name) is not None for name in named)


def takes_budget(choice: Choice) -> bool:
    """Whether a budget changes anything."""
    return "masks" not in choice and method_of(choice).budget != "none"


def method_of(choice: Choice) -> Method:
    """The catalogue's row, or a row made for a combination of the reader's own."""
    if choice.get("key") is not None:
        method = catalogue()[choice["key"]]
        if not ("allocate" in choice or "schedule" in choice):
            return method
        parts = (method.score, method.allocate, method.schedule)
        defaults = method.defaults
    else:
        parts, defaults = ("", "uniform", "after_prefill"), {}
    score, allocate, schedule = (
        str(choice.get(name) or part).partition("(")[0]
        for name, part in zip(("score", "allocate", "schedule"), parts, strict=True)
    )
    budget = "none" if allocate == "per_head" else "required"
    if schedule == "per_partition":
        budget = "optional"
    return Method(
        "custom",
        f"{score} × {allocate} × {schedule}",
        "A combination of your own.",
        "",
        score,
        allocate,
        schedule,
        defaults,
        budget=budget,
    )


def failure(index: int) -> str | None:
    """Why the last change of a policy's options was not taken, as one sentence."""
    return st.session_state.get(_FAILED, {}).get(index)


def fail(index: int, sentence: str) -> None:
    st.session_state.setdefault(_FAILED, {})[index] = sentence


def forget_failures() -> None:
    st.session_state.pop(_FAILED, None)


_NOTHING = object()
_SAID_AGAIN = 3  # runs


def hold(key: str, value: Any) -> None:
    """Before a control is drawn: it shows the URL's value, and keeps what is being typed.

    A value is said in a few runs: where two follow at once, as when replays arrive, a browser may
    see only the second and would show a field without its value. Saying it in every run would
    wipe out what the reader types meanwhile.
    """
    held, again = st.session_state.get(f"held-{key}", (_NOTHING, 0))
    if key not in st.session_state or held != value:
        st.session_state[key], again = value, _SAID_AGAIN
    elif again:
        st.session_state[key] = st.session_state[key]
        again -= 1
    st.session_state[f"held-{key}"] = (value, again)
