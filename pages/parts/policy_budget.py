"""The budget that all policies share: entries, the share evicted, or kilobytes."""

from __future__ import annotations

import math

import streamlit as st

from cache_store.reader import CaptureInfo
from pages.parts import selection
from pages.parts.policy_slots import UNITS, Budget
from pages.parts.text import shorten

_HELP = {
    "entries": "Entries kept per KV head and layer.",
    "ratio": "Compression ratio: the share of entries that is evicted; 0.75 keeps a quarter. Of "
    "the prompt for policies that evict once after it, of the whole text for the others.",
    "kB": "Keys and values kept in all layers and heads together, in kilobytes.",
}


def control(info: CaptureInfo) -> Budget:
    """The number and its unit, side by side; both are in the URL."""
    budget = chosen(info)
    # Said in every run: where two follow at once, as when replays arrive while the page opens, a
    # browser may see only the second, which would leave the field empty.
    st.session_state["budget"], st.session_state["unit"] = _typed(budget), budget.unit
    lowest, highest = limits(budget.unit, info)
    whole = budget.unit == "entries"
    st.number_input(
        "Budget",
        min_value=_typed(Budget(budget.unit, lowest)),
        max_value=_typed(Budget(budget.unit, highest)),
        value=None,  # a field that a browser shows before it is told its value reports nothing
        step=max(1, info.prompt_length // 32) if whole else _step(budget.unit, highest),
        format=None if whole else "%.4g",
        key="budget",
        help=_HELP[budget.unit],
        width=150,
        on_change=_changed,
        args=(budget.unit,),
    )
    st.selectbox("Unit", UNITS, key="unit", width=105, on_change=_unit_changed, args=(info,))
    return budget


def chosen(info: CaptureInfo) -> Budget:
    """The URL's budget; a quarter of the prompt where it has none or one that cannot be."""
    unit = st.query_params.get("unit", UNITS[0])
    if unit not in UNITS:
        says = f"The unit is one of {', '.join(UNITS)}."
        selection.notice("unit", f"There is no unit {shorten(unit, 20)!r} here: {says}")
        unit = UNITS[0]
    usual = Budget("entries", max(1, info.prompt_length // 4)).as_unit(unit, info)
    text = st.query_params.get("budget")
    if text is None:
        return usual
    lowest, highest = limits(unit, info)
    value = _number(text)
    if math.isnan(value) or not lowest <= value <= highest:
        selection.notice(
            "budget",
            f"There is no budget {shorten(text, 20)!r} here: it goes from {lowest:g} to "
            f"{highest:g} {unit}. Shown is {usual.value:g}.",
        )
        return usual
    selection.forget_notice("budget")
    return Budget(unit, int(value) if unit == "entries" else value)


def limits(unit: str, info: CaptureInfo) -> tuple[float, float]:
    """The smallest and largest budget of a run in a unit: one entry, and the whole text."""
    if unit == "ratio":
        return 0.0, 1.0
    return tuple(
        Budget("entries", entries).as_unit(unit, info).value for entries in (1, info.length)
    )  # type: ignore[return-value]


def _typed(budget: Budget) -> int | float:
    return int(budget.value) if budget.unit == "entries" else float(budget.value)


def _step(unit: str, highest: float) -> float:
    return 0.05 if unit == "ratio" else max(0.1, round(highest / 32, 1))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _changed(unit: str) -> None:
    """The number in the unit it was shown with: the address may still hold the unit before it."""
    value = st.session_state["budget"]
    if value is not None:
        st.query_params["unit"] = unit
        st.query_params["budget"] = f"{value:.10g}"


def _unit_changed(info: CaptureInfo) -> None:
    """The same budget in the other unit."""
    budget = chosen(info).as_unit(st.session_state["unit"], info)
    st.query_params["unit"] = budget.unit
    st.query_params["budget"] = f"{budget.value:.10g}"
