"""The study that is being put together: a draft in the session, and the specification it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from backend.study.checking import checked_budgets, checked_ratios
from backend.study.entries import DEFAULT_MEASURES, StudyError
from backend.study.spec import StudySpec
from kvpolicies.choice import from_text, to_text
from kvpolicies.errors import PolicyError
from pages.parts.study_ready import FIRST

_DRAFT, _SETS, _VERSION = "study_draft", "study_sets", "study_version"
SIZES = {"share evicted": "ratios", "entries kept": "budgets"}
KEPT = ("revision", "dtype", "device", "chat_template", "scope")  # fields without a control

Draft = dict[str, Any]


def draft() -> Draft:
    """What the form shows; a first study where nothing was put together yet."""
    if _DRAFT not in st.session_state:
        replace(FIRST)
    found: Draft = st.session_state[_DRAFT]
    return found


def sets() -> dict[str, bytes]:
    """The uploaded sets by name."""
    found: dict[str, bytes] = st.session_state.setdefault(_SETS, {})
    return found


def key(name: str) -> str:
    """A widget's key; another draft has other widgets, so that they show it."""
    return f"study-{st.session_state.get(_VERSION, 0)}-{name}"


def replace(values: Mapping[str, Any]) -> None:
    """Take a specification as the new draft."""
    unit = "entries kept" if values.get("budgets") else "share evicted"
    asked = values.get(SIZES[unit]) or [0.5, 0.75, 0.9]
    st.session_state[_DRAFT] = {
        "title": values.get("title", ""),
        "model": values.get("model", "demo"),
        "seed": values.get("seed", 0),
        "unit": unit,
        "sizes": ", ".join(f"{size:g}" for size in asked),
        "measures": list(values.get("measures") or DEFAULT_MEASURES),
        "tasks": [_task(task) for task in values.get("tasks", [])],
        "policies": [_policy_text(entry) for entry in values.get("policies", [])],
        "names": {
            _policy_text(entry): entry["name"]
            for entry in values.get("policies", [])
            if entry.get("name")
        },
        "kept": {name: values[name] for name in KEPT if values.get(name) is not None},
    }
    renew()


def renew() -> None:
    """Widgets are drawn anew from the draft, after it changed other than through them."""
    st.session_state[_VERSION] = st.session_state.get(_VERSION, 0) + 1


def _task(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The wording follows from the model, which may be another one by the time it is run."""
    options = {name: value for name, value in entry.get("options", {}).items() if name != "wording"}
    return {**entry, "options": options} if "task" in entry else dict(entry)


def _policy_text(entry: Mapping[str, Any]) -> str:
    choice = from_text(entry["policy"])
    choice["options"] = {**choice["options"], **entry.get("options", {})}
    return to_text(choice).removesuffix("()")


def spec() -> StudySpec:
    """The draft as a checked specification. Raises StudyError, one sentence."""
    now = draft()
    if now.get("problem"):
        raise StudyError(now["problem"])
    if not now["measures"]:
        raise StudyError("The study measures nothing: choose at least one measure, such as score.")
    values: dict[str, Any] = {
        **now["kept"],
        "title": now["title"],
        "model": now["model"],
        "seed": now["seed"],
        "measures": now["measures"],
        SIZES[now["unit"]]: _sizes(now),
        "tasks": now["tasks"],
        "policies": [_entry(text, now["names"]) for text in now["policies"]],
    }
    return StudySpec.from_dict(values)


def _sizes(now: Draft) -> list[int] | list[float]:
    whole = now["unit"] == "entries kept"
    example = "64, 128, 256" if whole else "0.5, 0.75, 0.9"
    try:
        found = numbers(now["sizes"], whole=whole)
    except StudyError as error:
        raise StudyError(f"Sizes: {error}") from error
    if not found:
        raise StudyError(f"There are no sizes: write them as {example}.")
    (checked_budgets if whole else checked_ratios)(found, "Sizes")
    return found


def _entry(text: str, names: Mapping[str, str]) -> dict[str, Any]:
    try:
        choice = from_text(text)
    except PolicyError as error:
        raise StudyError(f"The policy '{text}' cannot be used: {error.sentence}") from error
    head = to_text({**choice, "options": {}}).removesuffix("()")
    entry: dict[str, Any] = {"policy": head, "options": choice["options"]}
    return entry | ({"name": names[text]} if text in names else {})


def numbers(text: str, *, whole: bool) -> list[int] | list[float]:
    """Numbers as they are typed, "0.25, 0.5". Raises StudyError naming the word that is none."""
    found: list[Any] = []
    for word in text.replace(";", ",").split(","):
        if not word.strip():
            continue
        try:
            found.append(int(word) if whole else float(word))
        except ValueError as error:
            kind, example = ("a whole number", "64, 128") if whole else ("a number", "0.25, 0.5")
            words = f"'{word.strip()}' is not {kind}: write them as {example}."
            raise StudyError(words) from error
    return found
