"""A policy of the reader's own: a score, an allocation and a schedule that work together."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from kvpolicies import PolicyError, catalogue
from pages.parts import backstage, policy_slots
from pages.parts.policy_slots import Choice
from pages.parts.text import plain

PARTS = ("score", "allocate", "schedule")


def show(index: int, choice: Choice) -> None:
    """Three choices, each offering what the ones before it allow, and why the others are not."""
    score, allocate, schedule = parts_of(choice)
    ideas = _ideas()
    scores = list(ideas["score"])
    allocations, without = possible_allocations(score)
    schedules, never = possible_schedules(score, allocate)
    for name, value, options in (
        ("score", score, scores),
        ("allocate", allocate, allocations),
        ("schedule", schedule, schedules),
    ):
        key = f"build-{index}-{name}"
        st.session_state[key] = value
        st.selectbox(
            name,
            options,
            key=key,
            format_func=lambda word: word.replace("_", " "),
            on_change=_changed,
            args=(index, choice, name, key),
        )
        st.caption(plain(ideas[name][value]))
    refused = {**without, **never}
    if refused:
        with st.expander(f"Not possible here: {', '.join(refused)}".replace("_", " ")):
            for word, reason in refused.items():
                st.caption(f"**{plain(word.replace('_', ' '))}**: {plain(reason)}.")


def start(choice: Choice) -> Choice:
    """The parts of a policy as a combination of the reader's own, to be changed from there."""
    score, allocate, schedule = parts_of(choice)
    return {"score": score, "allocate": allocate, "schedule": schedule}


def parts_of(choice: Choice) -> tuple[str, str, str]:
    """The names of the three parts that a choice has."""
    if "masks" in choice:
        return "window_attention", "uniform", "after_prefill"
    method = policy_slots.method_of(choice)
    return method.score, method.allocate, method.schedule


def possible_allocations(score: str) -> tuple[list[str], dict[str, str]]:
    """The allocations that a score can have with some schedule, and why not the others."""
    names = _ideas()
    possible, refused = [], {}
    for allocate in names["allocate"]:
        reasons = [refusal(score, allocate, schedule) for schedule in names["schedule"]]
        if None in reasons:
            possible.append(allocate)
        else:
            refused[allocate] = str(reasons[0])
    return possible, refused


def possible_schedules(score: str, allocate: str) -> tuple[list[str], dict[str, str]]:
    """The schedules for a score and an allocation, and why not the others."""
    reasons = {name: refusal(score, allocate, name) for name in _ideas()["schedule"]}
    possible = [name for name, reason in reasons.items() if reason is None]
    return possible, {name: reason for name, reason in reasons.items() if reason is not None}


@st.cache_data(max_entries=2048, show_spinner=False)
def refusal(score: str, allocate: str, schedule: str) -> str | None:
    """Why three parts do not work together, or None where they do."""
    backstage.heavy_imports()
    from kvpolicies import build

    budget = None if allocate == "per_head" else 64  # any budget: only the parts are judged
    try:
        build(score=score, allocate=allocate, schedule=schedule, budget=budget)
    except PolicyError as error:
        return str(error)
    return None


def nearest(score: str, wanted: Sequence[str]) -> tuple[str, str]:
    """The allocation and schedule to go on with: those wanted where the score allows them."""
    allocations, _ = possible_allocations(score)
    allocate = wanted[0] if wanted[0] in allocations else allocations[0]
    schedules, _ = possible_schedules(score, allocate)
    return allocate, wanted[1] if wanted[1] in schedules else schedules[0]


def _changed(index: int, choice: Choice, name: str, key: str) -> None:
    parts = dict(zip(PARTS, parts_of(choice), strict=True)) | {name: st.session_state[key]}
    allocate, schedule = nearest(parts["score"], (parts["allocate"], parts["schedule"]))
    policy_slots.replace(
        index, {"score": parts["score"], "allocate": allocate, "schedule": schedule}
    )


def _ideas() -> dict[str, dict[str, str]]:
    """Every score, allocation and schedule with its idea, a reader's own scores last."""
    backstage.heavy_imports()
    from kvpolicies.allocations import ALLOCATIONS
    from kvpolicies.schedules import SCHEDULES
    from kvpolicies.scores import SCORES

    catalogue()  # makes a reader's own scores known
    tables: tuple[tuple[str, dict[str, type]], ...] = (
        ("score", SCORES),
        ("allocate", ALLOCATIONS),
        ("schedule", SCHEDULES),
    )
    return {
        name: {key: str(getattr(kind, "idea", "")) for key, kind in table.items()}
        for name, table in tables
    }
