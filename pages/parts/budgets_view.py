"""The parts of the Budgets page: its controls and one function per row of figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from analysis.budgets import ALLOCATIONS
from analysis.budgets_figures import OVERRIDE
from analysis.context_scores import SOURCES
from analysis.figure import Figure, Note
from cache_store.reader import CaptureInfo
from kvpolicies.parameters import PARAMETERS
from pages.parts import budgets_slots, eviction_view, looks_budgets, paper_view, selection
from pages.parts.looks_budgets import TASKS, VARIANTS, Operators
from pages.parts.text import plain

NORMS = {"none": "none", "value": "‖v‖", "output": "‖vW_O‖"}
OPERATORS = {
    "agg_task": "Over the task's tokens",
    "agg_group": "Over the query heads of a group",
    "agg_head": "Over the KV heads of a slot",
}
FLOORS = {"one slot": 1, "none (the paper)": 0}
LAYER_0 = {"as the paper": "paper", "as kvpress": "kvpress"}
RULES = {ALLOCATIONS[key]: key for key in ("global", "head_adaptive", "pyramid", "composite")}
SHOWN_VARIANTS = VARIANTS[:4]


@dataclass(frozen=True)
class Look:
    """Everything the page shows, as chosen by the reader; all of it is in the URL."""

    run_id: str
    info: CaptureInfo
    runs: tuple[str, ...]
    layer: int
    kv_head: int
    ratio: float
    source: str
    operators: Operators
    floor: int
    match: str

    @property
    def settings(self) -> tuple[str, Operators, float, int]:
        return self.source, self.operators, self.ratio, self.floor

    @property
    def scored(self) -> tuple[str, str, Operators, float, int]:
        return self.run_id, *self.settings

    def link(self) -> dict[str, Any]:
        by = self.operators
        return {
            "run": self.run_id,
            "with": list(self.runs[1:]) or None,
            "layer": self.layer,
            "kv_head": self.kv_head,
            "ratio": f"{self.ratio:g}",
            "source": self.source,
            "agg_task": by.agg_task,
            "agg_group": by.agg_group,
            "agg_head": by.agg_head,
            "norm": NORMS[by.value_norm],
            "mean_term": "with" if by.head_mean else "without",
            "floor": next(words for words, value in FLOORS.items() if value == self.floor),
            "layer_0": next(words for words, value in LAYER_0.items() if value == self.match),
            **{key: st.query_params.get(key) for key in ("split", "slot", "first", "step")},
            "versus": st.query_params.get_all("versus") or None,
        }


def controls(run_id: str, info: CaptureInfo) -> Look:
    """One row of controls; the operators behind "More"."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        layer, kv_head = eviction_view.layer_and_head(run_id, info)
        ratio = _ratio()
        source = selection.segment(
            "Attention that counts",
            "source",
            list(SOURCES),
            help=". ".join(f"{key}: {words}" for key, words in SOURCES.items()),
        )
        with st.popover("More", icon=":material/tune:"):
            operators = _operators()
            floor = selection.segment("Least that every layer keeps", "floor", list(FLOORS))
            match = selection.segment("Layer 0 keeps", "layer_0", list(LAYER_0), help=OVERRIDE)
            runs = paper_view.pooled_runs(run_id, info, "context")
    budgets_slots.slots(info)
    return Look(
        run_id,
        info,
        runs,
        layer,
        kv_head,
        ratio,
        source,
        operators,
        FLOORS[floor],
        LAYER_0[match],
    )


def _ratio() -> float:
    text = paper_view.held("ratio", "0.75", _is_ratio, "the ratio goes from 0 to 1")
    st.slider(
        "Compression ratio r",
        0.0,
        1.0,
        step=0.01,
        key="compression_ratio",
        on_change=paper_view.hold("ratio", "compression_ratio", float(text)),
        help="The share of the context's entries that is evicted.",
    )
    return float(text)


