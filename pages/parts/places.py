"""Controls that the papers' own views share: layer, head, step, numbers and pages of text."""

from __future__ import annotations

import math
from typing import Any

import streamlit as st

from analysis.rows import MEAN
from cache_store.reader import CaptureInfo
from pages.parts import looks, policy_slots, selection
from pages.parts.attention_view import PAGE_TOKENS
from pages.parts.text import plain, shorten


def layer(run_id: str, info: CaptureInfo) -> int:
    """One layer; another page's mean leads to the layer that looks far."""
    best, _ = looks.first_look(run_id)
    if MEAN in (st.session_state.get("layer"), st.query_params.get("layer")):
        st.session_state["layer"] = str(best)
    layers = [str(number) for number in range(info.layers)]
    return int(selection.choice("Layer", "layer", layers, str(best), width=90))


def query_head(run_id: str, info: CaptureInfo, *, mean: bool = False) -> int | str:
    """One query head, or with `mean` the mean over all; a KV head of another page leads to it."""
    _, best = looks.first_look(run_id)
    asked = st.query_params.get("kv_head", "")
    if asked.isdecimal() and int(asked) < info.kv_heads and best // info.group != int(asked):
        best = int(asked) * info.group
    if not mean and MEAN in (st.session_state.get("head"), st.query_params.get("head")):
        st.session_state["head"] = str(best)
    heads = [*([MEAN] if mean else []), *(str(number) for number in range(info.query_heads))]
    head = selection.choice("Head", "head", heads, str(best), width=100)
    return head if head == MEAN else int(head)


def kv_head(run_id: str, info: CaptureInfo) -> int:
    """One KV head; a query head of another page leads to its own."""
    _, best = looks.first_look(run_id)
    asked = st.query_params.get("head", "")
    head = int(asked) if asked.isdecimal() and int(asked) < info.query_heads else best
    heads = [str(number) for number in range(info.kv_heads)]
    return int(selection.choice("KV head", "kv_head", heads, str(head // info.group), width=90))


def step(info: CaptureInfo) -> int:
    """The step after which is looked; 0 is the end of the prompt, the default is the last."""
    asked = st.query_params.get("step")
    if selection.is_step(asked, 1 - info.prompt_length, -1):
        st.query_params["step"] = "0"  # another page's prompt token
    if info.response_length == 0:
        return 0
    return selection.step_slider("Step", "step", 0, info.response_length, 0, info.response_length)


def number(
    label: str, key: str, low: float, high: float, default: float, *, slider: bool = False,
    step: float = 1, **more: Any,
) -> float:  # fmt: skip
    """A number in the URL as `key`, whole where `step` is; falls back with a sentence.

    The URL holds the value and the control follows it, so that its range may change.
    """
    whole = isinstance(step, int)
    value = _number(st.query_params.get(key), whole)
    if value is None or not low <= value <= high:
        if key in st.query_params:
            asked = shorten(st.query_params[key], 20)
            says = f"{label} goes from {low:,} to {high:,}"
            selection.notice(key, f"There is no {key} {asked!r} here: {says}. Shown is {default}.")
            st.query_params.pop(key, None)
        value = default
    elif value != default:
        selection.forget_notice(key)
    kind = int if whole else float
    box = f"box-{key}"
    policy_slots.hold(box, kind(value))
    draw = st.slider if slider else st.number_input
    draw(
        label,
        min_value=kind(low),
        max_value=kind(high),
        step=kind(step),
        key=box,
        on_change=_write,
        args=(key, box),
        **more,
    )
    return kind(value)


def _write(key: str, box: str) -> None:
    st.query_params[key] = f"{st.session_state[box]:.10g}"
    selection.forget_notice(key)


def _number(text: str | None, whole: bool) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and (not whole or value.is_integer()) else None


def text_page(run_id: str, info: CaptureInfo, step: int) -> int | None:
    """Which page of a long text: the reader's, until another step or run asks for its own."""
    pages = math.ceil(info.length / PAGE_TOKENS)
    selection.settle_page(pages)
    if pages < 2:
        return None
    around = min(pages - 1, max(0, info.prompt_length + step - 1) // PAGE_TOKENS)
    seen, now = st.session_state.get("page_of"), (run_id, step)
    st.session_state["page_of"] = now
    asked = st.session_state.get("page", st.query_params.get("page"))
    if seen not in (None, now) or not selection.is_step(asked, 1, pages):
        asked = around + 1
    st.session_state["page"] = int(asked)
    st.pagination(pages, key="page", bind="query-params")
    return int(asked) - 1


def link(run_id: str, *keys: str, **values: Any) -> dict[str, Any]:
    """The values of the URL that reopen a view; `keys` are taken as they stand there."""
    return {"run": run_id, **values, **{key: st.query_params.get(key) for key in keys}}


def sentence(words: object) -> None:
    """In the place of a figure: why there is none."""
    with st.container(border=True):
        st.caption(plain(words))
