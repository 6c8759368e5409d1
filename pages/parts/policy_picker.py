"""The row of up to four policies: which, with which options, and what each of them kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from analysis.colours import policy_colour
from analysis.distances import eviction_interval
from cache_store.reader import CaptureInfo
from kvpolicies import catalogue
from kvpolicies.choice import canonical, title
from pages.parts import policy_builder, policy_form, policy_masks, policy_slots
from pages.parts.policy_replays import Pending, short_name
from pages.parts.policy_slots import Budget, Choice
from pages.parts.text import number, plain, size

if TYPE_CHECKING:
    from analysis.replays import Replayed
    from pages.parts.policy_replays import Seen

BUILD = "*build"
MASKS = "*masks"
OWN = {"build": "Build a policy", "masks": "Keep-masks from another tool"}


def row(info: CaptureInfo, chosen: list[Choice], budget: Budget, seen: list[Seen]) -> None:
    """One card per policy, and the button for one more."""
    _colours(chosen)
    with st.grid(4, min_column_width=205, gap="small", key="policies"):
        for index, (choice, replayed) in enumerate(zip(chosen, seen, strict=True)):
            _slot(index, choice, len(chosen), info, budget, replayed)
        if len(chosen) < len(policy_slots.KEYS):
            st.button(
                "Policy",
                icon=":material/add:",
                help="Compare one more policy",
                key="add-policy",
                on_click=policy_slots.add,
            )
    policy_masks.dialog_if_asked(info.id)


def _slot(
    index: int,
    choice: Choice,
    count: int,
    info: CaptureInfo,
    budget: Budget,
    replayed: Seen,
) -> None:
    with st.container(gap=None, key=f"slot-{index}"):
        _pick(index, choice, info.id)
        with st.container(horizontal=True, gap="xsmall", wrap=False):
            st.caption(plain(_kept(choice, info, budget, replayed)), width="stretch")
            if "masks" not in choice:
                options = st.popover(
                    "Options",
                    type="tertiary",
                    key=f"options-{index}",
                    on_change="rerun",
                    width="content",
                )
                if options.open:
                    with options:
                        _options(index, choice)
            if count > 1:
                st.button(
                    "",
                    icon=":material/close:",
                    type="tertiary",
                    help="Remove this policy",
                    key=f"remove-{index}",
                    on_click=policy_slots.remove,
                    args=(index,),
                )


def _options(index: int, choice: Choice) -> None:
    if "score" in choice or "allocate" in choice or "schedule" in choice:
        policy_builder.show(index, choice)
    policy_form.show(index, choice)


def _pick(index: int, choice: Choice, run_id: str) -> None:
    """The select box: the catalogue, then the reader's own ways."""
    now = _entry(choice)
    entries = [BUILD, MASKS, *catalogue()]
    names = {key: method.title for key, method in catalogue().items()}
    names |= {BUILD: f"{OWN['build']} …", MASKS: f"{OWN['masks']} …"}
    if now not in entries:
        entries.append(now)
        names[now] = _own_name(run_id, choice)
    key = f"policy-{index}"
    st.session_state[key] = now
    st.selectbox(
        f"Policy {index + 1}",
        entries,
        format_func=lambda entry: names.get(entry, entry),
        key=key,
        label_visibility="collapsed",
        on_change=_picked,
        args=(index, choice, key),
    )


def _entry(choice: Choice) -> str:
    """The entry of the select box that a choice is."""
    if choice.get("key") and not ("allocate" in choice or "schedule" in choice):
        return str(choice["key"])
    return f"*{title({**choice, 'options': {}} if 'masks' not in choice else choice)}"


def _own_name(run_id: str, choice: Choice) -> str:
    """What the reader made or brought: a file's name, or the parts of a combination."""
    if "masks" in choice:
        return policy_masks.label(run_id, str(choice["masks"]))
    return title({**choice, "options": {}})


def _picked(index: int, choice: Choice, key: str) -> None:
    picked = st.session_state[key]
    if picked == MASKS:
        policy_masks.ask(index)
    elif picked == BUILD:
        policy_slots.replace(index, policy_builder.start(choice))
        st.session_state[f"options-{index}"] = True
    elif not picked.startswith("*"):
        policy_slots.replace(index, {"key": picked})


def _kept(choice: Choice, info: CaptureInfo, budget: Budget, replayed: Seen) -> str:
    """What was asked for and what is really kept, and the options that are not the defaults."""
    own = short_name(title(choice)).partition(", ")[2]
    asked = _asked(choice, info, budget)
    if isinstance(replayed, Pending):
        return " · ".join(part for part in (f"{asked} asked" if asked else "", own) if part)
    facts = replayed.facts
    kept = f"{number(facts['realised_budget'])} kept" if "realised_budget" in facts else ""
    held = (
        f"{size(facts['bytes_kept'])} of {size(facts['bytes_full'])}"
        if {"bytes_kept", "bytes_full"} <= facts.keys()
        else ""
    )
    parts = (f"{asked} asked" if asked else "", kept, held, _first(replayed), own)
    return " · ".join(part for part in parts if part)


def _first(replayed: Replayed) -> str:
    """When it would first evict, where the response is too short for it."""
    interval = eviction_interval(replayed.choice)
    if interval is None or interval <= replayed.response_length:
        return ""
    return f"evicts first at step {interval:,}"


def _asked(choice: Choice, info: CaptureInfo, budget: Budget) -> str:
    """The requested budget in words; nothing for a policy that takes none."""
    if not policy_slots.takes_budget(choice):
        return ""
    options = choice.get("options") or {}
    if options.get("keep_ratio") is not None:
        return f"{options['keep_ratio']:.3g} of each partition"
    if options.get("compression_ratio") is not None:
        return f"{options['compression_ratio']:.3g} evicted"
    if options.get("budget") is not None:
        return number(options["budget"])
    if budget.unit == "ratio":
        return f"{budget.value:.3g} evicted"
    return number(budget.entries(info))


def _colours(chosen: list[Choice]) -> None:
    """Each policy's own colour as a bar above its card: the same that its lines have."""
    rules = "".join(
        f".st-key-slot-{index} {{border-top: 3px solid {policy_colour(canonical(choice))};"
        "padding-top: 0.35rem;}"
        for index, choice in enumerate(chosen)
    )
    st.html(f"<style>{rules}</style>")