def _is_ratio(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


def _operators() -> Operators:
    values = {}
    for key, label in OPERATORS.items():
        default = str(PARAMETERS[key].default)
        others = [str(value) for value in PARAMETERS[key].choices if value != default]
        values[key] = selection.segment(label, key, [default, *others])
    norm = selection.segment("Weighted by the norm of", "norm", list(NORMS.values()))
    term = selection.segment("The mean over heads is added (Eq. 16)", "mean_term", _TERM)
    weight = next(key for key, words in NORMS.items() if words == norm)
    return Operators(**values, value_norm=weight, head_mean=term == _TERM[0])


_TERM = ["with", "without"]


def show(look: Look) -> dict[str, str | Note]:
    ready = paper_view.ready(
        look.runs,
        lambda run: looks_budgets.composed(run, *look.settings, look.match),
        title="What each layer keeps",
        key="n",
    )
    if look.run_id not in ready:
        return {}  # every figure needs this run's attention and total
    figures: dict[str, Figure | None] = {}
    with st.grid(2, min_column_width=440):
        figures["What each layer keeps"] = _figure(
            look,
            "What each layer keeps",
            "layer-budgets",
            lambda: looks_budgets.layer_budgets(ready, *look.settings, look.match),
        )
        figures["At every ratio"] = _figure(
            look,
            "What each layer keeps at every ratio",
            "over-ratios",
            lambda: looks_budgets.budgets_over_ratios(ready, *look.settings),
        )
    if look.match != "paper":
        st.caption(plain(OVERRIDE))
    _splits(look, ready, figures)
    figures["Composite tokens"] = budgets_slots.composite(look)
    _effect(look, ready, figures)
    return paper_view.notes_of(figures) | {"The paper's settings": _settings(look)}


def _settings(look: Look) -> str:
    """Which of the paper's settings are shown."""
    operators = "as here" if look.operators == Operators() else "others are chosen here"
    floor = "as here" if look.floor == 0 else "here each keeps at least one slot"
    return (
        f"The paper takes the maximum over the task's tokens, means over group and heads, and adds "
        f"the mean over heads ({operators}); it sets no floor for a layer ({floor}). Task tokens "
        f"are a second reading of the context, or the question where it is known; here they are "
        f"{SOURCES[look.source]}."
    )


def _figure(
    look: Look, title: str, key: str, make: Callable[[], Figure], **more: Any
) -> Figure | None:
    return paper_view.attempt(
        make, title=title, key=key, run_id=look.run_id, link=look.link(), **more
    )


def _splits(look: Look, ready: tuple[str, ...], figures: dict[str, Figure | None]) -> None:
    """The same scores and total under other rules, by layer and by head."""
    with st.grid(2, min_column_width=440):
        figures["Other splits"] = _figure(
            look,
            "The same budget, split otherwise",
            "splits",
            lambda: looks_budgets.allocation_lines(ready, *look.settings),
        )
        with st.container(gap="xsmall"):
            words = selection.choice(
                "Split of the heads", "split", list(RULES), next(iter(RULES)), width=220
            )
            figures["By head"] = _figure(
                look,
                "Entries by layer and KV head",
                "head-budgets",
                lambda: looks_budgets.head_budgets(
                    ready, *look.settings, RULES[words], (look.layer, look.kv_head)
                ),
                height=paper_view.HEIGHT - 76,
                on_cell=eviction_view.go,
            )


def _effect(look: Look, ready: tuple[str, ...], figures: dict[str, Figure | None]) -> None:
    """What other operators or task tokens change, against the default."""
    own = next(name for name, source in TASKS.items() if source == look.source)
    offered = [name for name in VARIANTS if name != own]
    asked = [name for name in st.query_params.get_all("versus") if name in offered]
    now = asked or [name for name in SHOWN_VARIANTS if name in offered]
    with st.container(border=False, gap="xsmall"):
        st.multiselect(
            "Compared with the default",
            offered,
            key="variants",
            on_change=paper_view.hold("versus", "variants", now),
            help="Other operators over the same task tokens, or the default ones over others.",
        )
        there = tuple(name for name in now if _is_there(look, ready, name))
        figures["Operators"] = _figure(
            look,
            "Effect of the operators on the budgets",
            "operators",
            lambda: looks_budgets.operator_effect(
                ready, look.source, look.ratio, look.floor, there
            ),
        )


def _is_there(look: Look, ready: tuple[str, ...], name: str) -> bool:
    """Whether a variant can be drawn; otherwise what it needs stands above the figure."""
    there = paper_view.ready(
        ready,
        lambda run: looks_budgets.variant(run, look.source, look.ratio, look.floor, name),
        title=f"{name[0].upper()}{name[1:]}",
        key=f"variant-{VARIANTS.index(name)}",
    )
    return there == ready
