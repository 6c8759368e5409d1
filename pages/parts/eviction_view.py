"""The Eviction page's selection: the run's layer, head and step, the policies, and the panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import streamlit as st

from analysis.rows import MEAN
from cache_store.reader import CaptureInfo
from kvpolicies.choice import to_text
from pages.parts import (
    eviction_looks,
    looks,
    policy_budget,
    policy_picker,
    policy_replays,
    policy_slots,
    selection,
)
from pages.parts.policy_replays import Pending
from pages.parts.policy_slots import Budget, Choice

if TYPE_CHECKING:
    from analysis.replays import Replayed
    from pages.parts.policy_replays import Seen

PANELS = ("Masks", "Text", "Evidence", "Why and what it cost", "Run it for real")
HEIGHT = 400


@dataclass(frozen=True)
class Look:
    """Everything the page shows, as chosen by the reader; all of it is in the URL.

    `chosen` are the policies as picked, `choices` with the common budget, as they are replayed.
    """

    run_id: str
    info: CaptureInfo
    budget: Budget
    layer: int
    kv_head: int
    step: int
    positions: tuple[int, int]
    chosen: tuple[Choice, ...]
    choices: tuple[Choice, ...]
    seen: tuple[Seen, ...]
    panel: str

    @property
    def ready(self) -> list[Replayed]:
        """The policies whose replay is there, in their order."""
        return [replayed for replayed in self.seen if policy_replays.is_ready(replayed)]

    @property
    def names(self) -> tuple[str, ...]:
        """What the caches call the policies that are ready."""
        return tuple(eviction_looks.name_of(replayed.choice) for replayed in self.ready)

    @property
    def pending(self) -> list[tuple[int, Pending]]:
        return [(i, seen) for i, seen in enumerate(self.seen) if isinstance(seen, Pending)]

    def head_of(self, replayed: Replayed) -> int:
        """The chosen head in a policy's own numbering: query heads where each has its own set."""
        return self.kv_head * (replayed.evicted_at.shape[1] // self.info.kv_heads)

    def link(self, **more: Any) -> dict[str, Any]:
        """The values of the URL that reopen this view."""
        whole = (0, self.info.length)
        first, stop = self.positions
        policies = dict(zip(policy_slots.KEYS, map(to_text, self.chosen), strict=False))
        return {
            "run": self.run_id,
            **policies,
            "budget": f"{self.budget.value:.10g}",
            "unit": self.budget.unit,
            "layer": self.layer,
            "kv_head": self.kv_head,
            "step": self.step,
            "at": None if self.positions == whole else (first, stop - 1),
            "panel": self.panel,
            **{key: st.session_state.get(key) or st.query_params.get(key) for key in OF_PANELS},
            **more,
        }


OF_PANELS = ("one", "other", "focus", "texts", "page", "find", "span", "over", "regret")


def controls(run_id: str, info: CaptureInfo) -> Look:
    """One row of controls, the policies below it, and which panel is shown."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        budget = policy_budget.control(info)
        layer, kv_head = layer_and_head(run_id, info)
        step = step_after(info)
        with st.popover("More", icon=":material/tune:"):
            positions = selection.span("Positions of the masks", "at", info.length)
    chosen = policy_slots.choices()
    choices = [policy_slots.with_budget(choice, budget, info) for choice in chosen]
    seen = [policy_replays.replay(run_id, choice) for choice in choices]
    policy_picker.row(info, chosen, budget, seen)
    panel = selection.segment("Show", "panel", PANELS, label_visibility="collapsed")
    return Look(
        run_id,
        info,
        budget,
        layer,
        kv_head,
        step,
        positions,
        tuple(chosen),
        tuple(choices),
        tuple(seen),
        panel,
    )


def layer_and_head(run_id: str, info: CaptureInfo) -> tuple[int, int]:
    """Other pages know means and query heads: they lead to the head that looks far."""
    best_layer, best_head = looks.first_look(run_id)
    if MEAN in (st.session_state.get("layer"), st.query_params.get("layer")):
        st.session_state["layer"] = str(best_layer)
    asked = str(st.query_params.get("head", best_head))
    head = int(asked) if asked.isdecimal() and int(asked) < info.query_heads else best_head
    layers = [str(number) for number in range(info.layers)]
    heads = [str(number) for number in range(info.kv_heads)]
    layer = selection.choice("Layer", "layer", layers, str(best_layer), width=90)
    kv_head = selection.choice("KV head", "kv_head", heads, str(head // info.group), width=90)
    return int(layer), int(kv_head)


def step_after(info: CaptureInfo) -> int:
    """The step after which the caches are looked at; 0 is the end of the prompt."""
    asked = st.query_params.get("step")
    if selection.is_step(asked, 1 - info.prompt_length, -1):
        st.query_params["step"] = "0"  # another page's prompt token: nothing is evicted there yet
    if info.response_length == 0:
        return 0
    return selection.step_slider("Step", "step", 0, info.response_length, 0, info.response_length)


def pick(look: Look, label: str, key: str, default: int = 0) -> Seen:
    """One of the chosen policies, whether its replay is there already or not."""
    numbers = [str(number + 1) for number in range(len(look.seen))]
    titles = {
        number: policy_replays.short_name(seen.title)
        for number, seen in zip(numbers, look.seen, strict=True)
    }
    usual = numbers[min(default, len(numbers) - 1)]
    # A browser answers with the name that it shows. When an option of the policy changes its name,
    # that answer is none of these any more, and what was picked before still holds.
    before = st.session_state.get(f"{key}-before")
    if before in numbers and st.session_state.get(key) not in (None, *numbers):
        st.session_state[key] = before
    number = selection.choice(label, key, numbers, usual, format_func=titles.get, width=260)
    st.session_state[f"{key}-before"] = number
    return look.seen[int(number) - 1]


def focus(look: Look, label: str) -> Replayed:
    """The one policy that a panel looks at; another one that is there while its replay is not."""
    picked = pick(look, label, "focus")
    return picked if policy_replays.is_ready(picked) else look.ready[0]


def go(layer: int, head: int, group: int = 1) -> None:
    """From a click on a cell: this layer and KV head; `group` heads of the grid make one."""
    st.session_state["layer"] = str(layer)
    st.session_state["kv_head"] = str(head // group)
    selection.forget_notices()


def pending(look: Look, *, without: Sequence[int] = ()) -> None:
    """In the place of the figures: the replays that are not there yet."""
    missing = [(index, item) for index, item in look.pending if index not in without]
    if missing:
        with st.grid(2, min_column_width=440):
            for index, item in missing:
                policy_replays.waiting(item, key=str(index))
